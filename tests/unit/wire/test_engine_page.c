#include "fail_alloc.h"
#include "kvb_test.h"

#include "case_file.h"
#include "core/limits.h"
#include "core/own.h"
#include "say.h"
#include "vector_file.h"
#include "wire/load/engine_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- tests/data/cases/pages.txt ---- */

static void say_sample(const struct kvb_load_sample *sample)
{
    assert_false(sample->is_of_scheduler);
    say_number(sample->has_rank, "rank", sample->dp_rank);
    say_figures(&sample->load, sample->stats);
    say(";");
}

/* What a page shows of the cache of its last rank. */
static void say_signs(const struct kvb_cache_signs *signs)
{
    static const char *const sleeps[] = { "", " awake", " paused", " discarded" };
    static const char *const speculations[] = { "", " keeps", " drops", " undecided" };

    say("%s%s", sleeps[signs->sleep], speculations[signs->speculation]);
    say_number(signs->started_s > 0, "since", (uint64_t)signs->started_s);
    say("%s%s", signs->is_counter_reset ? " reset" : "",
        signs->is_prefix_caching_off ? " off" : "");
    say("%s%s", signs->counts_running ? " running" : "", signs->is_total_sure ? " sure" : "");
    say_number(signs->block_size > 0, "size", signs->block_size);
    say_number(signs->has_occupancy, "evictable", signs->evictable_tokens);
    say_number(signs->has_occupancy, "used", signs->used_tokens);
    say("%s", signs->has_hidden_pools ? " pools" : "");
    say_number(signs->reset_requests > 0, "resets", signs->reset_requests);
    say_number(signs->has_prefix, "queried", signs->prefix.queried_tokens);
    say_number(signs->has_prefix, "cached", signs->prefix.cached_tokens);
}

/* Feeds the rows of the page as they are or from the last to the first, a few bytes at a time. */
static void feed_rows(struct kvb_engine_page *page, kvb_span text, bool is_reversed)
{
    enum { piece = 7 };
    char rows[8192] = "";
    size_t len = 0;
    size_t end = text.len; /* of the row that begins at `at` */

    for (size_t at = text.len; is_reversed && at-- > 0;) {
        if (at == 0 || text.data[at - 1] == '\n') {
            memcpy(rows + len, text.data + at, end - at);
            len += end - at;
            rows[len++] = '\n';
            end = at > 0 ? at - 1 : 0;
        }
    }
    const kvb_span whole = is_reversed ? (kvb_span){ (const uint8_t *)rows, len } : text;
    for (size_t at = 0; at < whole.len; at += piece) {
        const size_t left = whole.len - at;
        assert_ok(
            kvb_engine_page_feed(page, (kvb_span){ whole.data + at, left < piece ? left : piece }));
    }
}

static void check_page(kvb_span text, bool is_about_signs)
{
    for (int is_reversed = 0; is_reversed < 2; is_reversed++) {
        const struct kvb_load_sample *samples = NULL;
        size_t count = 77;
        struct kvb_engine_page *page = new_page(64);
        say_nothing();
        kvb_engine_page_begin(page);
        feed_rows(page, text, is_reversed);
        const kvb_status status = kvb_engine_page_end(page, &samples, &count);
        if (status != KVB_OK) {
            assert_int_equal(count, 77);
            say(" %s", kvb_status_name(status));
        } else if (is_about_signs) {
            say_signs(&samples[0].signs);
        }
        for (uint32_t rank = 0; status == KVB_OK && !is_about_signs && rank < kvb_max_ranks;
             rank++) {
            for (size_t i = 0; i < count; i++) {
                if (samples[i].dp_rank == rank) { /* their order is that of the rows */
                    say_sample(&samples[i]);
                }
            }
        }
        const uint64_t refused = kvb_engine_page_count(page).refused;
        say_number(!is_about_signs && refused > 0, "refused", refused);
        kvb_engine_page_free(page);
        assert_answer(what_was_said());
    }
}

static void check_figures(kvb_span text)
{
    check_page(text, false);
}

static void check_signs(kvb_span text)
{
    check_page(text, true);
}

static void each_page_has_the_figures_and_signs_of_its_case(void **state)
{
    (void)state;
    each_case("pages.txt", "figures", check_figures);
    each_case("pages.txt", "signs", check_signs);
}

