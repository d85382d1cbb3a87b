#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/buf.h"
#include "core/limits.h"
#include "core/own.h"
#include "vector_file.h"
#include "wire/query/indexer.h"
#include "wire/query/json.h"
#include "wire/query/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Queries in each form; what is refused, and simple ones, are cases of test_decoders.c. */

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

/* What stands behind the ceiling is only counted, but has to be UTF-8 like the rest. */
static void refuses_bad_text_behind_the_ceiling([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };
    struct kvb_query query = { 0 };
    struct kvb_detail detail = { "" };

    make_list(&text, "token_ids", "1", (size_t)kvb_max_query_tokens + 1);
    text.len -= strlen("]}");
    assert_ok(kvb_buf_append_text(&text, ",\"\xff\"],\"token_ids\":null,\"text\":\"a\"}"));
    assert_int_equal(kvb_query_json_decode(kvb_buf_span(&text), &query, &detail), KVB_BAD_INPUT);
    assert_string_equal(detail.text, "body: no JSON");
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

static void candidates_are_ids_and_addresses([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };
    const struct kvb_selection *selection = &query.selection;

    assert_ok(kvb_query_json_decode(
        kvb_span_of("{\"token_ids\":[1],\"candidates\":[9,\"h:1\",9223372036854775807,3]}"), &query,
        NULL));
    assert_true(kvb_selection_has_candidate(selection, 9, ""));
    assert_true(kvb_selection_has_candidate(selection, 3, "h:2"));
    assert_true(kvb_selection_has_candidate(selection, INT64_MAX, ""));
    assert_true(kvb_selection_has_candidate(selection, 4, "h:1"));
    assert_false(kvb_selection_has_candidate(selection, 4, "h:2"));
    assert_false(kvb_selection_has_candidate(selection, 10, ""));
}

/* ---- Text ---- */

/* Where an earlier turn of the chat may end. */
static void the_ends_of_messages_are_noted([[maybe_unused]] void **state)
{
    static const char json[] =
        "{\"messages\":[ {\"a\":\"]\"} ,[1,2],3 ],\"tools\":[{\"messages\":[4]}]}";
    static const char *const ends[] = { "\"]\"}", "[1,2]", "3" };
    KVB_OWN(kvb_query_done) struct kvb_query query = { 0 };

    assert_ok(kvb_query_json_decode(kvb_span_of(json), &query, NULL));
    assert_int_equal(query.text.end_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const size_t len = strlen(ends[i]);
        assert_memory_equal(query.text.members + query.text.ends[i] - len, ends[i], len);
    }
    kvb_query_done(&query);
    assert_ok(kvb_query_json_decode(kvb_span_of("{\"text\":\"[1,2]\"}"), &query, NULL));
    assert_null(query.text.ends);
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

/* ---- Block hashes, of an sgl-router ---- */

/* The hashes of [10, 20, ..., 80] in blocks of 2, as SGLang publishes them. */
static const int64_t hashes[] = { 978178666101069530, -895308556211281782, -8033692805846017938,
                                  835415944263129316 };

struct vector {
    uint8_t *bytes; /* owned */
    size_t len;
};

static struct vector read_vector(const char *name)
{
    char *text = read_text_file("vectors/sgl-router-indexer.txt");
    char key[64];
    struct vector vector = { 0 };

    (void)snprintf(key, sizeof key, "\n%s ", name);
    const char *line = strstr(text, key);
    assert_non_null(line);
    vector.bytes = bytes_of_hex(line + strlen(key), &vector.len);
    free(text);
    return vector;
}

static kvb_span span_of(struct vector vector)
{
    return (kvb_span){ .data = vector.bytes, .len = vector.len };
}

static void check_request(const char *name, size_t count, const int64_t *expected)
{
    struct vector vector = read_vector(name);
    struct kvb_query query = { 0 };
    struct kvb_detail why = { "" };

    assert_ok(kvb_indexer_request_decode(span_of(vector), &query, &why));
    assert_int_equal(query.form, KVB_QUERY_BLOCK_HASHES);
    assert_int_equal(query.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(query.hashes[i] == (uint64_t)expected[i]);
    }
    kvb_query_done(&query);
    free(vector.bytes);
}

static void reads_the_requests_of_sgl_router(void **state)
{
    static const int64_t all_bits[] = { -1 };

    (void)state;
    check_request("request_4", 4, hashes);
    check_request("request_4_max_2", 2, hashes);
    check_request("request_all_bits", 1, all_bits);
    check_request("request_unpacked_2", 2, hashes);
}

static void accepts_the_longest_prompt_of_a_router_and_no_more_bytes(void **state)
{
    enum { most = 1048574, head = 5 };
    const size_t len = head + (size_t)most * 8;
    uint8_t *message = calloc(1, kvb_max_indexer_bytes + 1);
    struct kvb_query query = { 0 };

    (void)state;
    assert_non_null(message);
    memcpy(message, "\x0a\xf0\xff\xff\x03", head);
    assert_ok(kvb_indexer_request_decode((kvb_span){ message, len }, &query, NULL));
    assert_int_equal(query.count, most);
    kvb_query_done(&query);
    assert_int_equal(
        kvb_indexer_request_decode((kvb_span){ message, kvb_max_indexer_bytes + 1 }, &query, NULL),
        KVB_TOO_LARGE);
    free(message);
}

static const struct kvb_indexer_match two[] = {
    { .address = "http://10.0.0.1:30000", .worker_id = 7, .blocks = 3 },
    { .address = "http://10.0.0.2:30000", .worker_id = 8, .blocks = 1 },
};

static void writes_what_protoc_writes(void **state)
{
    struct vector vector = read_vector("response_3_1");
    struct kvb_buf out;

    (void)state;
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_indexer_response_encode(two, 2, 4, &out));
    assert_int_equal(out.len, vector.len);
    assert_memory_equal(out.data, vector.bytes, vector.len);
    kvb_buf_done(&out);
    free(vector.bytes);
}

static void a_response_without_workers_is_empty(void **state)
{
    struct kvb_buf out;

    (void)state;
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_indexer_response_encode(two, 0, 4, &out));
    assert_int_equal(out.len, 0);
    kvb_buf_done(&out);
}

