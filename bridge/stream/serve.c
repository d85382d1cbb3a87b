#include "stream/serve.h"

#include "core/clock.h"
#include "stream/replay_turns.h"

static const uint64_t resolve_ns = 500 * KVB_NS_PER_MS; /* most host names resolve sooner */

/* ---- What is due ---- */

static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;
static const uint64_t round_ns = 5 * KVB_NS_PER_MS;

/* The longest rest.  A hog is found by its seconds, and a missed kvb_serve_wake() is made up for.
 */
static const uint64_t max_rest_ns = KVB_NS_PER_S;

/* Shorter than the silence after which aggregators call a stream DOWN, however short its heartbeat
 * is.  So the heartbeat that ends the silence is not one of before the pause. */
static const uint64_t pause_ns = KVB_NS_PER_S;

/* Aggregators reconnect at most a second after NATS is back; they do not receive what is
 * published before. */
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;

/* Wants a round when a stream has changed, or when a replay has ended and another one may start. */
void kvb_agenda_note_step(
    struct kvb_agenda *agenda, enum kvb_stream_input_kind kind,
    const struct kvb_stream_output *output)
{
    agenda->is_round_wanted |=
        output->is_changed || output->drops_replay || kind == KVB_INPUT_REPLAY_END;
}

bool kvb_agenda_takes_tick(struct kvb_agenda *agenda, uint64_t now_ns)
{
    if (now_ns < agenda->next_tick_ns) {
        return false;
    }
    agenda->next_tick_ns = now_ns + tick_ns;
    return true;
}

bool kvb_agenda_takes_round(struct kvb_agenda *agenda, uint64_t now_ns)
{
    if (!agenda->is_round_wanted && now_ns < agenda->next_round_ns) {
        return false;
    }
    agenda->is_round_wanted = false;
    agenda->next_round_ns = now_ns + round_ns;
    return true;
}

bool kvb_agenda_takes_connection(
    struct kvb_agenda *agenda, uint64_t connects, uint64_t now_ns, uint64_t *out_announce_ns)
{
    if (connects == agenda->connects_seen) {
        return false;
    }
    agenda->connects_seen = connects;
    *out_announce_ns = now_ns + after_connect_ns;
    return true;
}

/* ---- Connections ---- */

static void set_away(struct kvb_connection *connection, uint64_t now_ns)
{
    connection->state = KVB_CONNECTION_AWAY;
    connection->away_ns = now_ns;
}

bool kvb_connection_next(
    struct kvb_connection *connection, struct kvb_connection_update *update, uint64_t now_ns,
    enum kvb_stream_input_kind *out_input)
{
    const bool is_lost = update->was_lost || !update->is_up;

    update->was_lost = false;
    if (connection->state == KVB_CONNECTION_UP) {
        if (is_lost) {
            set_away(connection, now_ns);
            *out_input = KVB_INPUT_DOWN;
        }
        return is_lost;
    }
    if (update->is_up) {
        connection->state = KVB_CONNECTION_UP;
        *out_input = KVB_INPUT_UP;
    }
    return update->is_up;
}

void kvb_connection_restored(struct kvb_connection *connection, uint64_t now_ns)
{
    set_away(connection, now_ns);
}

/* ---- Visits ---- */

static void visit_next(struct kvb_server *server, struct kvb_served *rank)
{
    kvb_visits_set(&server->visits, &rank->visit, 0);
}

void kvb_serve_wake(struct kvb_server *server, struct kvb_served *rank)
{
    rank->is_woken = true;
    visit_next(server, rank);
}

void kvb_serve_drop(struct kvb_served *rank)
{
    kvb_visits_drop(&rank->visit);
}

static struct kvb_served *rank_of(struct kvb_visit *visit)
{
    return (struct kvb_served *)(void *)((char *)visit - offsetof(struct kvb_served, visit));
}

