#pragma once

#include "stream/advertiser.h"
#include "stream/coalesce.h"
#include "stream/stream.h"
#include "stream/turn.h"
#include "stream/visits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The event loop of a bridge, whose one thread serves all streams: the order of its work, and what
 * it does with each message.  Sockets, NATS and clocks are behind a table of functions, so that the
 * daemon and the simulator run the same code.
 *
 * A large batch is applied in slices, and other ranks are served in between.  The monitor of a
 * socket reports when its connection was made or lost.  A rank in quarantine (stream/turn.h)
 * is served as if its connection was lost.
 *
 *     turn    pause? -> sockets -> slices of unfinished batches -> time
 *     pause   a turn begins a second or more after the one before, because this process did not run
 *             (SIGSTOP, a paused container): no heartbeat may call a list EXACT before the engine
 *             was asked what it has published since
 *     live    receive -> read the connection's monitor -> apply, or discard when quarantined
 *     time    a new connection to NATS? -> round: visit the ranks that are due: tick, start
 *             replays, publish; while nothing may be published, all published events count as lost
 *     rest    a rank is due again with its next heartbeat, probe or change, at most a second later;
 *             until then it costs nothing
 *
 * Pure: time is an argument, and all I/O is in the caller's functions.
 * Threads: the caller locks. */

/* ---- Connections ---- */

/* The connection to one engine, as its stream knows it.
 *
 *     state    up                 lost, or not up
 *     -----    ----------------   -----------------
 *     NEW      UP: KVB_INPUT_UP   -
 *     UP       -                  AWAY: KVB_INPUT_DOWN
 *     AWAY     UP: KVB_INPUT_UP   -
 *
 * A connection may be lost and made again before the monitor is read.  It then becomes AWAY first
 * and UP after that, because another process may listen there now.
 *
 * The monitor is read after a run of batches was received and before they are applied, because it
 * may show that they came from another process.
 */
enum kvb_connection_state {
    KVB_CONNECTION_NEW,
    KVB_CONNECTION_UP,
    KVB_CONNECTION_AWAY /* not connected, and readers may have its list from before */
};

struct kvb_connection {
    enum kvb_connection_state state;
    uint64_t away_ns; /* since when the state is AWAY */
};

/* What the monitor has reported since it was read last. */
struct kvb_connection_update {
    bool was_lost;
    bool is_up;
};

/* Returns the next input for the stream; false: there is none left.  Call it with the same *update
 * until it returns false: each call removes from it what it has returned. */
bool kvb_connection_next(
    struct kvb_connection *connection, struct kvb_connection_update *update, uint64_t now_ns,
    enum kvb_stream_input_kind *out_input);

/* The stream was restored from a checkpoint: its connection begins as AWAY. */
void kvb_connection_restored(struct kvb_connection *connection, uint64_t now_ns);

static inline bool kvb_connection_is_up(const struct kvb_connection *connection)
{
    return connection->state == KVB_CONNECTION_UP;
}

/* Since when the engine has been unreachable; 0: it is connected, or never was. */
static inline uint64_t kvb_connection_away_ns(const struct kvb_connection *connection)
{
    return connection->state == KVB_CONNECTION_AWAY ? connection->away_ns : 0;
}

/* ---- What is due ---- */

/* Decides which work is due in an iteration of the thread, and what a new connection to NATS means
 * for events already published.
 *
 *     tick    every 50 ms: the caller's own periodic work; each rank has ticks of its own
 *     round   every 5 ms, or at once when a stream has changed: time passes for the streams that
 *             are due, replays are requested, streams are announced, heartbeats are sent
 */
struct kvb_agenda {
    uint64_t connects_seen;
    uint64_t next_tick_ns;
    uint64_t next_round_ns;
    bool is_round_wanted; /* a stream has changed, was added or was removed */
};

/* Notes the output of a stream's step. */
void kvb_agenda_note_step(
    struct kvb_agenda *agenda, enum kvb_stream_input_kind kind,
    const struct kvb_stream_output *output);

bool kvb_agenda_takes_tick(struct kvb_agenda *agenda, uint64_t now_ns);
bool kvb_agenda_takes_round(struct kvb_agenda *agenda, uint64_t now_ns);

/* connects: how many connections to NATS were made so far.  True: there is a new connection, and
 * events published before it may be lost.  Nothing is announced before *out_announce_ns, when
 * readers are connected again. */
bool kvb_agenda_takes_connection(
    struct kvb_agenda *agenda, uint64_t connects, uint64_t now_ns, uint64_t *out_announce_ns);

/* ---- Ranks ---- */

enum { kvb_serve_replies_a_turn = 256 };

/* One rank of one worker.  The caller's own struct of a rank has it as first member. */
struct kvb_served {
    /* The caller opens and frees stream, output and advertiser. */
    struct kvb_stream *stream;
    struct kvb_stream_output output;
    struct kvb_connection connection;
    struct kvb_advertiser advertiser;
    struct kvb_turn turn;
    uint64_t live_runs;     /* times that live batches were received */
    uint64_t live_window;   /* for kvb_coalescing_note() */
    uint64_t replay_due_ns; /* no replay before: the engine's host name is being resolved */
    struct kvb_visit visit;
    uint64_t tick_ns; /* no tick before */
    bool is_woken;    /* and has not been ticked since */
};

