#include "wire/router/json.h"

#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "wire/router_sample.h"

#include <stdio.h>
#include <stdlib.h>

static const uint64_t vector_worker = 7587888888888888001u;
static const uint64_t vector_hash = 14643705804678351452u;

/* The JSON line number n (from 0) below the heading that begins with `heading`. */
static void read_vector(const char *heading, int n, char *out, size_t size)
{
    char line[2048];
    bool is_inside = false;

    FILE *file = fopen(KVB_DATA "/vectors/dynamo.txt", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "## ", 3) == 0) {
            is_inside = strncmp(line + 3, heading, strlen(heading)) == 0;
        } else if (is_inside && strncmp(line, "JSON    ", 8) == 0 && n-- == 0) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(out, size, "%s", line + 8);
            (void)fclose(file);
            return;
        }
    }
    fail_msg("no such vector below %s", heading);
}

/* The three events in dynamo.txt: stored, removed, cleared, each with id 1. */
static void make_vectors(struct kvb_router_batch *batch)
{
    static const enum kvb_router_kind kinds[] = { KVB_ROUTER_STORED, KVB_ROUTER_REMOVED,
                                                  KVB_ROUTER_CLEARED };
    batch->worker_id = vector_worker;
    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        const struct kvb_router_event event = { .kind = kinds[i], .event_id = 1 };
        assert_ok(kvb_router_batch_add_event(batch, &event));
        if (kinds[i] != KVB_ROUTER_CLEARED) {
            const kvb_tokens_hash tokens = { kinds[i] == KVB_ROUTER_STORED ? vector_hash : 0 };
            assert_ok(kvb_router_batch_add_block(batch, (kvb_block_hash){ vector_hash }, tokens));
        }
    }
}

static void writes_the_bytes_that_dynamo_writes([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    char expected[2048];

    make_vectors(&batch);
    kvb_buf_init(&out, 4096);
    for (int i = 0; i < 3; i++) {
        kvb_buf_reset(&out);
        assert_ok(kvb_router_json_encode(&batch, (size_t)i, &out));
        read_vector("B v0.6-0.7", i, expected, sizeof expected);
        assert_int_equal(out.len, strlen(expected));
        assert_memory_equal(out.data, expected, out.len);
    }
}

static void adds_nothing_but_the_rank_to_what_old_versions_wrote([[maybe_unused]] void **state)
{
    static const char tail[] = ",\"dp_rank\":0}}";
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    char old[2048];

    make_vectors(&batch);
    kvb_buf_init(&out, 4096);
    for (int i = 0; i < 3; i++) {
        kvb_buf_reset(&out);
        assert_ok(kvb_router_json_encode(&batch, (size_t)i, &out));
        read_vector("A v0.1-0.5", i, old, sizeof old);
        const size_t common = strlen(old) - 2; /* without "}}" */
        assert_memory_equal(out.data, old, common);
        assert_int_equal(out.len, common + strlen(tail));
        assert_memory_equal(out.data + common, tail, strlen(tail));
    }
}

static void writes_parents_several_blocks_and_other_tiers([[maybe_unused]] void **state)
{
    static const char expected[] =
        "{\"worker_id\":9,\"storage_tier\":\"host_pinned\",\"event\":{\"event_id\":5,\"data\":"
        "{\"stored\":{\"parent_hash\":18446744073709551615,\"blocks\":["
        "{\"block_hash\":1,\"tokens_hash\":2},{\"block_hash\":3,\"tokens_hash\":4}]}},"
        "\"dp_rank\":7}}"
        "{\"worker_id\":9,\"storage_tier\":\"disk\",\"event\":{\"event_id\":6,\"data\":"
        "{\"removed\":{\"block_hashes\":[1,3]}},\"dp_rank\":7}}";
    const struct kvb_router_event stored = { .kind = KVB_ROUTER_STORED,
                                             .tier = KVB_TIER_HOST,
                                             .event_id = 5,
                                             .has_parent = true,
                                             .parent = { UINT64_MAX } };
    const struct kvb_router_event removed = { .kind = KVB_ROUTER_REMOVED,
                                              .tier = KVB_TIER_DISK,
                                              .event_id = 6 };
    KVB_OWN(kvb_router_batch_done)
    struct kvb_router_batch batch = { .worker_id = 9, .dp_rank = 7 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    assert_ok(kvb_router_batch_add_event(&batch, &stored));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 1 }, (kvb_tokens_hash){ 2 }));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 3 }, (kvb_tokens_hash){ 4 }));
    assert_ok(kvb_router_batch_add_event(&batch, &removed));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 1 }, (kvb_tokens_hash){ 0 }));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 3 }, (kvb_tokens_hash){ 0 }));
    kvb_buf_init(&out, 4096);
    assert_ok(kvb_router_json_encode(&batch, 0, &out));
    assert_ok(kvb_router_json_encode(&batch, 1, &out));
    assert_int_equal(out.len, strlen(expected));
    assert_memory_equal(out.data, expected, out.len);
}

