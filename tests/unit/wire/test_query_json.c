#include "wire/query/json.h"

#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reads_token_ids_and_every_name([[maybe_unused]] void **state)
{
    static const char text[] =
        " {\"token_ids\":[0,4294967295,7],\"model\":\"m\",\"lora_name\":\"a\","
        "\"cache_salt\":\"s\\u00e9\",\"tenant_id\":\"t\",\"instance_id\":18446744073709551615,"
        "\"data_parallel_rank\":3,"
        "\"new\":{\"x\":[]}}\n";
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    assert_ok(kvb_query_json_decode(kvb_span_of(text), &query, NULL));
    assert_int_equal(query.form, KVB_QUERY_TOKENS);
    assert_int_equal(query.count, 3);
    assert_int_equal(query.tokens[0], 0);
    assert_true(query.tokens[1] == UINT32_MAX);
    assert_int_equal(query.tokens[2], 7);
    assert_null(query.hashes);
    assert_true(query.has_model);
    assert_string_equal(query.model, "m");
    assert_string_equal(query.lora_name, "a");
    assert_string_equal(query.cache_salt, "s\xc3\xa9");
    assert_true(query.has_instance_id);
    assert_true(query.instance_id == UINT64_MAX);
    assert_true(query.has_dp_rank);
    assert_int_equal(query.dp_rank, 3);
}

static void reads_hashes_as_numbers_of_both_signs_and_as_strings([[maybe_unused]] void **state)
{
    static const char *const names[] = { "block_hashes", "seq_hashes" };
    static const enum kvb_query_form forms[] = { KVB_QUERY_TOKENS_HASHES, KVB_QUERY_BLOCK_HASHES };
    static const uint64_t expected[] = {
        18446744073709551615u, 10823191264391160519u, 10823191264391160519u,
        10823191264391160519u, 9223372036854775808u,  18446744073709551615u,
    };

    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };
        kvb_buf_init(&text, 1024);
        assert_ok(kvb_buf_append_format(
            &text,
            "{\"%s\":[18446744073709551615,10823191264391160519,-7623552809318391097,"
            "\"10823191264391160519\",-9223372036854775808,\"-1\"]}",
            names[i]));
        assert_ok(kvb_query_json_decode(kvb_buf_span(&text), &query, NULL));
        assert_int_equal(query.form, forms[i]);
        assert_int_equal(query.count, KVB_COUNT_OF(expected));
        assert_null(query.tokens);
        assert_memory_equal(query.hashes, expected, sizeof expected);
        assert_false(query.has_model);
        assert_false(query.has_instance_id);
        assert_false(query.has_dp_rank);
    }
}

/* A plain list is read by a fast path. The same list with an item or a key spelt differently takes
 * the general path, and must give the same result. */
static void reads_a_list_the_same_however_it_is_spelt([[maybe_unused]] void **state)
{
    static const char *const texts[] = {
        "{\"token_ids\":[1,22,333],\"model\":\"m\"}",
        " { \"model\" : \"m\" , \"token_ids\" : [ 1 , 22 , 333 ] } ",
        "{\"x\":{\"token_ids\":[9]},\"token_ids\":[1,22,333],\"y\":[[]],\"model\":\"m\"}",
        "{\"token\\u005fids\":[1,22,333],\"model\":\"m\"}",
        "{\"token_ids\":[1,22,333],\"m\\u006fdel\":\"m\"}",
        "{\"token_ids\":[9,9],\"token_ids\":[1,22,333],\"model\":\"m\"}",
    };
    static const uint32_t expected[] = { 1, 22, 333 };

    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        assert_ok(kvb_query_json_decode(kvb_span_of(texts[i]), &query, NULL));
        assert_int_equal(query.form, KVB_QUERY_TOKENS);
        assert_int_equal(query.count, KVB_COUNT_OF(expected));
        assert_memory_equal(query.tokens, expected, sizeof expected);
        assert_string_equal(query.model, "m");
    }
}

