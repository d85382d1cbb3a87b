#include "kvb_test.h"

#include "replica/follower_scene.h"

/* ---- Becoming exact ---- */

static void the_bridges_own_reason_is_taken_over(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id, 0);

    cleared(&scene, 1, first_id);
    heartbeat.state = KVB_STREAM_PARTIAL;
    heartbeat.reason = KVB_REASON_GONE;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    end(&scene);
}

/* ---- Joining late ---- */

static void a_stream_first_seen_in_the_middle_is_joined_late_until_cleared(void **state)
{
    (void)state;
    struct scene scene = begin();

    stored(&scene, 1, first_id + 50, 5);
    beat(&scene, 1, first_id + 50, 30);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    /* the later part is a subset of the whole list, so it may be listed */
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).differs, 0);
    cleared(&scene, 1, first_id + 51);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE);
    beat(&scene, 1, first_id + 51, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Gaps and repeated events ---- */

static void each_missing_event_is_counted_once(void **state)
{
    (void)state;
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    assert_int_equal(counters_of(&scene).events_missed, 0);
    stored(&scene, 1, first_id + 5, 6); /* 2, 3 and 4 are missing, 5 waits for them */
    assert_int_equal(counters_of(&scene).events_missed, 3);
    stored(&scene, 1, first_id + 6, 7);
    beat(&scene, 1, first_id + 6, 7);
    assert_int_equal(counters_of(&scene).events_missed, 3);
    beat(&scene, 1, first_id + 8, 9); /* and 7 and 8 are missing */
    beat(&scene, 1, first_id + 8, 9);
    assert_int_equal(counters_of(&scene).events_missed, 5);
    cleared(&scene, 1, first_id + 500); /* no earlier event is needed after it */
    stored(&scene, 1, first_id + 501, 8);
    assert_int_equal(counters_of(&scene).events_missed, 5);
    cleared(&scene, 2, first_id + 900);
    stored(&scene, 2, first_id + 902, 8);
    assert_int_equal(counters_of(&scene).events_missed, 6);
    end(&scene);
}

/* ---- Formats ---- */

/* The same events in the other format, as of a bridge that publishes both. */
static void events_are_taken_in_the_format_of_the_heartbeat_alone(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 1, 1);

    make_exact(&scene, 1);
    stored(&scene, 0, first_id + 2, 6);
    cleared(&scene, 0, first_id + 3);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).events_unused, 2);
    heartbeat.formats = 1U << KVB_FORMAT_JSON | 1U << KVB_FORMAT_PROTOBUF;
    beat_as(&scene, &heartbeat);
    assert_int_equal(follower(&scene)->format, KVB_FORMAT_PROTOBUF);
    stored(&scene, 0, first_id + 2, 6);
    assert_blocks(&scene, 1);
    stored(&scene, 1, first_id + 2, 6);
    assert_blocks(&scene, 2);
    assert_int_equal(counters_of(&scene).events_unused, 3);
    assert_int_equal(counters_of(&scene).holes, 0);
    end(&scene);
}

static void protobuf_of_a_bridge_that_publishes_json_alone_is_not_taken(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 0);
    stored(&scene, 1, first_id + 2, 6);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).events_unused, 1);
    stored(&scene, 0, first_id + 2, 6);
    assert_blocks(&scene, 2);
    end(&scene);
}

/* No heartbeat has come yet: JSON may be all that there is, until protobuf comes. */
static void before_a_heartbeat_protobuf_replaces_json(void **state)
{
    (void)state;
    struct scene scene = begin();

    cleared(&scene, 0, first_id);
    stored(&scene, 0, first_id + 1, 5);
    assert_blocks(&scene, 1);
    assert_int_equal(follower(&scene)->format, KVB_FORMAT_JSON);
    stored(&scene, 1, first_id + 1, 5); /* the same again, of an epoch that begins earlier */
    assert_int_equal(follower(&scene)->format, KVB_FORMAT_PROTOBUF);
    stored(&scene, 0, first_id + 2, 6);
    stored(&scene, 1, first_id + 2, 7);
    assert_int_equal(counters_of(&scene).events_unused, 1);
    assert_int_equal(counters_of(&scene).epochs_missed, 1);
    end(&scene);
}

/* The bridge was restarted with other formats: a new epoch, and what came before its first
 * heartbeat was not taken. */
static void another_format_is_followed_from_its_heartbeat_on(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(2, first_id + 101, 1);

    make_exact(&scene, 1);
    cleared(&scene, 0, first_id + 100);
    stored(&scene, 0, first_id + 101, 9);
    assert_blocks(&scene, 1);
    heartbeat.epoch_first_id = first_id + 100;
    heartbeat.formats = 1U << KVB_FORMAT_JSON;
    beat_as(&scene, &heartbeat);
    assert_int_equal(follower(&scene)->format, KVB_FORMAT_JSON);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    assert_blocks(&scene, 0);
    stored(&scene, 0, first_id + 102, 10);
    assert_blocks(&scene, 1);
    end(&scene);
}

static void repeated_and_older_ids_are_dropped_and_counted(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    removed(&scene, 1, first_id + 2, 5);
    stored(&scene, 1, first_id + 1, 5);  /* stored again, after its removal */
    cleared(&scene, 1, first_id);        /* the opening repeated */
    removed(&scene, 1, first_id + 2, 5); /* the newest event repeated */
    assert_int_equal(counters_of(&scene).events_old, 3);
    assert_blocks(&scene, 0);
    beat(&scene, 1, first_id + 2, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Streams of others ---- */

static void a_foreign_stream_may_skip_ids(void **state)
{
    (void)state;
    struct scene scene = begin();

    stored(&scene, 0, 10, 1);
    stored(&scene, 0, 10, 2);
    stored(&scene, 0, 900, 3);
    stored(&scene, 0, 3, 4);
    removed(&scene, 0, 3, 3);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT);
    assert_blocks(&scene, 3);
    assert_int_equal(counters_of(&scene).events_old, 0);
    scene.now_ns += 59 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT);
    cleared(&scene, 0, 1);
    assert_blocks(&scene, 0);
    end(&scene);
}

