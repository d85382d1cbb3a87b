#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/load/engine_page.h"
#include "wire/vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Figures that are not given here are 0 and not reported. */
struct want {
    unsigned stats; /* bits 1 << kvb_load_figure */
    bool has_rank;
    uint32_t rank;
    struct kvb_load load;
};

enum {
    active = 1 << KVB_FIGURE_ACTIVE_SLOTS,
    waiting = 1 << KVB_FIGURE_WAITING,
    used = 1 << KVB_FIGURE_ACTIVE_BLOCKS,
    total = 1 << KVB_FIGURE_TOTAL_BLOCKS,
    usage = 1 << KVB_FIGURE_USAGE,
    hit_rate = 1 << KVB_FIGURE_HIT_RATE,
    all = active | waiting | used | total | usage | hit_rate
};

static struct kvb_engine_page *new_page(uint32_t block_size)
{
    struct kvb_engine_page *page = NULL;

    assert_ok(kvb_engine_page_new(block_size, "m", &page));
    return page;
}

static kvb_status feed(struct kvb_engine_page *page, const char *text)
{
    return kvb_engine_page_feed(page, (kvb_span){ (const uint8_t *)text, strlen(text) });
}

static void assert_sample(const struct kvb_load_sample *sample, const struct want *want)
{
    const struct kvb_load *load = &sample->load;

    assert_int_equal(sample->has_rank, want->has_rank);
    assert_int_equal(sample->dp_rank, want->rank);
    assert_int_equal(sample->stats, want->stats);
    assert_int_equal(load->request_active_slots, want->load.request_active_slots);
    assert_int_equal(load->request_total_slots, 0);
    assert_int_equal(load->num_requests_waiting, want->load.num_requests_waiting);
    assert_int_equal(load->kv_active_blocks, want->load.kv_active_blocks);
    assert_int_equal(load->kv_total_blocks, want->load.kv_total_blocks);
    assert_true(load->gpu_cache_usage_perc == want->load.gpu_cache_usage_perc);
    assert_true(load->gpu_prefix_cache_hit_rate == want->load.gpu_prefix_cache_hit_rate);
}

static void
assert_page(struct kvb_engine_page *page, const char *text, size_t count, const struct want *want)
{
    const struct kvb_load_sample *samples = NULL;
    size_t got = 0;

    kvb_engine_page_begin(page);
    assert_ok(feed(page, text));
    assert_ok(kvb_engine_page_end(page, &samples, &got));
    assert_int_equal(got, count);
    for (size_t i = 0; i < count; i++) {
        assert_sample(&samples[i], &want[i]);
    }
}

/* ---- A real engine ---- */

/* vLLM 0.32 with two ranks of 64 blocks each; num_gpu_blocks is 128 for both together. 42 = 0.6667
 * of 63 and 27 = 0.4286 of 63, because vLLM never uses one of the blocks. */
static void the_recorded_data_parallel_run_is_read_by_rank(void **state)
{
    (void)state;
    const struct want want[] = {
        { all,
          true,
          0,
          { .request_active_slots = 4,
            .kv_active_blocks = 42,
            .kv_total_blocks = 64,
            .gpu_cache_usage_perc = 0.6666666666666667F } },
        { all,
          true,
          1,
          { .request_active_slots = 3,
            .kv_active_blocks = 27,
            .kv_total_blocks = 64,
            .gpu_cache_usage_perc = 0.4285714285714286F } },
    };
    char *text = read_text_file("vllm-0.32/metrics-dp2.txt");
    struct kvb_engine_page *page = new_page(1);

    assert_page(page, text, 2, want);
    assert_int_equal(kvb_engine_page_count(page).refused, 0);
    kvb_engine_page_free(page);
    free(text);
}

/* The idle page was recorded before the one under load, from one incarnation of the engine; in
 * between 788 tokens were queried without a hit. Going back to the idle page looks like a restart.
 */
static void the_recorded_pages_of_one_engine_give_a_hit_rate(void **state)
{
    (void)state;
    const struct want idle = { all,
                               true,
                               0,
                               { .kv_total_blocks = 64,
                                 .gpu_prefix_cache_hit_rate = (float)(1376.0 / 3194.0) } };
    const struct want busy = { all,
                               true,
                               0,
                               { .request_active_slots = 4,
                                 .num_requests_waiting = 10,
                                 .kv_active_blocks = 56,
                                 .kv_total_blocks = 64,
                                 .gpu_cache_usage_perc = 0.8888888888888888F } };
    char *idle_text = read_text_file("vllm-0.32/metrics-idle.txt");
    char *busy_text = read_text_file("vllm-0.32/metrics-load.txt");
    struct kvb_engine_page *page = new_page(1);

    assert_page(page, idle_text, 1, &idle);
    assert_page(page, busy_text, 1, &busy);
    assert_int_equal(kvb_engine_page_count(page).resets, 0);
    assert_page(page, idle_text, 1, &idle);
    assert_int_equal(kvb_engine_page_count(page).resets, 1);
    kvb_engine_page_free(page);
    free(idle_text);
    free(busy_text);
}

/* ---- Names ---- */

