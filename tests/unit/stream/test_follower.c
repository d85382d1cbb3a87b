#include "kvb_test.h"

#include "core/clock.h"
#include "fail_alloc.h"
#include "stream/follower.h"

#include <string.h>

#define S KVB_NS_PER_S

enum { first_id = 1000 };

/* One index, one table of followers, one stream that most tests speak of. */
struct scene {
    struct kvb_prefix_index *index;
    struct kvb_followers *followers;
    struct kvb_router_batch batch;
    uint64_t now_ns;
};

static struct scene scene_of(size_t max_streams, size_t max_nodes, size_t max_slots)
{
    struct scene scene = { .now_ns = 100 * S };
    const struct kvb_prefix_index_options index = { .max_nodes = max_nodes,
                                                    .max_slots = max_slots };

    assert_ok(kvb_prefix_index_new(&index, &scene.index));
    const struct kvb_followers_options options = {
        .max_streams = max_streams,
        .heartbeat_ms = 1000,
        .forget_ms = 60000,
        .index = scene.index,
    };
    assert_ok(kvb_followers_new(&options, &scene.followers));
    return scene;
}

static struct scene begin(void)
{
    return scene_of(8, 1000, 16);
}

/* Nothing of a stream may stay in the index when its follower is gone. */
static void end(struct scene *scene)
{
    struct kvb_index_counters counters;

    kvb_followers_free(scene->followers);
    kvb_prefix_index_count(scene->index, &counters);
    assert_int_equal(counters.memberships, 0);
    kvb_prefix_index_free(scene->index);
    kvb_router_batch_done(&scene->batch);
}

static const struct kvb_stream_id stream = {
    .name_space = "dynamo", .component = "VllmWorker", .worker_id = 7, .dp_rank = 1
};

static kvb_epoch epoch_of(uint8_t n)
{
    kvb_epoch epoch = { { n } };

    return epoch;
}

/* ---- Saying things ---- */

static void say(struct scene *scene)
{
    assert_ok(kvb_followers_apply(scene->followers, &stream, &scene->batch, scene->now_ns));
}

static void start_batch(struct scene *scene, int epoch)
{
    kvb_router_batch_reset(&scene->batch);
    scene->batch.worker_id = stream.worker_id;
    scene->batch.dp_rank = stream.dp_rank;
    scene->batch.has_epoch = epoch > 0;
    scene->batch.epoch = epoch_of((uint8_t)epoch);
}

static void
add(struct scene *scene, enum kvb_router_kind kind, uint64_t event_id, uint64_t block,
    enum kvb_tier tier)
{
    const struct kvb_router_event event = { .kind = kind, .tier = tier, .event_id = event_id };

    assert_ok(kvb_router_batch_add_event(&scene->batch, &event));
    if (kind != KVB_ROUTER_CLEARED) {
        assert_ok(kvb_router_batch_add_block(
            &scene->batch, (kvb_block_hash){ block }, (kvb_tokens_hash){ block }));
    }
}

/* epoch 0: JSON. */
static void cleared(struct scene *scene, int epoch, uint64_t event_id)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_CLEARED, event_id, 0, KVB_TIER_DEVICE);
    say(scene);
}

static void stored(struct scene *scene, int epoch, uint64_t event_id, uint64_t block)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_STORED, event_id, block, KVB_TIER_DEVICE);
    say(scene);
}

static void removed(struct scene *scene, int epoch, uint64_t event_id, uint64_t block)
{
    start_batch(scene, epoch);
    add(scene, KVB_ROUTER_REMOVED, event_id, block, KVB_TIER_DEVICE);
    say(scene);
}

static struct kvb_heartbeat beat_of(int epoch, uint64_t last_id, uint64_t blocks)
{
    struct kvb_heartbeat heartbeat = {
        .worker_id = stream.worker_id,
        .dp_rank = stream.dp_rank,
        .epoch = epoch_of((uint8_t)epoch),
        .epoch_first_id = first_id,
        .last_id = last_id,
        .state = KVB_STREAM_EXACT,
        .model = "m",
        .block_size = 16,
        .doubtful = 2,
    };

