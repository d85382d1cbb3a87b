#include "kvb_test.h"

#include "follower_scene.h"

#include <string.h>

/* A follower that requests lists. The answers are made by hand: correct, truncated and forged ones.
 */

static const uint64_t ms = KVB_NS_PER_MS;

static void assert_requests_nothing(struct scene *scene)
{
    struct kvb_follower_request ask;

    assert_false(kvb_followers_next_request(scene->followers, scene->now_ns, &ask));
}

static void pass(struct scene *scene, uint64_t milliseconds)
{
    scene->now_ns += milliseconds * ms;
    kvb_followers_tick(scene->followers, scene->now_ns);
}

/* ---- Ranges ---- */

static void a_gap_that_is_not_filled_costs_the_list_before_it_becomes_false(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 3, 8);
    (void)asked(&scene, KVB_SYNC_RANGE);
    pass(&scene, 1400);
    assert_blocks(&scene, 1);
    pass(&scene, 150);
    assert_blocks(&scene, 1); /* event 8, which waited; block 5 may be gone */
    beat(&scene, 1, first_id + 3, 2);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_MISSED_EVENTS);
    (void)asked(&scene, KVB_SYNC_SNAPSHOT);
    end(&scene);
}

static void a_range_that_lacks_an_event_is_not_applied(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 4, 8); /* 2 and 3 are missing */
    const struct kvb_follower_request ask = asked(&scene, KVB_SYNC_RANGE);
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_STORED, first_id + 3, 7, KVB_TIER_DEVICE);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_EVENTS, first_id + 4);
    answer(&scene, &ask, &reply);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).requests_failed, 1);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_MISSED_EVENTS);
    end(&scene);
}

/* The removal of a block stored by a waiting event may have been missed. */
static void events_that_waited_while_nats_was_away_are_not_listed(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 3, 8);
    (void)asked(&scene, KVB_SYNC_RANGE);
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    pass(&scene, 5000);
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    const struct kvb_follower_request range = asked(&scene, KVB_SYNC_RANGE);
    start_batch(&scene, 1);
    struct kvb_sync_reply gone = reply_of(KVB_SYNC_GONE, first_id + 9);
    answer(&scene, &range, &gone);
    assert_blocks(&scene, 0);
    stored(&scene, 1, first_id + 4, 9); /* events that follow on it count */
    assert_blocks(&scene, 1);
    (void)asked(&scene, KVB_SYNC_SNAPSHOT);
    end(&scene);
}

/* ---- Snapshots ---- */

static struct kvb_follower_request join_late(struct scene *scene)
{
    beat(scene, 1, first_id + 50, 2);
    assert_state(scene, KVB_STREAM_SYNCING, KVB_REASON_JOINED_LATE);
    return asked(scene, KVB_SYNC_SNAPSHOT);
}

static void put_two_blocks(struct scene *scene)
{
    start_batch(scene, 1);
    add(scene, KVB_ROUTER_STORED, 0, 6, KVB_TIER_DEVICE);
    add(scene, KVB_ROUTER_STORED, 1, 8, KVB_TIER_HOST);
}

static void a_late_joiner_shows_nothing_of_half_a_snapshot(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    const struct kvb_follower_request ask = join_late(&scene);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 50);
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 50, 1);

    put_two_blocks(&scene);
    reply.is_last = false;
    answer(&scene, &ask, &reply);
    assert_blocks(&scene, 0);
    start_batch(&scene, 1);
    reply.is_last = true;
    reply.chunk = 1;
    answer(&scene, &ask, &reply);
    assert_blocks(&scene, 1);
    assert_true(blocks_in(&scene, KVB_TIER_HOST) == 1);
    /* UNVERIFIED until a heartbeat proves it */
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE);
    heartbeat.tiers[KVB_TIER_HOST].blocks = 1;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void of_another_worker(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->worker_id++;
}

static void of_another_rank(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->dp_rank++;
}

static void of_another_epoch(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->epoch.bytes[0] = 2;
}

static void without_its_beginning(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->chunk = 1;
}

static void with_a_barrier_to_come(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->barrier_id = reply->last_id + 1;
}

static void with_a_removal(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)reply;
    add(scene, KVB_ROUTER_REMOVED, 2, 6, KVB_TIER_DEVICE);
}

static void with_a_clear(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)reply;
    add(scene, KVB_ROUTER_CLEARED, 2, 0, KVB_TIER_DEVICE);
}

static void of_another_kind(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->answer = KVB_SYNC_EVENTS;
}

static void sums_nobody_asked_for(struct scene *scene, struct kvb_sync_reply *reply)
{
    (void)scene;
    reply->answer = KVB_SYNC_SUMS;
}

