#include "kvb_test.h"

#include "fail_alloc.h"
#include "replica/follower_scene.h"

/* ---- Epochs ---- */

static void json_continues_into_a_new_epoch_whose_cleared_arrived(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(2, 5001, 1);

    make_exact(&scene, 0);
    cleared(&scene, 0, 5000);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE);
    stored(&scene, 0, 5001, 9);
    heartbeat.epoch_first_id = 5000;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).epochs_missed, 0);
    end(&scene);
}

static void late_messages_of_an_old_epoch_have_no_effect(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(2, 5000, 0);

    make_exact(&scene, 1);
    cleared(&scene, 2, 5000);
    heartbeat.epoch_first_id = 5000;
    beat_as(&scene, &heartbeat);
    stored(&scene, 1, first_id + 2, 6);
    cleared(&scene, 1, 9000);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 0);
    assert_int_equal(counters_of(&scene).events_old, 3);
    end(&scene);
}

/* An engine that restarts again and again makes many epochs within the time that a message may come
 * again. */
static void messages_of_the_last_four_epochs_have_no_effect(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(6, 10000, 0);

    make_exact(&scene, 1);
    for (int epoch = 2; epoch <= 6; epoch++) {
        cleared(&scene, epoch, 4000 + 1000 * (uint64_t)epoch);
    }
    heartbeat.epoch_first_id = 10000;
    beat_as(&scene, &heartbeat);
    for (int old = 5; old >= 2; old--) {
        stored(&scene, old, 20000, 6);
        cleared(&scene, old, 20001);
        beat(&scene, old, 20001, 2);
    }
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 0);
    assert_int_equal(counters_of(&scene).events_old, 12);
    stored(&scene, 6, 10001, 7);
    assert_blocks(&scene, 1);
    end(&scene);
}

/* The epoch that is followed again is not among the old ones any more, the one before it is. */
static void an_old_epoch_that_is_followed_again_is_the_newest(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    for (int epoch = 2; epoch <= 4; epoch++) {
        cleared(&scene, epoch, 4000 + 1000 * (uint64_t)epoch);
    }
    beat(&scene, 4, 8000, 0);
    scene.now_ns += 3 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    beat(&scene, 2, 6000, 0);
    stored(&scene, 2, 6001, 7);
    assert_blocks(&scene, 1);
    for (int old = 1; old <= 4; old += old == 1 ? 2 : 1) {
        stored(&scene, old, 20000, 8);
    }
    assert_blocks(&scene, 1);
    end(&scene);
}

