#include "wire/load/json.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <math.h>
#include <stdlib.h>
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

static void assert_same(const struct kvb_load_report *a, const struct kvb_load_report *b)
{
    assert_true(a->worker_id == b->worker_id);
    assert_int_equal(a->dp_rank, b->dp_rank);
    assert_string_equal(a->endpoint_name, b->endpoint_name);
    assert_true(a->load.request_active_slots == b->load.request_active_slots);
    assert_true(a->load.request_total_slots == b->load.request_total_slots);
    assert_true(a->load.kv_active_blocks == b->load.kv_active_blocks);
    assert_true(a->load.kv_total_blocks == b->load.kv_total_blocks);
    assert_true(a->load.num_requests_waiting == b->load.num_requests_waiting);
    assert_memory_equal(
        &a->load.gpu_cache_usage_perc, &b->load.gpu_cache_usage_perc, sizeof(float));
    assert_memory_equal(
        &a->load.gpu_prefix_cache_hit_rate, &b->load.gpu_prefix_cache_hit_rate, sizeof(float));
}

static void writes_the_bytes_of_the_contract([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, 4096);
    assert_ok(kvb_load_json_encode(&report, &out));
    assert_int_equal(out.len, strlen(text));
    assert_memory_equal(out.data, text, out.len);
}

