#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "core/random.h"
#include "stream/advertiser.h"
#include "stream_world.h"

#include <string.h>

static const uint64_t s = KVB_NS_PER_S;

/* An advertiser, its stream, and one reader of its messages. */
struct scene {
    struct stream_world world;
    struct kvb_advertiser advertiser;
    uint64_t now_ns;
    uint64_t held[64]; /* received by the reader */
    size_t held_count;
    size_t batches, clears;
    bool is_failing; /* NATS refuses messages */
    bool is_late;    /* NATS reports an error but delivers the message */
};

static struct kvb_advertiser_options options_of(bool publishes_json, enum kvb_reannounce reannounce)
{
    return (struct kvb_advertiser_options){ .publishes_json = publishes_json,
                                            .reannounce = reannounce,
                                            .down_clear_ns = 10 * s,
                                            .heartbeat_ns = s,
                                            .max_chunk_blocks = 2 };
}

static void begin(struct scene *scene, const struct kvb_advertiser_options *options)
{
    memset(scene, 0, sizeof *scene);
    begin_exact(&scene->world, 3);
    kvb_advertiser_init(&scene->advertiser, options, scene->world.stream);
    scene->now_ns = 100 * s;
    scene->world.now_ns = scene->now_ns;
}

static void begin_json(struct scene *scene)
{
    const struct kvb_advertiser_options options = options_of(true, KVB_REANNOUNCE_AUTO);
    begin(scene, &options);
}

static void begin_protobuf(struct scene *scene)
{
    const struct kvb_advertiser_options options = options_of(false, KVB_REANNOUNCE_AUTO);
    begin(scene, &options);
}

static void end(struct scene *scene)
{
    stream_world_end(&scene->world);
}

/* ---- The reader ---- */

static void reader_drop(struct scene *scene, uint64_t block)
{
    for (size_t i = 0; i < scene->held_count; i++) {
        if (scene->held[i] == block) {
            scene->held[i] = scene->held[--scene->held_count];
            return;
        }
    }
}

static void read_events(struct scene *scene, const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        if (event->kind == KVB_ROUTER_CLEARED) {
            scene->held_count = 0;
            scene->clears++;
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            reader_drop(scene, events->blocks[at].value);
            if (event->kind == KVB_ROUTER_STORED) {
                scene->held[scene->held_count++] = events->blocks[at].value;
            }
        }
    }
}

static bool reader_holds_all(const struct scene *scene)
{
    size_t found = 0;

    for (size_t i = 0; i < scene->held_count; i++) {
        found += router_holds(&scene->world, (kvb_block_hash){ scene->held[i] });
    }
    return found == scene->held_count && found == scene->world.held_count;
}

static kvb_status take(struct scene *scene, const struct kvb_router_batch *events)
{
    scene->batches++;
    if (!scene->is_failing || scene->is_late) {
        read_events(scene, events);
    }
    return scene->is_failing ? KVB_IO : KVB_OK;
}

/* ---- Driving the advertiser ---- */

static bool publish_list(struct scene *scene, enum kvb_advertiser_action action)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch chunk = { 0 };
    const uint64_t now_ns = scene->now_ns;
    kvb_status status = kvb_advertiser_begin(&scene->advertiser, action, now_ns / 1000);

    while (status == KVB_OK) {
        assert_ok(kvb_advertiser_chunk(&scene->advertiser, &chunk));
        if (chunk.event_count == 0) {
            break;
        }
        status = take(scene, &chunk);
    }
    scene->world.last_id = kvb_stream_last_id(scene->world.stream);
    return kvb_advertiser_end(&scene->advertiser, action, status, now_ns);
}

/* Does what is due; returns what it was. */
static enum kvb_advertiser_action turn(struct scene *scene)
{
    const enum kvb_advertiser_action action =
        kvb_advertiser_next(&scene->advertiser, scene->now_ns);

    if (action != KVB_ADVERTISER_REST) {
        (void)publish_list(scene, action);
    }
    return action;
}

static void publish_step(struct scene *scene)
{
    const struct kvb_router_batch *events = &scene->world.output.events;

    if (kvb_advertiser_takes_step(&scene->advertiser, events) && take(scene, events) != KVB_OK) {
        kvb_advertiser_lost(&scene->advertiser, 0);
    }
}

static void store(struct scene *scene, uint64_t seq)
{
    live(&scene->world, seq, first_incarnation, (uint32_t)seq + 1);
    publish_step(scene);
}

