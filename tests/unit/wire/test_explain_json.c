#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/own.h"
#include "wire/query/explain.h"

#include <string.h>

static kvb_status
decode(const char *json, struct kvb_explain_request *request, struct kvb_detail *why)
{
    return kvb_explain_json_decode(kvb_span_of(json), request, why);
}

static void a_request_has_a_prompt_and_where_to_begin(void **state)
{
    (void)state;
    struct kvb_explain_request request = { 0 };
    struct kvb_detail why = { "" };

    assert_ok(decode(
        "{\"token_ids\":[5,6],\"lora_name\":\"a\",\"from\":7,\"else\":[{}]}", &request, &why));
    assert_int_equal(request.from, 7);
    assert_int_equal(request.query.form, KVB_QUERY_TOKENS);
    assert_int_equal(request.query.count, 2);
    assert_int_equal(request.query.tokens[1], 6);
    assert_string_equal(request.query.lora_name, "a");
    kvb_explain_request_done(&request);

    assert_ok(decode("{\"from\":null,\"seq_hashes\":[\"9\"]}", &request, &why));
    assert_int_equal(request.from, 0);
    assert_int_equal(request.query.form, KVB_QUERY_BLOCK_HASHES);
    kvb_explain_request_done(&request);
}

static void anything_else_is_refused_and_names_the_field(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        const char *field;
    } cases[] = {
        { "", "body" },
        { "[]", "body" },
        { "{}", "token_ids" },
        { "{\"text\":\"hello\"}", "token_ids" },
        { "{\"token_ids\":[-1]}", "token_ids[0]" },
        { "{\"token_ids\":[\"x\"]}", "token_ids[0]" },
        { "{\"from\":1.5,\"token_ids\":[1]}", "from" },
        { "{\"from\":-1,\"token_ids\":[1]}", "from" },
        { "{\"from\":\"1\",\"token_ids\":[1]}", "from" },
        { "{\"from\":1,\"from\":1,\"token_ids\":[1]}", "from" },
        { "{\"lora_name\":5,\"token_ids\":[1]}", "lora_name" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_explain_request request = { 0 };
        struct kvb_detail why = { "" };
        assert_int_equal(decode(cases[i].json, &request, &why), KVB_BAD_INPUT);
        assert_non_null(strstr(why.text, cases[i].field));
        assert_null(request.query.tokens);
    }
}

/* One block on the device and doubtful on the host, one that was removed. */
static struct kvb_explanation sample(struct kvb_explained_block rows[2])
{
    rows[0] = (struct kvb_explained_block){
        .has_name = true,
        .block = { 11 },
        .reason = KVB_EXPLAIN_HELD,
        .lists = 1U << KVB_TIER_DEVICE,
        .min = { 2 },
        .max = { 3, 1 },
        .traces = { { KVB_TRACE_HELD, 5, { KVB_ORIGIN_REPLAYED, 1700000000123456 } } },
    };
    rows[1] = (struct kvb_explained_block){
        .reason = KVB_EXPLAIN_REMOVED,
        .traces = { { KVB_TRACE_REMOVED, 6, { KVB_ORIGIN_LIVE, 1700000000200000 } },
                    { KVB_TRACE_ABSENT, 4, { KVB_ORIGIN_LIVE, 1 } } },
    };
    struct kvb_explanation explanation = { .beat = { .worker_id = 7,
                                                     .dp_rank = 1,
                                                     .model = "m",
                                                     .state = KVB_STREAM_UNVERIFIED,
                                                     .reason = KVB_REASON_GROUPS,
                                                     .block_size = 16,
                                                     .last_id = 9,
                                                     .epoch_first_id = 3 },
                                           .why = "a kind",
                                           .blocks = 4,
                                           .held_blocks = 1,
                                           .usable_blocks = 1,
                                           .trace_events = 3,
                                           .is_trace_whole = true,
                                           .trace_first_id = 4,
                                           .trace_first_us = 1500,
                                           .rows = rows,
                                           .row_count = 2 };
    return explanation;
}