static void a_heartbeat_after_unexplained_jumps_empties_the_stream(void **state)
{
    (void)state;
    struct scene scene = begin();

    cleared(&scene, 0, first_id);
    stored(&scene, 0, first_id + 1, 5);
    stored(&scene, 0, first_id + 9, 6);
    beat(&scene, 1, first_id + 9, 4);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    assert_blocks(&scene, 0);
    end(&scene);
}

/* ---- Heartbeats that disagree ---- */

static void different_counts_at_the_last_id_are_counted_once(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    beat(&scene, 1, first_id + 1, 9);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_DIFFERS);
    assert_blocks(&scene, 0); /* which of the listed blocks are wrong is unknown */
    beat(&scene, 1, first_id + 1, 9);
    assert_int_equal(counters_of(&scene).differs, 1);
    cleared(&scene, 1, first_id + 2);
    beat(&scene, 1, first_id + 2, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void counts_are_compared_tier_by_tier(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 2, 1);

    cleared(&scene, 1, first_id);
    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_STORED, first_id + 1, 5, KVB_TIER_DEVICE);
    add(&scene, KVB_ROUTER_STORED, first_id + 2, 5, KVB_TIER_HOST);
    say(&scene);
    heartbeat.tiers[KVB_TIER_HOST].blocks = 1;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    removed(&scene, 1, first_id + 3, 5);
    assert_blocks(&scene, 0);
    assert_int_equal(blocks_in(&scene, KVB_TIER_HOST), 1);
    heartbeat.last_id = first_id + 3;
    heartbeat.tiers[KVB_TIER_DEVICE].blocks = 1;
    heartbeat.tiers[KVB_TIER_HOST].blocks = 0; /* the sum is the same */
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_DIFFERS);
    end(&scene);
}

static void one_heartbeat_ahead_is_tolerated_and_two_mean_missed_events(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stored(&scene, 1, first_id + 2, 6);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    beat(&scene, 1, first_id + 3, 3);
    beat(&scene, 1, first_id + 3, 3);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    assert_blocks(&scene, 0);
    stored(&scene, 1, first_id + 4, 7); /* the next event after them makes no new gap */
    assert_int_equal(counters_of(&scene).holes, 0);
    end(&scene);
}

/* ---- The audit ---- */

static void doubt(struct scene *scene, bool is_doubted)
{
    kvb_followers_set_doubted(scene->followers, &stream, is_doubted, scene->now_ns);
}

static void a_broken_stream_is_unverified_instead_of_exact(void **state)
{
    (void)state;
    struct scene scene = begin();

    doubt(&scene, true); /* not known yet */
    make_exact(&scene, 1);
    assert_true(follower(&scene)->is_claimed);
    doubt(&scene, true);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_AUDIT);
    assert_true(follower(&scene)->is_claimed);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_AUDIT);
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_AUDIT);
    doubt(&scene, false);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void a_claim_ends_when_the_list_is_emptied_or_no_longer_claimed(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    const uint64_t first = follower(&scene)->claim;
    assert_ptr_equal(kvb_followers_find(scene.followers, &stream), follower(&scene));
    stored(&scene, 1, first_id + 2, 6);
    removed(&scene, 1, first_id + 3, 6);
    beat(&scene, 1, first_id + 3, 1);
    doubt(&scene, true);
    doubt(&scene, false);
    assert_int_equal(follower(&scene)->claim, first);
    cleared(&scene, 1, first_id + 4); /* the list stays EXACT because the id is the next one */
    const uint64_t second = follower(&scene)->claim;
    assert_true(second != first);
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    assert_false(follower(&scene)->is_claimed);
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    beat(&scene, 1, first_id + 4, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_true(follower(&scene)->claim != second);
    end(&scene);
}

SUITE(follower)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bridges_own_reason_is_taken_over),
        cmocka_unit_test(a_stream_first_seen_in_the_middle_is_joined_late_until_cleared),
        cmocka_unit_test(each_missing_event_is_counted_once),
        cmocka_unit_test(events_are_taken_in_the_format_of_the_heartbeat_alone),
        cmocka_unit_test(protobuf_of_a_bridge_that_publishes_json_alone_is_not_taken),
        cmocka_unit_test(before_a_heartbeat_protobuf_replaces_json),
        cmocka_unit_test(another_format_is_followed_from_its_heartbeat_on),
        cmocka_unit_test(repeated_and_older_ids_are_dropped_and_counted),
        cmocka_unit_test(a_foreign_stream_may_skip_ids),
        cmocka_unit_test(a_heartbeat_after_unexplained_jumps_empties_the_stream),
        cmocka_unit_test(different_counts_at_the_last_id_are_counted_once),
        cmocka_unit_test(counts_are_compared_tier_by_tier),
        cmocka_unit_test(one_heartbeat_ahead_is_tolerated_and_two_mean_missed_events),
        cmocka_unit_test(a_broken_stream_is_unverified_instead_of_exact),
        cmocka_unit_test(a_claim_ends_when_the_list_is_emptied_or_no_longer_claimed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
