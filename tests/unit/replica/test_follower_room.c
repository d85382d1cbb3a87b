#include "kvb_test.h"

#include "follower_scene.h"

#include <string.h>

/* Streams without heartbeats, and streams that find no room: what they may use, and how they
 * recover. */

/* ---- Without heartbeats ---- */

static struct kvb_stream_id id_of(uint64_t worker)
{
    struct kvb_stream_id id = stream;

    id.worker_id = worker;
    return id;
}

static void store_as(struct scene *scene, uint64_t worker)
{
    const struct kvb_stream_id id = id_of(worker);

    start_batch(scene, 0);
    add(scene, KVB_ROUTER_STORED, 1, 5, KVB_TIER_DEVICE);
    assert_ok(kvb_followers_apply(scene->followers, &id, &scene->batch, scene->now_ns));
}

static kvb_status beat_of_worker(struct scene *scene, uint64_t worker)
{
    const struct kvb_stream_id id = id_of(worker);
    const struct kvb_heartbeat heartbeat = beat_of(1, first_id, 0);

    return kvb_followers_heartbeat(scene->followers, &id, &heartbeat, scene->now_ns);
}

static bool is_followed(const struct scene *scene, uint64_t worker)
{
    for (size_t i = 0; i < kvb_followers_limit(scene->followers); i++) {
        const struct kvb_follower *found = kvb_followers_at(scene->followers, i);
        if (found && found->id.worker_id == worker) {
            return true;
        }
    }
    return false;
}

static void streams_without_heartbeats_are_forgotten_after_their_last_event(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_index_counters counters;

    store_as(&scene, 1);
    store_as(&scene, 2);
    scene.now_ns += 40 * S;
    store_as(&scene, 1);
    scene.now_ns += (20 * S) - 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_true(is_followed(&scene, 1) && is_followed(&scene, 2));
    scene.now_ns += 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_true(is_followed(&scene, 1) && !is_followed(&scene, 2));
    scene.now_ns += 40 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_int_equal(count_followed(&scene), 0);
    kvb_prefix_index_count(scene.index, &counters);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters_of(&scene).forgotten, 2);
    end(&scene);
}

static void a_stream_with_a_heartbeat_is_not_forgotten_so_soon(void **state)
{
    (void)state;
    struct scene scene = begin();

    store_as(&scene, 1);
    assert_ok(beat_of_worker(&scene, 1));
    scene.now_ns += 100 * S;
    assert_ok(beat_of_worker(&scene, 1));
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_true(is_followed(&scene, 1));
    end(&scene);
}

/* 16 streams in all, 2 of them without heartbeats */
static void one_too_many_replaces_the_one_silent_for_longest(void **state)
{
    (void)state;
    struct scene scene = scene_of(16, 1000, 100);

    store_as(&scene, 1);
    store_as(&scene, 2);
    store_as(&scene, 1);
    store_as(&scene, 3);
    assert_true(is_followed(&scene, 1) && !is_followed(&scene, 2) && is_followed(&scene, 3));
    for (uint64_t worker = 10; worker < 1000; worker++) {
        store_as(&scene, worker);
        assert_int_equal(count_followed(&scene), 2);
    }
    assert_true(is_followed(&scene, 998) && is_followed(&scene, 999));
    assert_ok(beat_of_worker(&scene, 998)); /* now it has heartbeats */
    store_as(&scene, 2000);
    store_as(&scene, 2001);
    assert_true(is_followed(&scene, 998) && !is_followed(&scene, 999));
    assert_int_equal(count_followed(&scene), 3);
    end(&scene);
}

static void streams_without_heartbeats_displace_no_stream_with_a_bridge(void **state)
{
    (void)state;
    struct scene scene = scene_of(16, 1000, 100);

    store_as(&scene, 100);
    store_as(&scene, 101);
    for (uint64_t worker = 0; worker < 16; worker++) {
        assert_ok(beat_of_worker(&scene, worker));
        assert_true(is_followed(&scene, worker));
    }
    assert_false(is_followed(&scene, 100) || is_followed(&scene, 101));
    assert_int_equal(beat_of_worker(&scene, 17), KVB_TOO_LARGE); /* still silent for longest */
    assert_int_equal(counters_of(&scene).streams_refused, 1);
    end(&scene);
}