/* A bridge restored from a backup sends messages of the old epoch only. */
static void an_old_epoch_is_followed_when_the_new_one_is_silent(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    cleared(&scene, 2, 5000);
    stored(&scene, 2, 5001, 6);
    beat(&scene, 2, 5001, 1);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE); /* late, so without effect */
    scene.now_ns += 3 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    assert_blocks(&scene, 0);
    stored(&scene, 1, first_id + 2, 7);
    beat(&scene, 1, first_id + 2, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* The stream is EXACT in the second of two epochs, and the bridges of both are running. */
static void begin_with_two_bridges(struct scene *scene)
{
    *scene = begin();
    make_exact(scene, 1);
    cleared(scene, 2, 5000);
    stored(scene, 2, 5001, 6);
    beat(scene, 2, 5001, 1);
    assert_state(scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    for (int i = 0; i < 2; i++) {
        scene->now_ns += S;
        beat(scene, 2, 5001, 1);
        beat(scene, 1, first_id + 1, 1);
        kvb_followers_tick(scene->followers, scene->now_ns);
        assert_state(scene, KVB_STREAM_UNVERIFIED, KVB_REASON_TWO_BRIDGES);
    }
    assert_int_equal(counters_of(scene).rivals, 1);
    assert_blocks(scene, 1);
}

static void a_second_bridge_is_reported_until_it_is_silent(void **state)
{
    (void)state;
    struct scene scene;

    begin_with_two_bridges(&scene);
    scene.now_ns += 2 * S;
    beat(&scene, 2, 5001, 1);
    scene.now_ns += S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void the_bridge_that_stays_is_followed_at_once(void **state)
{
    (void)state;
    struct kvb_heartbeat bye = beat_of(2, 5001, 1);
    struct scene scene;

    begin_with_two_bridges(&scene);
    bye.is_bye = true;
    beat_as(&scene, &bye);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    end(&scene);
}

static void a_goodbye_ends_the_report_of_two_bridges_at_once(void **state)
{
    (void)state;
    struct kvb_heartbeat bye = beat_of(1, first_id + 1, 1);
    struct scene scene;

    begin_with_two_bridges(&scene);
    bye.is_bye = true;
    beat_as(&scene, &bye);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Silence, goodbye, NATS ---- */

static void three_missing_heartbeats_mean_down_and_the_blocks_stay(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    scene.now_ns += (3 * S) - 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    scene.now_ns += 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
    assert_blocks(&scene, 1);
    assert_int_equal(counters_of(&scene).silent, 1);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* Heartbeats say how often they are sent. */
static void assert_silent_after(uint32_t period_ms, uint64_t silence_ms)
{
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 1, 1);

    make_exact(&scene, 1);
    heartbeat.period_ms = period_ms;
    beat_as(&scene, &heartbeat);
    scene.now_ns += silence_ms * KVB_NS_PER_MS - 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    scene.now_ns += 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
    end(&scene);
}

static void three_heartbeats_are_those_of_the_streams_own_period(void **state)
{
    (void)state;
    assert_silent_after(0, 3000); /* a bridge of an older version, which does not say it */
    assert_silent_after(1000, 3000);
    assert_silent_after(5000, 15000);
    assert_silent_after(60000, 180000);
}

/* A forged period must neither keep a dead stream for ever nor make a live one DOWN between two
 * heartbeats. */
static void an_impossible_period_is_limited(void **state)
{
    (void)state;
    assert_silent_after(1, 1500);
    assert_silent_after(100, 1500);
    assert_silent_after(UINT32_MAX, 180000);
}

/* ---- Lag ---- */

static void a_lagging_list_is_stale_and_lag_is_no_silence(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_set_lagging(scene.followers, true, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    stored(&scene, 1, first_id + 2, 6);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    scene.now_ns += 10 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    kvb_followers_set_lagging(scene.followers, false, scene.now_ns);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    scene.now_ns += 3 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
    end(&scene);
}

static void a_stream_without_heartbeats_lags_too(void **state)
{
    (void)state;
    struct scene scene = begin();

    stored(&scene, 0, 1, 5);
    kvb_followers_set_lagging(scene.followers, true, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    kvb_followers_set_lagging(scene.followers, false, scene.now_ns);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT);
    end(&scene);
}

static void after_dropped_messages_each_list_must_be_proven_again(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_messages_dropped(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    stored(&scene, 1, first_id + 2, 6);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_LAGGING);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void goodbye_is_down_at_once(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 1, 1);

    make_exact(&scene, 1);
    heartbeat.is_bye = true;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED);
    cleared(&scene, 2, 5000);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED);
    heartbeat = beat_of(2, 5000, 0);
    heartbeat.epoch_first_id = 5000;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void streams_down_for_long_are_forgotten_and_their_slots_freed(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 1, 1);
    struct kvb_index_counters counters;

    make_exact(&scene, 1);
    heartbeat.is_bye = true;
    beat_as(&scene, &heartbeat);
    scene.now_ns += (60 * S) - 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_non_null(follower(&scene));
    scene.now_ns += 1;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_null(follower(&scene));
    assert_int_equal(count_followed(&scene), 0);
    kvb_prefix_index_count(scene.index, &counters);
    assert_int_equal(counters.memberships, 0);
    end(&scene);
}

static void an_absent_engine_is_not_forgotten_while_its_bridge_sends_heartbeats(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(1, first_id + 1, 1);

    make_exact(&scene, 1);
    heartbeat.state = KVB_STREAM_DOWN;
    heartbeat.reason = KVB_REASON_ENGINE_AWAY;
    for (size_t second = 0; second < 100; second++) {
        scene.now_ns += S;
        beat_as(&scene, &heartbeat);
        kvb_followers_tick(scene.followers, scene.now_ns);
        assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_ENGINE_AWAY);
    }
    end(&scene);
}

static void without_nats_all_lists_are_stale_and_kept_however_long(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    scene.now_ns += 1000 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    assert_blocks(&scene, 1);
    end(&scene);
}

static void a_silence_just_before_the_loss_of_nats_is_not_the_bridges(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    scene.now_ns += 3 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
    scene.now_ns += 1 * S;
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    end(&scene);
}

static void after_a_reconnect_silence_counts_anew_and_exact_must_be_proven(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers, scene.now_ns);
    scene.now_ns += 10 * S;
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    scene.now_ns += 2 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    stored(&scene, 1, first_id + 2, 6); /* apparently without a gap */
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Ceilings ---- */

static void a_stream_above_the_ceiling_is_refused_and_counted(void **state)
{
    (void)state;
    struct scene scene = scene_of(1, 1000, 16);
    struct kvb_stream_id other = stream;

    make_exact(&scene, 1);
    other.dp_rank = 2;
    assert_int_equal(
        kvb_followers_apply(scene.followers, &other, &scene.batch, scene.now_ns), KVB_TOO_LARGE);
    assert_int_equal(counters_of(&scene).streams_refused, 1);
    assert_int_equal(count_followed(&scene), 1);
    end(&scene);
}

static void a_full_index_makes_the_stream_partial_memory(void **state)
{
    (void)state;
    struct scene scene = scene_of(8, 2, 16);

    cleared(&scene, 1, first_id);
    for (uint64_t i = 1; i <= 5; i++) {
        stored(&scene, 1, first_id + i, i);
    }
    beat(&scene, 1, first_id + 5, 5);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MEMORY);
    assert_int_equal(counters_of(&scene).differs, 0);
    assert_true(counters_of(&scene).blocks_refused > 0);
    end(&scene);
}

static void a_slot_leads_back_to_its_stream_and_tier(void **state)
{
    (void)state;
    struct scene scene = begin();
    uint32_t number = 99;
    enum kvb_tier tier = KVB_TIER_COUNT;

    start_batch(&scene, 1);
    add(&scene, KVB_ROUTER_STORED, first_id, 5, KVB_TIER_DISK);
    say(&scene);
    const struct kvb_follower *found = follower(&scene);
    assert_false(found->has_slot[KVB_TIER_DEVICE]); /* the slot is taken when it is needed */
    assert_true(found->has_slot[KVB_TIER_DISK]);
    assert_ok(kvb_followers_of_slot(scene.followers, found->slots[KVB_TIER_DISK], &number, &tier));
    assert_ptr_equal(kvb_followers_at(scene.followers, number), found);
    assert_int_equal(tier, KVB_TIER_DISK);
    assert_int_equal(
        kvb_followers_of_slot(scene.followers, (kvb_slot_ref){ 15 }, &number, &tier),
        KVB_NOT_FOUND);
    end(&scene);
}

static void survives_every_failing_allocation_and_lists_a_subset(void **state)
{
    (void)state;

    for (long n = 0;; n++) {
        struct scene scene = begin();
        start_batch(&scene, 1);
        add(&scene, KVB_ROUTER_CLEARED, first_id, 0, KVB_TIER_DEVICE);
        add(&scene, KVB_ROUTER_STORED, first_id + 1, 5, KVB_TIER_DEVICE);
        add(&scene, KVB_ROUTER_STORED, first_id + 2, 6, KVB_TIER_HOST);
        fail_alloc_after(n);
        const kvb_status status =
            kvb_followers_apply(scene.followers, &stream, &scene.batch, scene.now_ns);
        fail_alloc_after(-1);
        const bool is_whole = status == KVB_OK && counters_of(&scene).blocks_refused == 0;
        if (status == KVB_OK) {
            struct kvb_heartbeat heartbeat = beat_of(1, first_id + 2, 1);
            heartbeat.tiers[KVB_TIER_HOST].blocks = 1;
            beat_as(&scene, &heartbeat);
            assert_state(
                &scene, is_whole ? KVB_STREAM_EXACT : KVB_STREAM_PARTIAL,
                is_whole ? KVB_REASON_NONE : KVB_REASON_MEMORY);
        } else {
            assert_int_equal(status, KVB_NO_MEMORY);
        }
        end(&scene);
        if (is_whole) {
            break;
        }
    }
}

SUITE(follower_time)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_continues_into_a_new_epoch_whose_cleared_arrived),
        cmocka_unit_test(late_messages_of_an_old_epoch_have_no_effect),
        cmocka_unit_test(messages_of_the_last_four_epochs_have_no_effect),
        cmocka_unit_test(an_old_epoch_that_is_followed_again_is_the_newest),
        cmocka_unit_test(an_old_epoch_is_followed_when_the_new_one_is_silent),
        cmocka_unit_test(a_second_bridge_is_reported_until_it_is_silent),
        cmocka_unit_test(the_bridge_that_stays_is_followed_at_once),
        cmocka_unit_test(a_goodbye_ends_the_report_of_two_bridges_at_once),
        cmocka_unit_test(three_missing_heartbeats_mean_down_and_the_blocks_stay),
        cmocka_unit_test(three_heartbeats_are_those_of_the_streams_own_period),
        cmocka_unit_test(an_impossible_period_is_limited),
        cmocka_unit_test(a_lagging_list_is_stale_and_lag_is_no_silence),
        cmocka_unit_test(a_stream_without_heartbeats_lags_too),
        cmocka_unit_test(after_dropped_messages_each_list_must_be_proven_again),
        cmocka_unit_test(goodbye_is_down_at_once),
        cmocka_unit_test(streams_down_for_long_are_forgotten_and_their_slots_freed),
        cmocka_unit_test(an_absent_engine_is_not_forgotten_while_its_bridge_sends_heartbeats),
        cmocka_unit_test(without_nats_all_lists_are_stale_and_kept_however_long),
        cmocka_unit_test(a_silence_just_before_the_loss_of_nats_is_not_the_bridges),
        cmocka_unit_test(after_a_reconnect_silence_counts_anew_and_exact_must_be_proven),
        cmocka_unit_test(a_stream_above_the_ceiling_is_refused_and_counted),
        cmocka_unit_test(a_full_index_makes_the_stream_partial_memory),
        cmocka_unit_test(a_slot_leads_back_to_its_stream_and_tier),
        cmocka_unit_test(survives_every_failing_allocation_and_lists_a_subset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
