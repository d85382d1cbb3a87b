#include "fleet/trace.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "fleet/engine/engine.h"
#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

/* ---- One line ---- */

static struct kvb_trace_line line;

static kvb_status decode(const char *text)
{
    return kvb_trace_line_decode((kvb_span){ (const uint8_t *)text, strlen(text) }, &line);
}

static void reads_a_line(void **state)
{
    (void)state;
    assert_ok(decode("{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 3, "
                     "\"hash_ids\": [46, 47, 2305]}\n"));
    assert_int_equal(line.timestamp_ms, 27482);
    assert_int_equal(line.input_length, 1030);
    assert_int_equal(line.output_length, 3);
    assert_int_equal(line.id_count, 3);
    assert_int_equal(line.ids[2], 2305);
}

static void the_length_must_fit_the_ids(void **state)
{
    (void)state;
    assert_ok(
        decode("{\"timestamp\":0,\"input_length\":512,\"output_length\":0,\"hash_ids\":[1]}"));
    assert_ok(decode("{\"timestamp\":0,\"input_length\":1,\"output_length\":0,\"hash_ids\":[1]}"));
    assert_ok(
        decode("{\"timestamp\":0,\"input_length\":513,\"output_length\":0,\"hash_ids\":[1,2]}"));
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":513,\"output_length\":0,\"hash_ids\":[1]}"),
        KVB_BAD_INPUT);
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":512,\"output_length\":0,\"hash_ids\":[1,2]}"),
        KVB_BAD_INPUT);
    assert_int_equal(
        decode("{\"timestamp\":0,\"input_length\":0,\"output_length\":0,\"hash_ids\":[]}"),
        KVB_BAD_INPUT);
}

/* ---- The file ---- */

enum { trace_rows = 2000 };

static const char trace_path[] = KVB_DATA "/conversation_trace.jsonl";

static void drop_trace(struct kvb_trace **trace)
{
    kvb_trace_free(*trace);
}

static struct kvb_trace *load(uint32_t scale)
{
    struct kvb_trace *trace = NULL;
    struct kvb_detail detail = { 0 };

    assert_ok(kvb_trace_load(trace_path, scale, &detail, &trace));
    return trace;
}

static struct kvb_trace_request request_of(const struct kvb_trace *trace, uint64_t index)
{
    struct kvb_trace_request request = { 0 };

    assert_ok(kvb_trace_request_make(trace, index, &request));
    return request;
}

/* Rows 0 and 1 share their first hash id, and no other. */
static uint32_t
common_tokens(const struct kvb_trace_request *one, const struct kvb_trace_request *two)
{
    uint32_t at = 0;

    while (at < one->count && at < two->count && one->tokens[at] == two->tokens[at]) {
        at++;
    }
    return at;
}

static void a_hash_id_is_512_tokens(void **state)
{
    (void)state;
    KVB_OWN(drop_trace) struct kvb_trace *trace = load(1);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request first = request_of(trace, 0);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request second = request_of(trace, 1);

    assert_int_equal(first.count, 6758);
    assert_int_equal(first.output_length, 500);
    assert_int_equal(second.count, 7322);
    assert_int_equal(common_tokens(&first, &second), 512);
    for (uint32_t i = 0; i < first.count; i++) {
        assert_true(first.tokens[i] < kvb_fleet_vocabulary);
    }
}

static void a_scale_divides_all_lengths(void **state)
{
    (void)state;
    KVB_OWN(drop_trace) struct kvb_trace *trace = load(4);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request first = request_of(trace, 0);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request second = request_of(trace, 1);

    assert_int_equal(first.count, 6758 / 4);
    assert_int_equal(first.output_length, 125);
    assert_int_equal(common_tokens(&first, &second), 128);
}

static void every_row_gives_a_request_at_every_scale(void **state)
{
    (void)state;
    const uint32_t scales[] = { 1, 3, 512 };

    for (size_t i = 0; i < KVB_COUNT_OF(scales); i++) {
        KVB_OWN(drop_trace) struct kvb_trace *trace = load(scales[i]);
        KVB_OWN(kvb_trace_request_done) struct kvb_trace_request request = { 0 };
        for (uint64_t row = 0; row < trace_rows; row++) {
            assert_ok(kvb_trace_request_make(trace, row, &request));
            assert_true(request.count > 0);
            assert_true(request.output_length > 0);
        }
    }
}

static void after_the_end_the_lengths_repeat_with_other_content(void **state)
{
    (void)state;
    KVB_OWN(drop_trace) struct kvb_trace *trace = load(4);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request first = request_of(trace, 0);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request lap = request_of(trace, 2000);
    KVB_OWN(kvb_trace_request_done) struct kvb_trace_request next = request_of(trace, 2001);

    assert_int_equal(lap.count, first.count);
    assert_int_equal(common_tokens(&first, &lap), 0);
    assert_int_equal(common_tokens(&lap, &next), 128);
    assert_true(lap.conversation != first.conversation);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long fail_at = 0; status == KVB_NO_MEMORY; fail_at++) {
        KVB_OWN(drop_trace) struct kvb_trace *trace = NULL;
        KVB_OWN(kvb_trace_request_done) struct kvb_trace_request request = { 0 };
        struct kvb_detail detail = { 0 };
        fail_alloc_after(fail_at);
        status = kvb_trace_load(trace_path, 4, &detail, &trace);
        /* fopen() allocates too */
        status = status == KVB_BAD_CONFIG && fail_at < 2 ? KVB_NO_MEMORY : status;
        if (status == KVB_OK) {
            status = kvb_trace_request_make(trace, 0, &request);
        }
        fail_alloc_after(-1);
    }
    assert_ok(status);
}

SUITE(trace)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_line),
        cmocka_unit_test(the_length_must_fit_the_ids),
        cmocka_unit_test(a_hash_id_is_512_tokens),
        cmocka_unit_test(a_scale_divides_all_lengths),
        cmocka_unit_test(every_row_gives_a_request_at_every_scale),
        cmocka_unit_test(after_the_end_the_lengths_repeat_with_other_content),
        cmocka_unit_test(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