static void takes_null_for_not_given([[maybe_unused]] void **state)
{
    static const char text[] =
        "{\"token_ids\":[],\"block_hashes\":null,\"model\":null,\"model_name\":\"m\","
        "\"lora_name\":null,\"cache_salt\":null,\"instance_id\":null}";
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    assert_ok(kvb_query_json_decode(kvb_span_of(text), &query, NULL));
    assert_int_equal(query.count, 0);
    assert_true(query.has_model);
    assert_string_equal(query.model, "m");
    assert_string_equal(query.lora_name, "");
    assert_false(query.has_instance_id);
}

struct refusal {
    const char *text;
    kvb_status status;
    const char *detail;
};

static const struct refusal refusals[] = {
    { "", KVB_BAD_INPUT, "body: no JSON" },
    { "x", KVB_BAD_INPUT, "body: no JSON" },
    { "{", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[1]} x", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[1]}{}", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[NaN]}", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[01]}", KVB_BAD_INPUT, "body: no JSON" },
    { "{token_ids:[1]}", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[1],}", KVB_BAD_INPUT, "body: no JSON" },
    { "/**/{\"token_ids\":[1]}", KVB_BAD_INPUT, "body: no JSON" },
    { "\xef\xbb\xbf{\"token_ids\":[1]}", KVB_BAD_INPUT, "body: no JSON" },
    { "{\"token_ids\":[1],\"model\":\"\xff\"}", KVB_BAD_INPUT, "body: no JSON" },
    { "7", KVB_NOT_FOUND, "body: expected an object, got 7" },
    { "null", KVB_NOT_FOUND, "body: expected an object, got null" },
    { "\"x\"", KVB_NOT_FOUND, "body: expected an object, got a string" },
    { "[1]", KVB_NOT_FOUND, "body: expected an object, got an array" },
    { "{}", KVB_NOT_FOUND,
      "token_ids: missing, and so are block_hashes, seq_hashes, text and messages" },
    { "{\"token_ids\":[1],\"seq_hashes\":[1]}", KVB_NOT_FOUND,
      "seq_hashes: only one of token_ids, block_hashes, seq_hashes, text and messages, not "
      "token_ids too" },
    { "{\"token_ids\":5}", KVB_NOT_FOUND, "token_ids: expected an array, got 5" },
    { "{\"token_ids\":[1,2,3,-1]}", KVB_NOT_FOUND,
      "token_ids[3]: expected an integer from 0 to 4294967295, got -1" },
    { "{\"token_ids\":[4294967296]}", KVB_NOT_FOUND,
      "token_ids[0]: expected an integer from 0 to 4294967295, got 4294967296" },
    { "{\"token_ids\":[1.0]}", KVB_NOT_FOUND,
      "token_ids[0]: expected an integer from 0 to 4294967295, got a number with a fraction or an "
      "exponent" },
    { "{\"token_ids\":[\"1\"]}", KVB_NOT_FOUND,
      "token_ids[0]: expected an integer from 0 to 4294967295, got a string" },
    { "{\"token_ids\":[null]}", KVB_NOT_FOUND,
      "token_ids[0]: expected an integer from 0 to 4294967295, got null" },
    { "{\"token_ids\":[1,99999999999999999999]}", KVB_NOT_FOUND,
      "token_ids[1]: expected an integer from 0 to 4294967295, got a number beyond 64 bits" },
    { "{\"block_hashes\":[1,18446744073709551616]}", KVB_NOT_FOUND,
      "block_hashes[1]: expected an integer of 64 bits or a string of its digits, got a number "
      "beyond 64 bits" },
    { "{\"block_hashes\":[-9223372036854775809]}", KVB_NOT_FOUND,
      "block_hashes[0]: expected an integer of 64 bits or a string of its digits, got a number "
      "beyond 64 bits" },
    { "{\"seq_hashes\":[\"18446744073709551616\"]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got a string" },
    { "{\"seq_hashes\":[\"\"]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got a string" },
    { "{\"seq_hashes\":[\" 1\"]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got a string" },
    { "{\"seq_hashes\":[\"1\\u00002\"]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got a string" },
    { "{\"seq_hashes\":[\"0x1\"]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got a string" },
    { "{\"seq_hashes\":[true]}", KVB_NOT_FOUND,
      "seq_hashes[0]: expected an integer of 64 bits or a string of its digits, got true or "
      "false" },
    { "{\"token_ids\":[1],\"model\":7}", KVB_NOT_FOUND, "model: expected a string, got 7" },
    { "{\"token_ids\":[1],\"model_name\":{}}", KVB_NOT_FOUND,
      "model_name: expected a string, got an object" },
    { "{\"token_ids\":[1],\"model_name\":\"a\",\"model\":\"b\"}", KVB_NOT_FOUND,
      "model: differs from model_name; give one of them" },
    { "{\"token_ids\":[1],\"lora_name\":\"a\\u0000b\"}", KVB_NOT_FOUND,
      "lora_name: expected at most 128 bytes and no NUL, got 3 bytes" },
    { "{\"token_ids\":[1],\"cache_salt\":"
      "\"01234567890123456789012345678901234567890123456789012345678901234567890123456789"
      "0123456789012345678901234567890123456789012345678\"}",
      KVB_NOT_FOUND, "cache_salt: expected at most 128 bytes and no NUL, got 129 bytes" },
    { "{\"token_ids\":[1],\"data_parallel_rank\":-1}", KVB_NOT_FOUND,
      "data_parallel_rank: expected an integer from 0 to 4294967295, got -1" },
    { "{\"token_ids\":[1],\"instance_id\":-1}", KVB_NOT_FOUND,
      "instance_id: expected an integer from 0 to 2^64-1, got -1" },
    { "{\"token_ids\":[1],\"instance_id\":\"1\"}", KVB_NOT_FOUND,
      "instance_id: expected an integer from 0 to 2^64-1, got a string" },
};