static void old_names_and_no_engine_label_are_read(void **state)
{
    (void)state;
    const struct want want = { all,
                               false,
                               0,
                               { .request_active_slots = 2,
                                 .num_requests_waiting = 1,
                                 .kv_active_blocks = 50,
                                 .kv_total_blocks = 101,
                                 .gpu_cache_usage_perc = 0.5F,
                                 .gpu_prefix_cache_hit_rate = 0.25F } };
    struct kvb_engine_page *page = new_page(1);

    assert_page(
        page,
        "vllm:num_requests_running{model_name=\"m\"} 2\n"
        "vllm:num_requests_waiting{model_name=\"m\"} 1\n"
        "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n"
        "vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 400\n"
        "vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 100\n"
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"101\"} 1.0",
        1, &want);
    kvb_engine_page_free(page);
}

/* Similar names begin or end alike. Where a figure has an old and a new name, the new one counts.
 */
static void names_are_matched_whole(void **state)
{
    (void)state;
    const struct want want = { active | usage | hit_rate,
                               true,
                               0,
                               { .request_active_slots = 2,
                                 .gpu_cache_usage_perc = 0.25F,
                                 .gpu_prefix_cache_hit_rate = 0.5F } };
    struct kvb_engine_page *page = new_page(1);

    assert_page(
        page,
        "vllm:num_requests_running{engine=\"0\"} 2\n"
        "vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 9\n"
        "xvllm:num_requests_waiting{engine=\"0\"} 9\n"
        "vllm:num_requests_waitin{engine=\"0\"} 9\n"
        "vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n"
        "vllm:gpu_cache_usage_perc{engine=\"0\"} 0.75\n"
        "vllm:prefix_cache_hits_total{engine=\"0\"} 5\n"
        "vllm:prefix_cache_hits_created{engine=\"0\"} 1.7e9\n"
        "vllm:external_prefix_cache_hits_total{engine=\"0\"} 10\n"
        "vllm:prefix_cache_queries_total{engine=\"0\"} 10\n"
        "vllm:prefix_cache_queries_created{engine=\"0\"} 1.7e9\n",
        1, &want);
    kvb_engine_page_free(page);
}

/* ---- Blocks ---- */

#define RANK(r)                                                                                    \
    "vllm:kv_cache_usage_perc{engine=\"" r "\"} 0.5\nvllm:num_requests_running{engine=\"" r        \
    "\"} 1\n"
#define CONFIG(labels) "vllm:cache_config_info{" labels "} 1.0\n"

static void blocks_of_a_rank_are_found_in_each_way(void **state)
{
    (void)state;
    const struct {
        const char *config;
        uint64_t blocks;
    } cases[] = {
        { CONFIG("engine=\"0\",block_size=\"32\",kv_cache_size_tokens=\"3232\",num_gpu_blocks="
                 "\"128\""),
          101 },
        { CONFIG("engine=\"0\",block_size=\"32\",kv_cache_size_tokens=\"None\",num_gpu_blocks="
                 "\"202\""),
          101 },
        { CONFIG("engine=\"0\",block_size=\"None\",kv_cache_size_tokens=\"64\",num_gpu_blocks="
                 "\"202\""),
          101 },
        { CONFIG(
              "engine=\"0\",block_size=\"0\",kv_cache_size_tokens=\"64\",num_gpu_blocks=\"202\""),
          101 },
        { CONFIG("engine=\"0\",num_gpu_blocks=\"202\""), 101 },
        { CONFIG("num_gpu_blocks=\"202\""), 101 }, /* a page without ranks: the total of all */
        { CONFIG("engine=\"0\",num_gpu_blocks=\"None\""), 0 },
        { CONFIG("engine=\"0\",num_gpu_blocks=\"-5\""), 0 },
        { CONFIG("engine=\"0\",num_gpu_blocks=\"99999999999999999999999\""), 0 },
        { CONFIG("engine=\"0\",num_gpu_blocks_override=\"64\",num_cpu_blocks=\"64\""), 0 },
        { "", 0 },
    };
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        char text[1024];
        const struct kvb_load_sample *samples = NULL;
        struct kvb_engine_page *page = new_page(1);
        size_t count = 0;
        (void)snprintf(text, sizeof text, "%s%s", RANK("0") RANK("1"), cases[i].config);
        assert_ok(feed(page, text));
        assert_ok(kvb_engine_page_end(page, &samples, &count));
        assert_int_equal(count, 2);
        const struct kvb_load *load = &samples[0].load;
        assert_int_equal(load->kv_total_blocks, cases[i].blocks);
        assert_int_equal(load->kv_active_blocks, cases[i].blocks > 0 ? 50 : 0);
        assert_int_equal((samples[0].stats & total) != 0, cases[i].blocks > 0);
        assert_int_equal((samples[0].stats & used) != 0, cases[i].blocks > 0);
        kvb_engine_page_free(page);
    }
}

/* ---- Hit rate ---- */

