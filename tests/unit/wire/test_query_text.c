#include "wire/query/text.h"

#include "core/buf.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "wire/query/json.h"

#include <stdlib.h>
#include <string.h>

static void assert_text(const char *json, const char *members, const char *model)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_detail why = { .text = "" };
    const kvb_status status = kvb_query_json_decode(kvb_span_of(json), &query, &why);

    if (status != KVB_OK) {
        fail_msg("%s: %s", json, why.text);
    }
    assert_int_equal(query.form, KVB_QUERY_TEXT);
    assert_int_equal(query.count, 0);
    assert_int_equal(query.text.bytes, strlen(members));
    assert_memory_equal(query.text.members, members, query.text.bytes);
    assert_string_equal(query.model, model);
}

static void a_text_is_copied_byte_for_byte([[maybe_unused]] void **state)
{
    assert_text(
        "{\"text\":\"a\\u00e9 \\\"\xc3\xa9\",\"model\":\"m\"}",
        "\"prompt\":\"a\\u00e9 \\\"\xc3\xa9\"", "m");
    assert_text(" { \"model\" : \"m\" , \"text\" : \"a\" } ", "\"prompt\":\"a\"", "m");
    assert_text("{\"text\":\"a\",\"messages\":null,\"token_ids\":null}", "\"prompt\":\"a\"", "");
    assert_text(
        "{\"messages\":[ {\"role\":\"user\", \"n\":1.50}],\"x\":{\"text\":[]}}",
        "\"messages\":[ {\"role\":\"user\", \"n\":1.50}]", "");
}

/* Keys in the order of the table, so that equal requests have equal cache keys. */
static void fields_that_change_the_tokens_are_kept([[maybe_unused]] void **state)
{
    static const char all[] =
        "\"add_special_tokens\":false,\"add_generation_prompt\":true,"
        "\"continue_final_message\":false,\"tools\":[{}],\"chat_template\":\"t\","
        "\"chat_template_kwargs\":{\"a\":1},\"messages\":[1]";

    assert_text(
        "{\"messages\":[1],\"add_special_tokens\":false,\"add_generation_prompt\":true,"
        "\"continue_final_message\":false,\"tools\":[{}],\"chat_template\":\"t\","
        "\"chat_template_kwargs\":{\"a\":1},\"model\":\"m\"}",
        all, "m");
    assert_text(
        "{\"chat_template_kwargs\":{\"a\":1},\"chat_template\":\"t\",\"model\":\"m\",\"tools\":[{}]"
        ","
        "\"continue_final_message\":false,\"add_generation_prompt\":true,"
        "\"add_special_tokens\":false,\"messages\":[1]}",
        all, "m");
    assert_text(
        "{\"tools\":[],\"add_special_tokens\":false,\"text\":\"a\",\"max_tokens\":7}",
        "\"add_special_tokens\":false,\"prompt\":\"a\"", "");
    assert_text("{\"tools\":null,\"messages\":[1]}", "\"messages\":[1]", "");
}

/* Where an earlier turn of the chat may end. */
static void the_ends_of_messages_are_noted([[maybe_unused]] void **state)
{
    static const char json[] =
        "{\"messages\":[ {\"a\":\"]\"} ,[1,2],3 ],\"tools\":[{\"messages\":[4]}]}";
    static const char *const ends[] = { "\"]\"}", "[1,2]", "3" };
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    struct kvb_buf wrong = { 0 };

    assert_ok(kvb_query_json_decode(kvb_span_of(json), &query, NULL));
    assert_int_equal(query.text.end_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const size_t len = strlen(ends[i]);
        assert_memory_equal(query.text.members + query.text.ends[i] - len, ends[i], len);
    }
    kvb_query_done(&query);
    assert_ok(kvb_query_json_decode(kvb_span_of("{\"text\":\"[1,2]\"}"), &query, NULL));
    assert_null(query.text.ends);
    /* What a gateway makes of a body may be anything. */
    static const char *const bad[] = { "", "\"tools\":[1]", "\"messages\":[1", "\"messages\":7" };
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        struct kvb_query_text text = { 0 };
        kvb_buf_init(&wrong, 100);
        assert_ok(kvb_buf_append_text(&wrong, bad[i]));
        assert_int_equal(kvb_query_text_take(&wrong, &text), KVB_BAD_INPUT);
        assert_null(text.members);
        kvb_buf_done(&wrong);
    }
}

