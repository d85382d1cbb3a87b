#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream/serve.h"
#include "stream_world.h"

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
struct scene {
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
};

/* Moves the batch into what the server has read. */
static void read_waiting(struct waiting *waiting, struct kvb_action *action)
{
    waiting->is_there = false;
    action->input = (struct kvb_stream_input){ .seq = waiting->seq,
                                               .fingerprint = { .low = waiting->seq },
                                               .batch = &waiting->batch };
}

static void read_reply(struct scene *scene, struct kvb_action *action)
{
    if (scene->reply.is_there) {
        action->reply = KVB_SERVE_BATCH;
        read_waiting(&scene->reply, action);
    } else {
        action->reply = scene->last_reply;
        scene->last_reply = KVB_SERVE_NO_REPLY;
    }
}

static void read_live(struct scene *scene, struct kvb_action *action)
{
    action->has_batch = scene->live.is_there;
    if (action->has_batch) {
        read_waiting(&scene->live, action);
    } else {
        scene->applied++;
    }
}

static void send_beat(struct scene *scene, const struct kvb_action *action)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(action->rank->stream, &beat);
    scene->said = beat.state;
    scene->beats++;
    scene->byes += action->is_bye;
}

static void carry_out(struct scene *scene, struct kvb_action *action)
{
    switch (action->kind) {
    case KVB_DO_NEXT_SOCKET: /* the one rank, once in a turn */
        action->rank = scene->done_count == 1 ? &scene->rank : NULL;
        action->has_replies = true;
        action->has_live = true;
        break;
    case KVB_DO_NEXT_REPLY:
        read_reply(scene, action);
        break;
    case KVB_DO_STOP_REPLAY:
        scene->stops++;
        break;
    case KVB_DO_RECEIVE:
        action->count = 1;
        break;
    case KVB_DO_READ_MONITOR:
        action->link = scene->update;
        scene->update.was_lost = false;
        break;
    case KVB_DO_NEXT_BATCH:
        read_live(scene, action);
        break;
    case KVB_DO_PASS_OVER:
        scene->passed_over++;
        break;
    case KVB_DO_OUTPUT:
        scene->stops += action->stops_replay;
        action->status = action->events && scene->is_publishing_failing ? KVB_IO : KVB_OK;
        break;
    case KVB_DO_END_RUN:
        action->took_ns = scene->took_ns;
        break;
    case KVB_DO_ASK_NATS:
        action->connects = scene->connects;
        action->is_connected = !scene->is_denied;
        break;
    case KVB_DO_TEND_LINK:
        scene->ticks++;
        break;
    case KVB_DO_START_REPLAY:
        scene->starts++;
        action->is_unresolved = scene->is_unresolved;
        break;
    case KVB_DO_PUBLISH_LOADS:
        scene->rounds++;
        break;
    case KVB_DO_ANNOUNCE:
        scene->lists++;
        scene->listed = action->rank;
        break;
    case KVB_DO_CHUNK:
        action->status = scene->is_publishing_failing ? KVB_IO : KVB_OK;
        scene->server.clock_ns += scene->has_no_time ? KVB_NS_PER_S : 0;
        break;
    case KVB_DO_BEAT:
        send_beat(scene, action);
        break;
    default:
        break;
    }
}

static void go_through(struct scene *scene)
{
    struct kvb_action *action = NULL;

    scene->done_count = 0;
    while ((action = kvb_serve_next(&scene->server)) != NULL) {
        assert_true(scene->done_count < KVB_COUNT_OF(scene->done));
        scene->done[scene->done_count++] = action->kind;
        carry_out(scene, action);
    }
}

static void turn_after(struct scene *scene, uint64_t ms)
{
    scene->now_ns += ms * KVB_NS_PER_MS;
    kvb_serve_begin(&scene->server, scene->now_ns);
    go_through(scene);
}

