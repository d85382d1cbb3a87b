#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "script.h"
#include "stream/serve.h"
#include "stream_world.h"

#include <stdio.h>
#include <string.h>

/* ---- Connections ---- */

enum { reported_ns = 700, no_input = -1 };

/* The one event that the monitor reports, and the inputs that follow from it, in order, up to
 * no_input. */
static void report(struct stream_world *world, bool was_lost, bool is_up, const int inputs[3])
{
    struct kvb_link_report report = { .was_lost = was_lost, .is_up = is_up };
    enum kvb_stream_input_kind kind = KVB_INPUT_TICK;
    size_t count = 0;

    world->now_ns = reported_ns;
    for (; count < 2 && kvb_stream_link_input(world->stream, &report, &kind); count++) {
        assert_int_equal(kind, inputs[count]);
        give(world, kind);
    }
    assert_int_equal(inputs[count], no_input);
    assert_false(kvb_stream_link_input(world->stream, &report, &kind));
}

static void each_report_of_the_monitor_has_its_inputs(void **state)
{
    (void)state;
    static const struct {
        int before[3]; /* inputs that the stream has had */
        bool was_lost, is_up;
        int inputs[3];
    } rows[] = {
        { { no_input }, false, false, { no_input } },
        { { no_input }, true, false, { no_input } },
        { { no_input }, false, true, { KVB_INPUT_UP, no_input } },
        { { no_input }, true, true, { KVB_INPUT_UP, no_input } },
        { { KVB_INPUT_UP, no_input }, false, true, { no_input } },
        { { KVB_INPUT_UP, no_input }, false, false, { KVB_INPUT_DOWN, no_input } },
        { { KVB_INPUT_UP, no_input }, true, false, { KVB_INPUT_DOWN, no_input } },
        { { KVB_INPUT_UP, no_input }, true, true, { KVB_INPUT_DOWN, KVB_INPUT_UP, no_input } },
        { { KVB_INPUT_UP, KVB_INPUT_DOWN, no_input }, false, false, { no_input } },
        { { KVB_INPUT_UP, KVB_INPUT_DOWN, no_input }, true, false, { no_input } },
        { { KVB_INPUT_UP, KVB_INPUT_DOWN, no_input }, false, true, { KVB_INPUT_UP, no_input } },
        { { KVB_INPUT_UP, KVB_INPUT_DOWN, no_input }, true, true, { KVB_INPUT_UP, no_input } },
    };

    for (size_t row = 0; row < KVB_COUNT_OF(rows); row++) {
        struct stream_world world;
        stream_world_begin(&world, true);
        for (const int *kind = rows[row].before; *kind != no_input; kind++) {
            give(&world, (enum kvb_stream_input_kind) * kind);
        }
        report(&world, rows[row].was_lost, rows[row].is_up, rows[row].inputs);
        assert_int_equal(kvb_stream_is_connected(world.stream), rows[row].is_up);
        stream_world_end(&world);
    }
}

static void an_engine_is_away_since_its_connection_was_lost(void **state)
{
    (void)state;
    static const int goes[] = { KVB_INPUT_DOWN, no_input, no_input };
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    static const int none[] = { no_input, no_input, no_input };
    struct stream_world world;
    stream_world_begin(&world, true);

    assert_int_equal(kvb_stream_away_ns(world.stream), 0);
    report(&world, false, true, comes);
    assert_int_equal(kvb_stream_away_ns(world.stream), 0);
    report(&world, true, false, goes);
    assert_int_equal(kvb_stream_away_ns(world.stream), reported_ns);
    world.now_ns = KVB_NS_PER_S;
    report(&world, true, false, none); /* the same absence continues */
    assert_int_equal(kvb_stream_away_ns(world.stream), reported_ns);
    report(&world, false, true, comes);
    assert_int_equal(kvb_stream_away_ns(world.stream), 0);
    stream_world_end(&world);
}

/* Readers may hold blocks of its list. */
static void a_restored_stream_is_away_until_its_engine_connects(void **state)
{
    (void)state;
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    struct stream_world world;
    stream_world_begin(&world, true);

    kvb_stream_note_restored(world.stream, 9);
    assert_false(kvb_stream_is_connected(world.stream));
    assert_int_equal(kvb_stream_away_ns(world.stream), 9);
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
    report(&world, false, true, comes);
    assert_int_equal(kvb_stream_away_ns(world.stream), 0);
    stream_world_end(&world);
}

