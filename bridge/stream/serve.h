#pragma once

#include "stream/advertiser.h"
#include "stream/agenda.h"
#include "stream/connection.h"
#include "stream/stream.h"
#include "stream/turn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the one thread of a bridge serves all its streams: the order of what it does, and what
 * becomes of each message.  Sockets, NATS and clocks are behind a table of functions, so that
 * the daemon and the simulator run the same turn.
 *
 * A large batch is applied in slices, others' events in between.  Ticks and rounds are those of
 * stream/agenda.h, quarantine that of stream/turn.h; a socket's monitor reports its connections.
 *
 *     turn    sockets -> slices of unfinished batches -> time
 *     live    receive -> read the connection's monitor -> apply, or pass over when quarantined
 *     time    a new connection to NATS? -> tick -> round: replays start, then routers are sent
 *             what is due; while nothing may be published, all that was published counts as lost
 *
 * Pure: time is an argument, and nothing is done outside but by the caller's functions.
 * Threads: the caller locks. */

enum { kvb_serve_replies_a_turn = 256 };

/* One rank of one worker.  The caller's own struct of a rank begins with it. */
struct kvb_served {
    struct kvb_stream *stream; /* the caller opens and frees it, like the next and advertiser */
    struct kvb_stream_output output;
    struct kvb_connection connection;
    struct kvb_advertiser advertiser;
    struct kvb_turn turn;
    uint64_t live_runs;     /* so many times live batches were received */
    uint64_t replay_due_ns; /* its engine's name is being resolved: no replay before */
};

enum kvb_serve_reply {
    KVB_SERVE_NO_REPLY, /* none is there, or the time for them is up */
    KVB_SERVE_BATCH,    /* applied, by kvb_serve_step() */
    KVB_SERVE_END,
    KVB_SERVE_CUT,    /* END, and some before it were lost */
    KVB_SERVE_REFUSED /* it cannot be read: an END after it would prove nothing */
};

/* What is done outside. */
struct kvb_serve_world {
    /* ---- of one rank ---- */

    /* Live batches, kept by the caller until one of the next two is called. */
    size_t (*receive)(void *context, struct kvb_served *rank);
    void (*apply_received)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*pass_over_received)(void *context, struct kvb_served *rank);
    struct kvb_connection_update (*read_monitor)(void *context, struct kvb_served *rank);
    enum kvb_serve_reply (*take_reply)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*stop_replay)(void *context, struct kvb_served *rank);
    /* False: the engine's name is being resolved. */
    bool (*start_replay)(void *context, struct kvb_served *rank, uint64_t from, uint64_t now_ns);
    /* The output of a step. */
    void (*publish_step)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*connection_changed)(void *context, struct kvb_served *rank, bool is_up);
    /* Before the stream is quarantined or released. */
    void (*share_changed)(void *context, struct kvb_served *rank, enum kvb_turn_verdict verdict);

    /* ---- of all ranks ---- */

    size_t (*rank_count)(void *context);
    struct kvb_served *(*rank)(void *context, size_t number); /* NULL: not of this bridge */
    /* Calls kvb_serve_replies() and kvb_serve_live() of the ranks that have something to read. */
    void (*take_sockets)(void *context, uint64_t now_ns);
    /* KVB_INPUT_TICK for ranks whose output has_more, as many as there is time for; true: some
     * are left. */
    bool (*work_slices)(void *context, uint64_t now_ns);
    /* Time passes: calls kvb_serve_tick() of each rank, and does what else is due. */
    void (*tick)(void *context, uint64_t now_ns);
    uint64_t (*connects)(void *context); /* to NATS, so far */
    void (*connected)(void *context, uint64_t now_ns);
    bool (*may_publish)(void *context, uint64_t now_ns); /* called once a turn; may log a change */
    void (*publish_due)(void *context, uint64_t now_ns); /* announcements, heartbeats, loads */
};

/* All ranks of a bridge. */
struct kvb_server {
    const struct kvb_serve_world *world; /* borrowed, like context */
    void *context;
    struct kvb_agenda agenda;
    uint64_t wall_us;     /* set by the caller: where an epoch that begins now has its first id */
    uint64_t live_runs;   /* of all ranks */
    size_t max_replaying; /* at once, so far */
};

/* One input to one stream, and what follows from it. */
void kvb_serve_step(
    struct kvb_server *server, struct kvb_served *rank, struct kvb_stream_input *input);
void kvb_serve_kind(
    struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind,
    uint64_t now_ns);

/* Live batches are there, or the connection has changed. */
void kvb_serve_live(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* Replies of a replay are there. */
void kvb_serve_replies(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* Time passes for one rank; one that has slices left gets its ticks with them. */
void kvb_serve_tick(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* A rank that takes more than its share of the thread again and again waits longer and longer.
 * To be called several times a second, whenever suits the caller.  others, clock_ns: as
 * kvb_turn_classify() takes them; the simulator lets that clock run faster than now_ns. */
void kvb_serve_share(
    struct kvb_server *server, struct kvb_served *rank, uint64_t others, uint64_t clock_ns,
    uint64_t now_ns);

/* Published events of every rank may be lost; none is announced before not_before_ns. */
void kvb_serve_lose_events(struct kvb_server *server, uint64_t not_before_ns);

/* One turn; true: slices are left, so the next one comes at once. */
bool kvb_serve_turn(struct kvb_server *server, uint64_t now_ns);
