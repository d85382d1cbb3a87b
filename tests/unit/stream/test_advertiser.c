#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "core/random.h"
#include "script.h"
#include "stream/advertiser.h"
#include "stream_world.h"

#include <string.h>

static const uint64_t s = KVB_NS_PER_S;

/* An advertiser, its stream, and one reader of its messages. */
static struct {
    struct stream_world world;
    struct kvb_advertiser advertiser;
    uint64_t now_ns;
    uint64_t held[64]; /* received by the reader */
    size_t held_count;
    size_t batches, clears;
    bool is_failing; /* NATS refuses messages */
    bool is_late;    /* NATS reports an error but delivers the message */
} scene;

static void begin(bool publishes_json)
{
    const struct kvb_advertiser_options options = { .publishes_json = publishes_json,
                                                    .reannounce = KVB_REANNOUNCE_AUTO,
                                                    .down_clear_ns = 10 * s,
                                                    .heartbeat_ns = s,
                                                    .max_chunk_blocks = 2 };

    memset(&scene, 0, sizeof scene);
    begin_exact(&scene.world, 3);
    kvb_advertiser_init(&scene.advertiser, &options, scene.world.stream);
    scene.now_ns = 100 * s;
    scene.world.now_ns = scene.now_ns;
}

/* ---- The reader ---- */

static void reader_drop(uint64_t block)
{
    for (size_t i = 0; i < scene.held_count; i++) {
        if (scene.held[i] == block) {
            scene.held[i] = scene.held[--scene.held_count];
            return;
        }
    }
}

static void read_events(const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        const struct kvb_router_event *event = &events->events[i];
        if (event->kind == KVB_ROUTER_CLEARED) {
            scene.held_count = 0;
            scene.clears++;
        }
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            reader_drop(events->blocks[at].value);
            if (event->kind == KVB_ROUTER_STORED) {
                scene.held[scene.held_count++] = events->blocks[at].value;
            }
        }
    }
}

static bool reader_holds_all(void)
{
    size_t found = 0;

    for (size_t i = 0; i < scene.held_count; i++) {
        found += router_holds(&scene.world, (kvb_block_hash){ scene.held[i] });
    }
    return found == scene.held_count && found == scene.world.held_count;
}

static kvb_status take(const struct kvb_router_batch *events)
{
    scene.batches++;
    if (!scene.is_failing || scene.is_late) {
        read_events(events);
    }
    return scene.is_failing ? KVB_IO : KVB_OK;
}

/* ---- Driving the advertiser ---- */

static void publish_list(enum kvb_advertiser_action action)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch chunk = { 0 };
    const uint64_t now_ns = scene.now_ns;
    kvb_status status = kvb_advertiser_begin(&scene.advertiser, action, now_ns / 1000);

    while (status == KVB_OK) {
        assert_ok(kvb_advertiser_chunk(&scene.advertiser, &chunk));
        if (chunk.event_count == 0) {
            break;
        }
        status = take(&chunk);
    }
    struct kvb_heartbeat beat;
    kvb_stream_heartbeat(scene.world.stream, &beat);
    scene.world.last_id = beat.last_id;
    (void)kvb_advertiser_end(&scene.advertiser, action, status, now_ns);
}

/* Does what is due; returns what it was. */
static enum kvb_advertiser_action turn(void)
{
    const enum kvb_advertiser_action action = kvb_advertiser_next(&scene.advertiser, scene.now_ns);

    if (action != KVB_ADVERTISER_REST) {
        publish_list(action);
    }
    return action;
}

static void publish_step(void)
{
    const struct kvb_router_batch *events = &scene.world.output.events;

    if (kvb_advertiser_takes_step(&scene.advertiser, events) && take(events) != KVB_OK) {
        kvb_advertiser_lost(&scene.advertiser, 0);
    }
}

static void store(uint64_t seq)
{
    live(&scene.world, seq, first_incarnation, (uint32_t)seq + 1);
    publish_step();
}

static void clear(uint64_t seq)
{
    add_cleared(&scene.world.batch);
    give_batch(&scene.world, KVB_INPUT_LIVE, seq, first_incarnation, false);
    publish_step();
}

/* ---- Scripts ----
 *
 *     json, protobuf    the list of an EXACT stream of 3 batches, and readers of this format
 *     announced         as json, and the list was announced a second ago
 *     ms N, up, down, prove, clear N, asleep, awake
 *     failing, working  NATS refuses messages, or not
 *     lost [MS]         events are; readers are back so much later
 *     void, sibling, restored, restored anew
 *     rest, announce, withdraw, republish    what is due now, and is done
 *     last ACTION       what is due before a goodbye
 *     want now|soon     a heartbeat
 *     beat, no-beat     one is due now, and is sent; unsent: it is due, and cannot be sent
 *     told nothing|all|gap, reads N, reads-all, clears N, batches N, proven, unproven, withdrawn */