static void open_rank(struct scene *scene, struct kvb_served *rank)
{
    const struct kvb_stream_options options = {
        .has_replay = true,
        .max_held_bytes = 1 << 20,
        .mirror = { .max_blocks = 64, .tiers = 1U << KVB_TIER_DEVICE },
    };
    const struct kvb_advertiser_options advertiser = { .publishes_json = true,
                                                       .heartbeat_ns = KVB_NS_PER_S,
                                                       .max_chunk_blocks = 2 };

    assert_ok(kvb_stream_new(&options, &rank->stream));
    kvb_advertiser_init(&rank->advertiser, &advertiser, rank->stream);
    kvb_serve_add(&scene->server, rank);
}

static void close_rank(struct kvb_served *rank)
{
    kvb_serve_drop(rank);
    kvb_stream_output_done(&rank->output);
    kvb_stream_free(rank->stream);
}

/* Connects the engine; its first replay is wanted. */
static void begin(struct scene *scene)
{
    *scene = (struct scene){ .now_ns = start_ns, .update = { .is_up = true } };
    open_rank(scene, &scene->rank);
}

static void end(struct scene *scene)
{
    close_rank(&scene->rank);
    kvb_server_done(&scene->server);
    kvb_event_batch_done(&scene->live.batch);
    kvb_event_batch_done(&scene->reply.batch);
}

static uint64_t completed(const struct scene *scene)
{
    return kvb_stream_count(scene->rank.stream)->replays_completed;
}

/* A replay that runs ends in the next turn, without batches. */
static void end_replay_at_once(struct scene *scene)
{
    scene->last_reply =
        kvb_stream_is_replaying(scene->rank.stream) ? KVB_SERVE_END : KVB_SERVE_NO_REPLY;
}

/* ---- Replays ---- */

static void a_replay_is_requested_once_and_ends_with_its_end(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    turn_after(&scene, 10);
    assert_int_equal(scene.starts, 1);
    assert_int_equal(scene.server.max_replaying, 1);
    scene.last_reply = KVB_SERVE_END;
    turn_after(&scene, 10);
    assert_int_equal(scene.stops, 1);
    assert_int_equal(completed(&scene), 1);
    end(&scene);
}

static void a_cut_replay_is_not_complete(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    scene.last_reply = KVB_SERVE_CUT;
    turn_after(&scene, 10);
    assert_true(scene.stops > 0);
    assert_int_equal(completed(&scene), 0);
    end(&scene);
}

static void an_unreadable_reply_stops_the_replay_without_an_end(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    scene.last_reply = KVB_SERVE_REFUSED;
    turn_after(&scene, 10);
    assert_int_equal(scene.stops, 1);
    assert_true(kvb_stream_is_replaying(scene.rank.stream)); /* until its deadline */
    end(&scene);
}

static void a_lost_connection_stops_the_replay(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    scene.update = (struct kvb_link_report){ .was_lost = true };
    turn_after(&scene, 10);
    assert_int_equal(scene.stops, 1);
    end(&scene);
}

static void an_unresolved_name_yields_its_place_to_others_for_half_a_second(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    scene.is_unresolved = true;
    turn_after(&scene, 10);
    assert_int_equal(scene.starts, 1);
    assert_false(kvb_stream_is_replaying(scene.rank.stream));
    turn_after(&scene, 490);
    assert_int_equal(scene.starts, 1);
    scene.is_unresolved = false;
    turn_after(&scene, 10);
    assert_int_equal(scene.starts, 2);
    assert_true(kvb_stream_is_replaying(scene.rank.stream));
    end(&scene);
}

/* ---- NATS ---- */

/* A connection may have been replaced more than once since the last turn. */
static void events_published_before_a_new_connection_count_as_lost(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    for (uint64_t connections = 1; connections <= 2; connections++) {
        scene.rank.advertiser.told = KVB_TOLD_ALL;
        turn_after(&scene, 10);
        assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_ALL);
        scene.connects += connections;
        turn_after(&scene, 10);
        assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_WITH_GAP);
        assert_int_equal(/* readers reconnect first */
                         scene.rank.advertiser.not_before_ns, scene.now_ns + 1200 * KVB_NS_PER_MS);
    }
    end(&scene);
}