    heartbeat.tiers[KVB_TIER_DEVICE].blocks = blocks;
    return heartbeat;
}

static void beat_as(struct scene *scene, const struct kvb_heartbeat *heartbeat)
{
    assert_ok(kvb_followers_heartbeat(scene->followers, &stream, heartbeat, scene->now_ns));
}

static void beat(struct scene *scene, int epoch, uint64_t last_id, uint64_t blocks)
{
    const struct kvb_heartbeat heartbeat = beat_of(epoch, last_id, blocks);

    beat_as(scene, &heartbeat);
}

/* A stream that is EXACT with one block (5) at first_id + 1. */
static void make_exact(struct scene *scene, int epoch)
{
    cleared(scene, epoch, first_id);
    stored(scene, epoch, first_id + 1, 5);
    beat(scene, 1, first_id + 1, 1);
}

/* ---- Asking ---- */

static const struct kvb_follower *follower(const struct scene *scene)
{
    for (size_t i = 0; i < kvb_followers_limit(scene->followers); i++) {
        const struct kvb_follower *found = kvb_followers_at(scene->followers, i);
        if (found && found->id.worker_id == stream.worker_id) {
            return found;
        }
    }
    return NULL;
}

static void
assert_state(const struct scene *scene, enum kvb_stream_state state, enum kvb_stream_reason reason)
{
    const struct kvb_follower *found = follower(scene);

    assert_non_null(found);
    assert_string_equal(kvb_stream_state_name(found->state), kvb_stream_state_name(state));
    assert_string_equal(kvb_stream_reason_name(found->reason), kvb_stream_reason_name(reason));
}

static uint64_t blocks_in(const struct scene *scene, enum kvb_tier tier)
{
    return kvb_followers_blocks(scene->followers, follower(scene), tier);
}

static void assert_blocks(const struct scene *scene, uint64_t blocks)
{
    assert_int_equal(blocks_in(scene, KVB_TIER_DEVICE), blocks);
}

static struct kvb_follower_counters counters_of(const struct scene *scene)
{
    struct kvb_follower_counters counters;

    kvb_followers_counters(scene->followers, &counters);
    return counters;
}

/* ---- Becoming exact ---- */

static void a_whole_epoch_and_an_equal_heartbeat_take_over_the_bridges_state(void **state)
{
    (void)state;
    struct scene scene = begin();

    cleared(&scene, 1, first_id);
    assert_state(&scene, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT);
    stored(&scene, 1, first_id + 1, 5);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(follower(&scene)->heartbeat.doubtful, 2);
    stored(&scene, 1, first_id + 2, 6);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 2);
    end(&scene);
}

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

