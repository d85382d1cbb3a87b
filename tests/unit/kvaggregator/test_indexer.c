#include "kvb_test.h"

#include "core/limits.h"
#include "fail_alloc.h"
#include "index/block_hash.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/query_scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { block_size = scene_block_size };

/* A query for the scene's prompt by the names of its blocks. */
static struct kvb_query name_query(size_t count, const char *model)
{
    struct kvb_query query = { .form = KVB_QUERY_BLOCK_HASHES,
                               .has_model = model != NULL,
                               .count = count,
                               .hashes = calloc(count, sizeof *query.hashes) };
    uint32_t tokens[block_size];
    kvb_block_hash name = { 0 };

    assert_non_null(query.hashes);
    (void)snprintf(query.model, sizeof query.model, "%s", model ? model : "");
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t n = 0; n < block_size; n++) {
            tokens[n] = 100 + i * block_size + n;
        }
        const kvb_tokens_hash hash = kvb_tokens_hash_of(tokens, block_size, NULL, 0, 1337);
        name = i == 0 ? kvb_block_hash_root(hash) : kvb_block_hash_next(name, hash);
        query.hashes[i] = name.value;
    }
    return query;
}

static struct scene_holding
holding_of(uint64_t worker_id, uint32_t dp_rank, enum kvb_tier tier, uint32_t count)
{
    return (struct scene_holding){ .worker_id = worker_id,
                                   .dp_rank = dp_rank,
                                   .model = "m",
                                   .block_size = block_size,
                                   .tier = tier,
                                   .count = count };
}

static void hold_at(struct scene *scene, const struct scene_holding *holding, const char *address)
{
    scene_hold(scene, holding);
    scene_name_by_engine(scene, holding, address);
}

static void
hold(struct scene *scene, uint64_t worker_id, uint32_t dp_rank, enum kvb_tier tier, uint32_t count)
{
    const struct scene_holding holding = holding_of(worker_id, dp_rank, tier, count);
    char address[32];

    (void)snprintf(address, sizeof address, "http://w%d", (int)worker_id);
    hold_at(scene, &holding, address);
}

/* The matches of an answer as "address=blocks(id) ...", followed by the counts of what was read. */
static void read_answer(const struct kvb_buf *out, char *text, size_t text_bytes)
{
    size_t at = 0;
    size_t len = 0;

    text[0] = '\0';
    /* the texts are short, so each length is one byte */
    while (at < out->len && out->data[at] == 0x0a) {
        const uint8_t *match = out->data + at + 2;
        const uint8_t *blocks = match + 2 + match[1];
        len += (size_t)snprintf(
            text + len, text_bytes - len, "%.*s=%d(%.*s) ", match[1], (const char *)match + 2,
            blocks[1], blocks[3], (const char *)blocks + 4);
        at += 2 + (size_t)out->data[at + 1];
    }
    if (at < out->len) {
        assert_int_equal(out->len - at, 4);
        (void)snprintf(
            text + len, text_bytes - len, "best=%d read=%d", out->data[at + 1], out->data[at + 3]);
    }
}

static struct kvb_indexer_gaps
assert_answer(struct scene *scene, size_t count, const char *model, const char *expected)
{
    struct kvb_query query = name_query(count, model);
    struct kvb_indexer_gaps gaps = { 0 };
    struct kvb_buf out;
    char text[512];

    kvb_buf_init(&out, kvb_max_answer_bytes);
    assert_ok(kvb_answer_indexer(&scene->ctx, &query, &out, &gaps));
    read_answer(&out, text, sizeof text);
    assert_string_equal(text, expected);
    kvb_buf_done(&out);
    kvb_query_done(&query);
    return gaps;
}