static void while_publishing_is_denied_all_events_count_as_lost(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    assert_int_equal(scene.rounds, 1);
    scene.rank.advertiser.told = KVB_TOLD_ALL;
    scene.is_denied = true;
    turn_after(&scene, 10);
    assert_int_equal(scene.rounds, 1);
    assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_WITH_GAP);
    end(&scene);
}

/* ---- Live batches ---- */

static void live_batches_are_applied_or_skipped(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    assert_int_equal(scene.applied, 1);
    scene.rank.share.until_ns = scene.now_ns + KVB_NS_PER_S; /* quarantined */
    turn_after(&scene, 10);
    assert_int_equal(scene.applied, 1);
    assert_int_equal(scene.passed_over, 1);
    assert_int_equal(scene.server.live_runs, 2);
    end(&scene);
}

/* ---- Quarantine ---- */

static enum kvb_stream_state state_of(const struct scene *scene, enum kvb_stream_reason *out_reason)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(scene->rank.stream, &beat);
    *out_reason = beat.reason;
    return beat.state;
}

/* At twice the speed, so that half a second between two turns counts as one and is no pause. */
static void take_all_of_the_time(struct scene *scene)
{
    size_t seconds = 0;

    scene->server.share_speed = 2;
    scene->took_ns = KVB_NS_PER_S;
    for (; !kvb_share_is_quarantined(&scene->rank.share); seconds++) {
        assert_true(kvb_stream_is_connected(scene->rank.stream));
        assert_true(seconds < 13);
        scene->server.live_runs++; /* others are served, too */
        kvb_serve_wake(&scene->rank);
        end_replay_at_once(scene);
        turn_after(scene, 500);
    }
    assert_true(seconds >= 10);
}

static void a_quarantined_stream_is_down_as_if_its_engine_was_away(void **state)
{
    (void)state;
    struct scene scene;
    enum kvb_stream_reason reason = KVB_REASON_NONE;
    begin(&scene);

    turn_after(&scene, 10);
    take_all_of_the_time(&scene);
    assert_int_equal(state_of(&scene, &reason), KVB_STREAM_DOWN);
    assert_int_equal(reason, KVB_REASON_ENGINE_AWAY);
    turn_after(&scene, 10); /* the socket is connected all the time */
    assert_int_equal(state_of(&scene, &reason), KVB_STREAM_DOWN);
    assert_int_equal(scene.passed_over, 1);
    end(&scene);
}

static void a_released_stream_requests_what_it_missed(void **state)
{
    (void)state;
    struct scene scene;
    enum kvb_stream_reason reason = KVB_REASON_NONE;
    begin(&scene);

    turn_after(&scene, 10);
    scene.last_reply = KVB_SERVE_END; /* of its first replay */
    turn_after(&scene, 10);
    take_all_of_the_time(&scene);
    turn_after(&scene, 10);
    scene.starts = 0;
    turn_after(&scene, 500);
    assert_int_equal(scene.starts, 1);
    assert_int_equal(state_of(&scene, &reason), KVB_STREAM_SYNCING);
    end(&scene);
}

/* ---- Rest ---- */

static const uint64_t turn_ms = 10;

/* Lets time pass in turns; replays end at once, without batches. */
static void pass(struct scene *scene, uint64_t ms)
{
    for (uint64_t at = 0; at < ms; at += turn_ms) {
        end_replay_at_once(scene);
        turn_after(scene, turn_ms);
    }
}