static void json_becomes_exact_by_its_first_heartbeat(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 1);
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
    assert_blocks(&scene, 1); /* a suffix is a subset: it may be listed */
    assert_int_equal(counters_of(&scene).differs, 0);
    cleared(&scene, 1, first_id + 51);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE);
    beat(&scene, 1, first_id + 51, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void json_first_seen_in_the_middle_is_joined_late(void **state)
{
    (void)state;
    struct scene scene = begin();

    stored(&scene, 0, first_id + 50, 5);
    beat(&scene, 1, first_id + 50, 30);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    end(&scene);
}

static void an_idle_stream_known_by_its_heartbeat_alone_is_joined_late(void **state)
{
    (void)state;
    struct scene scene = begin();

    beat(&scene, 1, first_id + 50, 30);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    stored(&scene, 1, first_id + 51, 5);
    assert_int_equal(counters_of(&scene).holes, 0);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    end(&scene);
}

static void a_late_joiner_with_all_the_bridge_counts_is_exact(void **state)
{
    (void)state;
    struct scene scene = begin();

    beat(&scene, 1, first_id + 50, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Holes, repeats ---- */

static void a_hole_in_the_ids_empties_the_stream_until_cleared(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 3, 6);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    assert_blocks(&scene, 1); /* block 5 may have been removed in the hole */
    assert_int_equal(counters_of(&scene).holes, 1);
    stored(&scene, 1, first_id + 4, 8);
    beat(&scene, 1, first_id + 4, 3);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    cleared(&scene, 1, first_id + 5);
    beat(&scene, 1, first_id + 5, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void a_hole_in_json_with_heartbeats_is_found_too(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 0);
    stored(&scene, 0, first_id + 9, 6);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    end(&scene);
}

static void a_cleared_is_no_hole_at_any_later_id(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    cleared(&scene, 1, first_id + 500);
    stored(&scene, 1, first_id + 501, 8);
    assert_int_equal(counters_of(&scene).holes, 0);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_NONE);
    beat(&scene, 1, first_id + 501, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void repeated_and_older_ids_are_dropped_and_counted(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    removed(&scene, 1, first_id + 2, 5);
    stored(&scene, 1, first_id + 1, 5);  /* again, after its removal */
    cleared(&scene, 1, first_id);        /* the opening, again */
    removed(&scene, 1, first_id + 2, 5); /* the newest, again */
    assert_int_equal(counters_of(&scene).events_old, 3);
    assert_blocks(&scene, 0);
    beat(&scene, 1, first_id + 2, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Streams of others ---- */

static void a_foreign_stream_may_count_as_it_likes(void **state)
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
    scene.now_ns += 1000 * S;
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

static void other_counts_at_our_last_id_are_differs_and_counted_once(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    beat(&scene, 1, first_id + 1, 9);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_DIFFERS);
    assert_blocks(&scene, 0); /* no telling which of ours are wrong */
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
    heartbeat.tiers[KVB_TIER_HOST].blocks = 0; /* the same sum */
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_DIFFERS);
    end(&scene);
}

static void one_heartbeat_ahead_is_forgiven_two_are_missed_events(void **state)
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
    stored(&scene, 1, first_id + 4, 7); /* the next one after them: no new hole */
    assert_int_equal(counters_of(&scene).holes, 0);
    end(&scene);
}

static void a_heartbeat_behind_us_changes_nothing(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    stored(&scene, 1, first_id + 2, 6);
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 2);
    end(&scene);
}

/* ---- Epochs ---- */

static void a_new_epoch_in_a_heartbeat_without_its_cleared_is_joined_late(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(2, 5050, 9);

    make_exact(&scene, 1);
    heartbeat.epoch_first_id = 5000;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    assert_blocks(&scene, 0); /* of the old epoch: another life of the engine */
    assert_int_equal(counters_of(&scene).epochs_missed, 1);
    end(&scene);
}

static void a_new_epoch_in_events_without_its_cleared_is_joined_late(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    stored(&scene, 2, 5050, 9);
    assert_blocks(&scene, 1);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    end(&scene);
}

static void json_goes_on_into_a_new_epoch_whose_cleared_it_saw(void **state)
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

static void what_still_comes_of_an_old_epoch_has_no_effect(void **state)
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

static void an_epoch_that_begins_below_our_ids_is_followed_by_its_heartbeat(void **state)
{
    (void)state;
    struct scene scene = begin();
    struct kvb_heartbeat heartbeat = beat_of(2, 501, 1);

    make_exact(&scene, 0); /* JSON: the events of a clock set back look old */
    cleared(&scene, 0, 500);
    stored(&scene, 0, 501, 9);
    heartbeat.epoch_first_id = 500;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_JOINED_LATE);
    assert_blocks(&scene, 0);
    cleared(&scene, 0, 502);
    heartbeat.last_id = 502;
    heartbeat.tiers[KVB_TIER_DEVICE].blocks = 0;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Silence, goodbye, NATS ---- */

static void three_missing_heartbeats_are_down_and_the_entries_stay(void **state)
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

static void the_long_dead_are_forgotten_and_their_slots_freed(void **state)
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
    assert_int_equal(kvb_followers_count(scene.followers), 0);
    kvb_prefix_index_count(scene.index, &counters);
    assert_int_equal(counters.memberships, 0);
    end(&scene);
}

static void an_engine_that_is_away_is_not_forgotten_while_its_bridge_speaks(void **state)
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

static void without_nats_all_is_stale_and_kept_however_long(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    scene.now_ns += 1000 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    assert_blocks(&scene, 1);
    end(&scene);
}

static void after_nats_silence_counts_anew_and_exact_must_be_proven(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers);
    scene.now_ns += 10 * S;
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    scene.now_ns += 2 * S;
    kvb_followers_tick(scene.followers, scene.now_ns);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    stored(&scene, 1, first_id + 2, 6); /* seemingly without a hole */
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    beat(&scene, 1, first_id + 2, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void after_nats_what_was_published_meanwhile_is_missed(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers);
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    beat(&scene, 1, first_id + 20, 9);
    assert_state(&scene, KVB_STREAM_STALE, KVB_REASON_NATS_AWAY);
    beat(&scene, 1, first_id + 20, 9);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_MISSED_EVENTS);
    end(&scene);
}