static void has_room_for_the_longest_of_everything(void **state)
{
    char address[256];
    struct kvb_indexer_match match = {
        .address = address, .worker_id = UINT64_MAX, .dp_rank = UINT32_MAX, .blocks = UINT32_MAX
    };
    struct kvb_buf out;

    (void)state;
    memset(address, 'a', sizeof address - 1);
    address[sizeof address - 1] = '\0';
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_indexer_response_encode(&match, 1, UINT32_MAX, &out));
    /* the match: 3 bytes of its head, 258 of the address, 6 of the blocks, 33 of the id; then 6 and
     * 6 */
    assert_int_equal(out.len, 3 + 258 + 6 + 33 + 6 + 6);
    /* the whole prompt: no block behind it was examined */
    assert_memory_equal(out.data + out.len - 6, "\x18\xff\xff\xff\xff\x0f", 6);
    kvb_buf_done(&out);
}

static void reports_that_an_answer_is_too_large(void **state)
{
    struct kvb_buf out;

    (void)state;
    kvb_buf_init(&out, 100);
    assert_int_equal(kvb_indexer_response_encode(two, 2, 4, &out), KVB_TOO_LARGE);
    kvb_buf_done(&out);
}

static void survives_each_failing_allocation([[maybe_unused]] void **state)
{
    struct kvb_buf out;

    kvb_buf_init(&out, 4096);
    fail_alloc_after(0);
    assert_int_equal(kvb_indexer_response_encode(two, 2, 4, &out), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    kvb_buf_done(&out);
}

SUITE(query)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_more_tokens_than_the_ceiling),
        cmocka_unit_test(refuses_bad_text_behind_the_ceiling),
        cmocka_unit_test(refuses_a_body_that_would_fill_the_memory),
        cmocka_unit_test(candidates_are_ids_and_addresses),
        cmocka_unit_test(the_ends_of_messages_are_noted),
        cmocka_unit_test(a_request_names_the_model_and_has_the_members),
        cmocka_unit_test(reads_the_requests_of_sgl_router),
        cmocka_unit_test(accepts_the_longest_prompt_of_a_router_and_no_more_bytes),
        cmocka_unit_test(writes_what_protoc_writes),
        cmocka_unit_test(a_response_without_workers_is_empty),
        cmocka_unit_test(has_room_for_the_longest_of_everything),
        cmocka_unit_test(reports_that_an_answer_is_too_large),
        cmocka_unit_test(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