/* ---- Ranks ---- */

static const uint64_t start_ns = 100 * KVB_NS_PER_S;

/* A batch that waits to be read. */
struct waiting {
    bool is_there;
    uint64_t seq;
    struct kvb_event_batch batch; /* owned */
};

/* One rank, and a world in which a test sets what happens. */
static struct {
    struct kvb_served rank;
    struct kvb_server server;
    uint64_t now_ns;
    struct kvb_link_report update; /* the next report of the monitor */
    struct waiting live, reply;
    enum kvb_serve_reply last_reply; /* after that one; NO_REPLY: none */
    bool is_unresolved;              /* the engine's name has no address */
    bool is_denied;                  /* publishing is denied */
    bool is_publishing_failing;
    bool has_no_time; /* for more than one list in a round */
    uint64_t connects;
    uint64_t took_ns; /* of each run */
    size_t starts, stops, rounds, passed_over, applied, ticks, beats, lists, byes;
    const struct kvb_served *listed; /* the newest */
    enum kvb_stream_state said;      /* by the newest heartbeat */
    enum kvb_action_kind done[64];   /* in the newest turn, in order */
    size_t done_count;
} scene;

/* Moves the batch into what the server has read. */
static void read_waiting(struct waiting *waiting, struct kvb_action *action)
{
    waiting->is_there = false;
    action->input = (struct kvb_stream_input){ .seq = waiting->seq,
                                               .fingerprint = { .low = waiting->seq },
                                               .batch = &waiting->batch };
}

static void read_reply(struct kvb_action *action)
{
    if (scene.reply.is_there) {
        action->reply = KVB_SERVE_BATCH;
        read_waiting(&scene.reply, action);
    } else {
        action->reply = scene.last_reply;
        scene.last_reply = KVB_SERVE_NO_REPLY;
    }
}

static void read_live(struct kvb_action *action)
{
    action->has_batch = scene.live.is_there;
    if (action->has_batch) {
        read_waiting(&scene.live, action);
    } else {
        scene.applied++;
    }
}

static void send_beat(const struct kvb_action *action)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(action->rank->stream, &beat);
    scene.said = beat.state;
    scene.beats++;
    scene.byes += action->is_bye;
}

static void carry_out(struct kvb_action *action)
{
    switch (action->kind) {
    case KVB_DO_NEXT_SOCKET: /* the one rank, once in a turn */
        action->rank = scene.done_count == 1 ? &scene.rank : NULL;
        action->has_replies = true;
        action->has_live = true;
        break;
    case KVB_DO_NEXT_REPLY:
        read_reply(action);
        break;
    case KVB_DO_STOP_REPLAY:
        scene.stops++;
        break;
    case KVB_DO_RECEIVE:
        action->count = 1;
        break;
    case KVB_DO_READ_MONITOR:
        action->link = scene.update;
        scene.update.was_lost = false;
        break;
    case KVB_DO_NEXT_BATCH:
        read_live(action);
        break;
    case KVB_DO_PASS_OVER:
        scene.passed_over++;
        break;
    case KVB_DO_OUTPUT:
        scene.stops += action->stops_replay;
        action->status = action->events && scene.is_publishing_failing ? KVB_IO : KVB_OK;
        break;
    case KVB_DO_END_RUN:
        action->took_ns = scene.took_ns;
        break;
    case KVB_DO_ASK_NATS:
        action->connects = scene.connects;
        action->is_connected = !scene.is_denied;
        break;
    case KVB_DO_TEND_LINK:
        scene.ticks++;
        break;
    case KVB_DO_START_REPLAY:
        scene.starts++;
        action->is_unresolved = scene.is_unresolved;
        break;
    case KVB_DO_PUBLISH_LOADS:
        scene.rounds++;
        break;
    case KVB_DO_ANNOUNCE:
        scene.lists++;
        scene.listed = action->rank;
        break;
    case KVB_DO_CHUNK:
        action->status = scene.is_publishing_failing ? KVB_IO : KVB_OK;
        scene.server.clock_ns += scene.has_no_time ? KVB_NS_PER_S : 0;
        break;
    case KVB_DO_BEAT:
        send_beat(action);
        break;
    default:
        break;
    }
}