static void the_hit_rate_covers_the_recent_past(void **state)
{
    (void)state;
    const struct {
        unsigned hits;
        unsigned queries;
        float rate;
        bool is_refused;
    } pages[] = {
        { 10, 40, 0.25F, false },   /* since the start of the engine */
        { 40, 80, 0.75F, false },   /* 30 of 40 */
        { 40, 80, 0, false },       /* 0 of 0 */
        { 40, 180, 0, false },      /* 0 of 100 */
        { 1, 4, 0.25F, false },     /* a restart: from 0 again */
        { 1, 2, 0.5F, false },      /* another, seen in one counter */
        { 32, 64, 0.5F, false },    /* 31 of 62 */
        { 16, 128, 0.125F, false }, /* and in the other counter */
        { 150, 129, 0, true },      /* more hits than queries */
        { 151, 131, 0.5F, false },
    };
    struct kvb_engine_page *page = new_page(1);

    for (size_t i = 0; i < KVB_COUNT_OF(pages); i++) {
        char text[256];
        const struct want want = { pages[i].is_refused ? active : active | hit_rate,
                                   true,
                                   3,
                                   { .request_active_slots = 1,
                                     .gpu_prefix_cache_hit_rate = pages[i].rate } };
        (void)snprintf(
            text, sizeof text,
            "vllm:num_requests_running{engine=\"3\"} 1\n"
            "vllm:prefix_cache_hits_total{engine=\"3\"} %u\n"
            "vllm:prefix_cache_queries_total{engine=\"3\"} %u\n",
            pages[i].hits, pages[i].queries);
        assert_page(page, text, 1, &want);
    }
    assert_int_equal(kvb_engine_page_count(page).resets, 3);
    assert_int_equal(kvb_engine_page_count(page).refused, 1);
    kvb_engine_page_free(page);
}

/* A truncated page is ignored, and no later page is compared with it. */
static void a_truncated_page_is_ignored(void **state)
{
    (void)state;
    const struct want want = {
        active | hit_rate, true, 0, { .request_active_slots = 1, .gpu_prefix_cache_hit_rate = 0.5F }
    };
    const char *const counters = "vllm:prefix_cache_hits_total{engine=\"0\"} 5\n"
                                 "vllm:prefix_cache_queries_total{engine=\"0\"} 10\n";
    char text[256];
    struct kvb_engine_page *page = new_page(1);

    kvb_engine_page_begin(page);
    assert_ok(feed(page, counters));
    assert_ok(feed(page, "vllm:num_requests_waiting{engine=\"0\"} 7\nvllm:num_requests_wai"));
    assert_ok(feed(page, RANK("1")));
    (void)snprintf(text, sizeof text, "vllm:num_requests_running{engine=\"0\"} 1\n%s", counters);
    assert_page(page, text, 1, &want);
    kvb_engine_page_free(page);
}

/* ---- Impossible values ---- */

static void impossible_figures_are_counted_and_the_others_are_used(void **state)
{
    (void)state;
    const struct want want = { active, true, 0, { .request_active_slots = 2 } };
    const char *const bad[] = {
        "vllm:num_requests_waiting{engine=\"0\"} NaN",
        "vllm:num_requests_waiting{engine=\"0\"} -1",
        "vllm:num_requests_waiting{engine=\"0\"} +Inf",
        "vllm:num_requests_waiting{engine=\"0\"} 1e300",
        "vllm:num_requests_waiting{engine=\"0\"}",
        "vllm:num_requests_waiting{engine=\"0\" 1",
        "vllm:num_requests_waiting{engine=\"zero\"} 1",
        "vllm:num_requests_waiting{engine=\"\"} 1",
        "vllm:num_requests_waiting{engine=\"4294967296\"} 1",
        "vllm:kv_cache_usage_perc{engine=\"0\"} 1.01",
        "vllm:kv_cache_usage_perc{engine=\"0\"} -0.01",
        "vllm:kv_cache_usage_perc{engine=\"0\"} nan",
        "sglang:cache_hit_rate{tp_rank=\"0\"} 33",
        "sglang:num_running_reqs{tp_rank=\"x\"} 1",
    };
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        struct kvb_engine_page *page = new_page(1);
        char text[256];
        (void)snprintf(
            text, sizeof text, "%s\nvllm:num_requests_running{engine=\"0\"} 2\n", bad[i]);
        assert_page(page, text, 1, &want);
        assert_int_equal(kvb_engine_page_count(page).refused, 1);
        kvb_engine_page_free(page);
    }
}

static void a_page_without_load_is_refused(void **state)
{
    (void)state;
    const char *const pages[] = {
        "",
        "\n\n",
        "<html><body>404</body></html>",
        "process_cpu_seconds_total 1\n",
        "vllm:num_requests_waiting_by_reason{engine=\"0\"} 1\n",
        "vllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"64\"} 1.0",
        "vllm:num_requests_running{engine=\"0\"} NaN\n",
        "sglang:num_running_reqs{tp_rank=\"1\"} 4\n",
        "vllm:prefix_cache_hits_total{engine=\"0\"} 4\n",
    };
    for (size_t i = 0; i < KVB_COUNT_OF(pages); i++) {
        const struct kvb_load_sample *samples = NULL;
        size_t count = 77;
        struct kvb_engine_page *page = new_page(1);
        kvb_engine_page_begin(page);
        assert_ok(feed(page, pages[i]));
        assert_int_equal(kvb_engine_page_end(page, &samples, &count), KVB_BAD_INPUT);
        assert_int_equal(count, 77);
        kvb_engine_page_free(page);
    }
}