static void after_nats_one_that_stays_silent_goes_down(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    kvb_followers_nats_away(scene.followers);
    kvb_followers_nats_back(scene.followers, scene.now_ns);
    kvb_followers_tick(scene.followers, scene.now_ns + (3 * S));
    assert_state(&scene, KVB_STREAM_DOWN, KVB_REASON_SILENT);
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
    assert_int_equal(kvb_followers_count(scene.followers), 1);
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
    assert_false(found->has_slot[KVB_TIER_DEVICE]); /* drawn when needed */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_epoch_and_an_equal_heartbeat_take_over_the_bridges_state),
        cmocka_unit_test(the_bridges_own_reason_is_taken_over),
        cmocka_unit_test(json_becomes_exact_by_its_first_heartbeat),
        cmocka_unit_test(a_stream_first_seen_in_the_middle_is_joined_late_until_cleared),
        cmocka_unit_test(json_first_seen_in_the_middle_is_joined_late),
        cmocka_unit_test(an_idle_stream_known_by_its_heartbeat_alone_is_joined_late),
        cmocka_unit_test(a_late_joiner_with_all_the_bridge_counts_is_exact),
        cmocka_unit_test(a_hole_in_the_ids_empties_the_stream_until_cleared),
        cmocka_unit_test(a_hole_in_json_with_heartbeats_is_found_too),
        cmocka_unit_test(a_cleared_is_no_hole_at_any_later_id),
        cmocka_unit_test(repeated_and_older_ids_are_dropped_and_counted),
        cmocka_unit_test(a_foreign_stream_may_count_as_it_likes),
        cmocka_unit_test(a_heartbeat_after_unexplained_jumps_empties_the_stream),
        cmocka_unit_test(other_counts_at_our_last_id_are_differs_and_counted_once),
        cmocka_unit_test(counts_are_compared_tier_by_tier),
        cmocka_unit_test(one_heartbeat_ahead_is_forgiven_two_are_missed_events),
        cmocka_unit_test(a_heartbeat_behind_us_changes_nothing),
        cmocka_unit_test(a_new_epoch_in_a_heartbeat_without_its_cleared_is_joined_late),
        cmocka_unit_test(a_new_epoch_in_events_without_its_cleared_is_joined_late),
        cmocka_unit_test(json_goes_on_into_a_new_epoch_whose_cleared_it_saw),
        cmocka_unit_test(what_still_comes_of_an_old_epoch_has_no_effect),
        cmocka_unit_test(an_epoch_that_begins_below_our_ids_is_followed_by_its_heartbeat),
        cmocka_unit_test(three_missing_heartbeats_are_down_and_the_entries_stay),
        cmocka_unit_test(goodbye_is_down_at_once),
        cmocka_unit_test(the_long_dead_are_forgotten_and_their_slots_freed),
        cmocka_unit_test(an_engine_that_is_away_is_not_forgotten_while_its_bridge_speaks),
        cmocka_unit_test(without_nats_all_is_stale_and_kept_however_long),
        cmocka_unit_test(after_nats_silence_counts_anew_and_exact_must_be_proven),
        cmocka_unit_test(after_nats_what_was_published_meanwhile_is_missed),
        cmocka_unit_test(after_nats_one_that_stays_silent_goes_down),
        cmocka_unit_test(a_stream_above_the_ceiling_is_refused_and_counted),
        cmocka_unit_test(a_full_index_makes_the_stream_partial_memory),
        cmocka_unit_test(a_slot_leads_back_to_its_stream_and_tier),
        cmocka_unit_test(survives_every_failing_allocation_and_lists_a_subset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
