#include "stream/serve.h"

#include "core/clock.h"
#include "core/hash.h"

static const uint64_t work_ns = 50 * KVB_NS_PER_MS;
static const uint64_t round_ns = 5 * KVB_NS_PER_MS;
static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;

/* The longest rest.  A hog is found by its seconds, and a missed kvb_serve_wake() is made up for.
 */
static const uint64_t max_rest_ns = KVB_NS_PER_S;

/* Shorter than the silence after which aggregators call a stream DOWN, however short its heartbeat
 * is.  So the heartbeat that ends the silence is not one of before the pause. */
static const uint64_t pause_ns = KVB_NS_PER_S;

/* Longest time for slices of unfinished batches in a turn: the sockets wait meanwhile. */
static const uint64_t slices_ns = 4 * KVB_NS_PER_MS;

/* Longest time for whole lists in a turn: as above. */
static const uint64_t lists_ns = 20 * KVB_NS_PER_MS;

/* Aggregators reconnect at most a second after NATS is back; they do not receive what is
 * published before. */
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;

static const uint64_t resolve_ns = 500 * KVB_NS_PER_MS; /* most host names resolve sooner */

/* ---- Ranks ---- */

static void visit_next(struct kvb_served *rank)
{
    if (rank->server) {
        kvb_visits_set(&rank->server->visits, &rank->visit, 0);
    }
}

void kvb_serve_wake(struct kvb_served *rank)
{
    rank->is_woken = true;
    visit_next(rank);
}

/* The ranks whose workers have the same hash as this one. */
static struct kvb_served **chain_of(struct kvb_server *server, uint64_t worker_id)
{
    const kvb_span key = { (const uint8_t *)&worker_id, sizeof worker_id };

    return &server->by_worker[kvb_hash64(key, 0) % kvb_server_chains];
}

void kvb_serve_add(struct kvb_server *server, struct kvb_served *rank)
{
    struct kvb_served **chain = chain_of(server, kvb_stream_worker_id(rank->stream));

    rank->server = server;
    rank->next_in_chain = *chain;
    *chain = rank;
    rank->next = NULL;
    rank->before = server->last;
    if (server->last) {
        server->last->next = rank;
    } else {
        server->first = rank;
    }
    server->last = rank;
    kvb_serve_wake(rank);
}

static void leave_line(struct kvb_server *server, struct kvb_served *rank)
{
    struct kvb_served *before = NULL;

    if (!rank->is_in_line) {
        return;
    }
    /* Singly linked: the line is short, and its first one leaves as a rule. */
    for (struct kvb_served *at = server->first_in_line; at != rank; at = at->next_in_line) {
        before = at;
    }
    if (before) {
        before->next_in_line = rank->next_in_line;
    } else {
        server->first_in_line = rank->next_in_line;
    }
    if (server->last_in_line == rank) {
        server->last_in_line = before;
    }
    rank->is_in_line = false;
}

void kvb_serve_drop(struct kvb_served *rank)
{
    struct kvb_server *server = rank->server;

    if (!server) {
        return;
    }
    kvb_visits_drop(&rank->visit);
    leave_line(server, rank);
    struct kvb_served **link = chain_of(server, kvb_stream_worker_id(rank->stream));
    while (*link != rank) {
        link = &(*link)->next_in_chain;
    }
    *link = rank->next_in_chain;
    if (rank->before) {
        rank->before->next = rank->next;
    } else {
        server->first = rank->next;
    }
    if (rank->next) {
        rank->next->before = rank->before;
    } else {
        server->last = rank->before;
    }
    rank->server = NULL;
}

void kvb_serve_restored(struct kvb_served *rank, bool needs_epoch, uint64_t now_ns)
{
    kvb_advertiser_restored(&rank->advertiser, needs_epoch);
    kvb_stream_note_restored(rank->stream, now_ns);
}

void kvb_serve_lost(struct kvb_served *rank)
{
    kvb_advertiser_lost(&rank->advertiser, 0);
    kvb_serve_wake(rank);
}

/* The published events of all ranks may be lost, so they are announced again, not before
 * not_before_ns. */
static void lose_all_events(struct kvb_server *server, uint64_t not_before_ns)
{
    for (struct kvb_served *rank = server->first; rank; rank = rank->next) {
        kvb_advertiser_lost(&rank->advertiser, not_before_ns);
    }
}