static void names_the_field_that_is_wrong([[maybe_unused]] void **state)
{
    for (size_t i = 0; i < KVB_COUNT_OF(refusals); i++) {
        struct kvb_query query = { .count = 12345 };
        struct kvb_detail detail = { "" };
        const kvb_status status =
            kvb_query_json_decode(kvb_span_of(refusals[i].text), &query, &detail);
        if (status != refusals[i].status) {
            fail_msg("%s: status %d", refusals[i].text, status);
        }
        assert_string_equal(detail.text, refusals[i].detail);
        assert_int_equal(query.count, 12345); /* stays as it was */
    }
}

/* A number beyond 64 bits in a field that nobody reads is accepted. */
static void ignores_a_wide_number_in_an_unknown_field([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    assert_ok(kvb_query_json_decode(
        kvb_span_of("{\"x\":99999999999999999999,\"token_ids\":[1,2]}"), &query, NULL));
    assert_int_equal(query.count, 2);
}

/* {"NAME":[item,item,...]} */
static void make_list(struct kvb_buf *text, const char *name, const char *item, size_t count)
{
    kvb_buf_init(text, 32 << 20);
    assert_ok(kvb_buf_append_format(text, "{\"%s\":[", name));
    for (size_t i = 0; i < count; i++) {
        assert_ok(kvb_buf_append_text(text, i == 0 ? "" : ","));
        assert_ok(kvb_buf_append_text(text, item));
    }
    assert_ok(kvb_buf_append_text(text, "]}"));
}

static void refuses_more_tokens_than_the_ceiling([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };
    struct kvb_query query = { 0 };
    struct kvb_detail detail = { "" };

    make_list(&text, "token_ids", "1", (size_t)kvb_max_query_tokens + 1);
    assert_int_equal(kvb_query_json_decode(kvb_buf_span(&text), &query, &detail), KVB_TOO_LARGE);
    assert_string_equal(detail.text, "token_ids: at most 2097152, got 2097153");
}

static void refuses_a_body_that_would_fill_the_memory([[maybe_unused]] void **state)
{
    static const struct {
        const char *item;
        size_t count;
    } rows[] = { { "[]", 2000 }, { "{}", 2000 }, { "1", (size_t)kvb_max_query_tokens + 2000 } };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };
        struct kvb_query query = { 0 };
        struct kvb_detail detail = { "" };
        make_list(&text, "unknown", rows[i].item, rows[i].count);
        assert_int_equal(
            kvb_query_json_decode(kvb_buf_span(&text), &query, &detail), KVB_TOO_LARGE);
        assert_string_equal(
            detail.text, "body: at most 16777216 bytes, 2097152 tokens or hashes, 16 levels");
    }
}