/* Labels that change with every page must not accumulate. */
static void ranks_have_a_ceiling_and_old_ones_are_dropped(void **state)
{
    (void)state;
    struct kvb_engine_page *page = new_page(1);
    kvb_status status = KVB_OK;
    char text[128];

    for (unsigned i = 0; i < 4 * kvb_max_ranks; i++) {
        const struct want want = { active, true, i, { .request_active_slots = 1 } };
        (void)snprintf(text, sizeof text, "vllm:num_requests_running{engine=\"%u\"} 1\n", i);
        if (i % 200 != 199) { /* whether the previous page was complete or not */
            kvb_engine_page_begin(page);
            assert_ok(feed(page, text));
        } else {
            assert_page(page, text, 1, &want);
        }
    }
    kvb_engine_page_begin(page);
    for (unsigned i = 0; i <= kvb_max_ranks && status == KVB_OK; i++) {
        (void)snprintf(text, sizeof text, "vllm:num_requests_running{engine=\"%u\"} 1\n", i);
        status = feed(page, text);
        assert_int_equal(status, i < kvb_max_ranks - 1 ? KVB_OK : status);
    }
    assert_int_equal(status, KVB_TOO_LARGE);
    kvb_engine_page_free(page);
    kvb_engine_page_free(NULL);
}

/* ---- SGLang ---- */

#define SGL(name, labels, value) "sglang:" name "{model_name=\"m\"," labels "} " value "\n"

static void of_sglang_the_first_tensor_rank_is_read(void **state)
{
    (void)state;
    const struct want want = { all,
                               false,
                               0,
                               { .request_active_slots = 3,
                                 .num_requests_waiting = 2,
                                 .kv_active_blocks = 1000, /* SGLang reserves no block */
                                 .kv_total_blocks = 1000,
                                 .gpu_cache_usage_perc = 1,
                                 .gpu_prefix_cache_hit_rate = 0.5F } };
    struct kvb_engine_page *page = new_page(64);

    assert_page(
        page,
        SGL("num_running_reqs", "tp_rank=\"1\"", "9") SGL(
            "num_running_reqs", "tp_rank=\"0\"", "3.0") SGL("num_queue_reqs", "tp_rank=\"0\"", "2")
            SGL("token_usage", "tp_rank=\"0\"", "1.0") SGL("token_usage", "tp_rank=\"1\"", "0.99")
                SGL("max_total_num_tokens", "tp_rank=\"0\"", "64063.0")
                    SGL("cache_hit_rate", "tp_rank=\"0\"", "0.5"),
        1, &want);
    kvb_engine_page_free(page);
}

static void sglangs_page_size_is_used_if_it_is_reported(void **state)
{
    (void)state;
    const struct want want = {
        total | active, false, 0, { .request_active_slots = 1, .kv_total_blocks = 500 }
    };
    struct kvb_engine_page *page = new_page(64);

    assert_page(
        page, "sglang:num_running_reqs 1\nsglang:max_total_num_tokens 1000\nsglang:page_size 2\n",
        1, &want);
    kvb_engine_page_free(page);
}

/* With data-parallel attention, rank r begins at tensor rank r * n. */
static void sglangs_data_parallel_ranks_are_distinguished(void **state)
{
    (void)state;
    const struct want want[] = {
        { active | waiting, true, 0, { .request_active_slots = 1, .num_requests_waiting = 5 } },
        { active | waiting | usage,
          true,
          1,
          { .request_active_slots = 2,
            .num_requests_waiting = 6,
            .gpu_cache_usage_perc = 0.875F } },
    };
    struct kvb_engine_page *page = new_page(64);

    for (int again = 0; again < 2; again++) {
        assert_page(
            page,
            SGL("num_running_reqs", "dp_rank=\"0\",tp_rank=\"0\"", "1")
                SGL("token_usage", "dp_rank=\"1\",tp_rank=\"3\"", "0.875")
                    SGL("num_running_reqs", "dp_rank=\"1\",tp_rank=\"3\"", "9")
                        SGL("num_running_reqs", "dp_rank=\"1\",tp_rank=\"2\"", "2")
                            SGL("num_queue_reqs", "dp_rank=\"0\",tp_rank=\"0\"", "5")
                                SGL("num_queue_reqs", "dp_rank=\"0\",tp_rank=\"1\"", "9")
                                    SGL("num_queue_reqs", "dp_rank=\"1\",tp_rank=\"3\"", "9")
                                        SGL("num_queue_reqs", "dp_rank=\"1\",tp_rank=\"2\"", "6"),
            2, want);
    }
    kvb_engine_page_free(page);
}

/* ---- Rows side by side ---- */

#define VLLM(name, labels, value) "vllm:" name "{engine=\"0\"," labels "} " value "\n"

/* Feeds the lines in the given order and in the reverse one. */
static void assert_either_order(const char *const *lines, const struct want *want)
{
    size_t count = 0;

    while (lines[count]) {
        count++;
    }
    for (int is_reversed = 0; is_reversed < 2; is_reversed++) {
        struct kvb_engine_page *page = new_page(1);
        char text[2048] = "";
        for (size_t i = 0; i < count; i++) {
            const size_t len = strlen(text);
            (void)snprintf(
                text + len, sizeof text - len, "%s", lines[is_reversed ? count - 1 - i : i]);
        }
        assert_page(page, text, 1, want);
        assert_int_equal(kvb_engine_page_count(page).refused, 0);
        kvb_engine_page_free(page);
    }
}

