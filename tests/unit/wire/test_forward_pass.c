#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/limits.h"
#include "core/own.h"
#include "fleet/dialects/forward_pass.h"
#include "wire/load/forward_pass.h"

#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

/* ---- Messages from a small language ----
 *
 * One word a value: { n pairs follow, [ items, 7 -7 integers, 0.5 a float, f0.5 a
 * 32-bit one, nil, true, and anything else a text. */

static void pack_number(msgpack_packer *packer, const char *word)
{
    const bool is_single = word[0] == 'f';
    const char *const digits = word + is_single;

    if (is_single) {
        msgpack_pack_float(packer, strtof(digits, NULL));
    } else if (strchr(digits, '.')) {
        msgpack_pack_double(packer, strtod(digits, NULL));
    } else if (digits[0] == '-') {
        msgpack_pack_int64(packer, strtoll(digits, NULL, 10));
    } else {
        msgpack_pack_uint64(packer, strtoull(digits, NULL, 10));
    }
}

static void pack_word(msgpack_packer *packer, const char *word)
{
    const size_t sign = word[0] == 'f' || word[0] == '-';
    const bool is_number = word[sign] >= '0' && word[sign] <= '9';

    if (word[0] == '{') {
        msgpack_pack_map(packer, strtoul(word + 1, NULL, 10));
    } else if (word[0] == '[') {
        msgpack_pack_array(packer, strtoul(word + 1, NULL, 10));
    } else if (strcmp(word, "nil") == 0) {
        msgpack_pack_nil(packer);
    } else if (strcmp(word, "true") == 0) {
        msgpack_pack_true(packer);
    } else if (strcmp(word, "nan") == 0) {
        msgpack_pack_double(packer, NAN);
    } else if (is_number) {
        pack_number(packer, word);
    } else {
        msgpack_pack_str_with_body(packer, word, strlen(word));
    }
}

static msgpack_sbuffer message_of(const char *words)
{
    msgpack_sbuffer bytes;
    msgpack_packer packer;
    char word[64];
    int used = 0;

    msgpack_sbuffer_init(&bytes);
    msgpack_packer_init(&packer, &bytes, msgpack_sbuffer_write);
    for (; sscanf(words, "%63s%n", word, &used) == 1; words += used) {
        pack_word(&packer, word);
    }
    return bytes;
}

static kvb_status decode(const char *words, struct kvb_load_sample *out_sample)
{
    msgpack_sbuffer bytes = message_of(words);
    const kvb_status status =
        kvb_forward_pass_decode((kvb_span){ (const uint8_t *)bytes.data, bytes.size }, out_sample);

    msgpack_sbuffer_destroy(&bytes);
    return status;
}

static bool is_same(const struct kvb_load_sample *a, const struct kvb_load_sample *b)
{
    return a->has_rank == b->has_rank && a->dp_rank == b->dp_rank &&
           kvb_load_equal(&a->load, &b->load);
}

/* ---- Reading ---- */

static const char *const flat = "{7 request_active_slots 3 request_total_slots 256 "
                                "kv_active_blocks 10 kv_total_blocks 4096 num_requests_waiting 2 "
                                "gpu_cache_usage_perc f0.5 gpu_prefix_cache_hit_rate 0.25";

static const char *const nested =
    "{3 worker_stats {4 request_active_slots 3 request_total_slots 256 num_requests_waiting 2 "
    "data_parallel_rank 1 "
    "kv_stats {4 kv_active_blocks 10 kv_total_blocks 4096 gpu_cache_usage_perc 0.5 "
    "gpu_prefix_cache_hit_rate f0.25 spec_decode_stats nil";

static const struct kvb_load full = { .request_active_slots = 3,
                                      .request_total_slots = 256,
                                      .kv_active_blocks = 10,
                                      .kv_total_blocks = 4096,
                                      .num_requests_waiting = 2,
                                      .gpu_cache_usage_perc = 0.5F,
                                      .gpu_prefix_cache_hit_rate = 0.25F };