static void refuses_depth_and_length([[maybe_unused]] void **state)
{
    struct kvb_query query = { 0 };
    char deep[1000] = "";

    memset(deep, '[', sizeof deep - 1);
    assert_int_equal(kvb_query_json_decode(kvb_span_of(deep), &query, NULL), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_query_json_decode(
            (kvb_span){ (const uint8_t *)"{", (size_t)kvb_max_query_body_bytes + 1 }, &query, NULL),
        KVB_TOO_LARGE);
}

static void refuses_a_body_that_is_cut([[maybe_unused]] void **state)
{
    static const char text[] = "{\"token_ids\":[12,34],\"model\":\"m\\u00e9\",\"x\":-1.5e+3}";

    for (size_t len = 0; len < strlen(text); len++) {
        struct kvb_query query = { 0 };
        uint8_t *cut = malloc(len ? len : 1);
        assert_non_null(cut);
        memcpy(cut, text, len);
        assert_int_equal(
            kvb_query_json_decode((kvb_span){ cut, len }, &query, NULL), KVB_BAD_INPUT);
        free(cut);
    }
}

static void reads_what_a_route_request_selects([[maybe_unused]] void **state)
{
    static const char text[] =
        "{\"token_ids\":[1],\"policy\":\"ttft\",\"role\":\"prefill\",\"dry_run\":true,"
        "\"labels\":{\"zone\":\"b\"},\"candidates\":[9,\"h:1\",9223372036854775807,3]}";
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    assert_ok(kvb_query_json_decode(kvb_span_of(text), &query, NULL));
    const struct kvb_selection *selection = &query.selection;
    assert_string_equal(selection->policy, "ttft");
    assert_true(selection->is_dry_run);
    assert_int_equal(selection->labels.count, 2);
    assert_string_equal(kvb_labels_find(&selection->labels, "role"), "prefill");
    assert_string_equal(kvb_labels_find(&selection->labels, "zone"), "b");
    assert_string_equal(selection->first_candidate, "9");
    assert_true(kvb_selection_has_candidate(selection, 9, ""));
    assert_true(kvb_selection_has_candidate(selection, 3, "h:2"));
    assert_true(kvb_selection_has_candidate(selection, INT64_MAX, ""));
    assert_true(kvb_selection_has_candidate(selection, 4, "h:1"));
    assert_false(kvb_selection_has_candidate(selection, 4, "h:2"));
    assert_false(kvb_selection_has_candidate(selection, 10, ""));
}