static void rows_that_differ_in_a_label_do_not_depend_on_their_order(void **state)
{
    (void)state;
    static const struct {
        const char *lines[7];
        struct want want;
    } cases[] = {
        /* vLLM's front ends: each process repeats the engine's value, or an old one, or 0 */
        { { VLLM("kv_cache_usage_perc", "pid=\"7\"", "0.0"),
            VLLM("kv_cache_usage_perc", "pid=\"8\"", "0.625"),
            VLLM("kv_cache_usage_perc", "pid=\"9\"", "0.5"),
            VLLM("num_requests_running", "pid=\"7\"", "5"),
            VLLM("num_requests_running", "pid=\"8\"", "4") },
          { usage | active,
            true,
            0,
            { .request_active_slots = 5, .gpu_cache_usage_perc = 0.625F } } },
        /* counters are each process's own */
        { { VLLM("num_requests_running", "pid=\"7\"", "0"),
            VLLM("prefix_cache_queries_total", "pid=\"7\"", "60"),
            VLLM("prefix_cache_queries_total", "pid=\"8\"", "40"),
            VLLM("prefix_cache_hits_total", "pid=\"7\"", "20"),
            VLLM("prefix_cache_hits_total", "pid=\"8\"", "30") },
          { active | hit_rate, true, 0, { .gpu_prefix_cache_hit_rate = 0.5F } } },
        /* one for all priorities beside one for each; either may be there alone */
        { { SGL("num_queue_reqs", "tp_rank=\"0\",priority=\"1\"", "1"),
            SGL("num_queue_reqs", "tp_rank=\"0\"", "4"),
            SGL("num_queue_reqs", "tp_rank=\"0\",priority=\"2\"", "3"),
            SGL("num_running_reqs", "tp_rank=\"0\",priority=\"1\"", "2"),
            SGL("num_running_reqs", "tp_rank=\"0\",priority=\"2\"", "7") },
          { active | waiting,
            false,
            0,
            { .request_active_slots = 9, .num_requests_waiting = 4 } } },
        /* an empty label is no label */
        { { SGL("num_queue_reqs", "tp_rank=\"0\",priority=\"\"", "4"),
            SGL("num_queue_reqs", "tp_rank=\"0\",priority=\"2\"", "3") },
          { waiting, false, 0, { .num_requests_waiting = 4 } } },
        /* the first stage of a pipeline has the queue */
        { { SGL("num_queue_reqs", "tp_rank=\"0\",pp_rank=\"1\"", "0"),
            SGL("num_queue_reqs", "tp_rank=\"0\",pp_rank=\"0\"", "6"),
            SGL("num_running_reqs", "tp_rank=\"0\",pp_rank=\"0\"", "8"),
            SGL("num_running_reqs", "tp_rank=\"0\",pp_rank=\"1\"", "8"),
            SGL("num_running_reqs", "tp_rank=\"0\",pp_rank=\"0\",moe_ep_rank=\"1\"", "7"),
            SGL("token_usage", "tp_rank=\"0\",pp_rank=\"first\"", "0.5") },
          { active | waiting | usage,
            false,
            0,
            { .request_active_slots = 8,
              .num_requests_waiting = 6,
              .gpu_cache_usage_perc = 0.5F } } },
        /* another engine's rows on the page */
        { { VLLM("num_requests_waiting", "model_name=\"other\"", "9"),
            VLLM("num_requests_waiting", "model_name=\"m\"", "2"),
            VLLM("kv_cache_usage_perc", "model_name=\"m\"", "0.25"),
            VLLM("kv_cache_usage_perc", "model_name=\"other\"", "0.75"),
            "vllm:num_requests_waiting{engine=\"1\",model_name=\"other\"} 8\n" },
          { waiting | usage,
            true,
            0,
            { .num_requests_waiting = 2, .gpu_cache_usage_perc = 0.25F } } },
        /* several models, none of them the worker's: all that the page has */
        { { VLLM("num_requests_waiting", "model_name=\"a\"", "9"),
            VLLM("num_requests_waiting", "model_name=\"b\"", "2"),
            VLLM("kv_cache_usage_perc", "model_name=\"a\"", "0.25"),
            VLLM("kv_cache_usage_perc", "model_name=\"b\"", "0.75") },
          { waiting | usage,
            true,
            0,
            { .num_requests_waiting = 11, .gpu_cache_usage_perc = 0.75F } } },
        /* a label that nobody knows */
        { { VLLM("num_requests_waiting", "shade=\"red\"", "1"),
            VLLM("num_requests_waiting", "shade=\"blue\"", "2"),
            VLLM("num_requests_running", "shade=\"red\"", "1"),
            "vllm:num_requests_running{engine=\"0\"} 5\n" },
          { active | waiting, true, 0, { .request_active_slots = 5, .num_requests_waiting = 3 } } },
        /* one process does not know the blocks yet */
        { { CONFIG("engine=\"0\",pid=\"7\",num_gpu_blocks=\"101\""),
            CONFIG("engine=\"0\",pid=\"8\",num_gpu_blocks=\"None\""),
            VLLM("kv_cache_usage_perc", "pid=\"7\"", "0.5") },
          { used | total | usage,
            true,
            0,
            { .kv_active_blocks = 50, .kv_total_blocks = 101, .gpu_cache_usage_perc = 0.5F } } },
    };
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        assert_either_order(cases[i].lines, &cases[i].want);
    }
}