/* Connected, announced, and silent for a while. */
static void begin_silent(struct scene *scene)
{
    begin(scene);
    pass(scene, 100);
    scene->rank.advertiser.told = KVB_TOLD_ALL;
    pass(scene, 60000);
    scene->ticks = 0;
    scene->beats = 0;
    scene->starts = 0;
}

static void a_silent_stream_is_visited_for_heartbeats_and_probes_alone(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    pass(&scene, 10000);
    assert_in_range(scene.beats, 9, 10);
    assert_true(scene.starts <= 1);
    assert_true(scene.ticks <= 2 * scene.beats + 10 * scene.starts);
    end(&scene);
}

static void a_stream_that_is_woken_is_ticked_in_the_next_round(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    pass(&scene, 300);
    scene.ticks = 0;
    kvb_serve_wake(&scene.rank);
    pass(&scene, turn_ms);
    assert_int_equal(scene.ticks, 1);
    end(&scene);
}

/* Its link is renewed, and the end of a quarantine looked for, at each tick. */
static void a_stream_that_is_away_is_ticked_every_50_ms(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    scene.update = (struct kvb_link_report){ .was_lost = true };
    scene.ticks = 0;
    pass(&scene, 1000);
    assert_in_range(scene.ticks, 16, 21);
    end(&scene);
}

static void a_stream_is_withdrawn_as_soon_as_its_engine_was_away_for_long(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    scene.rank.advertiser.options.down_clear_ns = 700 * KVB_NS_PER_MS;
    scene.update = (struct kvb_link_report){ .was_lost = true };
    pass(&scene, turn_ms);
    assert_in_range(
        kvb_advertiser_due_ns(&scene.rank.advertiser, scene.now_ns), scene.now_ns,
        scene.now_ns + 700 * KVB_NS_PER_MS);
    end(&scene);
}

static void after_a_pause_of_publishing_all_streams_are_announced(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    pass(&scene, 300);
    scene.is_denied = true;
    pass(&scene, 600);
    scene.lists = 0;
    scene.is_denied = false;
    pass(&scene, turn_ms);
    assert_int_equal(scene.lists, 1);
    end(&scene);
}

/* A live batch with one event of an unknown type comes, and nothing else happens. */
static void serve_unreadable(struct scene *scene, uint64_t seq)
{
    kvb_event_batch_reset(&scene->live.batch);
    add_skipped(&scene->live.batch, KVB_SKIP_UNKNOWN_EVENT);
    scene->live.seq = seq;
    scene->live.is_there = true;
    turn_after(scene, 0);
}

/* Its state says UNVERIFIED already, so the gap does not change it. */
static void a_gap_of_an_unverified_stream_is_replayed_in_the_next_round(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    serve_unreadable(&scene, 0);
    pass(&scene, 300);
    scene.starts = 0;
    serve_unreadable(&scene, 1);
    pass(&scene, 20);
    assert_int_equal(scene.starts, 0);
    serve_unreadable(&scene, 3);
    assert_false(scene.rank.output.is_changed);
    pass(&scene, turn_ms);
    assert_int_equal(scene.starts, 1);
    end(&scene);
}

/* A batch that stores one block comes. */
static void serve_stored(struct scene *scene, struct waiting *waiting, uint64_t seq, uint32_t token)
{
    const uint64_t hash = token;

    kvb_event_batch_reset(&waiting->batch);
    add_stored(&waiting->batch, NULL, &hash, &token, 1);
    waiting->seq = seq;
    waiting->is_there = true;
    turn_after(scene, 0);
}

/* Connected, announced and EXACT. */
static void begin_exact_rank(struct scene *scene)
{
    begin(scene);
    turn_after(scene, turn_ms);
    serve_stored(scene, &scene->reply, 0, 1);
    serve_stored(scene, &scene->live, 0, 1);
    pass(scene, 100);
    scene->rank.advertiser.told = KVB_TOLD_ALL;
    kvb_advertiser_want_beat(&scene->rank.advertiser, KVB_BEAT_NOW);
    pass(scene, turn_ms);
    assert_int_equal(scene->said, KVB_STREAM_EXACT);
}