static void go_through(void)
{
    struct kvb_action *action = NULL;

    scene.done_count = 0;
    while ((action = kvb_serve_next(&scene.server)) != NULL) {
        assert_true(scene.done_count < KVB_COUNT_OF(scene.done));
        scene.done[scene.done_count++] = action->kind;
        carry_out(action);
    }
}

static void turn_after(uint64_t ms)
{
    scene.now_ns += ms * KVB_NS_PER_MS;
    kvb_serve_begin(&scene.server, scene.now_ns);
    go_through();
}

static void open_rank(struct kvb_served *rank)
{
    const struct kvb_stream_options options = {
        .has_replay = true,
        .max_buffered_bytes = 1 << 20,
        .mirror = { .max_blocks = 64, .tiers = 1U << KVB_TIER_DEVICE },
    };
    const struct kvb_advertiser_options advertiser = { .publishes_json = true,
                                                       .heartbeat_ns = KVB_NS_PER_S,
                                                       .max_chunk_blocks = 2 };

    assert_ok(kvb_stream_new(&options, &rank->stream));
    kvb_advertiser_init(&rank->advertiser, &advertiser, rank->stream);
    kvb_serve_add(&scene.server, rank);
}

static void close_rank(struct kvb_served *rank)
{
    kvb_serve_drop(rank);
    kvb_stream_output_done(&rank->output);
    kvb_stream_free(rank->stream);
}

/* Connects the engine; its first replay is wanted. */
static void begin(void)
{
    memset(&scene, 0, sizeof scene);
    scene.now_ns = start_ns;
    scene.update.is_up = true;
    open_rank(&scene.rank);
}

static void end(void)
{
    close_rank(&scene.rank);
    kvb_server_done(&scene.server);
    kvb_event_batch_done(&scene.live.batch);
    kvb_event_batch_done(&scene.reply.batch);
}

static uint64_t completed(void)
{
    return kvb_stream_count(scene.rank.stream)->replays_completed;
}

/* A replay that runs ends in the next turn, without batches. */
static void end_replay_at_once(void)
{
    scene.last_reply =
        kvb_stream_is_replaying(scene.rank.stream) ? KVB_SERVE_END : KVB_SERVE_NO_REPLY;
}

/* ---- Scripts ----
 *
 *     begin            the engine connects; its first replay is wanted
 *     silent           connected, announced, and silent for a minute
 *     exact            connected, announced and EXACT
 *     turn MS          one turn, so much later;  pass MS: a turn each 10 ms, in which replays end
 *     end, cut, refused    the next turn reads this of the replay
 *     live N [T], reply N [T]    a batch that stores token T is read at once; without T: an
 *                      unreadable event
 *     lost, lost up    the monitor reports it
 *     connects N, denied, allowed, failing, working    NATS
 *     unresolved, resolved    the engine's name
 *     told-all, wake, goodbye, down-clear MS
 *     quarantined      for a second;  hog: the rank takes all of the time until it is
 *     two              another rank;  no-time: for more than one list in a round
 *     zero             what follows is counted from here
 *     starts N, stops N, rounds N, ticks N, beats N, lists N, applied N, passed-over N, byes N,
 *     completed N, replays N, runs N; at most: <= N;  from N to M: N M
 *     replaying, not-replaying, told gap|all, announced-in MS, due-in MS, DOWN(engine_away) ...,
 *     said STATE       by the newest heartbeat
 *     order A B...     of actions in the newest turn */

static const uint64_t turn_ms = 10;
static struct kvb_served second;

static void pass(uint64_t ms)
{
    for (uint64_t at = 0; at < ms; at += turn_ms) {
        end_replay_at_once();
        turn_after(turn_ms);
    }
}

static void zero(void)
{
    scene.starts = scene.stops = scene.rounds = scene.passed_over = scene.applied = 0;
    scene.ticks = scene.beats = scene.lists = scene.byes = 0;
}

static void serve_batch(struct waiting *waiting, uint64_t seq, uint64_t token)
{
    kvb_event_batch_reset(&waiting->batch);
    if (token > 0) {
        add_stored(&waiting->batch, NULL, &token, &(uint32_t){ (uint32_t)token }, 1);
    } else {
        add_skipped(&waiting->batch, KVB_SKIP_UNKNOWN_EVENT);
    }
    waiting->seq = seq;
    waiting->is_there = true;
    turn_after(0);
}

static void do_begin(void)
{
    begin();
}

