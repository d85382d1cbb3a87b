#include "kvb_test.h"

#include "core/limits.h"
#include "fail_alloc.h"
#include "vector_file.h"
#include "wire/query/indexer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void refuse_request(kvb_span message, const char *sentence)
{
    struct kvb_query query = { .count = 77 };
    struct kvb_detail why = { "" };

    assert_int_equal(kvb_indexer_request_decode(message, &query, &why), KVB_BAD_INPUT);
    assert_non_null(strstr(why.text, sentence));
    assert_int_equal(query.count, 77); /* untouched */
}

#define BYTES(text) ((kvb_span){ (const uint8_t *)(text), sizeof(text) - 1 })

static void refuses_invalid_requests(void **state)
{
    struct vector texts = read_vector("request_of_texts");

    (void)state;
    refuse_request(span_of(texts), "`hashes` is not a list of sfixed64");
    refuse_request(BYTES(""), "`hashes` is empty");
    refuse_request(BYTES("\x0a\x00"), "`hashes` is empty");
    refuse_request(BYTES("\x10\x02"), "`hashes` is empty");
    refuse_request(BYTES("\x08\x01"), "`hashes` is not a list");
    refuse_request(BYTES("\x0d\x01\x01\x01\x01"), "`hashes` is not a list");
    refuse_request(BYTES("\x0a\x08"), "not protobuf");
    refuse_request(
        BYTES("\x0a\x08"
              "12345678"
              "\x12\x00"),
        "`max_blocks` is not a uint32");
    free(texts.bytes);
}

/* A newer router may send fields that this reader does not know, and arrays in pieces. */
static void skips_fields_that_it_does_not_know(void **state)
{
    struct kvb_query query = { 0 };

    (void)state;
    assert_ok(kvb_indexer_request_decode(
        BYTES("\x1a\x03"
              "abc"
              "\x0a\x08\x01\0\0\0\0\0\0\0"
              "\x28\x05"
              "\x09\x02\0\0\0\0\0\0\0"
              "\x10\x07"
              "\x10\x00"
              "\x0a\x08\x03\0\0\0\0\0\0\0"),
        &query, NULL));
    assert_int_equal(query.count, 3); /* the last max_blocks counts */
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(query.hashes[i], i + 1);
    }
    kvb_query_done(&query);
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

/* ---- Responses ---- */

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

static void survives_each_failing_allocation(void **state)
{
    struct vector vector = read_vector("request_4");
    struct kvb_query query = { 0 };
    struct kvb_buf out;

    (void)state;
    fail_alloc_after(0);
    assert_int_equal(kvb_indexer_request_decode(span_of(vector), &query, NULL), KVB_NO_MEMORY);
    kvb_buf_init(&out, 4096);
    fail_alloc_after(0);
    assert_int_equal(kvb_indexer_response_encode(two, 2, 4, &out), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    kvb_buf_done(&out);
    free(vector.bytes);
}

SUITE(indexer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_the_requests_of_sgl_router),
        cmocka_unit_test(refuses_invalid_requests),
        cmocka_unit_test(skips_fields_that_it_does_not_know),
        cmocka_unit_test(accepts_the_longest_prompt_of_a_router_and_no_more_bytes),
        cmocka_unit_test(writes_what_protoc_writes),
        cmocka_unit_test(a_response_without_workers_is_empty),
        cmocka_unit_test(has_room_for_the_longest_of_everything),
        cmocka_unit_test(reports_that_an_answer_is_too_large),
        cmocka_unit_test(survives_each_failing_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