static void lists_workers_by_blocks_with_their_best_rank(void **state)
{
    struct scene scene;

    (void)state;
    scene_empty(&scene);
    hold(&scene, 1, 0, KVB_TIER_DEVICE, 2);
    hold(&scene, 2, 0, KVB_TIER_DEVICE, 1);
    hold(&scene, 2, 1, KVB_TIER_DEVICE, 5);
    hold(&scene, 2, 2, KVB_TIER_DEVICE, 3);
    hold(&scene, 3, 1, KVB_TIER_DEVICE, 2);
    hold(&scene, 4, 0, KVB_TIER_DEVICE, 0);
    assert_answer(
        &scene, 6, NULL, "http://w2=5(2/1) http://w1=2(1/0) http://w3=2(3/1) best=5 read=6");
    assert_answer(
        &scene, 2, "m", "http://w1=2(1/0) http://w2=2(2/1) http://w3=2(3/1) best=2 read=2");
    scene_done(&scene);
}

static void counts_device_and_host_and_no_other_tier(void **state)
{
    struct scene scene;

    (void)state;
    scene_empty(&scene);
    hold(&scene, 1, 0, KVB_TIER_HOST, 3);
    hold(&scene, 2, 0, KVB_TIER_DISK, 4);
    hold(&scene, 3, 0, KVB_TIER_EXTERNAL, 4);
    assert_answer(&scene, 4, NULL, "http://w1=3(1/0) best=3 read=4");
    scene_done(&scene);
}

static void matches_only_streams_with_engine_names(void **state)
{
    const struct scene_holding named_by_bridge = holding_of(6, 0, KVB_TIER_DEVICE, 3);
    const struct kvb_worker_facts facts = { .address = "http://w6" };
    struct scene scene;

    (void)state;
    scene_empty(&scene);
    scene_hold(&scene, &named_by_bridge);
    scene_tell(&scene, &named_by_bridge, &facts);
    hold(&scene, 7, 0, KVB_TIER_DEVICE, 1);
    assert_answer(&scene, 4, NULL, "http://w7=1(7/0) best=1 read=2");
    scene_done(&scene);
}

static void leaves_out_and_counts_workers_without_an_address(void **state)
{
    struct scene scene;
    const struct scene_holding holding = holding_of(2, 0, KVB_TIER_DEVICE, 3);

    (void)state;
    scene_empty(&scene);
    hold_at(&scene, &holding, "");
    hold(&scene, 1, 0, KVB_TIER_DEVICE, 2);
    const struct kvb_indexer_gaps gaps =
        assert_answer(&scene, 4, NULL, "http://w1=2(1/0) best=2 read=3");
    assert_int_equal(gaps.without_address, 1);
    scene_done(&scene);
}

static void leaves_out_streams_that_are_down(void **state)
{
    struct scene scene;
    const struct scene_holding holding = holding_of(1, 0, KVB_TIER_DEVICE, 3);

    (void)state;
    scene_empty(&scene);
    hold_at(&scene, &holding, "http://w1");
    scene_bye(&scene, &holding);
    assert_answer(&scene, 4, NULL, "");
    scene_done(&scene);
}

static void survives_each_failing_allocation(void **state)
{
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status != KVB_OK; n++) {
        struct scene scene;
        struct kvb_query query = name_query(4, NULL);
        struct kvb_indexer_gaps gaps = { 0 };
        struct kvb_buf out;
        scene_empty(&scene);
        hold(&scene, 1, 0, KVB_TIER_DEVICE, 2);
        kvb_buf_init(&out, kvb_max_answer_bytes);
        fail_alloc_after(n);
        status = kvb_answer_indexer(&scene.ctx, &query, &out, &gaps);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_buf_done(&out);
        kvb_query_done(&query);
        scene_done(&scene);
        assert_true(n < 100);
    }
}

SUITE(indexer)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_workers_by_blocks_with_their_best_rank),
        cmocka_unit_test(counts_device_and_host_and_no_other_tier),
        cmocka_unit_test(matches_only_streams_with_engine_names),
        cmocka_unit_test(leaves_out_and_counts_workers_without_an_address),
        cmocka_unit_test(leaves_out_streams_that_are_down),
        cmocka_unit_test(survives_each_failing_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