static void do_silent(void)
{
    begin();
    pass(100);
    scene.rank.advertiser.told = KVB_TOLD_ALL;
    pass(60000);
    zero();
}

static void do_exact(void)
{
    begin();
    turn_after(turn_ms);
    serve_batch(&scene.reply, 0, 1);
    serve_batch(&scene.live, 0, 1);
    pass(100);
    scene.rank.advertiser.told = KVB_TOLD_ALL;
    kvb_advertiser_want_beat(&scene.rank.advertiser, KVB_BEAT_NOW);
    pass(turn_ms);
    assert_int_equal(scene.said, KVB_STREAM_EXACT);
    zero();
}

static void do_turn(void)
{
    turn_after(script_number(1));
}

static void do_pass(void)
{
    pass(script_number(1));
}

static void do_last_reply(void)
{
    scene.last_reply = script_says(0, "end")   ? KVB_SERVE_END
                       : script_says(0, "cut") ? KVB_SERVE_CUT
                                               : KVB_SERVE_REFUSED;
}

static void do_batch(void)
{
    serve_batch(
        script_says(0, "live") ? &scene.live : &scene.reply, script_number(1),
        script_words() > 2 ? script_number(2) : 0);
}

static void do_lost(void)
{
    scene.update = (struct kvb_link_report){ .was_lost = true, .is_up = script_says(1, "up") };
}

static void do_connects(void)
{
    scene.connects += script_number(1);
}

static void do_nats(void)
{
    scene.is_denied = script_says(0, "denied");
    scene.is_publishing_failing = script_says(0, "failing");
}

static void do_name(void)
{
    scene.is_unresolved = script_says(0, "unresolved");
}

static void do_told_all(void)
{
    scene.rank.advertiser.told = KVB_TOLD_ALL;
}

static void do_wake(void)
{
    kvb_serve_wake(&scene.rank);
}

static void do_goodbye(void)
{
    kvb_serve_begin_goodbye(&scene.server, &scene.rank);
    go_through();
}

static void do_down_clear(void)
{
    scene.rank.advertiser.options.down_clear_ns = script_number(1) * KVB_NS_PER_MS;
}

static void do_quarantined(void)
{
    scene.rank.share.until_ns = scene.now_ns + KVB_NS_PER_S;
}

/* At twice the speed, so that half a second between two turns counts as one and is no pause. */
static void do_hog(void)
{
    size_t seconds = 0;

    scene.server.share_speed = 2;
    scene.took_ns = KVB_NS_PER_S;
    for (; !kvb_share_is_quarantined(&scene.rank.share); seconds++) {
        assert_true(kvb_stream_is_connected(scene.rank.stream));
        assert_true(seconds < 13);
        scene.server.live_runs++; /* others are served, too */
        kvb_serve_wake(&scene.rank);
        end_replay_at_once();
        turn_after(500);
    }
    assert_true(seconds >= 10);
}

static void do_two(void)
{
    second = (struct kvb_served){ .stream = NULL };
    open_rank(&second);
}

static void do_no_time(void)
{
    scene.has_no_time = true;
}

static void do_zero(void)
{
    zero();
}

/* ---- What holds ---- */

static void do_told(void)
{
    assert_int_equal(
        scene.rank.advertiser.told, script_says(1, "gap") ? KVB_TOLD_WITH_GAP : KVB_TOLD_ALL);
}

static void do_announced_in(void)
{
    assert_int_equal(
        scene.rank.advertiser.not_before_ns, scene.now_ns + script_number(1) * KVB_NS_PER_MS);
}

static void do_due_in(void)
{
    assert_in_range(
        kvb_advertiser_due_ns(&scene.rank.advertiser, scene.now_ns), scene.now_ns,
        scene.now_ns + script_number(1) * KVB_NS_PER_MS);
}

static void do_replaying(void)
{
    assert_int_equal(kvb_stream_is_replaying(scene.rank.stream), script_says(0, "replaying"));
}

static void do_said(void)
{
    assert_string_equal(kvb_stream_state_name(scene.said), script_word(1));
}

static void do_listed_other(void)
{
    static const struct kvb_served *before;

    assert_ptr_not_equal(scene.listed, before);
    before = scene.listed;
}