/* ---- Counters of the prefix cache ---- */

static void assert_prefix(const char *text, bool is_there, uint64_t queried, uint64_t cached)
{
    struct kvb_engine_page *page = new_page(64);
    const struct kvb_load_sample *samples = NULL;
    size_t count = 0;

    kvb_engine_page_begin(page);
    assert_ok(feed(page, text));
    assert_ok(kvb_engine_page_end(page, &samples, &count));
    assert_int_equal(count, 1);
    assert_int_equal(samples[0].signs.has_prefix, is_there);
    assert_int_equal(samples[0].signs.prefix.queried_tokens, queried);
    assert_int_equal(samples[0].signs.prefix.cached_tokens, cached);
    kvb_engine_page_free(page);
}

static void the_counters_of_the_prefix_cache_are_read(void **state)
{
    (void)state;
#define VLLM_HITS(hits)                                                                            \
    "vllm:num_requests_running 1\nvllm:prefix_cache_queries_total "                                \
    "993.0\nvllm:prefix_cache_hits_total " hits "\n"
    assert_prefix(VLLM_HITS("64.0"), true, 993, 64);
    assert_prefix(
        "vllm:gpu_prefix_cache_queries_total 5\nvllm:gpu_prefix_cache_hits_total 1\n", true, 5, 1);
    assert_prefix(VLLM_HITS("994"), false, 0, 0);
    assert_prefix(
        VLLM_HITS("64") "vllm:cache_config_info{enable_prefix_caching=\"False\"} 1\n", false, 0, 0);
    assert_prefix("vllm:num_requests_running 1\nvllm:prefix_cache_hits_total 1\n", false, 0, 0);
#undef VLLM_HITS
}

/* As SGLang's scheduler counts: computed and cached tokens of prompts, and decoded ones. */
static void sglang_counts_computed_and_cached_tokens(void **state)
{
    (void)state;
#define MODE(mode, tp, value)                                                                      \
    "sglang:realtime_tokens_total{dp_rank=\"0\",mode=\"" mode "\",tp_rank=\"" tp "\"} " value "\n"
    assert_prefix(
        MODE("prefill_cache", "0", "900.0") MODE("prefill_compute", "0", "100.0")
            MODE("decode", "0", "7.0") MODE("prefill_cache", "1", "901.0")
                MODE("prefill_compute", "1", "101.0") "sglang:num_running_reqs{dp_rank=\"0\"} 1\n",
        true, 1000, 900);
    assert_prefix(
        MODE("prefill_compute", "0", "100.0") "sglang:num_running_reqs{dp_rank=\"0\"} 1\n", true,
        100, 0);
#undef MODE
}

/* ---- Signs of the cache ---- */

static struct kvb_cache_signs signs_of(struct kvb_engine_page *page, const char *text)
{
    const struct kvb_load_sample *samples = NULL;
    size_t count = 0;

    kvb_engine_page_begin(page);
    assert_ok(feed(page, text));
    assert_ok(kvb_engine_page_end(page, &samples, &count));
    assert_true(count > 0);
    return samples[count - 1].signs; /* of the last rank */
}

static void the_recorded_engine_is_awake_and_names_its_process(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        double started_s;
    } rows[] = { { "vllm-0.32/metrics-idle.txt", 1.79524924882e+09 },
                 { "vllm-0.32/metrics-dp2.txt", 0 } }; /* the page is made by several processes */

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char *text = read_text_file(rows[i].file);
        struct kvb_engine_page *page = new_page(1);
        const struct kvb_cache_signs signs = signs_of(page, text);
        assert_int_equal(signs.sleep, KVB_SLEEP_AWAKE);
        assert_true(signs.started_s == rows[i].started_s);
        assert_true(signs.counts_running);
        assert_false(signs.is_prefix_caching_off);
        assert_false(signs.is_counter_reset);
        assert_false(signs.has_occupancy);
        kvb_engine_page_free(page);
        free(text);
    }
}

#define SLEEP(state, value)                                                                        \
    "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"" state "\"} " value "\n"
#define SLEEPS(awake, offloaded, discarded)                                                        \
    SLEEP("awake", awake) SLEEP("weights_offloaded", offloaded) SLEEP("discard_all", discarded)

static void each_level_of_sleep_is_distinguished(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum kvb_engine_sleep sleep;
    } rows[] = { { SLEEPS("1.0", "0.0", "0.0"), KVB_SLEEP_AWAKE },
                 { SLEEPS("0.0", "0.0", "0.0"), KVB_SLEEP_PAUSED }, /* level 0 */
                 { SLEEPS("0.0", "1.0", "0.0"), KVB_SLEEP_DISCARDED },
                 { SLEEPS("0.0", "0.0", "1.0"), KVB_SLEEP_DISCARDED },
                 { SLEEP("dreaming", "1.0"), KVB_SLEEP_PAUSED },
                 { "", KVB_SLEEP_UNKNOWN } };
    struct kvb_engine_page *page = new_page(1);
    char text[512];

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        (void)snprintf(text, sizeof text, "%s%s", rows[i].text, RANK("0"));
        assert_int_equal(signs_of(page, text).sleep, rows[i].sleep);
    }
    kvb_engine_page_free(page);
}