/* Readers of JSON that know no ranks have cleared the worker's other ranks with this one. */
static void tell_siblings(struct kvb_server *server, const struct kvb_served *cleared)
{
    const uint64_t worker_id = kvb_stream_worker_id(cleared->stream);
    struct kvb_served *rank = *chain_of(server, worker_id);

    for (; rank; rank = rank->next_in_chain) {
        if (rank != cleared && kvb_stream_worker_id(rank->stream) == worker_id) {
            kvb_advertiser_sibling_cleared(&rank->advertiser);
            kvb_serve_wake(rank);
        }
    }
}

static struct kvb_served *rank_of(struct kvb_visit *visit)
{
    return (struct kvb_served *)(void *)((char *)visit - offsetof(struct kvb_served, visit));
}

static uint64_t sooner(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* ---- Asking ---- */

/* Each phase below that needs the program asks it, and finds itself called again with the answer.
 */
static bool ask(struct kvb_server *server, enum kvb_action_kind kind, struct kvb_served *rank)
{
    server->action.kind = kind;
    server->action.rank = rank;
    return true;
}

/* True: this is what was asked for, and it is answered. */
static bool is_answered(struct kvb_server *server, enum kvb_action_kind kind)
{
    if (server->action.kind != kind) {
        return false;
    }
    server->action.kind = KVB_DO_NOTHING;
    return true;
}

/* ---- One step of a stream ---- */

static bool step(struct kvb_server *server, struct kvb_served *rank, struct kvb_stream_input *input)
{
    struct kvb_stream_output *output = &rank->output;

    input->wall_us = server->wall_us;
    if (kvb_stream_step(rank->stream, input, output) != KVB_OK) {
        kvb_advertiser_void(&rank->advertiser);
    }
    if (output->has_more && !rank->is_in_line) { /* ranks with slices left are served in turn */
        rank->is_in_line = true;
        rank->next_in_line = NULL;
        if (server->last_in_line) {
            server->last_in_line->next_in_line = rank;
        } else {
            server->first_in_line = rank;
        }
        server->last_in_line = rank;
    }
    if (output->is_changed) {
        kvb_advertiser_want_beat(&rank->advertiser, KVB_BEAT_NOW);
    }
    /* A stream has changed, or a replay has ended and another one may start. */
    server->is_round_wanted |=
        output->is_changed || output->drops_replay || input->kind == KVB_INPUT_REPLAY_END;
    /* Most live batches make nothing due. */
    if (input->kind != KVB_INPUT_LIVE || output->is_changed ||
        !kvb_advertiser_is_current(&rank->advertiser) || kvb_stream_due_ns(rank->stream) == 0) {
        visit_next(rank);
    }
    server->action.stops_replay = output->drops_replay;
    server->action.events =
        kvb_advertiser_takes_step(&rank->advertiser, &output->events) ? &output->events : NULL;
    server->action.status = KVB_OK;
    return ask(server, KVB_DO_OUTPUT, rank);
}

static bool
step_kind(struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind)
{
    struct kvb_stream_input input = { .kind = kind, .now_ns = server->now_ns };

    return step(server, rank, &input);
}

static bool
step_batch(struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind)
{
    server->action.input.kind = kind;
    server->action.input.now_ns = server->now_ns;
    return step(server, rank, &server->action.input);
}

/* The output of a step was carried out. */
static void follow_output(struct kvb_server *server)
{
    const struct kvb_action *action = &server->action;
    bool has_cleared = false;

    if (action->status != KVB_OK) {
        kvb_serve_lost(action->rank);
        return;
    }
    for (size_t i = 0; action->events && i < action->events->event_count; i++) {
        has_cleared |= action->events->events[i].kind == KVB_ROUTER_CLEARED;
    }
    if (has_cleared) {
        tell_siblings(server, action->rank);
    }
}

/* ---- A run ---- */

static void begin_run(struct kvb_server *server, struct kvb_served *rank, enum kvb_run_kind kind)
{
    server->run = (struct kvb_run){ .phase = KVB_RUN_BEGIN, .kind = kind, .rank = rank };
    if (kind == KVB_RUN_OF_SOCKET) {
        server->run.has_replies = server->action.has_replies;
        server->run.has_live = server->action.has_live;
        server->run.reads_monitor = server->action.has_live;
    }
}

/* Asks for the next action of the run (true); false: the run is over.  What a run does not need
 * falls through. */
static bool go_on_run(struct kvb_server *server)
{
    struct kvb_run *run = &server->run;
    struct kvb_served *rank = run->rank;
    struct kvb_action *action = &server->action;

    switch (run->phase) {
    case KVB_RUN_OVER:
        return false;

    case KVB_RUN_BEGIN:
        run->phase = KVB_RUN_SHARE;
        return ask(server, KVB_DO_BEGIN_RUN, rank);

    case KVB_RUN_SHARE:
        run->phase = KVB_RUN_REPLIES;
        if (run->kind == KVB_RUN_OF_TICK) {
            /* A rank that takes more than its share of the thread's time is quarantined: DOWN at
             * once; after the release a replay proves its engine and brings what it missed. */
            const unsigned speed = server->share_speed > 0 ? server->share_speed : 1;
            action->share = kvb_share_classify(
                &rank->share, speed * server->now_ns, server->live_runs - rank->live_runs);
            if (action->share != KVB_SHARE_GO_ON) {
                run->reads_monitor = true;
                return ask(server, KVB_DO_NOTE_SHARE, rank);
            }
        }
        [[fallthrough]];

    case KVB_RUN_REPLIES:
        if (is_answered(server, KVB_DO_NEXT_REPLY)) {
            if (action->reply == KVB_SERVE_BATCH) {
                return step_batch(server, rank, KVB_INPUT_REPLAY);
            }
            if (action->reply != KVB_SERVE_NO_REPLY) {
                return ask(server, KVB_DO_STOP_REPLAY, rank);
            }
            run->has_replies = false;
        }
        if (is_answered(server, KVB_DO_STOP_REPLAY)) {
            if (action->reply != KVB_SERVE_REFUSED) {
                return step_kind(
                    server, rank,
                    action->reply == KVB_SERVE_CUT ? KVB_INPUT_REPLAY_CUT : KVB_INPUT_REPLAY_END);
            }
            run->has_replies = false; /* the stream fails the replay at its deadline */
        }
        /* While a batch is unfinished, its replies wait in the source. */
        if (run->has_replies && run->replies < kvb_serve_replies_a_turn && !rank->output.has_more) {
            run->replies++;
            return ask(server, KVB_DO_NEXT_REPLY, rank);
        }
        run->phase = KVB_RUN_RECEIVE;
        [[fallthrough]];

    case KVB_RUN_RECEIVE:
        if (run->has_live) {
            if (!is_answered(server, KVB_DO_RECEIVE)) {
                return ask(server, KVB_DO_RECEIVE, rank);
            }
            if (action->count > 0) {
                kvb_coalescing_note(&server->coalescing, &rank->live_window);
                rank->live_runs++;
                server->live_runs++;
            }
        }
        run->phase = KVB_RUN_MONITOR;
        [[fallthrough]];

    case KVB_RUN_MONITOR:
        if (run->reads_monitor) {
            /* After receiving, before applying: the connection may have been lost in between. */
            if (!is_answered(server, KVB_DO_READ_MONITOR)) {
                return ask(server, KVB_DO_READ_MONITOR, rank);
            }
            run->link = action->link;
            run->link.is_up &= !kvb_share_is_quarantined(&rank->share);
        }
        run->phase = KVB_RUN_LINK;
        [[fallthrough]];

    case KVB_RUN_LINK:
        if (is_answered(server, KVB_DO_NOTE_LINK)) {
            return step_kind(server, rank, action->is_up ? KVB_INPUT_UP : KVB_INPUT_DOWN);
        }
        enum kvb_stream_input_kind kind = KVB_INPUT_TICK;
        if (run->reads_monitor && kvb_stream_link_input(rank->stream, &run->link, &kind)) {
            action->is_up = kind == KVB_INPUT_UP;
            return ask(server, KVB_DO_NOTE_LINK, rank);
        }
        run->phase = KVB_RUN_BATCHES;
        if (run->has_live && kvb_share_is_quarantined(&rank->share)) {
            run->has_live = false; /* a replay repeats them */
            return ask(server, KVB_DO_PASS_OVER, rank);
        }
        [[fallthrough]];

    case KVB_RUN_BATCHES:
        if (is_answered(server, KVB_DO_NEXT_BATCH)) {
            if (action->has_batch) {
                return step_batch(server, rank, KVB_INPUT_LIVE);
            }
            run->has_live = false;
        }
        if (run->has_live) {
            return ask(server, KVB_DO_NEXT_BATCH, rank);
        }
        run->phase = KVB_RUN_TICK;
        [[fallthrough]];

    case KVB_RUN_TICK:
        run->phase = KVB_RUN_HAND_OVER;
        if (run->kind == KVB_RUN_OF_SLICE) {
            struct kvb_stream_input input = { .kind = KVB_INPUT_TICK, .now_ns = server->clock_ns };
            return step(server, rank, &input);
        }
        /* A rank with slices left gets its ticks with them. */
        if (run->kind == KVB_RUN_OF_TICK && !rank->output.has_more) {
            return step_kind(server, rank, KVB_INPUT_TICK);
        }
        [[fallthrough]];

    case KVB_RUN_HAND_OVER:
        run->phase = KVB_RUN_END;
        action->status = KVB_OK;
        action->took_ns = 0;
        return ask(server, KVB_DO_END_RUN, rank);

    case KVB_RUN_END:
        if (action->status != KVB_OK) {
            kvb_serve_lost(rank);
        }
        kvb_share_use(&rank->share, action->took_ns);
        run->phase = KVB_RUN_OVER;
        return false;
    }
    return false;
}

/* ---- A whole list ---- */

static bool go_on_list(struct kvb_server *server)
{
    struct kvb_action *action = &server->action;
    struct kvb_served *rank = server->list_of;

    if (server->list == KVB_LIST_BEGIN) {
        if (!is_answered(server, KVB_DO_ANNOUNCE)) {
            return ask(server, KVB_DO_ANNOUNCE, rank);
        }
        action->status = kvb_advertiser_begin(&rank->advertiser, action->list, server->wall_us);
        server->list = KVB_LIST_CHUNKS;
    } else {
        (void)is_answered(server, KVB_DO_CHUNK);
    }
    if (action->status == KVB_OK) {
        action->status = kvb_advertiser_chunk(&rank->advertiser, &server->chunk);
        if (action->status == KVB_OK && server->chunk.event_count > 0) {
            action->events = &server->chunk;
            return ask(server, KVB_DO_CHUNK, rank);
        }
    }
    /* All is published, or a chunk was not. */
    if (kvb_advertiser_end(&rank->advertiser, action->list, action->status, server->now_ns)) {
        tell_siblings(server, rank);
    }
    server->list = KVB_LIST_OVER;
    return false;
}

/* Publishes what the rank's advertiser says; false: nothing. */
static bool
begin_list(struct kvb_server *server, struct kvb_served *rank, enum kvb_advertiser_action list)
{
    server->action.list = list;
    server->list_of = rank;
    server->list = list == KVB_ADVERTISER_REST ? KVB_LIST_OVER : KVB_LIST_BEGIN;
    return list != KVB_ADVERTISER_REST;
}

static bool ask_for_beat(struct kvb_server *server, struct kvb_served *rank, bool is_bye)
{
    server->action.is_bye = is_bye;
    server->action.status = KVB_OK;
    return ask(server, KVB_DO_BEAT, rank);
}

/* ---- A turn ---- */

/* After a new connection to NATS, events published before it may be lost: they are published again
 * when readers are connected, too.  While nothing is published, all events count as lost. */
static bool follow_nats(struct kvb_server *server)
{
    struct kvb_action *action = &server->action;
    const bool was_mute = server->is_mute;

    action->is_new_connection = action->connects != server->connects_seen;
    server->connects_seen = action->connects;
    server->is_mute = !action->is_connected;
    if (action->is_new_connection) {
        lose_all_events(server, server->now_ns + after_connect_ns);
    } else if (server->is_mute) {
        lose_all_events(server, 0);
    }
    if (action->is_new_connection || (was_mute && !server->is_mute)) {
        for (struct kvb_served *rank = server->first; rank; rank = rank->next) {
            visit_next(rank);
        }
    }
    return (action->is_new_connection || was_mute != server->is_mute) &&
           ask(server, KVB_DO_NOTE_NATS, NULL);
}

/* The round is over: sets when each of its ranks is due again. */
static void rest(struct kvb_server *server)
{
    /* Those that were not reached come first in the next round, so that no stream starves. */
    for (struct kvb_visit *at = server->due_left; at; at = at->then) {
        visit_next(rank_of(at));
    }
    const uint64_t next_tick_ns = server->now_ns + tick_ns;
    for (struct kvb_visit *at = server->due; at != server->due_left; at = at->then) {
        struct kvb_served *rank = rank_of(at);
        const bool is_up = kvb_stream_is_connected(rank->stream);
        uint64_t due_ns = kvb_advertiser_due_ns(&rank->advertiser, server->now_ns);
        if (!is_up && due_ns < next_tick_ns) {
            due_ns = next_tick_ns; /* it may wait for its engine for long */
        }
        /* While its engine is away its link is tended at each tick, and the end of a quarantine is
         * looked for. */
        due_ns = sooner(due_ns, kvb_stream_due_ns(rank->stream));
        due_ns =
            sooner(due_ns, !is_up || rank->is_woken ? next_tick_ns : server->now_ns + max_rest_ns);
        kvb_visits_set(&server->visits, &rank->visit, due_ns);
    }
}

/* Asks for the next action of the turn (true), or moves on to its next phase. */
static bool go_on_turn(struct kvb_server *server)
{
    struct kvb_action *action = &server->action;
    struct kvb_served *rank = NULL;

    switch (server->phase) {
    case KVB_TURN_OVER:
        return false;

    case KVB_TURN_PAUSE:
        rank = server->at;
        if (rank) {
            server->at = rank->next;
            kvb_serve_wake(rank);
            return step_kind(server, rank, KVB_INPUT_PAUSE);
        }
        server->phase = KVB_TURN_SOCKETS;
        return false;

    case KVB_TURN_SOCKETS:
        if (!is_answered(server, KVB_DO_NEXT_SOCKET)) {
            return ask(server, KVB_DO_NEXT_SOCKET, NULL);
        }
        if (action->rank) {
            begin_run(server, action->rank, KVB_RUN_OF_SOCKET);
            return false;
        }
        server->slices_until_ns = server->clock_ns + slices_ns;
        server->phase = KVB_TURN_SLICES;
        return false;

    case KVB_TURN_SLICES:
        rank = server->first_in_line;
        if (rank && server->clock_ns < server->slices_until_ns) {
            leave_line(server, rank);
            begin_run(server, rank, KVB_RUN_OF_SLICE);
            return false;
        }
        server->has_slices = rank != NULL;
        server->phase = KVB_TURN_NATS;
        return false;

    case KVB_TURN_NATS:
        if (!is_answered(server, KVB_DO_ASK_NATS)) {
            return ask(server, KVB_DO_ASK_NATS, NULL);
        }
        server->phase = KVB_TURN_WORK;
        return follow_nats(server);

    case KVB_TURN_WORK:
        server->phase = KVB_TURN_ROUND;
        if (server->now_ns < server->next_work_ns) {
            return false;
        }
        server->next_work_ns = server->now_ns + work_ns;
        return ask(server, KVB_DO_WORK, NULL);

    case KVB_TURN_ROUND:
        if (!server->is_round_wanted && server->now_ns < server->next_round_ns) {
            server->phase = KVB_TURN_OVER;
            return false;
        }
        server->is_round_wanted = false;
        server->next_round_ns = server->now_ns + round_ns;
        server->due = kvb_visits_take(&server->visits, server->now_ns);
        server->due_at = server->due;
        server->phase = KVB_TURN_TICKS;
        return false;

    case KVB_TURN_TICKS:
        if (is_answered(server, KVB_DO_TEND_LINK)) {
            begin_run(server, action->rank, KVB_RUN_OF_TICK);
            return false;
        }
        if (!server->due_at) {
            /* At most kvb_max_replays_at_once run in the process, because each slows down its
             * engine.  A stream whose replay is wanted or runs is due in every round. */
            server->replays = (struct kvb_replay_turns){ .proofs = { .count = 0 } };
            for (struct kvb_visit *at = server->due; at; at = at->then) {
                rank = rank_of(at);
                if (server->now_ns >= rank->replay_due_ns) {
                    kvb_replay_turns_offer(&server->replays, rank, rank->stream, server->now_ns);
                }
            }
            server->phase = KVB_TURN_REPLAYS;
            return false;
        }
        rank = rank_of(server->due_at);
        server->due_at = server->due_at->then;
        if (server->now_ns < rank->tick_ns) {
            return false;
        }
        rank->tick_ns = server->now_ns + tick_ns;
        rank->is_woken = false;
        return ask(server, KVB_DO_TEND_LINK, rank);

    case KVB_TURN_REPLAYS: {
        struct kvb_replay_turn next;
        if (is_answered(server, KVB_DO_START_REPLAY)) {
            if (action->is_unresolved) { /* other ranks may replay meanwhile */
                action->rank->replay_due_ns = server->now_ns + resolve_ns;
            } else {
                kvb_stream_replay_started(action->rank->stream, server->now_ns);
            }
        }
        if (kvb_replay_turns_take(&server->replays, &next)) {
            action->from = next.from;
            action->is_unresolved = false;
            return ask(server, KVB_DO_START_REPLAY, next.rank);
        }
        const size_t running = kvb_replay_turns_running(&server->replays);
        server->max_replaying = running > server->max_replaying ? running : server->max_replaying;
        server->due_left = server->is_mute ? NULL : server->due;
        server->phase = server->is_mute ? KVB_TURN_REST : KVB_TURN_LOADS;
        return false;
    }

    case KVB_TURN_LOADS:
        server->has_listed = false;
        server->phase = KVB_TURN_LISTS;
        return ask(server, KVB_DO_PUBLISH_LOADS, NULL);

    case KVB_TURN_LISTS:
        if (server->due_left &&
            !(server->has_listed && server->clock_ns >= server->now_ns + lists_ns)) {
            rank = rank_of(server->due_left);
            server->due_left = server->due_left->then;
            server->has_listed |=
                begin_list(server, rank, kvb_advertiser_next(&rank->advertiser, server->now_ns));
            return false;
        }
        server->due_at = server->due;
        server->phase = KVB_TURN_BEATS;
        return false;

    case KVB_TURN_BEATS:
        /* After the lists, so that the first heartbeat of a list finds it. */
        if (is_answered(server, KVB_DO_BEAT) && action->status == KVB_OK) {
            kvb_advertiser_beat_sent(&action->rank->advertiser);
        }
        while (server->due_at) {
            rank = rank_of(server->due_at);
            server->due_at = server->due_at->then;
            if (kvb_advertiser_takes_beat(&rank->advertiser, server->now_ns)) {
                return ask_for_beat(server, rank, false);
            }
        }
        server->phase = KVB_TURN_REST;
        return false;

    case KVB_TURN_REST:
        rest(server);
        server->phase = KVB_TURN_OVER;
        return false;

    case KVB_TURN_GOODBYE:
        server->phase = KVB_TURN_OVER;
        return ask_for_beat(server, server->at, true);
    }
    return false;
}

void kvb_serve_begin(struct kvb_server *server, uint64_t now_ns)
{
    const bool was_paused = server->now_ns > 0 && now_ns - server->now_ns >= pause_ns;

    server->now_ns = now_ns;
    server->clock_ns = now_ns;
    server->at = was_paused ? server->first : NULL;
    server->phase = KVB_TURN_PAUSE;
}

void kvb_serve_begin_goodbye(struct kvb_server *server, struct kvb_served *rank)
{
    server->at = rank;
    server->phase = KVB_TURN_GOODBYE;
    (void)begin_list(server, rank, kvb_advertiser_last(&rank->advertiser));
}

struct kvb_action *kvb_serve_next(struct kvb_server *server)
{
    bool asks = false;

    if (is_answered(server, KVB_DO_OUTPUT)) {
        follow_output(server);
    }
    while (!asks && server->phase != KVB_TURN_OVER) {
        asks = server->run.phase != KVB_RUN_OVER ? go_on_run(server)
               : server->list != KVB_LIST_OVER   ? go_on_list(server)
                                                 : go_on_turn(server);
    }
    return asks ? &server->action : NULL;
}

void kvb_server_done(struct kvb_server *server)
{
    kvb_router_batch_done(&server->chunk);
}
