#include "wire/router/json.h"

#include "core/own.h"
#include "kvb_test.h"
#include "wire/router_sample.h"

#include <stdio.h>

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

SUITE(router_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_the_bytes_that_dynamo_writes),
        cmocka_unit_test(adds_nothing_but_the_rank_to_what_old_versions_wrote),
        cmocka_unit_test(writes_parents_several_blocks_and_other_tiers),
        cmocka_unit_test(reads_every_json_line_of_every_dynamo_version),
        cmocka_unit_test(peeks_at_the_stream_of_what_it_encoded),
        cmocka_unit_test(writes_no_tier_of_a_clear),
        cmocka_unit_test(the_longest_text_fits_the_memory_that_is_reserved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