static void reads_every_json_line_of_every_dynamo_version([[maybe_unused]] void **state)
{
    static const char *const headings[] = { "A ", "B ", "C ", "D1 ", "D2 ", "E " };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch expected = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    char line[2048];

    make_vectors(&expected);
    for (size_t i = 0; i < KVB_COUNT_OF(headings); i++) {
        for (int kind = 0; kind < 3; kind++) {
            read_vector(headings[i], kind, line, sizeof line);
            assert_ok(kvb_router_json_decode(kvb_span_of(line), &batch));
            assert_int_equal(batch.event_count, 1);
            assert_same_event(&batch, 0, &expected, (size_t)kind);
            assert_false(batch.has_epoch);
        }
    }
}

static void reads_any_order_white_space_and_unknown_fields([[maybe_unused]] void **state)
{
    static const char text[] =
        " \t\r\n{ \"new\" : [ {\"x\":[1.5e-3,-0,\"\\u00e9\\\"\",true,false,null,{}]} , [] ] ,"
        "\"event\":{\"dp_rank\":3,\"data\":{ \"stored\" :{\"blocks\":[{\"mm_extra_info\":{\"a\":1},"
        "\"tokens_hash\":6,\"block_hash\":5}],\"start_position\":null,\"parent_hash\":4}},"
        "\"event_id\":2},\"storage_tier\":\"host\",\"worker_id\":1 }\n ";
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_json_decode(kvb_span_of(text), &batch));
    assert_int_equal(batch.worker_id, 1);
    assert_int_equal(batch.dp_rank, 3);
    assert_int_equal(batch.event_count, 1);
    assert_int_equal(batch.events[0].kind, KVB_ROUTER_STORED);
    assert_int_equal(batch.events[0].tier, KVB_TIER_HOST);
    assert_int_equal(batch.events[0].event_id, 2);
    assert_true(batch.events[0].has_parent);
    assert_int_equal(batch.events[0].parent.value, 4);
    assert_int_equal(batch.events[0].block_count, 1);
    assert_int_equal(batch.blocks[0].value, 5);
    assert_int_equal(batch.tokens[0].value, 6);
}

static void reads_a_clear_as_one_of_all_tiers([[maybe_unused]] void **state)
{
    static const char text[] = "{\"worker_id\":1,\"storage_tier\":\"disk\","
                               "\"event\":{\"event_id\":2,\"data\":\"cleared\"}}";
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_json_decode(kvb_span_of(text), &batch));
    assert_int_equal(batch.events[0].kind, KVB_ROUTER_CLEARED);
    assert_int_equal(batch.events[0].tier, KVB_TIER_DEVICE);
}

static const char *const refused[] = {
    "",
    " ",
    "x",
    "null",
    "7",
    "{}",
    "[]",
    /* a byte order mark */
    "\xef\xbb\xbf{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "[{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}]",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}{}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}\n"
    "{\"worker_id\":1,\"event\":{\"event_id\":2,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}} x",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"},}",
    "{\"worker_id\":1,\"event\":{\"data\":\"cleared\"}}", /* no event_id */
    "{\"worker_id\":1,\"event\":{\"event_id\":1}}",       /* no data */
    "{\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",  /* no worker */
    "{\"worker_id\":1}",                                  /* no event */
    "{\"worker_id\":1,\"event\":[]}",
    "{\"worker_id\":9223372036854775808,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":-1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":\"1\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":01,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1.0,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1e3,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\",\"dp_rank\":4294967296}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\",\"dp_rank\":-1}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"stored\"}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"moved\":{}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"stored\":{}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[1]},"
    "\"stored\":{\"blocks\":[]}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[-1]}}}"
    "}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[-0]}}}"
    "}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[1.5]}}"
    "}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[1e2]}}"
    "}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[\"1\"]"
    "}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":"
    "[18446744073709551616]}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[1,]}}}"
    "}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"removed\":{\"block_hashes\":[1 "
    "2]}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"stored\":{\"blocks\":"
    "[{\"block_hash\":1}]}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"stored\":{\"blocks\":"
    "[{\"tokens_hash\":1}]}}}}",
    "{\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":{\"stored\":{\"parent_hash\":\"\","
    "\"blocks\":[]}}}}",
    "{\"worker_id\":1,\"storage_tier\":\"moon\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}"
    "}",
    "{\"worker_id\":1,\"x\":\"\t\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"x\":\"\\x\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"x\":\"\\u12g4\",\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"x\":nul,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"x\":1.,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{\"worker_id\":1,\"x\":+1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
    "{'worker_id':1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}",
};

static void refuses_what_is_no_router_event([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(refused); i++) {
        if (kvb_router_json_decode(kvb_span_of(refused[i]), &batch) != KVB_BAD_INPUT) {
            fail_msg("was not refused: %s", refused[i]);
        }
        assert_int_equal(batch.event_count, 0);
        assert_int_equal(batch.block_count, 0);
    }
    assert_int_equal(kvb_router_json_decode((kvb_span){ 0 }, &batch), KVB_BAD_INPUT);
}

static void reads_the_largest_numbers([[maybe_unused]] void **state)
{
    static const char text[] =
        "{\"worker_id\":9223372036854775807,\"event\":{\"event_id\":18446744073709551615,\"data\":"
        "{\"removed\":{\"block_hashes\":[18446744073709551615,0]}},\"dp_rank\":4294967295}}";
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_json_decode(kvb_span_of(text), &batch));
    assert_true(batch.worker_id == INT64_MAX);
    assert_true(batch.dp_rank == UINT32_MAX);
    assert_true(batch.events[0].event_id == UINT64_MAX);
    assert_true(batch.blocks[0].value == UINT64_MAX);
    assert_true(batch.blocks[1].value == 0);
}

