#include "wire/load/json.h"

#include "core/own.h"
#include "kvb_test.h"

#include <math.h>
#include <string.h>

static const char text[] =
    "{\"worker_id\":7,\"dp_rank\":1,\"endpoint_name\":\"generate\",\"metrics\":{"
    "\"request_active_slots\":2,\"request_total_slots\":256,\"kv_active_blocks\":30,"
    "\"kv_total_blocks\":4096,\"gpu_cache_usage_perc\":0.25,"
    "\"gpu_prefix_cache_hit_rate\":0.0,\"num_requests_waiting\":5}}";

static const struct kvb_load_report report = {
    .worker_id = 7,
    .dp_rank = 1,
    .endpoint_name = "generate",
    .load = { .request_active_slots = 2,
              .request_total_slots = 256,
              .kv_active_blocks = 30,
              .kv_total_blocks = 4096,
              .gpu_cache_usage_perc = 0.25F,
              .num_requests_waiting = 5 },
};

static void writes_the_bytes_of_the_contract([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, 4096);
    assert_ok(kvb_load_json_encode(&report, &out));
    assert_int_equal(out.len, strlen(text));
    assert_memory_equal(out.data, text, out.len);
}

static void writes_both_forms_of_a_scrape([[maybe_unused]] void **state)
{
    static const char stats[] =
        "{\"request_active_slots\":2,\"request_total_slots\":256,\"kv_active_blocks\":30,"
        "\"kv_total_blocks\":4096,\"gpu_cache_usage_perc\":0.25,"
        "\"gpu_prefix_cache_hit_rate\":0.0,\"num_requests_waiting\":5,"
        "\"worker_stats\":{\"data_parallel_rank\":1,\"request_active_slots\":2,"
        "\"request_total_slots\":256,\"num_requests_waiting\":5},"
        "\"kv_stats\":{\"kv_active_blocks\":30,\"kv_total_blocks\":4096,"
        "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":0.0},"
        "\"spec_decode_stats\":null}";
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf small = { 0 };

    kvb_buf_init(&out, 4096);
    kvb_buf_init(&small, sizeof stats - 2);
    assert_ok(kvb_load_json_encode_stats(&report.load, &report.dp_rank, &out));
    assert_ok(kvb_buf_append(&out, "", 1));
    assert_string_equal((const char *)out.data, stats);
    assert_int_equal(
        kvb_load_json_encode_stats(&report.load, &report.dp_rank, &small), KVB_TOO_LARGE);
    assert_int_equal(small.len, 0);
}

/* Floats too: each is read back with the same bits.  The name needs escapes. */
static void decodes_what_it_encoded([[maybe_unused]] void **state)
{
    uint64_t seed = 3;

    for (int round = 0; round < 5000; round++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_load_report some = report;
        struct kvb_load_report got = { 0 };
        memcpy(some.endpoint_name, "a\"b\\c\n\xc3\xa9", sizeof "a\"b\\c\n\xc3\xa9");
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        some.worker_id = seed >> 1;
        some.load.kv_total_blocks = seed >> (seed % 64);
        some.load.gpu_cache_usage_perc = (float)(seed >> 40) / (float)(1 << 24);
        some.load.gpu_prefix_cache_hit_rate = (float)(seed % 1000) / 1000.0F;
        kvb_buf_init(&out, 4096);
        assert_ok(kvb_load_json_encode(&some, &out));
        assert_ok(kvb_load_json_decode(kvb_buf_span(&out), &got));
        assert_true(got.worker_id == some.worker_id && got.dp_rank == some.dp_rank);
        assert_string_equal(got.endpoint_name, some.endpoint_name);
        assert_memory_equal(&got.load, &some.load, sizeof some.load);
    }
}

static void writes_floats_short_and_always_as_json([[maybe_unused]] void **state)
{
    static const struct {
        float value;
        const char *expected;
    } rows[] = {
        { 0.0F, "\"gpu_cache_usage_perc\":0.0," },
        { 1.0F, "\"gpu_cache_usage_perc\":1.0," },
        { 0.1F, "\"gpu_cache_usage_perc\":0.1," },
        { 0.987F, "\"gpu_cache_usage_perc\":0.987," },
        { 1.0F / 3, "\"gpu_cache_usage_perc\":0.33333334," },
        { NAN, "\"gpu_cache_usage_perc\":0.0," },
        { INFINITY, "\"gpu_cache_usage_perc\":0.0," },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_load_report some = report;
        some.load.gpu_cache_usage_perc = rows[i].value;
        kvb_buf_init(&out, 4096);
        assert_ok(kvb_load_json_encode(&some, &out));
        assert_ok(kvb_buf_append(&out, "", 1));
        assert_non_null(strstr((const char *)out.data, rows[i].expected));
    }
}

SUITE(load_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_of_the_contract),
        cmocka_unit_test(writes_both_forms_of_a_scrape),
        cmocka_unit_test(decodes_what_it_encoded),
        cmocka_unit_test(writes_floats_short_and_always_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
