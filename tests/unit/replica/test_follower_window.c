#include "follower_scene.h"
#include "kvb_test.h"

#include "model/digest.h"

/* The window list of a hybrid model: a list of the stream like those of the tiers, but without a
 * slot of the index. */

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };

static uint64_t slots_left(struct kvb_prefix_index *index)
{
    kvb_slot_ref slots[64];
    size_t count = 0;

    while (count < 64 && kvb_prefix_index_slot_new(index, &slots[count]) == KVB_OK) {
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        kvb_prefix_index_slot_free(index, slots[i]);
    }
    return count;
}

static void window_stored(struct scene *scene, uint64_t event_id, uint64_t block)
{
    start_batch(scene, 1);
    add(scene, KVB_ROUTER_STORED, event_id, block, KVB_LIST_WINDOW);
    say(scene);
}

static bool has_window_block(const struct scene *scene, uint64_t block)
{
    const struct kvb_block_set *window = follower(scene)->window;

    return window && kvb_block_set_has(window, (kvb_block_hash){ block });
}

static struct kvb_heartbeat window_beat(uint64_t last_id, uint64_t window_blocks)
{
    struct kvb_heartbeat beat = beat_of(1, last_id, 1);

    beat.window_tokens = 64;
    beat.tiers[KVB_LIST_WINDOW].blocks = window_blocks;
    return beat;
}

static void window_events_change_the_window_list_and_no_slot(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    assert_null(follower(&scene)->window);
    const uint64_t slots = slots_left(scene.index);
    window_stored(&scene, first_id + 2, 5);
    /* the reach of the window is not known yet */
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS);
    window_stored(&scene, first_id + 3, 6);
    window_stored(&scene, first_id + 4, 6); /* a block stored twice counts once */
    assert_int_equal(slots_left(scene.index), slots);
    assert_int_equal(blocks_in(&scene, KVB_LIST_WINDOW), 2);
    assert_int_equal(kvb_followers_window_blocks(scene.followers), 2);
    assert_blocks(&scene, 1);
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_REMOVED, first_id + 5, 5, KVB_LIST_WINDOW);
    say(&scene);
    assert_false(has_window_block(&scene, 5));
    assert_true(has_window_block(&scene, 6));
    assert_int_equal(kvb_followers_window_blocks(scene.followers), 1);
    assert_blocks(&scene, 1); /* the 5 on the device stays */
    struct kvb_heartbeat beat = window_beat(first_id + 5, 1);
    beat_as(&scene, &beat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    window_stored(&scene, first_id + 6, 7);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void window_lists_share_a_ceiling(void **state)
{
    (void)state;
    struct scene scene = scene_of(8, 4, 16); /* 4 nodes, and 4 blocks of window lists */

    make_exact(&scene, 1);
    for (uint64_t i = 0; i < 5; i++) {
        window_stored(&scene, first_id + 2 + i, 10 + i);
    }
    assert_int_equal(blocks_in(&scene, KVB_LIST_WINDOW), 4);
    assert_int_equal(counters_of(&scene).blocks_refused, 1);
    struct kvb_heartbeat beat = window_beat(first_id + 6, 5);
    beat_as(&scene, &beat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MEMORY);
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_REMOVED, first_id + 7, 10, KVB_LIST_WINDOW);
    add(&scene, KVB_ROUTER_STORED, first_id + 8, 14, KVB_LIST_WINDOW); /* there is room again */
    say(&scene);
    assert_true(has_window_block(&scene, 14) && !has_window_block(&scene, 10));
    end(&scene);
}

/* ---- Digests and repair ---- */

/* A heartbeat of a bridge that lists block 5 on the device, and these blocks in the window list. */
static struct kvb_heartbeat digest_beat(uint64_t last_id, const uint64_t *blocks, size_t count)
{
    struct kvb_heartbeat beat = window_beat(last_id, count);
    struct kvb_digest device = { .total = { 0 } };
    struct kvb_digest window = { .total = { 0 } };

    kvb_digest_add(&device, &key, KVB_TIER_DEVICE, (kvb_block_hash){ 5 });
    for (size_t i = 0; i < count; i++) {
        kvb_digest_add(&window, &key, KVB_LIST_WINDOW, (kvb_block_hash){ blocks[i] });
    }
    beat.digest_seed = key.seed;
    beat.tiers[KVB_TIER_DEVICE].digest = device.total;
    beat.tiers[KVB_LIST_WINDOW].digest = window.total;
    return beat;
}

/* A stream whose beginning was missed, and the first chunk of its snapshot. */
static struct kvb_follower_request begin_snapshot(struct scene *scene, bool is_last)
{
    static const uint64_t its[] = { 9 };
    struct kvb_heartbeat beat = digest_beat(first_id + 2, its, 1);

    beat_as(scene, &beat);
    const struct kvb_follower_request ask = asked(scene, KVB_SYNC_SNAPSHOT);
    start_batch(scene, 1);
    add(scene, KVB_ROUTER_STORED, 0, 5, KVB_TIER_DEVICE);
    add(scene, KVB_ROUTER_STORED, 0, 9, KVB_LIST_WINDOW);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 2);
    reply.is_last = is_last;
    answer(scene, &ask, &reply);
    return ask;
}

static void the_hidden_list_is_freed_when_the_snapshot_fails(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    (void)begin_snapshot(&scene, false);
    scene.now_ns += 10 * S; /* no further chunk arrives */
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_int_equal(kvb_followers_window_blocks(scene.followers), 0);
    end(&scene);
}

static void lists_of_a_stream_that_is_forgotten_are_freed(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    window_stored(&scene, first_id + 2, 5);
    scene.now_ns += 200 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    scene.now_ns += 200 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_null(follower(&scene));
    assert_int_equal(kvb_followers_window_blocks(scene.followers), 0);
    end(&scene);
}

/* ---- What answers depend on ---- */

static void new_facts_in_a_heartbeat_change_the_traits(void **state)
{
    (void)state;
    struct scene scene = begin();
    uint64_t traits = 0;

    make_exact(&scene, 1);
    struct kvb_heartbeat beats[7];
    for (size_t i = 0; i < 7; i++) { /* each adds a fact to the one before */
        beats[i] = i > 0 ? beats[i - 1] : beat_of(1, first_id + 1, 1);
        beats[i].window_tokens = i > 0 ? 64 : 0;
        beats[i].hashes = i > 1 ? KVB_HASHES_ENGINE : KVB_HASHES_CANONICAL;
        beats[i].is_paired = i > 2;
        beats[i].is_store = i > 3;
        beats[i].shape_count = i > 4;
        beats[i].speculative_drop = i > 5;
    }
    for (size_t i = 0; i < 7; i++) {
        beat_as(&scene, &beats[i]);
        assert_int_not_equal(kvb_followers_traits(scene.followers), traits);
        traits = kvb_followers_traits(scene.followers);
        beat_as(&scene, &beats[i]);
        assert_int_equal(kvb_followers_traits(scene.followers), traits);
    }
    beats[6].shapes[0].shape.block_size = 256;
    beat_as(&scene, &beats[6]);
    assert_int_not_equal(kvb_followers_traits(scene.followers), traits);
    end(&scene);
}

SUITE(follower_window)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_events_change_the_window_list_and_no_slot),
        cmocka_unit_test(window_lists_share_a_ceiling),
        cmocka_unit_test(the_hidden_list_is_freed_when_the_snapshot_fails),
        cmocka_unit_test(lists_of_a_stream_that_is_forgotten_are_freed),
        cmocka_unit_test(new_facts_in_a_heartbeat_change_the_traits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
