#include "kvb_test.h"

#include "follower_scene.h"
#include "model/digest.h"

/* Messages that no bridge has sent: whoever may publish can forge them. Forgeries are detected by
 * the bridge's own later messages, within three of its heartbeats. */

static const struct kvb_digest_key key = { .worker_id = 7, .dp_rank = 1, .seed = 42 };

/* A heartbeat of the bridge, which holds only block 5. */
static struct kvb_digest its_digest(void)
{
    struct kvb_digest digest = { .total = { 0 } };

    kvb_digest_add(&digest, &key, KVB_TIER_DEVICE, (kvb_block_hash){ 5 });
    return digest;
}

static struct kvb_heartbeat true_beat(uint64_t last_id)
{
    struct kvb_heartbeat heartbeat = beat_of(1, last_id, 1);

    heartbeat.digest_seed = key.seed;
    heartbeat.tiers[KVB_TIER_DEVICE].digest = its_digest().total;
    return heartbeat;
}

static void say_truth(struct scene *scene, uint64_t last_id)
{
    const struct kvb_heartbeat heartbeat = true_beat(last_id);

    beat_as(scene, &heartbeat);
}

/* Makes the stream EXACT at first_id + 1, with block 5. */
static struct scene begin_exact(void)
{
    struct scene scene = begin_requests();

    make_exact(&scene, 1);
    say_truth(&scene, first_id + 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    return scene;
}

static void assert_requests_nothing(struct scene *scene)
{
    struct kvb_follower_request ask;

    assert_false(kvb_followers_next_request(scene->followers, scene->now_ns, &ask));
}

static void send_sums(struct scene *scene, uint64_t last_id)
{
    const struct kvb_follower_request ask = asked(scene, KVB_SYNC_DIGEST);
    const struct kvb_digest digest = its_digest();
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_SUMS, last_id);

    reply.digest_seed = key.seed;
    reply.sums[KVB_TIER_DEVICE] = digest.buckets;
    start_batch(scene, 1);
    answer(scene, &ask, &reply);
}

static void send_list(struct scene *scene, uint64_t last_id)
{
    const struct kvb_follower_request ask = asked(scene, KVB_SYNC_SNAPSHOT);
    struct kvb_sync_reply reply = reply_of(KVB_SYNC_BLOCKS, last_id);

    start_batch(scene, 1);
    add(scene, KVB_ROUTER_STORED, 0, 5, KVB_TIER_DEVICE);
    answer(scene, &ask, &reply);
}

/* ---- Ids ---- */

static void ids_far_ahead_of_the_heartbeat_are_refused_and_counted(void **state)
{
    (void)state;
    struct scene scene = begin_exact();

    cleared(&scene, 1, first_id + (UINT64_C(1) << 27));
    stored(&scene, 1, first_id + (UINT64_C(1) << 27), 9);
    assert_int_equal(counters_of(&scene).events_ahead, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 1);
    stored(&scene, 1, first_id + 2, 6);
    assert_blocks(&scene, 2);
    end(&scene);
}

static void ids_far_ahead_in_json_are_refused_and_counted(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 0);
    cleared(&scene, 0, UINT64_MAX);
    stored(&scene, 0, first_id + (UINT64_C(1) << 40), 9);
    assert_int_equal(counters_of(&scene).events_ahead, 2);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_blocks(&scene, 1);
    end(&scene);
}

/* The first id of such an epoch is a wall-clock time; its heartbeat follows. */
static void an_epoch_that_json_begins_far_ahead_is_followed(void **state)
{
    (void)state;
    const uint64_t begins = first_id + (UINT64_C(1) << 45);
    struct kvb_heartbeat heartbeat = beat_of(2, begins + 1, 1);
    struct scene scene = begin();

    make_exact(&scene, 0);
    cleared(&scene, 0, begins);
    stored(&scene, 0, begins + 1, 9);
    assert_blocks(&scene, 1);
    heartbeat.epoch_first_id = begins;
    beat_as(&scene, &heartbeat);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(counters_of(&scene).events_ahead, 0);
    end(&scene);
}