static void do_order(void)
{
    static const char *const names[] = {
        [KVB_DO_RECEIVE] = "receive",       [KVB_DO_READ_MONITOR] = "read-monitor",
        [KVB_DO_NOTE_LINK] = "note-link",   [KVB_DO_OUTPUT] = "output",
        [KVB_DO_NEXT_BATCH] = "next-batch", [KVB_DO_END_RUN] = "end-run",
        [KVB_DO_TEND_LINK] = "tend-link",   [KVB_DO_START_REPLAY] = "start-replay",
        [KVB_DO_PUBLISH_LOADS] = "loads",   [KVB_DO_ANNOUNCE] = "announce",
        [KVB_DO_CHUNK] = "chunk",           [KVB_DO_BEAT] = "beat",
    };
    size_t at = 0;

    for (size_t word = 1; word < script_words(); word++, at++) {
        while (at < scene.done_count &&
               !(names[scene.done[at]] && script_says(word, names[scene.done[at]]))) {
            at++;
        }
        assert_true(at < scene.done_count);
    }
}

/* Whether word 0 is a count: of exactly word 1, <= word 2, or from word 1 to word 2. */
static bool is_count(void)
{
    const struct {
        const char *name;
        uint64_t count;
    } rows[] = {
        { "starts", scene.starts },
        { "stops", scene.stops },
        { "rounds", scene.rounds },
        { "passed-over", scene.passed_over },
        { "applied", scene.applied },
        { "ticks", scene.ticks },
        { "beats", scene.beats },
        { "lists", scene.lists },
        { "byes", scene.byes },
        { "completed", completed() },
        { "replays", scene.server.max_replaying },
        { "runs", scene.server.live_runs },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (script_says(0, rows[i].name)) {
            const bool has_floor = !script_says(1, "<=");
            const size_t last = script_words() - 1;
            assert_in_range(rows[i].count, has_floor ? script_number(1) : 0, script_number(last));
            return true;
        }
    }
    return false;
}

/* DOWN(engine_away) ... */
static void do_check(void)
{
    struct kvb_heartbeat beat;
    char text[64];

    if (!is_count()) {
        kvb_stream_heartbeat(scene.rank.stream, &beat);
        (void)snprintf(
            text, sizeof text, "%s(%s)", kvb_stream_state_name(beat.state),
            kvb_stream_reason_name(beat.reason));
        assert_string_equal(text, script_word(0));
    }
}

/* clang-format off */
static const struct script_verb verbs[] = {
    { "begin", do_begin },     { "silent", do_silent },   { "exact", do_exact },
    { "turn", do_turn },       { "pass", do_pass },
    { "end", do_last_reply },  { "cut", do_last_reply },  { "refused", do_last_reply },
    { "live", do_batch },      { "reply", do_batch },     { "lost", do_lost },
    { "connects", do_connects },
    { "denied", do_nats },     { "allowed", do_nats },    { "failing", do_nats },
    { "working", do_nats },    { "unresolved", do_name }, { "resolved", do_name },
    { "told-all", do_told_all }, { "wake", do_wake },     { "goodbye", do_goodbye },
    { "down-clear", do_down_clear }, { "quarantined", do_quarantined }, { "hog", do_hog },
    { "two", do_two },         { "no-time", do_no_time }, { "zero", do_zero },
    { "told", do_told },       { "announced-in", do_announced_in }, { "due-in", do_due_in },
    { "replaying", do_replaying }, { "not-replaying", do_replaying }, { "said", do_said },
    { "listed-other", do_listed_other }, { "order", do_order },
};
/* clang-format on */

static void play(void **state)
{
    script_play(*state, verbs, KVB_COUNT_OF(verbs), do_check);
}

static int stop(void **state)
{
    (void)state;
    script_tell_failure();
    if (second.stream) {
        close_rank(&second);
        second.stream = NULL;
    }
    end();
    return 0;
}

#define SERVED(name, text) SCRIPT_OF(name, play, stop, text)