static void names_what_is_wrong_with_a_selection([[maybe_unused]] void **state)
{
    static const struct {
        const char *fields;
        const char *why;
    } rows[] = {
        { "\"policy\":7", "policy: expected a string of at most 31 printable bytes" },
        { "\"policy\":\"a23456789b123456789c123456789d12\"", "policy: expected a string" },
        { "\"role\":[]", "role: expected a string of at most 127" },
        { "\"role\":\"a\",\"labels\":{\"role\":\"b\"}", "role: differs from labels.role" },
        { "\"labels\":[]", "labels: expected an object of names and texts" },
        { "\"labels\":{\"zone\":1}", "labels: zone: expected a string" },
        { "\"labels\":{\"zone\":null}", "labels: zone: expected a string" },
        { "\"labels\":{\"a b\":\"x\"}", "labels: the name of a label" },
        { "\"candidates\":7", "candidates: expected an array" },
        { "\"candidates\":[]", "candidates: is empty" },
        { "\"candidates\":[1,-1]", "candidates[1]: expected a worker id" },
        { "\"candidates\":[1.5]", "candidates[0]: expected a worker id" },
        { "\"candidates\":[9223372036854775808]", "candidates[0]: expected a worker id" },
        { "\"candidates\":[99999999999999999999]", "candidates[0]: expected a worker id" },
        { "\"candidates\":[\"\"]", "candidates[0]: expected a worker id" },
        { "\"candidates\":[null]", "candidates[0]: expected a worker id" },
        { "\"dry_run\":1", "dry_run: expected true or false" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        struct kvb_detail detail = { "" };
        char text[160];
        (void)snprintf(text, sizeof text, "{\"token_ids\":[1],%s}", rows[i].fields);
        assert_int_equal(kvb_query_json_decode(kvb_span_of(text), &query, &detail), KVB_NOT_FOUND);
        assert_non_null(strstr(detail.text, rows[i].why));
    }
}

static void refuses_more_candidates_than_the_ceiling([[maybe_unused]] void **state)
{
    for (size_t count = kvb_max_query_candidates; count <= kvb_max_query_candidates + 1; count++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };
        struct kvb_detail detail = { "" };
        kvb_buf_init(&text, 1 << 16);
        assert_ok(kvb_buf_append_text(&text, "{\"token_ids\":[],\"candidates\":[0"));
        for (size_t i = 1; i < count; i++) {
            assert_ok(kvb_buf_append_format(&text, ",%zu", i));
        }
        assert_ok(kvb_buf_append_text(&text, "]}"));
        const kvb_status status = kvb_query_json_decode(kvb_buf_span(&text), &query, &detail);
        assert_int_equal(status, count > kvb_max_query_candidates ? KVB_NOT_FOUND : KVB_OK);
    }
}

/* Only this project's allocations: --wrap does not reach those inside json-c's library. */
static void survives_every_allocation_that_fails([[maybe_unused]] void **state)
{
    kvb_status status = KVB_NO_MEMORY;
    long n = 0;

    for (; status != KVB_OK; n++) {
        KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
        fail_alloc_after(n);
        status = kvb_query_json_decode(
            kvb_span_of("{\"seq_hashes\":[1,2],\"candidates\":[1]}"), &query, NULL);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || (status == KVB_NO_MEMORY && query.hashes == NULL));
        assert_true(n < 100);
    }
    assert_true(n > 1);
}

SUITE(query_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_token_ids_and_every_name),
        cmocka_unit_test(reads_hashes_as_numbers_of_both_signs_and_as_strings),
        cmocka_unit_test(reads_a_list_the_same_however_it_is_spelt),
        cmocka_unit_test(takes_null_for_not_given),
        cmocka_unit_test(names_the_field_that_is_wrong),
        cmocka_unit_test(ignores_a_wide_number_in_an_unknown_field),
        cmocka_unit_test(refuses_more_tokens_than_the_ceiling),
        cmocka_unit_test(refuses_a_body_that_would_fill_the_memory),
        cmocka_unit_test(refuses_depth_and_length),
        cmocka_unit_test(refuses_a_body_that_is_cut),
        cmocka_unit_test(reads_what_a_route_request_selects),
        cmocka_unit_test(names_what_is_wrong_with_a_selection),
        cmocka_unit_test(refuses_more_candidates_than_the_ceiling),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