static void clear(struct scene *scene, uint64_t seq)
{
    add_cleared(&scene->world.batch);
    give_batch(&scene->world, KVB_INPUT_LIVE, seq, first_incarnation, false);
    publish_step(scene);
}

static void begin_advertised(struct scene *scene)
{
    begin_json(scene);
    assert_int_equal(turn(scene), KVB_ADVERTISER_ANNOUNCE);
    assert_int_equal(scene->advertiser.told, KVB_TOLD_ALL);
    scene->now_ns += s;
}

/* The replay after a reconnection has the last two batches. */
static void prove(struct scene *scene)
{
    (void)start_wanted_replay(&scene->world);
    replayed(&scene->world, 1, first_incarnation, 2);
    replayed(&scene->world, 2, first_incarnation, 3);
    end_replay(&scene->world, first_incarnation);
}

/* ---- States ---- */

static void nothing_is_announced_before_the_engine_is_proven(void **state)
{
    (void)state;
    struct scene scene;

    begin_json(&scene);
    give(&scene.world, KVB_INPUT_DOWN);
    kvb_advertiser_restored(&scene.advertiser, true);
    assert_false(kvb_advertiser_is_proven(&scene.advertiser));
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    give(&scene.world, KVB_INPUT_UP);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    assert_int_equal(scene.batches, 0);
    end(&scene);
}

static void an_engine_that_is_away_for_long_is_withdrawn_until_it_is_proven(void **state)
{
    (void)state;
    struct scene scene;

    begin_advertised(&scene);
    scene.world.now_ns = scene.now_ns;
    give(&scene.world, KVB_INPUT_DOWN);
    scene.now_ns += 10 * s - 1;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    scene.now_ns += 1;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_WITHDRAW);
    assert_int_equal(scene.held_count, 0);
    assert_true(kvb_stream_is_withdrawn(scene.world.stream));
    scene.now_ns += s;
    give(&scene.world, KVB_INPUT_UP);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    prove(&scene);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_true(reader_holds_all(&scene));
    end(&scene);
}

static void a_restored_stream_is_proven_once_and_for_good(void **state)
{
    (void)state;
    struct scene scene;

    begin_protobuf(&scene);
    give(&scene.world, KVB_INPUT_DOWN);
    assert_true(kvb_advertiser_is_proven(&scene.advertiser));
    kvb_advertiser_restored(&scene.advertiser, true);
    give(&scene.world, KVB_INPUT_UP);
    assert_false(kvb_advertiser_is_proven(&scene.advertiser));
    prove(&scene);
    assert_true(kvb_advertiser_is_proven(&scene.advertiser));
    give(&scene.world, KVB_INPUT_DOWN);
    assert_true(kvb_advertiser_is_proven(&scene.advertiser));
    end(&scene);
}

/* The engine wakes and clears its cache; then its content is announced. */
static void the_list_of_an_engine_that_sleeps_is_withdrawn_until_it_has_cleared(void **state)
{
    (void)state;
    struct scene scene;

    begin_advertised(&scene);
    kvb_stream_note_sleep(scene.world.stream, KVB_SLEEP_DISCARDED, scene.world.now_ns + 1);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_WITHDRAW);
    assert_int_equal(scene.held_count, 0);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    scene.now_ns += 2 * s;
    kvb_stream_note_sleep(scene.world.stream, KVB_SLEEP_AWAKE, scene.world.now_ns + 2);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST); /* nothing was published yet */
    add_cleared(&scene.world.batch);
    give_batch(&scene.world, KVB_INPUT_LIVE, 3, first_incarnation, false);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_int_equal(scene.held_count, 0);
    end(&scene);
}

/* ---- Steps ---- */

static void a_clear_is_published_in_its_epoch(void **state)
{
    (void)state;
    struct scene scene;

    begin_advertised(&scene);
    clear(&scene, 3);
    assert_int_equal(scene.clears, 2);
    assert_int_equal(scene.held_count, 0);
    assert_int_equal(scene.advertiser.told, KVB_TOLD_ALL);
    end(&scene);
}

/* ---- Losses ---- */