/* SIGSTOP for a second: the first heartbeat after it goes out before the sockets are read. */
static void the_first_heartbeat_after_a_pause_of_the_process_is_not_exact(void **state)
{
    (void)state;
    struct scene scene;
    begin_exact_rank(&scene);

    scene.beats = 0;
    turn_after(&scene, 999);
    assert_int_equal(scene.said, KVB_STREAM_EXACT);
    scene.beats = 0;
    scene.starts = 0;
    turn_after(&scene, 1000);
    assert_int_equal(scene.beats, 1);
    assert_int_equal(scene.said, KVB_STREAM_SYNCING);
    assert_int_equal(scene.starts, 1); /* the engine is asked at once */
    serve_stored(&scene, &scene.reply, 0, 1);
    scene.last_reply = KVB_SERVE_END;
    turn_after(&scene, turn_ms);
    assert_int_equal(scene.said, KVB_STREAM_EXACT);
    end(&scene);
}

/* A round has time for one of them. */
static void streams_for_which_there_was_no_time_come_first_in_the_next_round(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_served other = { .stream = NULL };
    begin(&scene);
    open_rank(&scene, &other);

    scene.has_no_time = true;
    turn_after(&scene, turn_ms);
    assert_int_equal(scene.lists, 1);
    const struct kvb_served *first = scene.listed;
    turn_after(&scene, turn_ms);
    assert_int_equal(scene.lists, 2);
    assert_ptr_not_equal(scene.listed, first);
    close_rank(&other);
    end(&scene);
}

/* ---- Order ---- */

static bool
is_done_before(const struct scene *scene, enum kvb_action_kind one, enum kvb_action_kind other)
{
    size_t at = 0;

    while (at < scene->done_count && scene->done[at] != one) {
        at++;
    }
    while (at < scene->done_count && scene->done[at] != other) {
        at++;
    }
    return at < scene->done_count;
}

/* The batches may come from another process than those before. */
static void the_monitor_is_read_between_receiving_and_applying(void **state)
{
    (void)state;
    struct scene scene;
    begin_exact_rank(&scene);

    scene.update.was_lost = true;
    serve_stored(&scene, &scene.live, 1, 2);
    assert_true(is_done_before(&scene, KVB_DO_RECEIVE, KVB_DO_READ_MONITOR));
    assert_true(is_done_before(&scene, KVB_DO_READ_MONITOR, KVB_DO_NOTE_LINK));
    assert_true(is_done_before(&scene, KVB_DO_NOTE_LINK, KVB_DO_OUTPUT)); /* DOWN, UP */
    assert_true(is_done_before(&scene, KVB_DO_OUTPUT, KVB_DO_NEXT_BATCH));
    assert_true(is_done_before(&scene, KVB_DO_NEXT_BATCH, KVB_DO_END_RUN));
    end(&scene);
}

static void a_list_is_published_before_its_first_heartbeat(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, turn_ms);
    assert_true(is_done_before(&scene, KVB_DO_TEND_LINK, KVB_DO_START_REPLAY));
    assert_true(is_done_before(&scene, KVB_DO_PUBLISH_LOADS, KVB_DO_ANNOUNCE));
    assert_true(is_done_before(&scene, KVB_DO_ANNOUNCE, KVB_DO_CHUNK));
    assert_true(is_done_before(&scene, KVB_DO_CHUNK, KVB_DO_BEAT));
    end(&scene);
}

