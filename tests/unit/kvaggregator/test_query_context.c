#include "kvaggregator/query_scene.h"

#include "kvb_test.h"

#include <string.h>

/* Consecutive queries in one context: an earlier query must leave nothing in the next answer. */

static const struct kvb_listing_options only_holders = { 0 };
static const struct kvb_listing_options all = { .with_none = true, .with_down = true };

static void ask(struct scene *scene, struct kvb_query *query, struct kvb_listing_options how)
{
    struct kvb_detail detail = { { 0 } };

    assert_ok(kvb_query_context_overlaps(&scene->ctx, query, how, &detail));
}

static size_t count_holders(struct scene *scene, const char *model)
{
    struct kvb_query query = scene_query(96, model);

    ask(scene, &query, only_holders);
    kvb_query_done(&query);
    return scene->ctx.overlap_count;
}

static void a_query_leaves_nothing_in_the_next_answer(void **state)
{
    (void)state;
    struct kvb_query query = scene_query(96, "m");
    struct scene scene;
    scene_recorded(&scene);

    for (int round = 0; round < 2; round++) {
        ask(&scene, &query, only_holders);
        assert_int_equal(scene.ctx.overlap_count, 3);
        assert_int_equal(scene.ctx.overlaps[0].blocks, 4);
        memcpy(query.lora_name, "adapter", sizeof "adapter");
        ask(&scene, &query, all);
        assert_int_equal(scene.ctx.overlap_count, 3);
        assert_int_equal(scene.ctx.overlaps[0].blocks, 0);
        assert_int_equal(scene.ctx.overlaps[0].tokens[KVB_TIER_DEVICE], 0);
        query.lora_name[0] = '\0';
    }
    kvb_query_done(&query);
    scene_done(&scene);
}

static void the_next_query_sees_a_change_of_model(void **state)
{
    (void)state;
    struct scene_holding holding = { 5, 0, "m", 16, KVB_TIER_DEVICE, 3, false };
    struct scene scene;
    scene_recorded(&scene);

    scene_hold(&scene, &holding);
    assert_int_equal(count_holders(&scene, "m"), 4);
    holding.model = "other";
    scene_hold(&scene, &holding);
    assert_int_equal(count_holders(&scene, "m"), 3);
    assert_int_equal(count_holders(&scene, "other"), 1);
    scene_done(&scene);
}

static void the_next_query_sees_a_change_of_block_size(void **state)
{
    (void)state;
    struct scene_holding holding = { 5, 0, "m", 16, KVB_TIER_DEVICE, 3, false };
    struct scene scene;
    scene_empty(&scene);

    scene_hold(&scene, &holding);
    assert_int_equal(count_holders(&scene, "m"), 1);
    assert_int_equal(scene.ctx.head.block_size, 16);
    assert_int_equal(scene.ctx.head.blocks, 6);
    holding.block_size = 32;
    scene_hold(&scene, &holding);
    assert_int_equal(count_holders(&scene, "m"), 1);
    assert_int_equal(scene.ctx.head.block_size, 32);
    assert_int_equal(scene.ctx.head.blocks, 3);
    holding.is_eagle = true;
    scene_hold(&scene, &holding);
    assert_int_equal(count_holders(&scene, "m"), 1);
    assert_int_equal(scene.ctx.head.blocks, 2); /* the third block lacks the token behind it */
    scene_done(&scene);
}

/* Neither in the shape of the fleet, nor in one that it had once. */
static void hashes_made_ahead_change_no_answer(void **state)
{
    (void)state;
    static const struct kvb_block_shape shapes[] = { { 16, 0 }, { 8, 0 }, { 16, 1 }, { 128, 0 } };
    struct scene scene;
    scene_recorded(&scene);

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct kvb_query query = scene_query(96, "m");
        assert_ok(kvb_query_hash_ahead(&query, shapes[i]));
        assert_ok(kvb_query_hash_ahead(&query, shapes[i])); /* the first ones are freed */
        ask(&scene, &query, only_holders);
        assert_int_equal(scene.ctx.overlap_count, 3);
        assert_int_equal(scene.ctx.overlaps[0].blocks, 4);
        assert_int_equal(scene.ctx.overlaps[0].hit_tokens, 64);
        kvb_query_done(&query);
    }
    scene_done(&scene);
}