enum kvb_serve_reply {
    KVB_SERVE_NO_REPLY, /* no reply has arrived, or the time for replies is over */
    KVB_SERVE_BATCH,    /* a batch; already applied with kvb_serve_step() */
    KVB_SERVE_END,      /* the replay is complete */
    KVB_SERVE_CUT,      /* the replay is over, and some batches before its end were lost */
    KVB_SERVE_REFUSED   /* malformed; a later END would not prove that nothing is missing */
};

/* The caller's functions. */
struct kvb_serve_world {
    /* ---- for one rank ---- */

    /* Receives live batches and keeps them until one of the next two functions is called; returns
     * how many. */
    size_t (*receive)(void *context, struct kvb_served *rank);
    void (*apply_received)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*pass_over_received)(void *context, struct kvb_served *rank);
    struct kvb_connection_update (*read_monitor)(void *context, struct kvb_served *rank);
    enum kvb_serve_reply (*take_reply)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*stop_replay)(void *context, struct kvb_served *rank);
    /* False: the engine's host name is being resolved. */
    bool (*start_replay)(void *context, struct kvb_served *rank, uint64_t from, uint64_t now_ns);
    /* Publishes the output of a step. */
    void (*publish_step)(void *context, struct kvb_served *rank);
    void (*connection_changed)(void *context, struct kvb_served *rank, bool is_up);
    /* Called before the stream is quarantined or released. */
    void (*share_changed)(void *context, struct kvb_served *rank, enum kvb_turn_verdict verdict);
    /* Calls kvb_serve_tick(), and does the caller's other periodic work on the rank. */
    void (*tick_rank)(void *context, struct kvb_served *rank, uint64_t now_ns);
    /* Does what kvb_advertiser_next() says.  False: the time for that is over in this round, which
     * began at now_ns. */
    bool (*advertise)(void *context, struct kvb_served *rank, uint64_t now_ns);
    void (*beat)(void *context, struct kvb_served *rank); /* sends a heartbeat */

    /* ---- for all ranks ---- */

    size_t (*rank_count)(void *context);
    struct kvb_served *(*rank)(void *context, size_t number); /* NULL: there is none */
    /* Calls kvb_serve_replies() and kvb_serve_live() for the ranks that have something to read. */
    void (*take_sockets)(void *context, uint64_t now_ns);
    /* Calls kvb_serve_kind(KVB_INPUT_TICK) for ranks with output.has_more until its time is over.
     * True: some ranks still have more. */
    bool (*work_slices)(void *context, uint64_t now_ns);
    void (*tick)(void *context, uint64_t now_ns); /* the caller's periodic work, every 50 ms */
    uint64_t (*connects)(void *context);          /* connections made to NATS so far */
    void (*connected)(void *context, uint64_t now_ns);
    bool (*may_publish)(void *context, uint64_t now_ns); /* called once a turn; may log a change */
    /* Called in a round before the ranks that are due are advertised. */
    void (*publish_due)(void *context, uint64_t now_ns);
};

/* All ranks of a bridge. */
struct kvb_server {
    const struct kvb_serve_world *world; /* borrowed; context too */
    void *context;
    struct kvb_agenda agenda;
    struct kvb_visits visits;
    struct kvb_coalescing coalescing;
    bool is_mute;         /* nothing may be published */
    uint64_t wall_us;     /* set by the caller; gives a new epoch its first event id */
    uint64_t live_runs;   /* of all ranks */
    size_t max_replaying; /* most replays at once, so far */
    uint64_t turned_ns;   /* when the newest turn began; 0: there was none */
};

/* Visits the rank in the next round.  Call it for a new rank, and after each change to its stream,
 * its advertiser or what is published of it that is not a step.  A change without this call is
 * noticed a second later. */
void kvb_serve_wake(struct kvb_server *server, struct kvb_served *rank);

/* Call it before the rank is freed. */
void kvb_serve_drop(struct kvb_served *rank);

/* Gives one input to one stream, and publishes the output. */
void kvb_serve_step(
    struct kvb_server *server, struct kvb_served *rank, struct kvb_stream_input *input);
void kvb_serve_kind(
    struct kvb_server *server, struct kvb_served *rank, enum kvb_stream_input_kind kind,
    uint64_t now_ns);

/* Call it when live batches have arrived or the connection has changed. */
void kvb_serve_live(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* Call it when replies of a replay have arrived. */
void kvb_serve_replies(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* The periodic tick of one rank; a rank with slices left gets ticks from work_slices() instead. */
void kvb_serve_tick(struct kvb_server *server, struct kvb_served *rank, uint64_t now_ns);

/* Quarantines a rank that takes more than its share of the thread's time; each quarantine is longer
 * than the last.  Call it once a second or more often.  others, clock_ns: see kvb_turn_classify();
 * in the simulator that clock runs faster than now_ns. */
void kvb_serve_share(
    struct kvb_server *server, struct kvb_served *rank, uint64_t others, uint64_t clock_ns,
    uint64_t now_ns);

/* Takes one turn.  True: slices are left, so the caller takes the next turn at once. */
bool kvb_serve_turn(struct kvb_server *server, uint64_t now_ns);