static void an_announcement_that_fails_is_made_again_later(void **state)
{
    (void)state;
    struct scene scene;

    begin_json(&scene);
    scene.is_failing = true;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_int_equal(scene.advertiser.told, KVB_TOLD_NOTHING);
    scene.is_failing = false;
    scene.now_ns += s / 2 - 1;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    scene.now_ns += 1;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_true(reader_holds_all(&scene));
    end(&scene);
}

static void after_a_loss_readers_of_json_are_sent_everything_when_they_are_back(void **state)
{
    (void)state;
    struct scene scene;

    begin_advertised(&scene);
    kvb_advertiser_lost(&scene.advertiser, scene.now_ns + s);
    kvb_advertiser_lost(&scene.advertiser, 0); /* readers that return later do not hasten it */
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    scene.now_ns += s;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_int_equal(scene.clears, 2);
    end(&scene);
}

static void readers_that_request_missing_events_are_sent_a_heartbeat_only(void **state)
{
    (void)state;
    struct scene scene;

    begin_protobuf(&scene);
    (void)turn(&scene);
    assert_true(kvb_advertiser_takes_beat(&scene.advertiser, scene.now_ns));
    kvb_advertiser_beat_sent(&scene.advertiser);
    assert_false(kvb_advertiser_takes_beat(&scene.advertiser, scene.now_ns));
    kvb_advertiser_lost(&scene.advertiser, scene.now_ns + s);
    assert_false(kvb_advertiser_takes_beat(&scene.advertiser, scene.now_ns));
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    assert_int_equal(scene.advertiser.told, KVB_TOLD_ALL);
    assert_true(kvb_advertiser_takes_beat(&scene.advertiser, scene.now_ns));
    assert_int_equal(scene.clears, 1);
    end(&scene);
}

static void a_loss_that_no_gap_of_ids_shows_needs_a_new_epoch(void **state)
{
    (void)state;
    struct scene scene;

    begin_protobuf(&scene);
    (void)turn(&scene);
    kvb_advertiser_void(&scene.advertiser);
    scene.now_ns += s;
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    assert_int_equal(scene.clears, 2);
    end(&scene);
}

static void a_restored_stream_continues_if_readers_request_missing_events(void **state)
{
    (void)state;
    struct scene scene;

    begin_protobuf(&scene);
    kvb_advertiser_restored(&scene.advertiser, false);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    assert_int_equal(scene.advertiser.told, KVB_TOLD_ALL);
    kvb_advertiser_restored(&scene.advertiser, true);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    end(&scene);
    begin_json(&scene);
    kvb_advertiser_restored(&scene.advertiser, false);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_ANNOUNCE);
    end(&scene);
}

/* ---- Siblings ---- */

static void a_sibling_of_a_cleared_rank_is_republished_in_its_epoch(void **state)
{
    (void)state;
    struct scene scene;

    begin_advertised(&scene);
    scene.held_count = 0; /* the reader ignores ranks */
    kvb_advertiser_sibling_cleared(&scene.advertiser);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REPUBLISH);
    assert_int_equal(scene.clears, 1);
    assert_true(reader_holds_all(&scene));
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    end(&scene);
}

static void a_sibling_is_not_republished_to_readers_that_know_ranks(void **state)
{
    (void)state;
    struct scene scene;

    begin_protobuf(&scene);
    (void)turn(&scene);
    kvb_advertiser_sibling_cleared(&scene.advertiser);
    assert_int_equal(turn(&scene), KVB_ADVERTISER_REST);
    end(&scene);
}

/* ---- Goodbye, heartbeats ---- */

static void a_goodbye_withdraws_what_readers_of_json_hold(void **state)
{
    (void)state;
    struct scene scene;

    begin_json(&scene);
    assert_int_equal(kvb_advertiser_last(&scene.advertiser), KVB_ADVERTISER_REST);
    (void)turn(&scene);
    assert_int_equal(kvb_advertiser_last(&scene.advertiser), KVB_ADVERTISER_WITHDRAW);
    kvb_advertiser_lost(&scene.advertiser, 0);
    assert_int_equal(kvb_advertiser_last(&scene.advertiser), KVB_ADVERTISER_WITHDRAW);
    end(&scene);
    begin_protobuf(&scene);
    (void)turn(&scene);
    assert_int_equal(kvb_advertiser_last(&scene.advertiser), KVB_ADVERTISER_REST);
    end(&scene);
}

static bool takes_beat(struct scene *scene, uint64_t at_ns)
{
    const bool takes = kvb_advertiser_takes_beat(&scene->advertiser, at_ns);

    if (takes) {
        kvb_advertiser_beat_sent(&scene->advertiser);
    }
    return takes;
}