static void the_unit_of_the_blocks_is_optional([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_load_report sized = report;
    struct kvb_load_report read = { 0 };

    kvb_buf_init(&out, 4096);
    sized.block_size = 64;
    assert_ok(kvb_load_json_encode(&sized, &out));
    assert_ok(kvb_buf_append(&out, "", 1));
    assert_non_null(strstr((const char *)out.data, "5},\"kv_block_size\":64}"));
    out.len--;
    assert_ok(kvb_load_json_decode(kvb_buf_span(&out), &read));
    assert_int_equal(read.block_size, 64);
    assert_ok(kvb_load_json_decode(kvb_span_of(text), &read));
    assert_int_equal(read.block_size, 0);
    out.data[out.len - 3] = 'x';
    assert_int_equal(kvb_load_json_decode(kvb_buf_span(&out), &read), KVB_BAD_INPUT);
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

/* Floats too: each is read back with the same bits. */
static void decodes_what_it_encoded([[maybe_unused]] void **state)
{
    uint64_t seed = 3;

    for (int round = 0; round < 5000; round++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_load_report some = report;
        struct kvb_load_report got = { 0 };
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        some.worker_id = seed >> 1;
        some.load.kv_total_blocks = seed >> (seed % 64);
        some.load.gpu_cache_usage_perc = (float)(seed >> 40) / (float)(1 << 24);
        some.load.gpu_prefix_cache_hit_rate = (float)(seed % 1000) / 1000.0F;
        kvb_buf_init(&out, 4096);
        assert_ok(kvb_load_json_encode(&some, &out));
        assert_ok(kvb_load_json_decode(kvb_buf_span(&out), &got));
        assert_same(&some, &got);
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

static void escapes_a_name_that_needs_it([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_load_report some = report;
    struct kvb_load_report got = { 0 };

    memcpy(some.endpoint_name, "a\"b\\c\n\xc3\xa9", sizeof "a\"b\\c\n\xc3\xa9");
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_load_json_encode(&some, &out));
    assert_ok(kvb_load_json_decode(kvb_buf_span(&out), &got));
    assert_same(&some, &got);
}

static void reads_the_nested_form_of_dynamo([[maybe_unused]] void **state)
{
    static const char nested[] =
        "{\"worker_id\":7,\"endpoint_name\":\"generate\",\"metrics\":{"
        "\"worker_stats\":{\"data_parallel_rank\":1,\"request_active_slots\":2,"
        "\"request_total_slots\":256,\"num_requests_waiting\":5},"
        "\"kv_stats\":{\"kv_active_blocks\":30,\"kv_total_blocks\":4096,"
        "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":0},"
        "\"spec_decode_stats\":null}}";
    struct kvb_load_report got = { 0 };

    assert_ok(kvb_load_json_decode(kvb_span_of(nested), &got));
    assert_same(&report, &got);
}

static void takes_a_missing_rank_as_0([[maybe_unused]] void **state)
{
    static const char nested[] =
        "{\"worker_id\":7,\"endpoint_name\":\"g\",\"metrics\":{"
        "\"worker_stats\":{\"data_parallel_rank\":null,\"request_active_slots\":2,"
        "\"request_total_slots\":256,\"num_requests_waiting\":5},"
        "\"kv_stats\":{\"kv_active_blocks\":30,\"kv_total_blocks\":4096,"
        "\"gpu_cache_usage_perc\":0.25,\"gpu_prefix_cache_hit_rate\":0}}}";
    struct kvb_load_report got = { .dp_rank = 9 };

    assert_ok(kvb_load_json_decode(kvb_span_of(nested), &got));
    assert_int_equal(got.dp_rank, 0);
}

/* The text with its first `from` replaced by `to`. */
static kvb_status decode_changed(const char *from, const char *to)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf changed = { 0 };
    struct kvb_load_report got = { 0 };

    const char *at = strstr(text, from);
    assert_non_null(at);
    kvb_buf_init(&changed, 8192);
    assert_ok(kvb_buf_append(&changed, text, (size_t)(at - text)));
    assert_ok(kvb_buf_append_text(&changed, to));
    assert_ok(kvb_buf_append_text(&changed, at + strlen(from)));
    const kvb_status status = kvb_load_json_decode(kvb_buf_span(&changed), &got);
    assert_true(status == KVB_OK || got.worker_id == 0); /* stays as it was */
    return status;
}

static void refuses_wrong_and_missing_fields([[maybe_unused]] void **state)
{
    static const struct {
        const char *from;
        const char *to;
    } rows[] = {
        { "\"worker_id\":7", "\"worker_id\":-7" },
        { "\"worker_id\":7", "\"worker_id\":9223372036854775808" },
        { "\"worker_id\":7", "\"worker_id\":\"7\"" },
        { "\"worker_id\":7", "\"worker\":7" },
        { "\"dp_rank\":1", "\"dp_rank\":4294967296" },
        { "\"dp_rank\":1", "\"dp_rank\":-1" },
        { "\"dp_rank\":1", "\"dp_rank\":1.0" },
        { "\"generate\"", "1" },
        { "\"generate\"", "\"a\\u0000b\"" },
        { "\"generate\"", "\"\xff\"" },
        { "generate", "0123456789012345678901234567890123456789012345678901234567890123x" },
        { "\"endpoint_name\"", "\"x\"" },
        { "\"metrics\"", "\"x\"" },
        { "\"kv_total_blocks\":4096", "\"kv_total_blocks\":4096.0" },
        { "\"kv_total_blocks\":4096", "\"kv_total_blocks\":18446744073709551616" },
        { "\"kv_total_blocks\":4096", "\"kv_total_blocks\":null" },
        { "\"num_requests_waiting\":5", "\"num_requests_waiting\":-1" },
        { "\"num_requests_waiting\":5", "\"num_requests_waiting\":-9223372036854775809" },
        { "\"num_requests_waiting\"", "\"x\"" },
        { "0.25", "\"0.25\"" },
        { "0.25", "-0.25" },
        { "0.25", "1e39" },
        { "0.25", "NaN" },
        { "0.25", "1e999" },
        { "}}", "}}x" },
        { "}}", "}} {}" },
        { "}}", "}" },
        { "{", "[" },
        { "{", "\xef\xbb\xbf{" },
    };

    assert_ok(decode_changed("}}", "}} \n"));
    assert_ok(decode_changed("{", "{\"new\":[1,{}],"));
    assert_ok(
        decode_changed("\"kv_total_blocks\":4096", "\"kv_total_blocks\":18446744073709551615"));
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (decode_changed(rows[i].from, rows[i].to) != KVB_BAD_INPUT) {
            fail_msg("was not refused: %s", rows[i].to);
        }
    }
}

static void refuses_what_is_large_before_it_is_parsed([[maybe_unused]] void **state)
{
    struct kvb_load_report got = { 0 };
    char many[200] = "";

    memset(many, '[', sizeof many - 1);
    assert_int_equal(kvb_load_json_decode(kvb_span_of(many), &got), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_load_json_decode((kvb_span){ (const uint8_t *)text, 4097 }, &got), KVB_TOO_LARGE);
}

static void refuses_a_message_that_is_cut([[maybe_unused]] void **state)
{
    for (size_t len = 0; len < strlen(text); len++) {
        struct kvb_load_report got = { 0 };
        uint8_t *cut = malloc(len ? len : 1);
        assert_non_null(cut);
        memcpy(cut, text, len);
        assert_int_equal(kvb_load_json_decode((kvb_span){ cut, len }, &got), KVB_BAD_INPUT);
        free(cut);
    }
}

static void survives_every_allocation_that_fails([[maybe_unused]] void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        kvb_buf_init(&out, 4096);
        fail_alloc_after(n);
        status = kvb_load_json_encode(&report, &out);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || (status == KVB_NO_MEMORY && out.len == 0));
        assert_true(n < 100);
    }
}

SUITE(load_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_of_the_contract),
        cmocka_unit_test(the_unit_of_the_blocks_is_optional),
        cmocka_unit_test(writes_both_forms_of_a_scrape),
        cmocka_unit_test(decodes_what_it_encoded),
        cmocka_unit_test(writes_floats_short_and_always_as_json),
        cmocka_unit_test(escapes_a_name_that_needs_it),
        cmocka_unit_test(reads_the_nested_form_of_dynamo),
        cmocka_unit_test(takes_a_missing_rank_as_0),
        cmocka_unit_test(refuses_wrong_and_missing_fields),
        cmocka_unit_test(refuses_what_is_large_before_it_is_parsed),
        cmocka_unit_test(refuses_a_message_that_is_cut),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