static void a_forged_event_is_repaired_within_two_heartbeats(void **state)
{
    (void)state;
    struct scene scene = begin_exact();

    cleared(&scene, 1, first_id + 1000);
    assert_blocks(&scene, 0);
    scene.now_ns += S;
    say_truth(&scene, first_id + 1);
    assert_state(&scene, KVB_STREAM_SYNCING, KVB_REASON_DIFFERS);
    assert_int_equal(counters_of(&scene).contradicted, 1);
    send_sums(&scene, first_id + 1);
    send_list(&scene, first_id + 1);
    assert_blocks(&scene, 1);
    scene.now_ns += S;
    say_truth(&scene, first_id + 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stored(&scene, 1, first_id + 2, 6); /* the bridge's ids count again */
    assert_blocks(&scene, 2);
    end(&scene);
}

/* Somebody forges messages continuously, so no listed id is ever old enough. */
static void two_heartbeats_behind_prove_a_forgery(void **state)
{
    (void)state;
    struct scene scene = begin_exact();

    cleared(&scene, 1, first_id + 1000);
    say_truth(&scene, first_id + 1); /* as after an answer that overtook the heartbeat */
    assert_requests_nothing(&scene);
    assert_int_equal(counters_of(&scene).contradicted, 0);
    cleared(&scene, 1, first_id + 2000);
    say_truth(&scene, first_id + 1);
    send_sums(&scene, first_id + 1);
    send_list(&scene, first_id + 1);
    assert_blocks(&scene, 1);
    end(&scene);
}

static void a_forged_id_without_effect_is_reverted_without_a_repair(void **state)
{
    (void)state;
    struct scene scene = begin_exact();

    cleared(&scene, 1, first_id + 1000);
    stored(&scene, 1, first_id + 1001, 5);
    scene.now_ns += S;
    say_truth(&scene, first_id + 1);
    send_sums(&scene, first_id + 1);
    assert_requests_nothing(&scene);
    assert_int_equal(follower(&scene)->last_id, first_id + 1);
    say_truth(&scene, first_id + 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void without_a_repair_the_bridge_is_followed_from_its_heartbeat_on(void **state)
{
    (void)state;
    struct scene scene = begin();

    make_exact(&scene, 1);
    cleared(&scene, 1, first_id + 1000);
    stored(&scene, 1, first_id + 1001, 9);
    scene.now_ns += S;
    beat(&scene, 1, first_id + 1, 1);
    assert_state(&scene, KVB_STREAM_PARTIAL, KVB_REASON_DIFFERS);
    assert_blocks(&scene, 0);
    stored(&scene, 1, first_id + 2, 6);
    assert_blocks(&scene, 1);
    cleared(&scene, 1, first_id + 3);
    beat(&scene, 1, first_id + 3, 0);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* A bridge restored from a checkpoint publishes again what it has published before. */
static void a_restored_bridge_that_catches_up_is_no_forgery(void **state)
{
    (void)state;
    struct scene scene = begin_exact();
    struct kvb_heartbeat restored = true_beat(first_id);

    restored.state = KVB_STREAM_DOWN;
    restored.reason = KVB_REASON_CONNECTING;
    for (int i = 0; i < 3; i++) {
        scene.now_ns += S;
        beat_as(&scene, &restored);
    }
    assert_requests_nothing(&scene);
    say_truth(&scene, first_id + 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

/* ---- Epochs ---- */

/* The bridge sends a heartbeat each second, the first half a second after the forgery. */
static void assert_found_back(struct scene *scene)
{
    scene->now_ns += S / 2;
    say_truth(scene, first_id + 1);
    scene->now_ns += S;
    say_truth(scene, first_id + 1);
    assert_state(scene, KVB_STREAM_UNVERIFIED, KVB_REASON_TWO_BRIDGES);
    scene->now_ns += S;
    say_truth(scene, first_id + 1);
    send_list(scene, first_id + 1);
    assert_blocks(scene, 1);
    assert_state(scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stored(scene, 2, 5002, 9); /* more events of the forged epoch: it is the old one by now */
    assert_blocks(scene, 1);
    end(scene);
}

static void an_epoch_forged_in_an_event_is_left_again(void **state)
{
    (void)state;
    struct scene scene = begin_exact();

    cleared(&scene, 2, 5000);
    stored(&scene, 2, 5001, 9);
    assert_found_back(&scene);
}

/* The bridge's own events, of the old epoch as it seems, come more often than its heartbeats. */
static void an_epoch_forged_before_the_first_heartbeat_is_left_again(void **state)
{
    (void)state;
    struct scene scene = begin_requests();
    uint64_t last_id = first_id;

    stored(&scene, 1, last_id, 5);
    cleared(&scene, 2, 5000);
    for (int i = 0; i < 2; i++) {
        scene.now_ns += S / 2;
        stored(&scene, 1, ++last_id, 5);
        scene.now_ns += S / 2;
        stored(&scene, 1, ++last_id, 5);
        say_truth(&scene, last_id);
    }
    send_list(&scene, last_id);
    assert_blocks(&scene, 1);
    assert_state(&scene, KVB_STREAM_EXACT, KVB_REASON_NONE);
    end(&scene);
}

static void an_epoch_forged_in_a_heartbeat_is_left_again_whatever_its_period(void **state)
{
    (void)state;
    struct kvb_heartbeat heartbeat = beat_of(2, 5001, 1);
    struct scene scene = begin_exact();

    heartbeat.epoch_first_id = 5000;
    heartbeat.period_ms = UINT32_MAX;
    beat_as(&scene, &heartbeat);
    assert_blocks(&scene, 0);
    assert_found_back(&scene);
}

SUITE(follower_forged)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_far_ahead_of_the_heartbeat_are_refused_and_counted),
        cmocka_unit_test(ids_far_ahead_in_json_are_refused_and_counted),
        cmocka_unit_test(an_epoch_that_json_begins_far_ahead_is_followed),
        cmocka_unit_test(a_forged_event_is_repaired_within_two_heartbeats),
        cmocka_unit_test(two_heartbeats_behind_prove_a_forgery),
        cmocka_unit_test(a_forged_id_without_effect_is_reverted_without_a_repair),
        cmocka_unit_test(without_a_repair_the_bridge_is_followed_from_its_heartbeat_on),
        cmocka_unit_test(a_restored_bridge_that_catches_up_is_no_forgery),
        cmocka_unit_test(an_epoch_forged_in_an_event_is_left_again),
        cmocka_unit_test(an_epoch_forged_before_the_first_heartbeat_is_left_again),
        cmocka_unit_test(an_epoch_forged_in_a_heartbeat_is_left_again_whatever_its_period),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