static void hashes_made_ahead_are_used(void **state)
{
    (void)state;
    struct kvb_query query = scene_query(96, "m");
    struct scene scene;
    scene_recorded(&scene);

    assert_ok(kvb_query_hash_ahead(&query, (struct kvb_block_shape){ .block_size = 16 }));
    assert_int_equal(query.hashes_ahead_count, 6);
    query.hashes_ahead[2].value ^= 1;
    ask(&scene, &query, only_holders);
    assert_int_equal(scene.ctx.overlaps[0].blocks, 2);
    kvb_query_done(&query);
    scene_done(&scene);
}

/* The head of the answer is about the best stream, or about the first one if no stream holds
 * anything. */
static void the_head_is_complete_without_a_holder(void **state)
{
    (void)state;
    const struct scene_holding wide = { 5, 0, "m", 32, KVB_TIER_DEVICE, 3, false };
    struct kvb_query query = scene_query(96, "m");
    struct scene scene;
    scene_recorded(&scene);

    ask(&scene, &query, only_holders);
    assert_false(scene.ctx.head.has_several);
    scene_hold(&scene, &wide);
    ask(&scene, &query, only_holders);
    /* 3 * 32 tokens in one stream, 4 * 16 in the other */
    assert_int_equal(scene.ctx.head.block_size, 32);
    assert_true(scene.ctx.head.has_several);
    memcpy(query.cache_salt, "salt", sizeof "salt");
    ask(&scene, &query, only_holders);
    assert_int_equal(scene.ctx.overlap_count, 0);
    assert_int_equal(scene.ctx.head.block_size, 16);
    assert_int_equal(scene.ctx.head.blocks, 6);
    kvb_query_done(&query);
    scene_done(&scene);
}

static struct scene_holding holding_of(uint64_t worker_id, uint32_t count)
{
    return (struct scene_holding){ .worker_id = worker_id,
                                   .model = "m",
                                   .block_size = scene_block_size,
                                   .tier = KVB_TIER_DEVICE,
                                   .count = count };
}

static void the_best_are_in_order_and_no_stream_is_missing(void **state)
{
    enum { workers = 60, depths = 4, ordered = 7 };
    struct scene scene;
    bool is_seen[workers] = { false };

    (void)state;
    scene_empty(&scene);
    /* worker numbers arrive in the order 0, 37, 14 ..., and hold 1 to 4 blocks */
    for (uint64_t i = 0; i < workers; i++) {
        const uint64_t worker = i * 37 % workers;
        const struct scene_holding holding = holding_of(worker, (uint32_t)(worker % depths) + 1);
        scene_hold(&scene, &holding);
    }
    struct kvb_query query = scene_query((size_t)depths * scene_block_size, "m");

    ask(&scene, &query, (struct kvb_listing_options){ .ordered = ordered });

    assert_int_equal(scene.ctx.overlap_count, workers);
    for (size_t i = 0; i < workers; i++) {
        const uint64_t worker = scene.ctx.overlaps[i].follower->id.worker_id;
        if (i < ordered) { /* workers 3, 7, 11 ... hold four blocks */
            assert_int_equal(worker, (i * depths) + depths - 1);
        }
        assert_int_equal(scene.ctx.overlaps[i].blocks, worker % depths + 1);
        assert_false(is_seen[worker]);
        is_seen[worker] = true;
    }
    kvb_query_done(&query);
    scene_done(&scene);
}

SUITE(query_context)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_leaves_nothing_in_the_next_answer),
        cmocka_unit_test(the_next_query_sees_a_change_of_model),
        cmocka_unit_test(the_next_query_sees_a_change_of_block_size),
        cmocka_unit_test(hashes_made_ahead_change_no_answer),
        cmocka_unit_test(hashes_made_ahead_are_used),
        cmocka_unit_test(the_head_is_complete_without_a_holder),
        cmocka_unit_test(the_best_are_in_order_and_no_stream_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