/* ---- Without memory ---- */

enum { nodes = 10 };

/* Blocks in a slot that no follower owns. */
static kvb_slot_ref take_all_but(struct scene *scene, size_t left)
{
    kvb_block_hash blocks[nodes];
    kvb_tokens_hash tokens[nodes];
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = nodes - left };
    kvb_slot_ref slot = { 0 };

    for (size_t i = 0; i < nodes; i++) {
        blocks[i].value = 500 + i;
        tokens[i].value = 500 + i;
    }
    assert_ok(kvb_prefix_index_slot_new(scene->index, &slot));
    assert_ok(kvb_prefix_index_store(scene->index, slot, &run, NULL));
    return slot;
}

static void give_back(struct scene *scene, kvb_slot_ref slot)
{
    kvb_prefix_index_slot_free(scene->index, slot);
    assert_false(kvb_prefix_index_reclaim(scene->index, SIZE_MAX));
}

static void assert_requests_nothing(struct scene *scene)
{
    struct kvb_follower_request ask;

    assert_false(kvb_followers_next_request(scene->followers, scene->now_ns, &ask));
}

static void next_second(struct scene *scene, uint64_t last_id, uint64_t blocks)
{
    scene->now_ns += S;
    beat(scene, 1, last_id, blocks);
    kvb_followers_tick(scene->followers, scene->now_ns);
}

static void send_list(struct scene *scene, uint64_t last_id)
{
    const struct kvb_follower_request ask = asked(scene, KVB_SYNC_SNAPSHOT);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, last_id);

    start_batch(scene, 1);
    add(scene, KVB_ROUTER_STORED, 0, 5, KVB_TIER_DEVICE);
    add(scene, KVB_ROUTER_STORED, 1, 6, KVB_TIER_DEVICE);
    answer(scene, &ask, &reply);
}

static void a_list_that_found_no_room_is_fetched_when_there_is_some(void **state)
{
    (void)state;
    struct scene scene = begin_requests_with(nodes);
    const kvb_slot_ref other = take_all_but(&scene, 1);

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 2, 6);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MEMORY);
    next_second(&scene, first_id + 2, 2);
    assert_requests_nothing(&scene); /* while there is no room an answer would be useless */
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MEMORY);
    give_back(&scene, other);
    next_second(&scene, first_id + 2, 2);
    assert_blocks(&scene, 1); /* the request stays until the answer arrives */
    send_list(&scene, first_id + 2);
    assert_blocks(&scene, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void a_list_that_does_not_fit_is_requested_after_its_pause(void **state)
{
    (void)state;
    struct scene scene = begin_requests_with(nodes);
    const kvb_slot_ref other = take_all_but(&scene, 1);

    next_second(&scene, first_id + 2, 2); /* the first message of this stream */
    send_list(&scene, first_id + 2);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MEMORY);
    for (int i = 0; i < 30; i++) {
        next_second(&scene, first_id + 2, 2);
        assert_requests_nothing(&scene);
    }
    give_back(&scene, other);
    next_second(&scene, first_id + 2, 2);
    send_list(&scene, first_id + 2);
    assert_blocks(&scene, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

SUITE(follower_room)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_without_heartbeats_are_forgotten_after_their_last_event),
        cmocka_unit_test(a_stream_with_a_heartbeat_is_not_forgotten_so_soon),
        cmocka_unit_test(one_too_many_replaces_the_one_silent_for_longest),
        cmocka_unit_test(streams_without_heartbeats_displace_no_stream_with_a_bridge),
        cmocka_unit_test(a_list_that_found_no_room_is_fetched_when_there_is_some),
        cmocka_unit_test(a_list_that_does_not_fit_is_requested_after_its_pause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