static void reads_each_form(void **state)
{
    (void)state;
    const struct kvb_load waiting = { .num_requests_waiting = 2 };
    const struct kvb_load busy = { .kv_active_blocks = UINT64_MAX, .gpu_cache_usage_perc = 1 };
    const struct {
        const char *words;
        struct kvb_load_sample want;
    } cases[] = {
        { flat, { .load = full } },
        { nested, { .load = full, .has_rank = true, .dp_rank = 1 } },
        /* figures that are missing or nil are 0 */
        { "{1 num_requests_waiting 2", { .load = waiting } },
        { "{3 kv_total_blocks nil num_requests_waiting 2 gpu_cache_usage_perc nil",
          { .load = waiting } },
        { "{2 worker_stats {1 num_requests_waiting 2 kv_stats nil", { .load = waiting } },
        { "{1 kv_total_blocks 0", { .has_rank = false } },
        /* the rank, also in the flat form */
        { "{2 data_parallel_rank 4294967295 num_requests_waiting 2",
          { .load = waiting, .has_rank = true, .dp_rank = UINT32_MAX } },
        { "{2 data_parallel_rank nil num_requests_waiting 2", { .load = waiting } },
        /* limits: all of u64; integers in place of ratios */
        { "{2 kv_active_blocks 18446744073709551615 gpu_cache_usage_perc 1", { .load = busy } },
        { "{2 gpu_cache_usage_perc 0 gpu_prefix_cache_hit_rate 0.0", { .has_rank = false } },
        /* unknown keys, and keys that are no text */
        { "{4 num_requests_waiting 2 model m 5 6 lists [2 {1 a b [0", { .load = waiting } },
        /* a figure of one group is not read from the other */
        { "{2 worker_stats {2 kv_total_blocks 9 num_requests_waiting 2 kv_stats {0",
          { .load = waiting } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_load_sample sample = { .dp_rank = 77 };
        assert_ok(decode(cases[i].words, &sample));
        assert_true(is_same(&sample, &cases[i].want));
    }
}

static void reports_which_stats_were_given(void **state)
{
    (void)state;
    const struct {
        const char *words;
        unsigned stats;
    } cases[] = {
        { flat, (1U << KVB_FIGURE_COUNT) - 1 },
        { nested, (1U << KVB_FIGURE_COUNT) - 1 },
        { "{1 kv_total_blocks 0", 1U << KVB_FIGURE_TOTAL_BLOCKS },
        { "{2 kv_total_blocks nil num_requests_waiting 2", 1U << KVB_FIGURE_WAITING },
        { "{1 gpu_cache_usage_perc 0.5", 1U << KVB_FIGURE_USAGE },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_load_sample sample = { .stats = 0 };
        assert_ok(decode(cases[i].words, &sample));
        assert_int_equal(sample.stats, cases[i].stats);
        assert_false(sample.is_of_scheduler);
    }
}

/* The struct of 2026 has the same name but none of these figures. */
static void reads_the_figures_of_the_schedulers_struct_that_have_a_meaning_here(void **state)
{
    (void)state;
    const unsigned requests = 1U << KVB_FIGURE_ACTIVE_SLOTS | 1U << KVB_FIGURE_WAITING;
    const struct {
        const char *words;
        uint64_t active;
        uint64_t waiting;
        unsigned stats;
        uint32_t rank;
    } cases[] = {
        { "{7 version 1 worker_id w dp_rank 3 counter_id 17 wall_time 0.013 "
          "scheduled_requests {7 num_prefill_requests 2 sum_prefill_tokens 900 "
          "var_prefill_length 1.5 sum_prefill_kv_tokens 64 num_decode_requests 5 "
          "sum_decode_kv_tokens 4000 var_decode_kv_tokens 2.5 "
          "queued_requests {6 num_prefill_requests 4 sum_prefill_tokens 9 var_prefill_length 0.0 "
          "num_decode_requests 1 sum_decode_kv_tokens 9 var_decode_kv_tokens 0.0",
          7, 5, requests, 3 },
        { "{2 version 1 queued_requests {1 num_prefill_requests 4", 0, 4, 1U << KVB_FIGURE_WAITING,
          0 },
        { "{3 version 1 scheduled_requests {1 num_decode_requests 0 queued_requests nil", 0, 0,
          1U << KVB_FIGURE_ACTIVE_SLOTS, 0 },
        /* a later version, as far as it is the same; keys of the other struct are ignored */
        { "{4 version 2 kv_total_blocks 9 news [1 5 scheduled_requests {2 num_decode_requests 6 "
          "num_other_requests 1",
          6, 0, 1U << KVB_FIGURE_ACTIVE_SLOTS, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvb_load_sample sample = { .stats = 0 };
        const struct kvb_load want = { .request_active_slots = cases[i].active,
                                       .num_requests_waiting = cases[i].waiting };
        const bool has_rank = cases[i].rank > 0;
        assert_ok(decode(cases[i].words, &sample));
        assert_true(sample.is_of_scheduler);
        assert_int_equal(sample.stats, cases[i].stats);
        assert_true(is_same(
            &sample, &(struct kvb_load_sample){
                         .load = want, .has_rank = has_rank, .dp_rank = cases[i].rank }));
    }
}

static void refuses_impossible_values_and_changes_nothing(void **state)
{
    (void)state;
    const char *const too_many = "{2 version 1 queued_requests {2 num_prefill_requests 1 "
                                 "num_decode_requests 18446744073709551615";
    const char *const bad[] = {
        "{1 gpu_cache_usage_perc nan",
        "{1 gpu_cache_usage_perc 1.0001",
        "{1 gpu_cache_usage_perc -0.0001",
        "{1 gpu_cache_usage_perc -1",
        "{1 gpu_cache_usage_perc 2",
        "{1 gpu_cache_usage_perc f1.5",
        "{1 gpu_prefix_cache_hit_rate 50.0", /* a percentage of 100 */
        "{1 gpu_prefix_cache_hit_rate high",
        "{1 gpu_prefix_cache_hit_rate true",
        "{1 kv_total_blocks -1",
        "{1 kv_total_blocks -9223372036854775808",
        "{1 kv_total_blocks 1.0",
        "{1 kv_total_blocks many",
        "{1 kv_total_blocks [1 5",
        "{2 kv_total_blocks 5 data_parallel_rank -1",
        "{2 kv_total_blocks 5 data_parallel_rank 4294967296",
        "{2 kv_total_blocks 5 data_parallel_rank one",
        "{1 worker_stats 5",
        "{1 worker_stats {1 num_requests_waiting -5",
        "{2 num_requests_waiting 2 kv_stats [0",
        /* other maps, and values that are no maps */
        "{0",
        "{1 version 1",
        "{2 version 1 kv_total_blocks 5",
        "{2 version 1 scheduled_requests {0",
        "{2 version 1 scheduled_requests 5",
        "{2 version 1 scheduled_requests {1 num_decode_requests -1",
        "{2 version 1 queued_requests {1 num_decode_requests 0.5",
        too_many,
        "{3 version 1 dp_rank -1 queued_requests {1 num_decode_requests 1",
        "{2 worker_stats {0 kv_stats {0",
        "{1 data_parallel_rank 1",
        "{3 ts 1.5 events [0 data_parallel_rank nil",
        "[1 5",
        "5",
        "text",
        "nil",
        "",
        /* one value too many, and one too few */
        "{1 kv_total_blocks 5 6",
        "{2 kv_total_blocks 5 kv_active_blocks",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct kvb_load_sample before = { .load = full, .has_rank = true, .dp_rank = 9 };
        struct kvb_load_sample sample = before;
        assert_int_equal(decode(bad[i], &sample), KVB_BAD_INPUT);
        assert_true(is_same(&sample, &before));
    }
}

static void refuses_a_message_cut_at_any_byte(void **state)
{
    (void)state;
    msgpack_sbuffer bytes = message_of(nested);

    for (size_t cut = 0; cut < bytes.size; cut++) {
        struct kvb_load_sample sample = { 0 };
        uint8_t *copy = malloc(cut ? cut : 1);
        assert_non_null(copy);
        memcpy(copy, bytes.data, cut);
        assert_int_equal(kvb_forward_pass_decode((kvb_span){ copy, cut }, &sample), KVB_BAD_INPUT);
        free(copy);
    }
    msgpack_sbuffer_destroy(&bytes);
}

/* Deeper than kvb_max_depth: maps in maps. */
static kvb_status decode_deep(struct kvb_load_sample *out_sample)
{
    uint8_t bytes[2 * (kvb_max_depth + 1) + 1];

    for (size_t i = 0; i + 1 < sizeof bytes; i += 2) {
        bytes[i] = 0x81;
        bytes[i + 1] = 0x01;
    }
    bytes[sizeof bytes - 1] = 0xc0;
    return kvb_forward_pass_decode((kvb_span){ bytes, sizeof bytes }, out_sample);
}

static void refuses_false_counts_and_values_too_deep_or_too_large(void **state)
{
    (void)state;
    const uint8_t lie[] = { 0xdf, 0x05, 0xf5, 0xe1, 0x00 }; /* 10^8 pairs in 5 bytes */
    struct kvb_load_sample sample = { 0 };
    static uint8_t large[kvb_max_load_payload_bytes + 1];

    assert_int_equal(
        kvb_forward_pass_decode((kvb_span){ lie, sizeof lie }, &sample), KVB_BAD_INPUT);
    assert_int_equal(decode_deep(&sample), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_forward_pass_decode((kvb_span){ large, sizeof large }, &sample), KVB_TOO_LARGE);
}

/* ---- Round trips ---- */

/* Makes a round trip in which our nth allocation fails. --wrap does not reach allocations inside
 * the msgpack library. */
static kvb_status both_ways(long n)
{
    const struct kvb_load_sample before = { .dp_rank = 9 };
    struct kvb_load_sample sample = before;
    struct kvb_buf bytes;
    msgpack_sbuffer message = message_of(nested);

    kvb_buf_init(&bytes, 1000);
    fail_alloc_after(n);
    kvb_status status =
        kvb_forward_pass_decode((kvb_span){ (const uint8_t *)message.data, message.size }, &sample);
    assert_true(status == KVB_OK || is_same(&sample, &before));
    if (status == KVB_OK) {
        status = kvb_forward_pass_encode(&sample, &bytes);
        assert_true(status == KVB_OK || bytes.len == 0);
    }
    fail_alloc_after(-1);
    kvb_buf_done(&bytes);
    msgpack_sbuffer_destroy(&message);
    return status;
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        status = both_ways(n);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(n < 50);
    }
}

SUITE(forward_pass)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_each_form),
        cmocka_unit_test(reports_which_stats_were_given),
        cmocka_unit_test(reads_the_figures_of_the_schedulers_struct_that_have_a_meaning_here),
        cmocka_unit_test(refuses_impossible_values_and_changes_nothing),
        cmocka_unit_test(refuses_a_message_cut_at_any_byte),
        cmocka_unit_test(refuses_false_counts_and_values_too_deep_or_too_large),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
