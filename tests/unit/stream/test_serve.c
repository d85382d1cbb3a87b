#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream/serve.h"

/* ---- Connections ---- */

static const enum kvb_connection_state new = KVB_CONNECTION_NEW;
static const enum kvb_connection_state up = KVB_CONNECTION_UP;
static const enum kvb_connection_state away = KVB_CONNECTION_AWAY;

enum { reported_ns = 700, no_input = -1 };

/* The one event that the monitor reports, and the inputs that follow from it, in order, up to
 * no_input. */
static void
report(struct kvb_connection *connection, bool was_lost, bool is_up, const int inputs[3])
{
    struct kvb_connection_update update = { .was_lost = was_lost, .is_up = is_up };
    enum kvb_stream_input_kind kind = KVB_INPUT_TICK;
    size_t count = 0;

    for (; count < 2 && kvb_connection_next(connection, &update, reported_ns, &kind); count++) {
        assert_int_equal(kind, inputs[count]);
    }
    assert_int_equal(inputs[count], no_input);
    assert_false(kvb_connection_next(connection, &update, reported_ns, &kind));
}

static void each_transition_is_that_of_the_table(void **state)
{
    (void)state;
    static const struct {
        enum kvb_connection_state from;
        bool was_lost, is_up;
        enum kvb_connection_state to;
        int inputs[3];
    } rows[] = {
        { KVB_CONNECTION_NEW, false, false, KVB_CONNECTION_NEW, { no_input } },
        { KVB_CONNECTION_NEW, true, false, KVB_CONNECTION_NEW, { no_input } },
        { KVB_CONNECTION_NEW, false, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_NEW, true, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_UP, false, true, KVB_CONNECTION_UP, { no_input } },
        { KVB_CONNECTION_UP, false, false, KVB_CONNECTION_AWAY, { KVB_INPUT_DOWN, no_input } },
        { KVB_CONNECTION_UP, true, false, KVB_CONNECTION_AWAY, { KVB_INPUT_DOWN, no_input } },
        { KVB_CONNECTION_UP,
          true,
          true,
          KVB_CONNECTION_UP,
          { KVB_INPUT_DOWN, KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_AWAY, false, false, KVB_CONNECTION_AWAY, { no_input } },
        { KVB_CONNECTION_AWAY, true, false, KVB_CONNECTION_AWAY, { no_input } },
        { KVB_CONNECTION_AWAY, false, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
        { KVB_CONNECTION_AWAY, true, true, KVB_CONNECTION_UP, { KVB_INPUT_UP, no_input } },
    };

    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        struct kvb_connection connection = { .state = rows[row].from };
        report(&connection, rows[row].was_lost, rows[row].is_up, rows[row].inputs);
        assert_int_equal(connection.state, rows[row].to);
        assert_int_equal(kvb_connection_is_up(&connection), rows[row].to == up);
    }
}

static void an_engine_is_away_since_its_connection_was_lost(void **state)
{
    (void)state;
    static const int goes[] = { KVB_INPUT_DOWN, no_input, no_input };
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    static const int none[] = { no_input, no_input, no_input };
    struct kvb_connection connection = { .state = new };

    assert_int_equal(kvb_connection_away_ns(&connection), 0);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
    report(&connection, true, false, goes);
    assert_int_equal(kvb_connection_away_ns(&connection), reported_ns);
    connection.away_ns = 5;
    report(&connection, true, false, none); /* the same absence continues */
    assert_int_equal(kvb_connection_away_ns(&connection), 5);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
}

/* Readers may hold blocks of its list. */
static void a_restored_stream_is_away_until_its_engine_connects(void **state)
{
    (void)state;
    static const int comes[] = { KVB_INPUT_UP, no_input, no_input };
    struct kvb_connection connection = { .state = new };

    kvb_connection_restored(&connection, 9);
    assert_int_equal(connection.state, away);
    assert_int_equal(kvb_connection_away_ns(&connection), 9);
    report(&connection, false, true, comes);
    assert_int_equal(kvb_connection_away_ns(&connection), 0);
}

/* ---- What is due ---- */

static bool is_sooner_after(enum kvb_stream_input_kind kind, struct kvb_stream_output output)
{
    struct kvb_agenda agenda = { .connects_seen = 0 };

    assert_true(kvb_agenda_takes_round(&agenda, 100 * KVB_NS_PER_MS));
    kvb_agenda_note_step(&agenda, kind, &output);
    kvb_agenda_note_step(&agenda, KVB_INPUT_TICK, &(struct kvb_stream_output){ .has_more = true });
    const bool is_sooner = kvb_agenda_takes_round(&agenda, 100 * KVB_NS_PER_MS + 1);
    assert_false(kvb_agenda_takes_round(&agenda, 100 * KVB_NS_PER_MS + 2)); /* only once */
    return is_sooner;
}

static void a_round_is_due_at_once_after_a_change_or_the_end_of_a_replay(void **state)
{
    (void)state;

    assert_false(is_sooner_after(KVB_INPUT_LIVE, (struct kvb_stream_output){ .has_more = true }));
    assert_true(is_sooner_after(KVB_INPUT_LIVE, (struct kvb_stream_output){ .is_changed = true }));
    assert_true(
        is_sooner_after(KVB_INPUT_TICK, (struct kvb_stream_output){ .drops_replay = true }));
    assert_true(
        is_sooner_after(KVB_INPUT_REPLAY_END, (struct kvb_stream_output){ .has_more = false }));
}

static void each_connection_is_seen_once_and_readers_get_time_to_connect(void **state)
{
    (void)state;
    struct kvb_agenda agenda = { .connects_seen = 0 };
    uint64_t announce_ns = 7;

    assert_false(kvb_agenda_takes_connection(&agenda, 0, 100 * KVB_NS_PER_MS, &announce_ns));
    assert_int_equal(announce_ns, 7);
    assert_true(kvb_agenda_takes_connection(&agenda, 1, 100 * KVB_NS_PER_MS, &announce_ns));
    assert_int_equal(announce_ns, 1300 * KVB_NS_PER_MS);
    assert_false(kvb_agenda_takes_connection(&agenda, 1, 200 * KVB_NS_PER_MS, &announce_ns));
    assert_true(kvb_agenda_takes_connection(
        &agenda, 3, 300 * KVB_NS_PER_MS, &announce_ns)); /* two new connections at once */
    assert_int_equal(announce_ns, 1500 * KVB_NS_PER_MS);
    assert_false(kvb_agenda_takes_connection(&agenda, 3, 400 * KVB_NS_PER_MS, &announce_ns));
}

/* ---- Ranks ---- */

static const uint64_t start_ns = 100 * KVB_NS_PER_S;

/* One rank, and a world in which a test sets what happens. */
struct scene {
    struct kvb_served rank; /* in its first element, whether the server delivered it */
    struct kvb_server server;
    uint64_t now_ns;
    struct kvb_connection_update update; /* the next report of the monitor */
    enum kvb_serve_reply reply;          /* the next reply; NO_REPLY: none */
    bool is_unresolved;                  /* the engine's name has an address */
    bool is_denied;                      /* publishing is denied */
    uint64_t connects;
    size_t starts, stops, rounds, passed_over, applied, ticks, visits, beats;
    const struct kvb_served *visited; /* the newest */
    enum kvb_stream_state said;       /* by the newest heartbeat */
    bool has_no_time;                 /* for more than one rank in a round */
};

static size_t receive(void *context, struct kvb_served *rank)
{
    (void)context;
    (void)rank;
    return 1;
}

static void apply_received(void *context, struct kvb_served *rank, uint64_t now_ns)
{
    struct scene *scene = context;

    (void)rank;
    (void)now_ns;
    scene->applied++;
}

static void pass_over_received(void *context, struct kvb_served *rank)
{
    struct scene *scene = context;

    (void)rank;
    scene->passed_over++;
}

static struct kvb_connection_update read_monitor(void *context, struct kvb_served *rank)
{
    struct scene *scene = context;
    const struct kvb_connection_update update = scene->update;

    (void)rank;
    scene->update.was_lost = false;
    return update;
}

static enum kvb_serve_reply take_reply(void *context, struct kvb_served *rank, uint64_t now_ns)
{
    struct scene *scene = context;
    const enum kvb_serve_reply reply = scene->reply;

    (void)rank;
    (void)now_ns;
    scene->reply = KVB_SERVE_NO_REPLY;
    return reply;
}

static void stop_replay(void *context, struct kvb_served *rank)
{
    struct scene *scene = context;

    (void)rank;
    scene->stops++;
}

static bool start_replay(void *context, struct kvb_served *rank, uint64_t from, uint64_t now_ns)
{
    struct scene *scene = context;

    (void)rank;
    (void)from;
    (void)now_ns;
    scene->starts++;
    return !scene->is_unresolved;
}

static void publish_step(void *context, struct kvb_served *rank)
{
    (void)context;
    (void)rank;
}

static void connection_changed(void *context, struct kvb_served *rank, bool is_up)
{
    (void)context;
    (void)rank;
    (void)is_up;
}

static void share_changed(void *context, struct kvb_served *rank, enum kvb_turn_verdict verdict)
{
    (void)context;
    (void)rank;
    (void)verdict;
}

static size_t rank_count(void *context)
{
    (void)context;
    return 2; /* the second echo is another bridge's */
}

static struct kvb_served *rank_at(void *context, size_t number)
{
    struct scene *scene = context;

    return number == 0 ? &scene->rank : NULL;
}

static void take_sockets(void *context, uint64_t now_ns)
{
    struct scene *scene = context;

    kvb_serve_replies(&scene->server, &scene->rank, now_ns);
    kvb_serve_live(&scene->server, &scene->rank, now_ns);
}

static bool work_slices(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    return false;
}

static void tick(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
}

static void tick_rank(void *context, struct kvb_served *rank, uint64_t now_ns)
{
    struct scene *scene = context;

    scene->ticks++;
    kvb_serve_tick(&scene->server, rank, now_ns);
}

static bool advertise(void *context, struct kvb_served *rank, uint64_t now_ns)
{
    struct scene *scene = context;

    (void)now_ns;
    scene->visits++;
    scene->visited = rank;
    return !scene->has_no_time;
}

static void send_beat(void *context, struct kvb_served *rank)
{
    struct scene *scene = context;
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    scene->said = beat.state;
    scene->beats++;
    kvb_advertiser_beat_sent(&rank->advertiser);
}

static uint64_t connects(void *context)
{
    const struct scene *scene = context;

    return scene->connects;
}

static void connected(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
}

static bool may_publish(void *context, uint64_t now_ns)
{
    const struct scene *scene = context;

    (void)now_ns;
    return !scene->is_denied;
}

static void publish_due(void *context, uint64_t now_ns)
{
    struct scene *scene = context;

    (void)now_ns;
    scene->rounds++;
}

static const struct kvb_serve_world outside = {
    .receive = receive,
    .apply_received = apply_received,
    .pass_over_received = pass_over_received,
    .read_monitor = read_monitor,
    .take_reply = take_reply,
    .stop_replay = stop_replay,
    .start_replay = start_replay,
    .publish_step = publish_step,
    .connection_changed = connection_changed,
    .share_changed = share_changed,
    .rank_count = rank_count,
    .rank = rank_at,
    .take_sockets = take_sockets,
    .work_slices = work_slices,
    .tick = tick,
    .tick_rank = tick_rank,
    .advertise = advertise,
    .beat = send_beat,
    .connects = connects,
    .connected = connected,
    .may_publish = may_publish,
    .publish_due = publish_due,
};

static void turn_after(struct scene *scene, uint64_t ms)
{
    scene->now_ns += ms * KVB_NS_PER_MS;
    (void)kvb_serve_turn(&scene->server, scene->now_ns);
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
    kvb_serve_wake(&scene->server, rank);
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
    *scene = (struct scene){ .now_ns = start_ns, .connects = 1, .update = { .is_up = true } };
    scene->server = (struct kvb_server){ .world = &outside, .context = scene };
    open_rank(scene, &scene->rank);
}

static void end(struct scene *scene)
{
    close_rank(&scene->rank);
}

static uint64_t completed(const struct scene *scene)
{
    return kvb_stream_count(scene->rank.stream)->replays_completed;
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
    scene.reply = KVB_SERVE_END;
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
    scene.reply = KVB_SERVE_CUT;
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
    scene.reply = KVB_SERVE_REFUSED;
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
    scene.update = (struct kvb_connection_update){ .was_lost = true };
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

static void events_published_before_a_new_connection_count_as_lost(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    scene.rank.advertiser.state = KVB_ADVERTISED;
    turn_after(&scene, 10);
    assert_int_equal(scene.rank.advertiser.state, KVB_ADVERTISED);
    scene.connects++;
    turn_after(&scene, 10);
    assert_int_equal(scene.rank.advertiser.state, KVB_ADVERTISED_GAP);
    assert_true(scene.rank.advertiser.not_before_ns > scene.now_ns); /* readers reconnect first */
    end(&scene);
}

static void while_publishing_is_denied_all_events_count_as_lost(void **state)
{
    (void)state;
    struct scene scene;
    begin(&scene);

    turn_after(&scene, 10);
    assert_int_equal(scene.rounds, 1);
    scene.rank.advertiser.state = KVB_ADVERTISED;
    scene.is_denied = true;
    turn_after(&scene, 10);
    assert_int_equal(scene.rounds, 1);
    assert_int_equal(scene.rank.advertiser.state, KVB_ADVERTISED_GAP);
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
    scene.rank.turn.until_ns = scene.now_ns + KVB_NS_PER_S; /* quarantined */
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

/* Ten seconds, in each of which the rank takes all of the time and others are served. */
static void take_all_of_the_time(struct scene *scene)
{
    for (uint64_t second = 1; second <= 11; second++) {
        assert_true(kvb_connection_is_up(&scene->rank.connection));
        kvb_turn_use(&scene->rank.turn, KVB_NS_PER_S);
        kvb_serve_share(&scene->server, &scene->rank, second, second * KVB_NS_PER_S, scene->now_ns);
    }
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
    scene.reply = KVB_SERVE_END; /* of its first replay */
    turn_after(&scene, 10);
    take_all_of_the_time(&scene);
    turn_after(&scene, 10);
    scene.starts = 0;
    kvb_serve_share(&scene.server, &scene.rank, 12, 12 * KVB_NS_PER_S, scene.now_ns);
    turn_after(&scene, 10);
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
        scene->reply =
            kvb_stream_is_replaying(scene->rank.stream) ? KVB_SERVE_END : KVB_SERVE_NO_REPLY;
        turn_after(scene, turn_ms);
    }
}

/* Connected, announced, and silent for a while. */
static void begin_silent(struct scene *scene)
{
    begin(scene);
    pass(scene, 100);
    scene->rank.advertiser.state = KVB_ADVERTISED;
    pass(scene, 60000);
    scene->ticks = 0;
    scene->visits = 0;
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
    assert_true(scene.visits <= 2 * scene.beats + 10 * scene.starts);
    assert_true(scene.ticks <= scene.visits);
    end(&scene);
}

static void a_stream_that_is_woken_is_ticked_and_visited_in_the_next_round(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    pass(&scene, 300);
    scene.ticks = 0;
    scene.visits = 0;
    kvb_serve_wake(&scene.server, &scene.rank);
    pass(&scene, turn_ms);
    assert_int_equal(scene.ticks, 1);
    assert_int_equal(scene.visits, 1);
    end(&scene);
}

/* Its link is renewed, and the end of a quarantine looked for, at each tick. */
static void a_stream_that_is_away_is_ticked_every_50_ms(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    scene.update = (struct kvb_connection_update){ .was_lost = true };
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
    scene.update = (struct kvb_connection_update){ .was_lost = true };
    pass(&scene, turn_ms);
    const struct kvb_advertiser_input input = { .now_ns = scene.now_ns, .down_ns = scene.now_ns };
    assert_in_range(
        kvb_advertiser_due_ns(&scene.rank.advertiser, &input), scene.now_ns,
        scene.now_ns + 700 * KVB_NS_PER_MS);
    end(&scene);
}

static void after_a_pause_of_publishing_all_streams_are_visited(void **state)
{
    (void)state;
    struct scene scene;
    begin_silent(&scene);

    pass(&scene, 300);
    scene.is_denied = true;
    pass(&scene, turn_ms);
    scene.visits = 0;
    scene.is_denied = false;
    pass(&scene, turn_ms);
    assert_int_equal(scene.visits, 1);
    end(&scene);
}

/* A live batch with one event of an unknown type. */
static void serve_unreadable(struct scene *scene, uint64_t seq)
{
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch batch = { 0 };
    struct kvb_stream_input input = { .kind = KVB_INPUT_LIVE,
                                      .now_ns = scene->now_ns,
                                      .seq = seq,
                                      .fingerprint = { .low = seq },
                                      .batch = &batch };

    add_skipped(&batch, KVB_SKIP_UNKNOWN_EVENT);
    kvb_serve_step(&scene->server, &scene->rank, &input);
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

/* A batch that stores one block. */
static void
serve_stored(struct scene *scene, enum kvb_stream_input_kind kind, uint64_t seq, uint32_t token)
{
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch batch = { 0 };
    const uint64_t hash = token;
    struct kvb_stream_input input = { .kind = kind,
                                      .now_ns = scene->now_ns,
                                      .seq = seq,
                                      .fingerprint = { .low = seq },
                                      .batch = &batch };

    add_stored(&batch, NULL, &hash, &token, 1);
    kvb_serve_step(&scene->server, &scene->rank, &input);
}

/* Connected, announced and EXACT. */
static void begin_exact_rank(struct scene *scene)
{
    begin(scene);
    turn_after(scene, turn_ms);
    serve_stored(scene, KVB_INPUT_REPLAY, 0, 1);
    serve_stored(scene, KVB_INPUT_LIVE, 0, 1);
    pass(scene, 100);
    scene->rank.advertiser.state = KVB_ADVERTISED;
    scene->rank.advertiser.is_beat_due = true;
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
    serve_stored(&scene, KVB_INPUT_REPLAY, 0, 1);
    scene.reply = KVB_SERVE_END;
    turn_after(&scene, turn_ms);
    assert_int_equal(scene.said, KVB_STREAM_EXACT);
    end(&scene);
}

/* A round has time for one of them. */
static void streams_for_which_there_was_no_time_come_first_in_the_next_round(void **state)
{
    (void)state;
    struct scene scene;
    struct kvb_served other = { .connection = { .state = KVB_CONNECTION_UP } };
    begin(&scene);
    open_rank(&scene, &other);

    scene.has_no_time = true;
    turn_after(&scene, turn_ms);
    const struct kvb_served *first = scene.visited;
    turn_after(&scene, turn_ms);
    assert_ptr_not_equal(scene.visited, first);
    turn_after(&scene, turn_ms);
    assert_ptr_equal(scene.visited, first);
    close_rank(&other);
    end(&scene);
}

SUITE(serve)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_transition_is_that_of_the_table),
        cmocka_unit_test(an_engine_is_away_since_its_connection_was_lost),
        cmocka_unit_test(a_restored_stream_is_away_until_its_engine_connects),
        cmocka_unit_test(a_round_is_due_at_once_after_a_change_or_the_end_of_a_replay),
        cmocka_unit_test(each_connection_is_seen_once_and_readers_get_time_to_connect),
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
        cmocka_unit_test(a_stream_that_is_woken_is_ticked_and_visited_in_the_next_round),
        cmocka_unit_test(a_stream_that_is_away_is_ticked_every_50_ms),
        cmocka_unit_test(a_stream_is_withdrawn_as_soon_as_its_engine_was_away_for_long),
        cmocka_unit_test(after_a_pause_of_publishing_all_streams_are_visited),
        cmocka_unit_test(a_gap_of_an_unverified_stream_is_replayed_in_the_next_round),
        cmocka_unit_test(streams_for_which_there_was_no_time_come_first_in_the_next_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