#define REQUESTS(path, value)                                                                      \
    "http_requests_total{handler=\"" path "\",method=\"POST\",status=\"2xx\"} " value "\n"

static void requests_that_may_empty_the_cache_are_summed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t requests;
    } rows[] = { { REQUESTS("/v1/completions", "7.0"), 0 },
                 { REQUESTS("/reset_prefix_cache", "2.0"), 2 },
                 { REQUESTS("/pause", "1.0") REQUESTS("/sleep", "1.0")
                       REQUESTS("/collective_rpc", "3.0") REQUESTS("/v1/completions", "7.0"),
                   5 },
                 { REQUESTS("/reset_prefix_cache", "NaN"), 0 },
                 { "http_requests_total 4.0\n", 0 },
                 { "", 0 } };
    struct kvb_engine_page *page = new_page(1);
    char text[1024];

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        (void)snprintf(text, sizeof text, "%s%s", rows[i].text, RANK("0"));
        assert_int_equal(signs_of(page, text).reset_requests, rows[i].requests);
    }
    kvb_engine_page_free(page);
}

/* SGLang has these series with every model; they are 0 where there is no such pool. */
static void a_pool_that_is_not_empty_is_a_sign(void **state)
{
    (void)state;
#define SERIES(name, value) "sglang:" name "{tp_rank=\"0\"} " value "\n"
    static const struct {
        const char *text;
        bool has_pools;
    } rows[] = { { SERIES("swa_token_usage", "0.0") SERIES("mamba_usage", "0.0"), false },
                 { SERIES("swa_token_usage", "0.25") SERIES("mamba_usage", "0.0"), true },
                 { SERIES("swa_token_usage", "0.0") SERIES("mamba_usage", "0.5"), true },
                 { SERIES("swa_available_tokens", "4096.0"), true },
                 { SERIES("mamba_evictable_tokens", "1.0"), true },
                 { SERIES("full_token_usage", "0.5"), false },
                 { "", false } };
    struct kvb_engine_page *page = new_page(1);
    char text[1024];

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        (void)snprintf(text, sizeof text, "%s%s", rows[i].text, SERIES("num_running_reqs", "1.0"));
        assert_int_equal(signs_of(page, text).has_hidden_pools, rows[i].has_pools);
    }
    kvb_engine_page_free(page);
}

/* The counters of drafts are there from the first page on, at 0, if vLLM speculates. */
static void counters_of_drafts_are_a_sign_of_speculation(void **state)
{
    (void)state;
#define DRAFTS "vllm:spec_decode_num_drafts_total"
#define USAGE(rank) "vllm:kv_cache_usage_perc{engine=\"" rank "\"} 0.0\n"
    static const struct {
        const char *text;
        enum kvb_speculation speculation;
    } rows[] = { { USAGE("0"), KVB_SPECULATION_KEEPS },
                 { USAGE("0") DRAFTS "{engine=\"0\"} 0.0\n", KVB_SPECULATION_UNDECIDED },
                 { USAGE("0") DRAFTS " 12.0\n", KVB_SPECULATION_UNDECIDED },
                 { USAGE("0") DRAFTS "{engine=\"1\"} 12.0\n", KVB_SPECULATION_KEEPS },
                 { USAGE("0") DRAFTS "{engine=\"0\"} NaN\n", KVB_SPECULATION_KEEPS },
                 { USAGE("0") "vllm:spec_decode_num_drafts_created 1.0\n", KVB_SPECULATION_KEEPS },
                 { "sglang:num_running_reqs{tp_rank=\"0\"} 1.0\n", KVB_SPECULATION_UNKNOWN } };
    struct kvb_engine_page *page = new_page(1);

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_int_equal(signs_of(page, rows[i].text).speculation, rows[i].speculation);
    }
    kvb_engine_page_free(page);
}

static void a_process_and_its_counters_are_signs(void **state)
{
    (void)state;
    static const char caching[] =
        "vllm:cache_config_info{engine=\"0\",enable_prefix_caching=\"False\"} 1.0\n" RANK("0");
    struct kvb_engine_page *page = new_page(1);
    const char *counters = "vllm:prefix_cache_hits_total{engine=\"0\"} 5\n"
                           "vllm:prefix_cache_queries_total{engine=\"0\"} 9\n";
    const char *fewer = "process_start_time_seconds 1.5e+09\n"
                        "vllm:prefix_cache_hits_total{engine=\"0\"} 0\n"
                        "vllm:prefix_cache_queries_total{engine=\"0\"} 8\n";

    assert_false(signs_of(page, counters).is_counter_reset);
    const struct kvb_cache_signs signs = signs_of(page, fewer);
    assert_true(signs.is_counter_reset);
    assert_true(signs.started_s == 1.5e9);
    assert_true(signs_of(page, RANK("0")).started_s == 0); /* counters of one page only */
    assert_true(signs_of(page, caching).is_prefix_caching_off);
    kvb_engine_page_free(page);
}