SUITE(serve)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_report_of_the_monitor_has_its_inputs),
        cmocka_unit_test(an_engine_is_away_since_its_connection_was_lost),
        cmocka_unit_test(a_restored_stream_is_away_until_its_engine_connects),

        /* ---- Replays ---- */

        SERVED(
            "a replay is requested once and ends with its end",
            "begin, turn 10, turn 10, starts 1, replays 1, end, turn 10, stops 1, completed 1"),
        SERVED(
            "a cut replay is not complete", "begin, turn 10, cut, turn 10, stops 1 2, completed 0"),
        /* It runs until its deadline. */
        SERVED(
            "an unreadable reply stops the replay without an end",
            "begin, turn 10, refused, turn 10, stops 1, replaying"),
        SERVED("a lost connection stops the replay", "begin, turn 10, lost, turn 10, stops 1"),
        SERVED(
            "an unresolved name yields its place to others for half a second",
            "begin, unresolved, turn 10, starts 1, not-replaying, turn 490, starts 1, resolved,"
            "turn 10, starts 2, replaying"),
        /* Its state says UNVERIFIED already, so the gap does not change it. */
        SERVED(
            "a gap of an unverified stream is replayed in the next round",
            "silent, live 0, pass 300, zero, live 1, pass 20, starts 0, live 3, pass 10, starts 1"),

        /* ---- NATS ---- */

        /* A connection may have been replaced more than once since the last turn; readers
         * reconnect first. */
        SERVED(
            "events published before a new connection count as lost",
            "begin, turn 10, told-all, turn 10, told all, connects 1, turn 10, told gap,"
            "announced-in 1200, told-all, turn 10, told all, connects 2, turn 10, told gap,"
            "announced-in 1200"),
        SERVED(
            "while publishing is denied all events count as lost",
            "begin, turn 10, rounds 1, told-all, denied, turn 10, rounds 1, told gap"),
        SERVED(
            "after a pause of publishing all streams are announced",
            "silent, pass 300, denied, pass 600, zero, allowed, pass 10, lists 1"),
        SERVED(
            "what could not be published is announced again",
            "exact, failing, live 1 2, told gap, working, zero, pass 600, lists 1, told all"),

        /* ---- Quarantine ---- */

        SERVED(
            "live batches are applied or passed over",
            "begin, turn 10, applied 1, quarantined, turn 10, applied 1, passed-over 1, runs 2"),
        /* The socket is connected all the time. */
        SERVED(
            "a quarantined stream is down as if its engine was away",
            "begin, turn 10, hog, DOWN(engine_away), turn 10, DOWN(engine_away), passed-over 1"),
        SERVED(
            "a released stream requests what it missed",
            "begin, turn 10, end, turn 10, hog, turn 10, zero, turn 500, starts 1,"
            "SYNCING(replaying)"),

        /* ---- Rest ---- */

        SERVED(
            "a silent stream is visited for heartbeats and probes alone",
            "silent, pass 10000, beats 9 10, starts <= 1, ticks <= 30"),
        SERVED(
            "a stream that is woken is ticked in the next round",
            "silent, pass 300, zero, wake, pass 10, ticks 1"),
        /* Its link is renewed, and the end of a quarantine looked for, at each tick. */
        SERVED(
            "a stream that is away is ticked every 50 ms", "silent, lost, pass 1000, ticks 16 21"),
        SERVED(
            "a stream is withdrawn as soon as its engine was away for long",
            "silent, down-clear 700, lost, pass 10, due-in 700"),
        SERVED(
            "a round comes every 5 ms, and at once after a change or the end of a replay",
            "silent, turn 5, zero, turn 1, rounds 0, lost up, turn 1, rounds 1, replaying, turn 1,"
            "zero, turn 1, rounds 0, end, turn 1, rounds 1"),
        /* A round has time for one of them. */
        SERVED(
            "streams for which there was no time come first in the next round",
            "begin, two, no-time, turn 10, lists 1, listed-other, turn 10, lists 2, listed-other"),
        /* SIGSTOP for a second: it goes out before the sockets are read, and the engine is asked at
         * once. */
        SERVED(
            "the first heartbeat after a pause of the process is not EXACT",
            "exact, turn 999, said EXACT, zero, turn 1000, beats 1, said SYNCING, starts 1,"
            "reply 0 1, end, turn 10, said EXACT"),

        /* ---- Order ---- */

        /* The batches may come from another process than those before. */
        SERVED(
            "the monitor is read between receiving and applying",
            "exact, lost up, live 1 2, order receive read-monitor note-link output next-batch"
            " end-run"),
        SERVED(
            "a list is published before its first heartbeat",
            "begin, turn 10, order tend-link start-replay loads announce chunk beat"),
        SERVED(
            "a goodbye withdraws the list and sends the last heartbeat",
            "exact, goodbye, told all, byes 1, order chunk beat"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