static const struct {
    const char *json;
    kvb_status status;
    const char *why;
} wrong[] = {
    { "{\"text\":\"a\",\"token_ids\":[1]}", KVB_NOT_FOUND, "text: only one of token_ids," },
    { "{\"text\":\"a\",\"token_ids\":[]}", KVB_NOT_FOUND, "text: only one of token_ids," },
    { "{\"seq_hashes\":[1],\"messages\":[1]}", KVB_NOT_FOUND, "messages: only one of" },
    { "{\"text\":\"a\",\"messages\":[1]}", KVB_NOT_FOUND, "messages: only one of" },
    { "{\"text\":7,\"messages\":[1]}", KVB_NOT_FOUND, "messages: only one of" },
    { "{\"text\":7}", KVB_NOT_FOUND, "text: expected a string that is not empty, got 7" },
    { "{\"text\":\"\"}", KVB_NOT_FOUND, "text: expected a string that is not empty" },
    { "{\"text\":[\"a\"]}", KVB_NOT_FOUND, "text: expected a string" },
    { "{\"messages\":\"a\"}", KVB_NOT_FOUND, "messages: expected an array" },
    { "{\"messages\":[]}", KVB_NOT_FOUND, "messages: expected an array that is not empty" },
    { "{\"text\":\"a\",\"text\":\"b\"}", KVB_NOT_FOUND,
      "text: it, or what belongs to it, is given" },
    { "{\"te\\u0078t\":\"a\"}", KVB_NOT_FOUND, "text: it, or what belongs to it, is given twice" },
    { "{\"messages\":[1],\"tools\":[1],\"tools\":[2]}", KVB_NOT_FOUND, "messages: it, or what" },
    { "{\"text\":\"a\xff\"}", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"text\":\"a\"} x", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"text\":\"a\",\"model\":7}", KVB_NOT_FOUND, "model: expected a string" },
};

static void what_is_wrong_is_named([[maybe_unused]] void **state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(wrong); i++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        struct kvb_detail why = { .text = "" };
        const kvb_status status = kvb_query_json_decode(kvb_span_of(wrong[i].json), &query, &why);
        if (status != wrong[i].status || !strstr(why.text, wrong[i].why)) {
            fail_msg("%s: %d, %s", wrong[i].json, (int)status, why.text);
        }
        assert_null(query.text.members);
    }
}

static void nesting_has_a_limit([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf json = { 0 };
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    for (int depth = 32; depth <= 33; depth++) {
        kvb_buf_init(&json, 4096);
        assert_ok(kvb_buf_append_text(&json, "{\"messages\":"));
        for (int i = 0; i < 2 * depth; i++) {
            assert_ok(kvb_buf_append_text(&json, i < depth ? "[" : "]"));
        }
        assert_ok(kvb_buf_append_text(&json, "}"));
        assert_int_equal(
            kvb_query_json_decode(kvb_buf_span(&json), &query, NULL),
            depth == 32 ? KVB_OK : KVB_TOO_LARGE);
        kvb_query_done(&query);
        kvb_buf_done(&json);
    }
}

static void decoding_survives_each_failed_allocation([[maybe_unused]] void **state)
{
    static const char json[] = "{\"messages\":[1],\"tools\":[2],\"model\":\"m\"}";
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status != KVB_OK; n++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        fail_alloc_after(n);
        status = kvb_query_json_decode(kvb_span_of(json), &query, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(status == KVB_OK || !query.text.members);
    }
}

static void a_request_names_the_model_and_has_the_members([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    static const char want[] = "{\"model\":\"a\\\"b\",\"prompt\":\"x\"}";

    kvb_buf_init(&out, 100);
    assert_ok(kvb_tokenize_request_encode("a\"b", kvb_span_of("\"prompt\":\"x\""), &out));
    assert_int_equal(out.len, strlen(want));
    assert_memory_equal(out.data, want, out.len);
}

static const struct {
    const char *json;
    kvb_status status;
} answers[] = {
    { "{\"count\":3,\"max_model_len\":4096,\"tokens\":[1,2,4294967295]}", KVB_OK },
    { " {\"tokens\":[1, 2,3],\"token_strs\":null}\n", KVB_OK },
    { "{\"tokens\":[1,2,3],\"count\":2}", KVB_BAD_INPUT },
    { "{\"tokens\":[1,2,3],\"count\":\"3\"}", KVB_BAD_INPUT },
    { "{\"tokens\":[],\"count\":0}", KVB_BAD_INPUT },
    { "{\"tokens\":[[1,2,3]],\"count\":[3]}", KVB_BAD_INPUT },
    { "{\"tokens\":[1,-2,3]}", KVB_BAD_INPUT },
    { "{\"tokens\":[1,4294967296]}", KVB_BAD_INPUT },
    { "{\"tokens\":[1,2,3", KVB_BAD_INPUT },
    { "{\"tokens\":[1,2,3]} {}", KVB_BAD_INPUT },
    { "{\"tokens\":null}", KVB_BAD_INPUT },
    { "{\"count\":3}", KVB_BAD_INPUT },
    { "<html>", KVB_BAD_INPUT },
    { "", KVB_BAD_INPUT },
};

static void only_a_whole_answer_is_taken([[maybe_unused]] void **state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(answers); i++) {
        uint32_t *tokens = NULL;
        size_t count = 0;
        const kvb_status status =
            kvb_tokenize_answer_decode(kvb_span_of(answers[i].json), &tokens, &count);
        if (status != answers[i].status) {
            fail_msg("%s: %d", answers[i].json, (int)status);
        }
        assert_int_equal(count, status == KVB_OK ? 3 : 0);
        assert_true(status != KVB_OK || (tokens[0] == 1 && tokens[1] == 2));
        free(tokens);
    }
}

SUITE(query_text)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_copied_byte_for_byte),
        cmocka_unit_test(fields_that_change_the_tokens_are_kept),
        cmocka_unit_test(the_ends_of_messages_are_noted),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(decoding_survives_each_failed_allocation),
        cmocka_unit_test(a_request_names_the_model_and_has_the_members),
        cmocka_unit_test(only_a_whole_answer_is_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
