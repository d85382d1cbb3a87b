#include "kvb_test.h"

#include "fail_alloc.h"
#include "wire/router/books.h"

#include <string.h>

static const kvb_block_hash names[] = { { 1 }, { UINT64_MAX }, { 0x0123456789abcdef } };

static struct kvb_shared_decision decision_of(void)
{
    return (struct kvb_shared_decision){
        .sender = { .id = "a1", .start = 77 },
        .sequence = 5,
        .request_id = "r \"1\" \xc3\xa4",
        .stream = { "dynamo", "VllmWorker", UINT64_MAX, 3 },
        .isl_blocks = 9,
        .overlap_blocks = 6,
        .blocks = 8,
        .prefill_blocks = 3,
        .ttl_ms = 1000,
        .promised_tokens = 96,
        .promised_block = { 0xfedcba9876543210 },
        .names = names,
        .name_count = 3,
    };
}

static void a_decision_is_read_as_it_was_written(void **state)
{
    (void)state;
    const struct kvb_shared_decision wrote = decision_of();
    struct kvb_shared_decision read = { .sequence = 0 };
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_books_decision_encode(&wrote, &buf));
    assert_ok(kvb_books_decision_decode(kvb_buf_span(&buf), &read));
    assert_string_equal(read.sender.id, wrote.sender.id);
    assert_int_equal(read.sender.start, wrote.sender.start);
    assert_int_equal(read.sequence, wrote.sequence);
    assert_string_equal(read.request_id, wrote.request_id);
    assert_memory_equal(&read.stream, &wrote.stream, sizeof wrote.stream);
    assert_int_equal(read.isl_blocks, wrote.isl_blocks);
    assert_int_equal(read.overlap_blocks, wrote.overlap_blocks);
    assert_int_equal(read.blocks, wrote.blocks);
    assert_int_equal(read.prefill_blocks, wrote.prefill_blocks);
    assert_int_equal(read.ttl_ms, wrote.ttl_ms);
    assert_int_equal(read.promised_tokens, 96);
    assert_int_equal(read.promised_block.value, 0xfedcba9876543210);
    assert_int_equal(read.name_count, 3);
    assert_memory_equal(read.names, names, sizeof names);
    kvb_shared_decision_done(&read);
    kvb_buf_done(&buf);
}

static void the_json_of_a_decision_is_as_documented(void **state)
{
    (void)state;
    struct kvb_shared_decision decision = decision_of();
    struct kvb_buf buf;

    memcpy(decision.request_id, "r1", 3);
    decision.stream.worker_id = 7;
    decision.name_count = 1;
    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_books_decision_encode(&decision, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_string_equal(
        (const char *)buf.data,
        "{\"version\":1,\"aggregator\":\"a1\",\"start\":77,\"sequence\":5,\"request_id\":\"r1\","
        "\"namespace\":\"dynamo\",\"component\":\"VllmWorker\",\"worker_id\":7,\"dp_rank\":3,"
        "\"isl_blocks\":9,\"overlap_blocks\":6,\"blocks\":8,\"prefill_"
        "blocks\":3,\"ttl_ms\":1000,"
        "\"promised_tokens\":96,\"promised_block\":\"fedcba9876543210\","
        "\"first_hash\":1,\"last_hash\":1,\"names\":\"0000000000000001\"}");
    kvb_buf_done(&buf);
}

static void a_report_comes_from_a_router_or_an_aggregator(void **state)
{
    (void)state;
    struct kvb_shared_report wrote = { .sender = { .id = "a1", .start = 7 }, .request_id = "r1" };
    struct kvb_shared_report read;
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_books_report_encode(&wrote, &buf));
    assert_ok(kvb_books_report_decode(kvb_buf_span(&buf), &read));
    assert_memory_equal(&read, &wrote, sizeof wrote);
    assert_ok(kvb_books_report_decode(kvb_span_of("{\"request_id\":\"r2\",\"tokens\":9}"), &read));
    assert_string_equal(read.request_id, "r2");
    assert_string_equal(read.sender.id, "");
    assert_false(read.has_cached_tokens);
    wrote.has_cached_tokens = true;
    wrote.cached_tokens = 0;
    kvb_buf_reset(&buf);
    assert_ok(kvb_books_report_encode(&wrote, &buf));
    assert_ok(kvb_books_report_decode(kvb_buf_span(&buf), &read));
    assert_true(read.has_cached_tokens && read.cached_tokens == 0);
    assert_ok(kvb_books_report_decode(
        kvb_span_of("{\"request_id\":\"r2\",\"cached_tokens\":64}"), &read));
    assert_int_equal(read.cached_tokens, 64);
    assert_int_equal(
        kvb_books_report_decode(kvb_span_of("{\"request_id\":\"r2\",\"cached_tokens\":-1}"), &read),
        KVB_BAD_INPUT);
    assert_int_equal(read.cached_tokens, 64);
    kvb_buf_done(&buf);
}

static void a_status_is_read_as_it_was_written(void **state)
{
    (void)state;
    const struct kvb_aggregator_status wrote = { .sender = { .id = "a1", .start = 7 },
                                                 .sequence = 3,
                                                 .is_ready = true,
                                                 .requests_in_flight = 4,
                                                 .predicted_blocks = 5 };
    struct kvb_aggregator_status read = { .sequence = 0 };
    struct kvb_buf buf;

    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_books_status_encode(&wrote, &buf));
    assert_ok(kvb_books_status_decode(kvb_buf_span(&buf), &read));
    assert_string_equal(read.sender.id, "a1");
    assert_int_equal(read.sequence, 3);
    assert_true(read.is_ready && !read.is_bye);
    assert_int_equal(read.requests_in_flight, 4);
    assert_int_equal(read.predicted_blocks, 5);
    kvb_buf_done(&buf);
}

#define HEAD "{\"version\":1,\"aggregator\":\"a\",\"start\":1,\"sequence\":1,"
#define STREAM "\"namespace\":\"n\",\"component\":\"c\",\"worker_id\":1,\"dp_rank\":0,"
#define COUNTS "\"isl_blocks\":1,\"overlap_blocks\":0,\"blocks\":1,\"prefill_blocks\":1,"

SUITE(books)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_decision_is_read_as_it_was_written),
        cmocka_unit_test(the_json_of_a_decision_is_as_documented),
        cmocka_unit_test(a_report_comes_from_a_router_or_an_aggregator),
        cmocka_unit_test(a_status_is_read_as_it_was_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