static void heartbeats_are_sent_every_period_on_changes_and_soon_after_an_answer(void **state)
{
    (void)state;
    struct scene scene;

    begin_json(&scene);
    assert_false(takes_beat(&scene, 100 * s)); /* nothing was announced yet */
    (void)turn(&scene);
    assert_true(takes_beat(&scene, 100 * s));
    assert_false(takes_beat(&scene, 101 * s - 1));
    assert_true(takes_beat(&scene, 101 * s));
    kvb_advertiser_want_beat(&scene.advertiser, KVB_BEAT_NOW);
    assert_true(takes_beat(&scene, 101 * s + 1));
    kvb_advertiser_want_beat(&scene.advertiser, KVB_BEAT_SOON);
    assert_false(takes_beat(&scene, 101 * s + s / 5));
    assert_true(takes_beat(&scene, 101 * s + s / 5 + 1));
    assert_false(takes_beat(&scene, 101 * s + s / 2));
    end(&scene);
}

/* A heartbeat that could not be sent is repeated in the next turn if the state has changed. */
static void a_heartbeat_that_was_not_sent_stays_due(void **state)
{
    (void)state;
    struct scene scene;

    begin_json(&scene);
    (void)turn(&scene);
    assert_true(kvb_advertiser_takes_beat(&scene.advertiser, 100 * s));
    assert_true(kvb_advertiser_takes_beat(&scene.advertiser, 100 * s + 1));
    end(&scene);
}

/* ---- Random ---- */

/* Whatever is lost, late or cleared: a reader of an ADVERTISED stream holds what the stream holds.
 */
static void a_reader_of_an_advertised_stream_holds_the_same(void **state)
{
    (void)state;

    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct scene scene;
        uint64_t random = seed;
        begin_json(&scene);
        for (uint64_t seq = 3; seq < 40; seq++) {
            scene.is_failing = kvb_random_below(&random, 4) == 0;
            scene.is_late = kvb_random_below(&random, 2) == 0;
            const bool sleeps = kvb_random_below(&random, 8) == 0;
            kvb_stream_note_sleep(
                scene.world.stream, sleeps ? KVB_SLEEP_DISCARDED : KVB_SLEEP_AWAKE,
                scene.world.now_ns + 1);
            if (kvb_random_below(&random, 8) == 0) {
                clear(&scene, seq);
            } else {
                store(&scene, seq);
            }
            scene.now_ns += kvb_random_below(&random, s);
            (void)turn(&scene);
            if (kvb_advertiser_lists(&scene.advertiser)) {
                assert_true(reader_holds_all(&scene));
            } else if (kvb_advertiser_is_current(&scene.advertiser)) {
                assert_int_equal(scene.held_count, 0);
            }
        }
        end(&scene);
    }
}

SUITE(advertiser)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_announced_before_the_engine_is_proven),
        cmocka_unit_test(a_restored_stream_is_proven_once_and_for_good),
        cmocka_unit_test(an_engine_that_is_away_for_long_is_withdrawn_until_it_is_proven),
        cmocka_unit_test(the_list_of_an_engine_that_sleeps_is_withdrawn_until_it_has_cleared),
        cmocka_unit_test(a_clear_is_published_in_its_epoch),
        cmocka_unit_test(an_announcement_that_fails_is_made_again_later),
        cmocka_unit_test(after_a_loss_readers_of_json_are_sent_everything_when_they_are_back),
        cmocka_unit_test(readers_that_request_missing_events_are_sent_a_heartbeat_only),
        cmocka_unit_test(a_loss_that_no_gap_of_ids_shows_needs_a_new_epoch),
        cmocka_unit_test(a_restored_stream_continues_if_readers_request_missing_events),
        cmocka_unit_test(a_sibling_of_a_cleared_rank_is_republished_in_its_epoch),
        cmocka_unit_test(a_sibling_is_not_republished_to_readers_that_know_ranks),
        cmocka_unit_test(a_goodbye_withdraws_what_readers_of_json_hold),
        cmocka_unit_test(heartbeats_are_sent_every_period_on_changes_and_soon_after_an_answer),
        cmocka_unit_test(a_heartbeat_that_was_not_sent_stays_due),
        cmocka_unit_test(a_reader_of_an_advertised_stream_holds_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