static void a_total_is_certain_if_it_is_the_ranks_own(void **state)
{
    (void)state;
#define BLOCKS(labels) "vllm:cache_config_info{" labels "num_gpu_blocks=\"64\"} 1.0\n"
    static const struct {
        const char *text;
        bool is_sure;
    } rows[] = {
        { BLOCKS("") RANK("0"), true },
        { BLOCKS("") RANK("0") "\n" RANK("1"), false },                  /* of both ranks */
        { BLOCKS("") RANK("0") CONFIG("num_gpu_blocks=\"63\""), false }, /* which? */
        { BLOCKS("block_size=\"16\",kv_cache_size_tokens=\"512\",") RANK("0") "\n" RANK("1"),
          true },
        { RANK("0"), false },
        { SGL("max_total_num_tokens", "tp_rank=\"0\"", "640")
              SGL("page_size", "tp_rank=\"0\"", "16"),
          true },
        { SGL("max_total_num_tokens", "tp_rank=\"0\"", "640"),
          false }, /* with a configured page size */
    };
    struct kvb_engine_page *page = new_page(16);

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_int_equal(signs_of(page, rows[i].text).is_total_sure, rows[i].is_sure);
    }
    kvb_engine_page_free(page);
}

static void the_page_says_how_many_tokens_its_blocks_have(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t tokens;
    } rows[] = {
        { CONFIG("block_size=\"528\"") RANK("0"), 528 },
        { CONFIG("block_size=\"None\"") RANK("0"), 0 },
        { CONFIG("block_size=\"16\"") CONFIG("block_size=\"32\"") RANK("0"), 0 },
        { RANK("0"), 0 },
        { SGL("max_total_num_tokens", "tp_rank=\"0\"", "640")
              SGL("page_size", "tp_rank=\"0\"", "64"),
          64 },
        { SGL("num_running_reqs", "tp_rank=\"0\"", "1") SGL("page_size", "tp_rank=\"0\"", "1e15"),
          0 },
    };
    struct kvb_engine_page *page = new_page(16);

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_int_equal(signs_of(page, rows[i].text).block_size, rows[i].tokens);
    }
    kvb_engine_page_free(page);
}

static void sglang_reports_how_much_is_cached(void **state)
{
    (void)state;
    struct kvb_engine_page *page = new_page(1);
    const struct kvb_cache_signs signs = signs_of(
        page,
        SGL("token_usage", "tp_rank=\"0\"", "0.5") SGL("kv_used_tokens", "tp_rank=\"0\"", "640.0")
            SGL("kv_evictable_tokens", "tp_rank=\"0\"", "128.0"));

    assert_true(signs.has_occupancy);
    assert_int_equal(signs.used_tokens, 640);
    assert_int_equal(signs.evictable_tokens, 128);
    assert_false(signs.counts_running);
    assert_false(signs_of(
                     page, SGL("kv_used_tokens", "tp_rank=\"0\"", "1")
                               SGL("token_usage", "tp_rank=\"0\"", "0"))
                     .has_occupancy);
    kvb_engine_page_free(page);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        const struct kvb_load_sample *samples = NULL;
        struct kvb_engine_page *page = NULL;
        size_t count = 0;
        fail_alloc_after(n);
        status = kvb_engine_page_new(16, "m", &page);
        if (status == KVB_OK) {
            status = feed(page, RANK("0") RANK("1") "vllm:num_requests_wait");
        }
        if (status == KVB_OK) {
            status = kvb_engine_page_end(page, &samples, &count);
        }
        fail_alloc_after(-1);
        kvb_engine_page_free(page);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 50);
    }
}

SUITE(engine_page)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_recorded_data_parallel_run_is_read_by_rank),
        cmocka_unit_test(the_recorded_pages_of_one_engine_give_a_hit_rate),
        cmocka_unit_test(old_names_and_no_engine_label_are_read),
        cmocka_unit_test(names_are_matched_whole),
        cmocka_unit_test(blocks_of_a_rank_are_found_in_each_way),
        cmocka_unit_test(the_hit_rate_covers_the_recent_past),
        cmocka_unit_test(a_truncated_page_is_ignored),
        cmocka_unit_test(impossible_figures_are_counted_and_the_others_are_used),
        cmocka_unit_test(a_page_without_load_is_refused),
        cmocka_unit_test(ranks_have_a_ceiling_and_old_ones_are_dropped),
        cmocka_unit_test(of_sglang_the_first_tensor_rank_is_read),
        cmocka_unit_test(sglangs_page_size_is_used_if_it_is_reported),
        cmocka_unit_test(sglangs_data_parallel_ranks_are_distinguished),
        cmocka_unit_test(rows_that_differ_in_a_label_do_not_depend_on_their_order),
        cmocka_unit_test(the_counters_of_the_prefix_cache_are_read),
        cmocka_unit_test(sglang_counts_computed_and_cached_tokens),
        cmocka_unit_test(the_recorded_engine_is_awake_and_names_its_process),
        cmocka_unit_test(each_level_of_sleep_is_distinguished),
        cmocka_unit_test(requests_that_may_empty_the_cache_are_summed),
        cmocka_unit_test(a_pool_that_is_not_empty_is_a_sign),
        cmocka_unit_test(counters_of_drafts_are_a_sign_of_speculation),
        cmocka_unit_test(a_process_and_its_counters_are_signs),
        cmocka_unit_test(a_total_is_certain_if_it_is_the_ranks_own),
        cmocka_unit_test(the_page_says_how_many_tokens_its_blocks_have),
        cmocka_unit_test(sglang_reports_how_much_is_cached),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