/* ---- Real engines ---- */

static const char *figures_of(struct kvb_engine_page *page, const char *text)
{
    const struct kvb_load_sample *samples = NULL;
    size_t count = 0;

    say_nothing();
    kvb_engine_page_begin(page);
    assert_ok(feed(page, text));
    assert_ok(kvb_engine_page_end(page, &samples, &count));
    for (size_t i = 0; i < count; i++) {
        say_sample(&samples[i]);
    }
    return what_was_said();
}

/* Pages of vLLM 0.32.  With two ranks of 64 blocks each, num_gpu_blocks is 128 for both together;
 * 42 = 0.6667 of 63 and 27 = 0.4286 of 63, because vLLM never uses one of the blocks.  The idle
 * page was recorded before the one under load, from one incarnation of the engine; in between 788
 * tokens were queried without a hit.  Going back to the idle page looks like a restart. */
static void recorded_pages_have_the_figures_that_the_engine_had(void **state)
{
    static const struct {
        const char *file;
        bool is_next; /* of the page before */
        const char *figures;
        unsigned resets;
    } rows[] = {
        { "vllm-0.32/metrics-dp2.txt", false,
          "rank 0 active 4 used 42 total 64 waiting 0 usage 0.66666669 hits 0; rank 1 active 3 "
          "used 27 total 64 waiting 0 usage 0.42857143 hits 0;",
          0 },
        { "vllm-0.32/metrics-idle.txt", false,
          "rank 0 active 0 used 0 total 64 waiting 0 usage 0 hits 0.43080777;", 0 },
        { "vllm-0.32/metrics-load.txt", true,
          "rank 0 active 4 used 56 total 64 waiting 10 usage 0.8888889 hits 0;", 0 },
        { "vllm-0.32/metrics-idle.txt", true,
          "rank 0 active 0 used 0 total 64 waiting 0 usage 0 hits 0.43080777;", 1 },
    };
    struct kvb_engine_page *page = NULL;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        char *text = read_text_file(rows[i].file);
        if (!rows[i].is_next) {
            kvb_engine_page_free(page);
            page = new_page(1);
        }
        assert_string_equal(figures_of(page, text), rows[i].figures);
        assert_int_equal(kvb_engine_page_count(page).refused, 0);
        assert_int_equal(kvb_engine_page_count(page).resets, rows[i].resets);
        free(text);
    }
    kvb_engine_page_free(page);
}

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

/* ---- Page after page ---- */

#define RANK(r)                                                                                    \
    "vllm:kv_cache_usage_perc{engine=\"" r "\"} 0.5\nvllm:num_requests_running{engine=\"" r        \
    "\"} 1\n"

static void the_hit_rate_covers_the_recent_past(void **state)
{
    (void)state;
    const struct {
        unsigned hits;
        unsigned queries;
        const char *rate; /* NULL: it is refused */
    } pages[] = {
        { 10, 40, "0.25" },   /* since the start of the engine */
        { 40, 80, "0.75" },   /* 30 of 40 */
        { 40, 80, "0" },      /* 0 of 0 */
        { 40, 180, "0" },     /* 0 of 100 */
        { 1, 4, "0.25" },     /* a restart: from 0 again */
        { 1, 2, "0.5" },      /* another, seen in one counter */
        { 32, 64, "0.5" },    /* 31 of 62 */
        { 16, 128, "0.125" }, /* and in the other counter */
        { 150, 129, NULL },   /* more hits than queries */
        { 151, 131, "0.5" },
    };
    struct kvb_engine_page *page = new_page(1);

    for (size_t i = 0; i < KVB_COUNT_OF(pages); i++) {
        char text[256];
        char want[64];
        (void)snprintf(
            text, sizeof text,
            "vllm:num_requests_running{engine=\"3\"} 1\n"
            "vllm:prefix_cache_hits_total{engine=\"3\"} %u\n"
            "vllm:prefix_cache_queries_total{engine=\"3\"} %u\n",
            pages[i].hits, pages[i].queries);
        (void)snprintf(
            want, sizeof want, "rank 3 active 1%s%s;", pages[i].rate ? " hits " : "",
            pages[i].rate ? pages[i].rate : "");
        assert_string_equal(figures_of(page, text), want);
    }
    assert_int_equal(kvb_engine_page_count(page).resets, 3);
    assert_int_equal(kvb_engine_page_count(page).refused, 1);
    kvb_engine_page_free(page);
}