static const char *const actions[] = { "rest", "announce", "withdraw", "republish" };

static void do_begin(void)
{
    begin(!script_says(0, "protobuf"));
    if (script_says(0, "announced")) {
        assert_int_equal(turn(), KVB_ADVERTISER_ANNOUNCE);
        assert_int_equal(scene.advertiser.told, KVB_TOLD_ALL);
        scene.now_ns += s;
        scene.world.now_ns = scene.now_ns;
    }
}

static void do_ms(void)
{
    scene.now_ns += script_number(1) * KVB_NS_PER_MS;
}

static void do_link(void)
{
    give(&scene.world, script_says(0, "up") ? KVB_INPUT_UP : KVB_INPUT_DOWN);
}

/* The replay after a reconnection has the last two batches. */
static void do_prove(void)
{
    (void)start_wanted_replay(&scene.world);
    replayed(&scene.world, 1, first_incarnation, 2);
    replayed(&scene.world, 2, first_incarnation, 3);
    end_replay(&scene.world, first_incarnation);
}

static void do_clear(void)
{
    clear(script_number(1));
}

static void do_sleep(void)
{
    kvb_stream_note_sleep(
        scene.world.stream, script_says(0, "asleep") ? KVB_SLEEP_DISCARDED : KVB_SLEEP_AWAKE,
        scene.world.now_ns + 1);
}

static void do_nats(void)
{
    scene.is_failing = script_says(0, "failing");
}

static void do_lost(void)
{
    kvb_advertiser_lost(
        &scene.advertiser,
        script_words() > 1 ? scene.now_ns + script_number(1) * KVB_NS_PER_MS : 0);
}

static void do_void(void)
{
    kvb_advertiser_void(&scene.advertiser);
}

static void do_sibling(void)
{
    kvb_advertiser_sibling_cleared(&scene.advertiser);
    scene.held_count = 0; /* the reader ignores ranks */
}

static void do_restored(void)
{
    kvb_advertiser_restored(&scene.advertiser, script_says(1, "anew"));
}

static void do_turn(void)
{
    assert_string_equal(actions[turn()], script_word(0));
}

static void do_last(void)
{
    assert_string_equal(actions[kvb_advertiser_last(&scene.advertiser)], script_word(1));
}

static void do_want(void)
{
    kvb_advertiser_want_beat(
        &scene.advertiser, script_says(1, "now") ? KVB_BEAT_NOW : KVB_BEAT_SOON);
}

static void do_beat(void)
{
    assert_int_equal(
        kvb_advertiser_takes_beat(&scene.advertiser, scene.now_ns), !script_says(0, "no-beat"));
    if (script_says(0, "beat")) {
        kvb_advertiser_beat_sent(&scene.advertiser);
    }
}

static void do_check(void)
{
    static const char *const told[] = { "nothing", "all", "gap" };

    if (script_says(0, "told")) {
        assert_string_equal(told[scene.advertiser.told], script_word(1));
    } else if (script_says(0, "reads")) {
        assert_int_equal(scene.held_count, script_number(1));
    } else if (script_says(0, "clears")) {
        assert_int_equal(scene.clears, script_number(1));
    } else if (script_says(0, "batches")) {
        assert_int_equal(scene.batches, script_number(1));
    } else if (script_says(0, "reads-all")) {
        assert_true(reader_holds_all());
    } else if (script_says(0, "withdrawn")) {
        assert_true(kvb_stream_is_withdrawn(scene.world.stream));
    } else {
        assert_true(script_says(0, "proven") || script_says(0, "unproven"));
        assert_int_equal(kvb_advertiser_is_proven(&scene.advertiser), script_says(0, "proven"));
    }
}

/* clang-format off */
static const struct script_verb verbs[] = {
    { "json", do_begin },   { "protobuf", do_begin }, { "announced", do_begin },
    { "ms", do_ms },        { "up", do_link },        { "down", do_link },
    { "prove", do_prove },  { "clear", do_clear },
    { "asleep", do_sleep }, { "awake", do_sleep },    { "failing", do_nats },
    { "working", do_nats }, { "lost", do_lost },      { "void", do_void },
    { "sibling", do_sibling }, { "restored", do_restored },
    { "rest", do_turn },    { "announce", do_turn },  { "withdraw", do_turn },
    { "republish", do_turn }, { "last", do_last },    { "want", do_want },
    { "beat", do_beat },    { "no-beat", do_beat },   { "unsent", do_beat },
};
/* clang-format on */