static void a_forged_or_incomplete_answer_is_refused_counted_and_requested_again(void **state)
{
    (void)state;
    void (*const forgeries[])(struct scene *, struct kvb_sync_reply *) = {
        of_another_worker,     of_another_rank,        of_another_epoch,
        without_its_beginning, with_a_barrier_to_come, with_a_removal,
        with_a_clear,          of_another_kind,        sums_nobody_asked_for,
    };

    for (size_t i = 0; i < sizeof forgeries / sizeof forgeries[0]; i++) {
        struct scene scene = begin_requests();
        const struct kvb_follower_request ask = join_late(&scene);
        struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 50);
        put_two_blocks(&scene);
        forgeries[i](&scene, &reply);
        answer(&scene, &ask, &reply);
        assert_blocks(&scene, 0);
        assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
        assert_int_equal(counters_of(&scene).requests_failed, 1);
        assert_requests_nothing(&scene);
        pass(&scene, 110);
        const struct kvb_follower_request again = asked(&scene, KVB_SYNC_SNAPSHOT);
        put_two_blocks(&scene);
        reply = reply_of(KVB_SYNC_BLOCKS, first_id + 50);
        answer(&scene, &ask, &reply); /* an answer to the previous request */
        assert_blocks(&scene, 0);
        answer(&scene, &again, &reply);
        assert_blocks(&scene, 1);
        end(&scene);
    }
}

static void a_snapshot_that_stops_half_way_is_discarded(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    const struct kvb_follower_request ask = join_late(&scene);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 50);

    put_two_blocks(&scene);
    reply.is_last = false;
    answer(&scene, &ask, &reply);
    pass(&scene, 1010);
    assert_int_equal(counters_of(&scene).requests_failed, 1);
    start_batch(&scene, 1);
    reply.chunk = 1;
    reply.is_last = true;
    answer(&scene, &ask, &reply); /* the rest of it arrives too late */
    assert_blocks(&scene, 0);
    end(&scene);
}

/* Part of the snapshot was walked after the event that the heartbeat describes. */
static void a_heartbeat_from_before_the_end_of_a_snapshot_does_not_invalidate_it(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    const struct kvb_follower_request ask = join_late(&scene);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, first_id + 50);

    put_two_blocks(&scene);
    reply.last_id = first_id + 51;
    answer(&scene, &ask, &reply);
    beat(&scene, 1, first_id + 50, 3);
    assert_int_equal(counters_of(&scene).differs, 0);
    assert_requests_nothing(&scene);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE); /* and does not prove it */
    end(&scene);
}

static void a_busy_bridge_is_sent_no_request_for_as_long_as_it_says(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    const struct kvb_follower_request ask = join_late(&scene);
    struct kvb_sync_reply busy = reply_of(KVB_SYNC_BUSY, 0);

    start_batch(&scene, 1);
    memset(&busy.epoch, 0, sizeof busy.epoch);
    busy.retry_ms = 200;
    answer(&scene, &ask, &busy);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_JOINED_LATE);
    pass(&scene, 190);
    assert_requests_nothing(&scene);
    pass(&scene, 20);
    (void)asked(&scene, KVB_SYNC_SNAPSHOT);
    assert_int_equal(counters_of(&scene).requests_failed, 0);
    end(&scene);
}

static void a_bridge_that_never_answers_gets_fewer_and_fewer_requests(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    struct kvb_follower_request ask;
    int sends_requests = 1;

    (void)join_late(&scene);
    for (int i = 0; i < 600; i++) { /* one minute, in which its heartbeats arrive */
        pass(&scene, 100);
        if (i % 10 == 0) {
            beat(&scene, 1, first_id + 50, 2);
        }
        sends_requests += kvb_followers_next_request(scene.followers, scene.now_ns, &ask);
    }
    assert_in_range(sends_requests, 8, 16);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    end(&scene);
}

/* ---- Impossible messages ---- */

static void an_impossible_count_is_never_exact(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    beat(&scene, 1, first_id + 1, UINT64_MAX);
    assert_true(follower(&scene)->state != KVB_STREAM_EXACT);
    beat(&scene, 1, first_id + 1, UINT64_MAX);
    assert_true(follower(&scene)->state != KVB_STREAM_EXACT);
    end(&scene);
}

static void an_id_that_goes_back_changes_nothing(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    removed(&scene, 1, first_id, 5);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).events_old, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_requests_nothing(&scene);
    end(&scene);
}

SUITE(repair)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gap_that_is_not_filled_costs_the_list_before_it_becomes_false),
        cmocka_unit_test(a_range_that_lacks_an_event_is_not_applied),
        cmocka_unit_test(events_that_waited_while_nats_was_away_are_not_listed),
        cmocka_unit_test(a_late_joiner_shows_nothing_of_half_a_snapshot),
        cmocka_unit_test(a_forged_or_incomplete_answer_is_refused_counted_and_requested_again),
        cmocka_unit_test(a_snapshot_that_stops_half_way_is_discarded),
        cmocka_unit_test(a_heartbeat_from_before_the_end_of_a_snapshot_does_not_invalidate_it),
        cmocka_unit_test(a_busy_bridge_is_sent_no_request_for_as_long_as_it_says),
        cmocka_unit_test(a_bridge_that_never_answers_gets_fewer_and_fewer_requests),
        cmocka_unit_test(an_impossible_count_is_never_exact),
        cmocka_unit_test(an_id_that_goes_back_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