/* A truncated page is ignored, and no later page is compared with it. */
static void a_truncated_page_is_ignored(void **state)
{
    (void)state;
    const char *const counters = "vllm:prefix_cache_hits_total{engine=\"0\"} 5\n"
                                 "vllm:prefix_cache_queries_total{engine=\"0\"} 10\n";
    char text[256];
    struct kvb_engine_page *page = new_page(1);

    kvb_engine_page_begin(page);
    assert_ok(feed(page, counters));
    assert_ok(feed(page, "vllm:num_requests_waiting{engine=\"0\"} 7\nvllm:num_requests_wai"));
    assert_ok(feed(page, RANK("1")));
    (void)snprintf(text, sizeof text, "vllm:num_requests_running{engine=\"0\"} 1\n%s", counters);
    assert_string_equal(figures_of(page, text), "rank 0 active 1 hits 0.5;");
    kvb_engine_page_free(page);
}

/* Labels that change with every page must not accumulate. */
static void ranks_have_a_ceiling_and_old_ones_are_dropped(void **state)
{
    (void)state;
    struct kvb_engine_page *page = new_page(1);
    kvb_status status = KVB_OK;
    char text[128];

    for (unsigned i = 0; i < 4 * kvb_max_ranks; i++) {
        char want[64];
        (void)snprintf(want, sizeof want, "rank %u active 1;", i);
        (void)snprintf(text, sizeof text, "vllm:num_requests_running{engine=\"%u\"} 1\n", i);
        if (i % 200 != 199) { /* whether the previous page was complete or not */
            kvb_engine_page_begin(page);
            assert_ok(feed(page, text));
        } else {
            assert_string_equal(figures_of(page, text), want);
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

static void counters_are_of_one_process_and_one_page(void **state)
{
    (void)state;
    struct kvb_engine_page *page = new_page(1);
    const char *counters = "vllm:prefix_cache_hits_total{engine=\"0\"} 5\n"
                           "vllm:prefix_cache_queries_total{engine=\"0\"} 9\n";
    const char *fewer = "process_start_time_seconds 1.5e+09\n"
                        "vllm:prefix_cache_hits_total{engine=\"0\"} 0\n"
                        "vllm:prefix_cache_queries_total{engine=\"0\"} 8\n";

    assert_false(signs_of(page, counters).is_counter_reset);
    assert_true(signs_of(page, fewer).is_counter_reset);
    assert_true(signs_of(page, RANK("0")).started_s == 0);
    kvb_engine_page_free(page);
}

static void nothing_of_a_page_is_left_in_the_next(void **state)
{
    (void)state;
    struct kvb_engine_page *page = new_page(1);
    const char *full = "process_start_time_seconds 1.5e+09\n"
                       "http_requests_total{handler=\"/sleep\",method=\"POST\",status=\"2xx\"} 2\n"
                       "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"discard_all\"} 1\n"
                       "sglang:swa_token_usage{tp_rank=\"0\"} 0.5\n" RANK("0");
    struct kvb_cache_signs signs = signs_of(page, full);

    say_nothing();
    say_signs(&signs);
    assert_string_equal(what_was_said(), "discarded keeps since 1500000000 running pools resets 2");
    signs = signs_of(page, RANK("0"));
    say_nothing();
    say_signs(&signs);
    assert_string_equal(what_was_said(), "keeps running");
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
        cmocka_unit_test(each_page_has_the_figures_and_signs_of_its_case),
        cmocka_unit_test(recorded_pages_have_the_figures_that_the_engine_had),
        cmocka_unit_test(the_recorded_engine_is_awake_and_names_its_process),
        cmocka_unit_test(the_hit_rate_covers_the_recent_past),
        cmocka_unit_test(a_truncated_page_is_ignored),
        cmocka_unit_test(ranks_have_a_ceiling_and_old_ones_are_dropped),
        cmocka_unit_test(counters_are_of_one_process_and_one_page),
        cmocka_unit_test(nothing_of_a_page_is_left_in_the_next),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