static void a_round_comes_every_5_ms_and_at_once_after_a_change_or_the_end_of_a_replay(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    turn_after(&scene, 5);
    scene.rounds = 0;
    turn_after(&scene, 1);
    assert_int_equal(scene.rounds, 0);
    scene.update = (struct kvb_link_report){ .was_lost = true, .is_up = true };
    turn_after(&scene, 1);
    assert_int_equal(scene.rounds, 1);
    assert_true(kvb_stream_is_replaying(scene.rank.stream));
    turn_after(&scene, 1);
    scene.rounds = 0;
    turn_after(&scene, 1);
    assert_int_equal(scene.rounds, 0);
    scene.last_reply = KVB_SERVE_END;
    turn_after(&scene, 1);
    assert_int_equal(scene.rounds, 1);
    end(&scene);
}

static void what_could_not_be_published_is_announced_again(void **state)
{
    (void)state;
    struct scene scene;
    begin_exact_rank(&scene);

    scene.is_publishing_failing = true;
    serve_stored(&scene, &scene.live, 1, 2);
    assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_WITH_GAP);
    scene.is_publishing_failing = false;
    scene.lists = 0;
    pass(&scene, 600);
    assert_int_equal(scene.lists, 1);
    assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_ALL);
    end(&scene);
}

static void a_goodbye_withdraws_the_list_and_sends_the_last_heartbeat(void **state)
{
    (void)state;
    struct scene scene;
    begin_exact_rank(&scene);

    kvb_serve_begin_goodbye(&scene.server, &scene.rank);
    go_through(&scene);
    assert_int_equal(scene.rank.advertiser.told, KVB_TOLD_ALL);
    assert_true(kvb_stream_is_withdrawn(scene.rank.stream));
    assert_int_equal(scene.byes, 1);
    assert_true(is_done_before(&scene, KVB_DO_CHUNK, KVB_DO_BEAT));
    end(&scene);
}

SUITE(serve)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_report_of_the_monitor_has_its_inputs),
        cmocka_unit_test(an_engine_is_away_since_its_connection_was_lost),
        cmocka_unit_test(a_restored_stream_is_away_until_its_engine_connects),
        cmocka_unit_test(
            a_round_comes_every_5_ms_and_at_once_after_a_change_or_the_end_of_a_replay),
        cmocka_unit_test(the_monitor_is_read_between_receiving_and_applying),
        cmocka_unit_test(a_list_is_published_before_its_first_heartbeat),
        cmocka_unit_test(what_could_not_be_published_is_announced_again),
        cmocka_unit_test(a_goodbye_withdraws_the_list_and_sends_the_last_heartbeat),
        cmocka_unit_test(the_first_heartbeat_after_a_pause_of_the_process_is_not_exact),
        cmocka_unit_test(a_replay_is_requested_once_and_ends_with_its_end),
        cmocka_unit_test(a_cut_replay_is_not_complete),
        cmocka_unit_test(an_unreadable_reply_stops_the_replay_without_an_end),
        cmocka_unit_test(a_lost_connection_stops_the_replay),
        cmocka_unit_test(an_unresolved_name_yields_its_place_to_others_for_half_a_second),
        cmocka_unit_test(events_published_before_a_new_connection_count_as_lost),
        cmocka_unit_test(while_publishing_is_denied_all_events_count_as_lost),
        cmocka_unit_test(live_batches_are_applied_or_skipped),
        cmocka_unit_test(a_quarantined_stream_is_down_as_if_its_engine_was_away),
        cmocka_unit_test(a_released_stream_requests_what_it_missed),
        cmocka_unit_test(a_silent_stream_is_visited_for_heartbeats_and_probes_alone),
        cmocka_unit_test(a_stream_that_is_woken_is_ticked_in_the_next_round),
        cmocka_unit_test(a_stream_that_is_away_is_ticked_every_50_ms),
        cmocka_unit_test(a_stream_is_withdrawn_as_soon_as_its_engine_was_away_for_long),
        cmocka_unit_test(after_a_pause_of_publishing_all_streams_are_announced),
        cmocka_unit_test(a_gap_of_an_unverified_stream_is_replayed_in_the_next_round),
        cmocka_unit_test(streams_for_which_there_was_no_time_come_first_in_the_next_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