/* An unknown field of `depth` nested arrays. */
static kvb_status decode_nested(size_t depth)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf text = { 0 };

    kvb_buf_init(&text, 1 << 20);
    assert_ok(kvb_buf_append_text(&text, "{\"x\":"));
    for (size_t i = 0; i < depth; i++) {
        assert_ok(kvb_buf_append_text(&text, "["));
    }
    for (size_t i = 0; i < depth; i++) {
        assert_ok(kvb_buf_append_text(&text, "]"));
    }
    assert_ok(kvb_buf_append_text(
        &text, ",\"worker_id\":1,\"event\":{\"event_id\":1,\"data\":\"cleared\"}}"));
    return kvb_router_json_decode(kvb_buf_span(&text), &batch);
}

static void refuses_depth_without_using_the_stack([[maybe_unused]] void **state)
{
    assert_ok(decode_nested(16));
    assert_int_equal(decode_nested(17), KVB_TOO_LARGE);
    assert_int_equal(decode_nested(100000), KVB_TOO_LARGE);
}

static void refuses_a_message_above_the_ceiling([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    const kvb_span huge = { (const uint8_t *)"{", (size_t)kvb_max_payload_bytes + 1 };

    assert_int_equal(kvb_router_json_decode(huge, &batch), KVB_TOO_LARGE);
}

static void peeks_at_the_stream_of_what_it_encoded([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    uint64_t seed = 43;

    kvb_buf_init(&out, 1 << 16);
    for (int round = 0; round < 2000; round++) {
        uint64_t worker_id = 0;
        uint32_t dp_rank = 0;
        sample_batch(&seed, &batch);
        batch.worker_id = sample_next(&seed) >> (1 + sample_next(&seed) % 63);
        batch.dp_rank = (uint32_t)(sample_next(&seed) >> (32 + sample_next(&seed) % 32));
        kvb_buf_reset(&out);
        assert_ok(kvb_router_json_encode(&batch, sample_next(&seed) % batch.event_count, &out));
        assert_true(kvb_router_json_peek(kvb_buf_span(&out), &worker_id, &dp_rank));
        assert_int_equal(worker_id, batch.worker_id);
        assert_int_equal(dp_rank, batch.dp_rank);
        for (size_t len = 0; len < out.len && round < 50; len++) {
            uint8_t *cut = malloc(len + 1); /* exactly, so that ASan sees a read beyond it */
            assert_non_null(cut);
            uint8_t *exact = realloc(cut, len ? len : 1);
            assert_non_null(exact);
            memcpy(exact, out.data, len);
            assert_false(kvb_router_json_peek((kvb_span){ exact, len }, &worker_id, &dp_rank));
            free(exact);
        }
    }
}

static void peeks_at_no_stream_of_what_is_written_otherwise([[maybe_unused]] void **state)
{
    static const char *const others[] = {
        "",
        "{}",
        "{\"worker_id\":,\"event\":{\"dp_rank\":0}}",
        "{\"worker_id\":9223372036854775808,\"event\":{\"event_id\":1,\"dp_rank\":0}}",
        "{\"worker_id\":99999999999999999999,\"event\":{\"event_id\":1,\"dp_rank\":0}}",
        "{\"worker_id\":7,\"event\":{\"event_id\":1,\"dp_rank\":4294967296}}",
        "{\"worker_id\":7,\"event\":{\"event_id\":1,\"dp_rank\":}}",
        "{\"worker_id\":7,\"event\":{\"dp_rank\":0,\"event_id\":1}}",
        "{ \"worker_id\":7,\"event\":{\"event_id\":1,\"dp_rank\":0}}",
        "{\"worker_id\":7,\"event\":{\"event_id\":1,\"dp_rank\":0}} ",
        "{\"worker_id\":77777777777777777777777777777}}",
    };
    uint64_t worker_id = 0;
    uint32_t dp_rank = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(others); i++) {
        if (kvb_router_json_peek(kvb_span_of(others[i]), &worker_id, &dp_rank)) {
            fail_msg("%s", others[i]);
        }
    }
}

/* A clear is of all tiers, so the tier of its event is not written. */
static void writes_no_tier_of_a_clear([[maybe_unused]] void **state)
{
    static const char expected[] =
        "{\"worker_id\":7,\"event\":{\"event_id\":3,\"data\":\"cleared\",\"dp_rank\":0}}";
    const struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED,
                                              .tier = KVB_TIER_HOST,
                                              .event_id = 3 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { .worker_id = 7 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, 4096);
    assert_ok(kvb_router_batch_add_event(&batch, &cleared));
    assert_ok(kvb_router_json_encode(&batch, 0, &out));
    assert_int_equal(out.len, strlen(expected));
    assert_memory_equal(out.data, expected, out.len);
}

static void refuses_every_message_that_is_cut([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    char line[2048];

    for (int kind = 0; kind < 3; kind++) {
        read_vector("E ", kind, line, sizeof line);
        for (size_t len = 0; len < strlen(line); len++) {
            /* Copies the text into memory of exactly its size, so that ASan sees a read beyond it.
             */
            uint8_t *cut = malloc(len + 1);
            assert_non_null(cut);
            memcpy(cut, line, len);
            uint8_t *exact = realloc(cut, len ? len : 1);
            assert_non_null(exact);
            assert_int_equal(
                kvb_router_json_decode((kvb_span){ exact, len }, &batch), KVB_BAD_INPUT);
            free(exact);
        }
    }
}

/* The longest event text, in a buffer that has room for its bound and no more. */
static void the_longest_text_fits_the_memory_that_is_reserved([[maybe_unused]] void **state)
{
    enum { blocks = 40 };
    kvb_block_hash names[blocks];
    kvb_tokens_hash tokens[blocks];
    struct kvb_router_event event = { .event_id = UINT64_MAX,
                                      .kind = KVB_ROUTER_STORED,
                                      .has_parent = true,
                                      .parent = { UINT64_MAX },
                                      .block_count = blocks };
    const struct kvb_router_batch batch = { .worker_id = UINT64_MAX,
                                            .dp_rank = UINT32_MAX,
                                            .events = &event,
                                            .event_count = 1,
                                            .blocks = names,
                                            .tokens = tokens };

    memset(names, 0xff, sizeof names);
    memset(tokens, 0xff, sizeof tokens);
    for (event.tier = KVB_TIER_DEVICE; event.tier <= KVB_LIST_WINDOW; event.tier++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        kvb_buf_init(&out, kvb_router_json_room(blocks));
        assert_ok(kvb_router_json_encode(&batch, 0, &out));
        assert_true(out.len > (size_t)blocks * 70);
        assert_true(out.len <= kvb_router_json_room(blocks));
    }
}

static void survives_every_allocation_that_fails([[maybe_unused]] void **state)
{
    char line[2048];
    kvb_status status = KVB_NO_MEMORY;

    read_vector("B ", 0, line, sizeof line);
    for (long n = 0; status != KVB_OK; n++) {
        KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        kvb_buf_init(&out, 4096);
        fail_alloc_after(n);
        status = kvb_router_json_decode(kvb_span_of(line), &batch);
        if (status == KVB_OK) {
            status = kvb_router_json_encode(&batch, 0, &out);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        assert_true(status == KVB_OK || batch.event_count == 0 || out.len == 0);
        assert_true(n < 100);
    }
}

SUITE(router_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_that_dynamo_writes),
        cmocka_unit_test(adds_nothing_but_the_rank_to_what_old_versions_wrote),
        cmocka_unit_test(writes_parents_several_blocks_and_other_tiers),
        cmocka_unit_test(reads_every_json_line_of_every_dynamo_version),
        cmocka_unit_test(reads_any_order_white_space_and_unknown_fields),
        cmocka_unit_test(reads_a_clear_as_one_of_all_tiers),
        cmocka_unit_test(refuses_what_is_no_router_event),
        cmocka_unit_test(reads_the_largest_numbers),
        cmocka_unit_test(refuses_depth_without_using_the_stack),
        cmocka_unit_test(refuses_a_message_above_the_ceiling),
        cmocka_unit_test(peeks_at_the_stream_of_what_it_encoded),
        cmocka_unit_test(peeks_at_no_stream_of_what_is_written_otherwise),
        cmocka_unit_test(writes_no_tier_of_a_clear),
        cmocka_unit_test(refuses_every_message_that_is_cut),
        cmocka_unit_test(the_longest_text_fits_the_memory_that_is_reserved),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