static uint64_t sooner(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* When the rank must be visited again.  While its engine is away its link is renewed at each tick,
 * and the end of a quarantine is looked for. */
static uint64_t due_of(const struct kvb_served *rank, uint64_t now_ns)
{
    const bool is_up = kvb_connection_is_up(&rank->connection);
    const bool is_ticked = !is_up || rank->is_woken;
    const struct kvb_advertiser_input input = { .now_ns = now_ns,
                                                .down_ns =
                                                    kvb_connection_away_ns(&rank->connection) };
    uint64_t advertised_ns = kvb_advertiser_due_ns(&rank->advertiser, &input);

    if (!is_up && advertised_ns < now_ns + tick_ns) {
        advertised_ns = now_ns + tick_ns; /* it may wait for its engine for long */
    }
    return sooner(
        sooner(advertised_ns, kvb_stream_due_ns(rank->stream)),
        now_ns + (is_ticked ? tick_ns : max_rest_ns));
}

/* ---- One rank ---- */

/* Wakes the rank when the step has made something due.  Most live batches do not. */
static void
note_due(struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind)
{
    if (kind != KVB_INPUT_LIVE || rank->output.is_changed ||
        !kvb_advertiser_is_current(&rank->advertiser) || kvb_stream_due_ns(rank->stream) == 0) {
        visit_next(server, rank);
    }
}

void kvb_serve_step(
    struct kvb_server *server, struct kvb_served *rank, struct kvb_stream_input *input)
{
    const struct kvb_serve_world *world = server->world;

    input->wall_us = server->wall_us;
    if (kvb_stream_step(rank->stream, input, &rank->output) != KVB_OK) {
        kvb_advertiser_void(&rank->advertiser);
    }
    if (rank->output.drops_replay) {
        world->stop_replay(server->context, rank);
    }
    rank->advertiser.is_beat_due |= rank->output.is_changed;
    kvb_agenda_note_step(&server->agenda, input->kind, &rank->output);
    world->publish_step(server->context, rank);
    note_due(server, rank, input->kind);
}

void kvb_serve_kind(
    struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind,
    uint64_t now_ns)
{
    struct kvb_stream_input input = { .kind = kind, .now_ns = now_ns };
    kvb_serve_step(server, rank, &input);
}

/* Called after receiving, before the batches are applied: the monitor may report that the
 * connection was lost in between.  A quarantined rank is served as if it was lost: DOWN at once,
 * and after the release a replay proves its engine and brings what it missed. */
static void follow_connection(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns)
{
    struct kvb_connection_update update = server->world->read_monitor(server->context, rank);
    enum kvb_stream_input_kind kind = KVB_INPUT_TICK;

    update.is_up &= !kvb_turn_is_quarantined(&rank->turn);
    while (kvb_connection_next(&rank->connection, &update, now_ns, &kind)) {
        kvb_serve_kind(server, rank, kind, now_ns);
        server->world->connection_changed(server->context, rank, kind == KVB_INPUT_UP);
    }
}

void kvb_serve_live(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns)
{
    const bool has_batches = server->world->receive(server->context, rank) > 0;

    follow_connection(server, rank, now_ns);
    if (has_batches) {
        kvb_coalescing_note(&server->coalescing, &rank->live_window);
    }
    rank->live_runs += has_batches;
    server->live_runs += has_batches;
    if (kvb_turn_is_quarantined(&rank->turn)) {
        server->world->pass_over_received(server->context, rank); /* a replay repeats them */
    } else {
        server->world->apply_received(server->context, rank, now_ns);
    }
}

/* False: take no more replies in this turn. */
static bool serve_reply(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns)
{
    const enum kvb_serve_reply reply = server->world->take_reply(server->context, rank, now_ns);

    switch (reply) {
    case KVB_SERVE_BATCH:
        return true;
    case KVB_SERVE_NO_REPLY:
        return false;
    case KVB_SERVE_REFUSED: /* the stream fails the replay at its deadline */
        server->world->stop_replay(server->context, rank);
        return false;
    case KVB_SERVE_END:
    case KVB_SERVE_CUT:
        break;
    }
    server->world->stop_replay(server->context, rank);
    kvb_serve_kind(
        server, rank, reply == KVB_SERVE_CUT ? KVB_INPUT_REPLAY_CUT : KVB_INPUT_REPLAY_END, now_ns);
    return true;
}

void kvb_serve_replies(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns)
{
    for (int i = 0; i < kvb_serve_replies_a_turn && !rank->output.has_more; i++) {
        if (!serve_reply(server, rank, now_ns)) {
            break;
        }
    }
}

void kvb_serve_tick(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns)
{
    if (!rank->output.has_more) {
        kvb_serve_kind(server, rank, KVB_INPUT_TICK, now_ns);
    }
}

void kvb_serve_share(
    struct kvb_server *server, struct kvb_served *rank, uint64_t others, uint64_t clock_ns,
    uint64_t now_ns)
{
    const enum kvb_turn_verdict verdict = kvb_turn_classify(&rank->turn, clock_ns, others);

    if (verdict != KVB_TURN_GO_ON) {
        server->world->share_changed(server->context, rank, verdict);
        follow_connection(server, rank, now_ns);
    }
}

/* ---- All ranks ---- */

/* Marks the published events of all ranks as possibly lost, so that they are announced again, not
 * before not_before_ns. */
static void lose_all_events(struct kvb_server *server, uint64_t not_before_ns)
{
    for (size_t i = 0; i < server->world->rank_count(server->context); i++) {
        struct kvb_served *rank = server->world->rank(server->context, i);
        if (rank) {
            kvb_advertiser_lost(&rank->advertiser, not_before_ns);
        }
    }
}

static void wake_all(struct kvb_server *server)
{
    for (size_t i = 0; i < server->world->rank_count(server->context); i++) {
        struct kvb_served *rank = server->world->rank(server->context, i);
        if (rank) {
            visit_next(server, rank);
        }
    }
}

static void tick_due(struct kvb_server *server, struct kvb_visit *due, uint64_t now_ns)
{
    for (; due; due = due->then) {
        struct kvb_served *rank = rank_of(due);
        if (now_ns >= rank->tick_ns) {
            rank->tick_ns = now_ns + tick_ns;
            rank->is_woken = false;
            server->world->tick_rank(server->context, rank, now_ns);
        }
    }
}

static struct kvb_served *rank_at(struct kvb_visit *due, size_t number)
{
    for (; number > 0; number--) {
        due = due->then;
    }
    return rank_of(due);
}

/* At most kvb_max_replays_at_once run in the process, because each slows down its engine.  A stream
 * whose replay is wanted or runs is due in every round. */
static void start_replays(struct kvb_server *server, struct kvb_visit *due, uint64_t now_ns)
{
    const struct kvb_serve_world *world = server->world;
    struct kvb_replay_turns turns = { .proofs = { .count = 0 } };
    struct kvb_replay_turn turn;
    size_t number = 0;

    for (struct kvb_visit *at = due; at; at = at->then) {
        const struct kvb_served *rank = rank_of(at);
        if (now_ns >= rank->replay_due_ns) {
            kvb_replay_turns_offer(&turns, number, rank->stream, now_ns);
        }
        number++;
    }
    while (kvb_replay_turns_take(&turns, &turn)) {
        struct kvb_served *rank = rank_at(due, turn.number);
        if (!world->start_replay(server->context, rank, turn.from, now_ns)) {
            rank->replay_due_ns = now_ns + resolve_ns; /* other ranks may replay meanwhile */
            continue;
        }
        kvb_stream_replay_started(rank->stream, now_ns);
    }
    const size_t running = kvb_replay_turns_running(&turns);
    server->max_replaying = running > server->max_replaying ? running : server->max_replaying;
}

/* Returns the first that was not reached in time. */
static struct kvb_visit *
publish_ranks(struct kvb_server *server, struct kvb_visit *due, uint64_t now_ns)
{
    const struct kvb_serve_world *world = server->world;
    struct kvb_visit *left = due;
    bool is_time_left = true;

    for (; left && is_time_left; left = left->then) {
        is_time_left = world->advertise(server->context, rank_of(left), now_ns);
    }
    for (; due; due = due->then) {
        struct kvb_served *rank = rank_of(due);
        if (kvb_advertiser_takes_beat(&rank->advertiser, now_ns)) {
            world->beat(server->context, rank);
        }
    }
    return left;
}

/* Those that were not reached come first in the next round, so that no stream starves. */
static void
rest(struct kvb_server *server, struct kvb_visit *due, struct kvb_visit *left, uint64_t now_ns)
{
    for (struct kvb_visit *at = left; at; at = at->then) {
        visit_next(server, rank_of(at));
    }
    for (; due != left; due = due->then) {
        struct kvb_served *rank = rank_of(due);
        kvb_visits_set(&server->visits, &rank->visit, due_of(rank, now_ns));
    }
}

/* After a new connection to NATS, events published before it may be lost: publish them again. */
static void follow_nats(struct kvb_server *server, uint64_t now_ns)
{
    const uint64_t connects = server->world->connects(server->context);
    uint64_t announce_ns = 0;

    if (kvb_agenda_takes_connection(&server->agenda, connects, now_ns, &announce_ns)) {
        server->world->connected(server->context, now_ns);
        lose_all_events(server, announce_ns);
        wake_all(server);
    }
}

/* While nothing is published, published events count as lost. */
static bool follow_permission(struct kvb_server *server, uint64_t now_ns)
{
    const bool was_mute = server->is_mute;

    server->is_mute = !server->world->may_publish(server->context, now_ns);
    if (server->is_mute) {
        lose_all_events(server, 0);
    } else if (was_mute) {
        wake_all(server);
    }
    return !server->is_mute;
}

static void serve_round(struct kvb_server *server, bool publishes, uint64_t now_ns)
{
    struct kvb_visit *due = kvb_visits_take(&server->visits, now_ns);
    struct kvb_visit *left = NULL;

    tick_due(server, due, now_ns);
    start_replays(server, due, now_ns);
    if (publishes) {
        server->world->publish_due(server->context, now_ns);
        left = publish_ranks(server, due, now_ns);
    }
    rest(server, due, left, now_ns);
}

static void serve_time(struct kvb_server *server, uint64_t now_ns)
{
    follow_nats(server, now_ns);
    if (kvb_agenda_takes_tick(&server->agenda, now_ns)) {
        server->world->tick(server->context, now_ns);
    }
    const bool publishes = follow_permission(server, now_ns);
    if (kvb_agenda_takes_round(&server->agenda, now_ns)) {
        serve_round(server, publishes, now_ns);
    }
}

static void follow_pause(struct kvb_server *server, uint64_t now_ns)
{
    const bool was_paused = server->turned_ns > 0 && now_ns - server->turned_ns >= pause_ns;

    server->turned_ns = now_ns;
    for (size_t i = 0; was_paused && i < server->world->rank_count(server->context); i++) {
        struct kvb_served *rank = server->world->rank(server->context, i);
        if (rank) {
            kvb_serve_kind(server, rank, KVB_INPUT_PAUSE, now_ns);
            kvb_serve_wake(server, rank);
        }
    }
}

bool kvb_serve_turn(struct kvb_server *server, uint64_t now_ns)
{
    follow_pause(server, now_ns);
    server->world->take_sockets(server->context, now_ns);
    const bool is_work_left = server->world->work_slices(server->context, now_ns);

    serve_time(server, now_ns);
    return is_work_left;
}