#define HEAD                                                                                       \
    "{\"bridge_id\":\"b\",\"worker_id\":7,\"dp_rank\":1,\"model\":\"m\",\"state\":\"UNVERIFIED\"," \
    "\"reason\":\"groups\",\"why\":\"a kind\",\"hashes\":\"canonical\",\"block_size\":16,"         \
    "\"lookahead\":0,\"window_tokens\":0,\"last_event_id\":9,\"epoch_first_id\":3,\"blocks\":4,"   \
    "\"held_blocks\":1,\"usable_blocks\":1,\"trace\":{\"events\":3,\"first_event_id\":4,"          \
    "\"first_time_ms\":1,\"whole\":true},\"rows\":["

#define FIRST                                                                                      \
    "{\"block\":0,\"hash\":11,\"reason\":\"held\",\"lists\":{\"device\":{\"listed\":true,"         \
    "\"min_copies\":2,\"max_copies\":3,\"trace\":{\"what\":\"held\",\"event_id\":5,"               \
    "\"time_ms\":1700000000123,\"origin\":\"replayed\"}},\"host\":{\"listed\":false,"              \
    "\"min_copies\":0,\"max_copies\":1}}}"

#define SECOND                                                                                     \
    "{\"block\":1,\"reason\":\"removed\",\"lists\":{\"device\":{\"listed\":false,"                 \
    "\"min_copies\":0,\"max_copies\":0,\"trace\":{\"what\":\"removed\",\"event_id\":6,"            \
    "\"time_ms\":1700000000200,\"origin\":\"live\"}}}}"

static void a_count_that_may_be_too_low_is_marked(void **state)
{
    (void)state;
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_explained_block rows[2];
    struct kvb_explanation explanation = sample(rows);

    explanation.is_held_at_least = true;
    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_explain_json_encode(&explanation, "b", 1 << 16, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_non_null(strstr((const char *)buf.data, "\"held_blocks\":1,\"held_at_least\":true,"));
}

static void assert_encodes(size_t max_bytes, const char *expected)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    struct kvb_explained_block rows[2];
    const struct kvb_explanation explanation = sample(rows);

    kvb_buf_init(&buf, 1 << 16);
    assert_ok(kvb_explain_json_encode(&explanation, "b", max_bytes, &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_string_equal((const char *)buf.data, expected);
}

static void an_answer_has_a_row_for_each_block(void **state)
{
    (void)state;
    assert_encodes(1 << 16, HEAD FIRST "," SECOND "],\"next\":2}");
}

static void rows_that_do_not_fit_are_left_to_the_next_answer(void **state)
{
    (void)state;
    assert_encodes(0, HEAD FIRST "],\"next\":1}");
}

static void no_answer_is_larger_than_its_buffer(void **state)
{
    (void)state;
    struct kvb_explained_block rows[2];
    const struct kvb_explanation explanation = sample(rows);
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, 100);
    assert_int_equal(kvb_explain_json_encode(&explanation, "b", 1 << 16, &buf), KVB_TOO_LARGE);
}

static void survives_each_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;
    struct kvb_explain_request request = { 0 };
    struct kvb_detail why = { "" };

    for (long n = 0; status != KVB_OK; n++) {
        fail_alloc_after(n);
        status = decode("{\"token_ids\":[5,6]}", &request, &why);
        fail_alloc_after(-1);
        assert_true(n < 200);
    }
    kvb_explain_request_done(&request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_has_a_prompt_and_where_to_begin),
        cmocka_unit_test(anything_else_is_refused_and_names_the_field),
        cmocka_unit_test(a_count_that_may_be_too_low_is_marked),
        cmocka_unit_test(an_answer_has_a_row_for_each_block),
        cmocka_unit_test(rows_that_do_not_fit_are_left_to_the_next_answer),
        cmocka_unit_test(no_answer_is_larger_than_its_buffer),
        cmocka_unit_test(survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