static void play(void **state)
{
    script_play(*state, verbs, KVB_COUNT_OF(verbs), do_check);
}

static int end(void **state)
{
    (void)state;
    script_tell_failure();
    stream_world_end(&scene.world);
    return 0;
}

/* ---- Random ---- */

/* Whatever is lost, late or cleared: a reader of an ADVERTISED stream holds what the stream holds.
 */
static void a_reader_of_an_advertised_stream_holds_the_same(void **state)
{
    (void)state;

    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        begin(true);
        for (uint64_t seq = 3; seq < 40; seq++) {
            scene.is_failing = kvb_random_below(&random, 4) == 0;
            scene.is_late = kvb_random_below(&random, 2) == 0;
            const bool sleeps = kvb_random_below(&random, 8) == 0;
            kvb_stream_note_sleep(
                scene.world.stream, sleeps ? KVB_SLEEP_DISCARDED : KVB_SLEEP_AWAKE,
                scene.world.now_ns + 1);
            if (kvb_random_below(&random, 8) == 0) {
                clear(seq);
            } else {
                store(seq);
            }
            scene.now_ns += kvb_random_below(&random, s);
            (void)turn();
            if (kvb_advertiser_lists(&scene.advertiser)) {
                assert_true(reader_holds_all());
            } else if (kvb_advertiser_is_current(&scene.advertiser)) {
                assert_int_equal(scene.held_count, 0);
            }
        }
        stream_world_end(&scene.world);
    }
}

#define ADVERTISED(name, text) SCRIPT_OF(name, play, end, text)

SUITE(advertiser)
{
    const struct CMUnitTest tests[] = {
        ADVERTISED(
            "nothing is announced before the engine is proven",
            "json, down, restored anew, unproven, rest, up, rest, batches 0"),
        ADVERTISED(
            "a restored stream is proven once and for good",
            "protobuf, down, proven, restored anew, up, unproven, prove, proven, down, proven"),
        ADVERTISED(
            "an engine that is away for long is withdrawn until it is proven",
            "announced, down, ms 9999, rest, ms 1, withdraw, reads 0, withdrawn, ms 1000, up, rest,"
            "prove, announce, reads-all"),
        /* The engine wakes and clears its cache; then its content is announced. */
        ADVERTISED(
            "the list of an engine that sleeps is withdrawn until it has cleared",
            "announced, asleep, withdraw, reads 0, rest, ms 2000, awake, rest, clear 3, announce,"
            "reads 0"),
        ADVERTISED(
            "a clear is published in its epoch", "announced, clear 3, clears 2, reads 0, told all"),
        ADVERTISED(
            "an announcement that fails is made again later",
            "json, failing, announce, told nothing, working, ms 499, rest, ms 1, announce,"
            "reads-all"),
        /* Readers that return later do not hasten it. */
        ADVERTISED(
            "after a loss readers of JSON are sent everything when they are back",
            "announced, lost 1000, lost, rest, ms 1000, announce, clears 2"),
        ADVERTISED(
            "readers that request missing events are sent a heartbeat only",
            "protobuf, announce, beat, no-beat, lost 1000, no-beat, rest, told all, beat, clears "
            "1"),
        ADVERTISED(
            "a loss that no gap of ids shows needs a new epoch",
            "protobuf, announce, void, ms 1000, announce, clears 2"),
        ADVERTISED(
            "a restored stream continues if readers request missing events",
            "protobuf, restored, rest, told all, restored anew, announce"),
        ADVERTISED("a restored stream is announced to readers of JSON", "json, restored, announce"),
        ADVERTISED(
            "a sibling of a cleared rank is republished in its epoch",
            "announced, sibling, republish, clears 1, reads-all, rest"),
        ADVERTISED(
            "a sibling is not republished to readers that know ranks",
            "protobuf, announce, sibling, rest"),
        ADVERTISED(
            "a goodbye withdraws what readers of JSON hold",
            "json, last rest, announce, last withdraw, lost, last withdraw"),
        ADVERTISED("a goodbye withdraws nothing from others", "protobuf, announce, last rest"),
        ADVERTISED(
            "heartbeats are sent every period, on changes and soon after an answer",
            /* nothing was announced yet */
            "json, no-beat, announce, beat, ms 999, no-beat, ms 1, beat, ms 1, want now, beat,"
            "want soon, ms 199, no-beat, ms 1, beat, ms 300, no-beat"),
        /* It is repeated in the next turn if the state has changed. */
        ADVERTISED(
            "a heartbeat that was not sent stays due", "json, announce, unsent, ms 1, unsent"),
        cmocka_unit_test(a_reader_of_an_advertised_stream_holds_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
