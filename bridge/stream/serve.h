#pragma once

#include "stream/advertiser.h"
#include "stream/coalesce.h"
#include "stream/replay_turns.h"
#include "stream/share.h"
#include "stream/stream.h"
#include "stream/visits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One turn of a bridge's thread, which serves all streams: what is done, in which order, and what
 * follows from it.  kvb_serve_next() says what to do next; the program does it, writes what came of
 * it into the same action, and asks again.  So sockets, NATS and clocks are the program's alone,
 * and the daemon and the simulator keep one order.
 *
 *     kvb_serve_begin(&server, now_ns);
 *     while ((action = kvb_serve_next(&server)) != NULL) {
 *         switch (action->kind) ...
 *     }
 *
 * The order; in brackets what is not done in each turn, in braces what is done for several ranks,
 * batches or chunks:
 *
 *     turn    [{ a pause }]  { NEXT_SOCKET run }  { slice: run }  ASK_NATS [NOTE_NATS]
 *             [WORK]  [round]
 *     round   { TEND_LINK run }  { START_REPLAY }  PUBLISH_LOADS  { list }  { BEAT }
 *     run     BEGIN_RUN  [NOTE_SHARE]  [{ NEXT_REPLY [STOP_REPLAY] }]
 *             [RECEIVE]  [READ_MONITOR { NOTE_LINK }]  [{ NEXT_BATCH } or PASS_OVER]  END_RUN
 *     list    ANNOUNCE  { CHUNK }
 *
 * OUTPUT follows each step of a stream, wherever the step is taken.
 *
 *     pause   a turn begins a second or more after the one before, because this process did not run
 *             (SIGSTOP, a paused container): no heartbeat may call a list EXACT before the engine
 *             was asked what it has published since
 *     run     work on one rank, whose events are published at its end.  The monitor says that the
 *             connection was made or lost.  It is read after the batches were received and before
 *             they are applied, because it may show that they came from another process
 *     slice   a part of a large batch; other ranks are served between two of them
 *     round   every 5 ms, or at once when a stream has changed: for the ranks that are due.  While
 *             nothing may be published, all published events count as lost, and a round ends with
 *             the replays
 *     rest    a rank is due again with its next heartbeat, probe or change, at most a second later;
 *             until then it costs nothing
 *
 * A rank in quarantine (stream/share.h) is served as if its connection was lost.
 *
 * Pure: no I/O, no clock; time is what the program says.
 * Threads: the caller locks. */

/* ---- Ranks ---- */

enum { kvb_serve_replies_a_turn = 256 };

struct kvb_server;

/* One rank of one worker.  The caller's own struct of a rank has it as first member. */
struct kvb_served {
    struct kvb_stream *stream;        /* the caller opens and frees it */
    struct kvb_stream_output output;  /* of its newest step; the caller frees it */
    struct kvb_advertiser advertiser; /* the caller opens it */
    struct kvb_share share;
    uint64_t live_runs;     /* times that live batches were received */
    uint64_t live_window;   /* for kvb_coalescing_note() */
    uint64_t replay_due_ns; /* no replay before: the engine's host name is being resolved */
    uint64_t tick_ns;       /* no tick before */
    bool is_woken;          /* and has not been ticked since */
    struct kvb_visit visit;

    struct kvb_server *server;        /* borrowed; NULL: not added */
    struct kvb_served *next, *before; /* of all ranks of the server; borrowed */
    struct kvb_served *next_in_chain; /* in kvb_server.by_worker; borrowed */
    bool is_in_line;                 /* has slices left: it is in the server's line of such ranks */
    struct kvb_served *next_in_line; /* borrowed */
};

/* ---- Actions ---- */

enum kvb_action_kind {
    KVB_DO_NOTHING, /* never returned */

    /* ---- sockets ---- */
    /* Which rank has something to read?  Answer: rank (NULL: none any more), has_replies,
     * has_live. */
    KVB_DO_NEXT_SOCKET,

    /* ---- a run ---- */
    KVB_DO_BEGIN_RUN, /* read the clocks into the server: clock_ns, wall_us */
    /* The rank is quarantined, or released: share. */
    KVB_DO_NOTE_SHARE,
    /* The next reply of its replay.  Answer: reply, and the input of a batch. */
    KVB_DO_NEXT_REPLY,
    KVB_DO_STOP_REPLAY,  /* close its socket */
    KVB_DO_RECEIVE,      /* live batches, and keep them for the run.  Answer: count */
    KVB_DO_READ_MONITOR, /* Answer: link */
    /* The connection is_up, or not: its stream takes that as its next input. */
    KVB_DO_NOTE_LINK,
    KVB_DO_NEXT_BATCH, /* of those received.  Answer: has_batch, and its input */
    KVB_DO_PASS_OVER,  /* those received are not applied: a replay repeats them */
    /* Carry out what a step has made: stops_replay; events, if not NULL, are to be published.
     * Answer: status. */
    KVB_DO_OUTPUT,
    /* Hand over to NATS what was published, and read the clock into clock_ns.  Answer: status, and
     * took_ns, the time that the rank was served. */
    KVB_DO_END_RUN,

    /* ---- time ---- */
    KVB_DO_ASK_NATS, /* Answer: is_connected, and how many connections were made: connects */
    /* It is_connected, or not any more; is_new_connection: it was made since the last turn. */
    KVB_DO_NOTE_NATS,
    KVB_DO_WORK,      /* the program's own periodic work, every 50 ms */
    KVB_DO_TEND_LINK, /* renew the rank's connection if it is given up; a tick follows */
    /* Request a replay of the rank's engine: from.  Answer: is_unresolved. */
    KVB_DO_START_REPLAY,
    KVB_DO_PUBLISH_LOADS, /* if they are due */
    /* The whole list is published: list says as what.  Read the clock into wall_us. */
    KVB_DO_ANNOUNCE,
    /* Publish events, a part of that list, and hand them over; read the clock into clock_ns.
     * Answer: status. */
    KVB_DO_CHUNK,
    KVB_DO_BEAT /* send a heartbeat; is_bye: the last one.  Answer: status */
};

enum kvb_serve_reply {
    KVB_SERVE_NO_REPLY, /* no reply has arrived, or the time for replies is over */
    KVB_SERVE_BATCH,
    KVB_SERVE_END,    /* the replay is complete */
    KVB_SERVE_CUT,    /* the replay is over, and some batches before its end were lost */
    KVB_SERVE_REFUSED /* malformed; a later END would not prove that nothing is missing */
};

/* What is to be done, and what came of it.  A kind uses the fields that it names. */
struct kvb_action {
    enum kvb_action_kind kind;
    struct kvb_served *rank; /* borrowed */

    /* ---- what is to be done ---- */
    bool stops_replay;
    const struct kvb_router_batch *events; /* borrowed until the next action */
    enum kvb_share_verdict share;
    bool is_up;
    bool is_new_connection;
    bool is_bye;
    enum kvb_advertiser_action list;
    uint64_t from;

    /* ---- what came of it ---- */
    bool has_replies, has_live;
    enum kvb_serve_reply reply;
    size_t count;
    struct kvb_link_report link;
    bool has_batch;
    /* Of a batch: seq, fingerprint, batch; the batch is borrowed until the next action. */
    struct kvb_stream_input input;
    kvb_status status; /* not KVB_OK: it may not have been published */
    uint64_t took_ns;
    bool is_connected;
    uint64_t connects;
    bool is_unresolved; /* the engine's host name is being looked up: later */
};

/* ---- All ranks ---- */

/* Where a turn is: the picture above, from left to right. */
enum kvb_serve_phase {
    KVB_TURN_OVER,
    KVB_TURN_PAUSE,
    KVB_TURN_SOCKETS,
    KVB_TURN_SLICES,
    KVB_TURN_NATS,
    KVB_TURN_WORK,
    KVB_TURN_ROUND,
    KVB_TURN_TICKS,
    KVB_TURN_REPLAYS,
    KVB_TURN_LOADS,
    KVB_TURN_LISTS,
    KVB_TURN_BEATS,
    KVB_TURN_REST,
    KVB_TURN_GOODBYE /* a turn for one rank: its last list and its last heartbeat */
};

/* Where a run is. */
enum kvb_run_phase {
    KVB_RUN_OVER,
    KVB_RUN_BEGIN,
    KVB_RUN_SHARE,
    KVB_RUN_REPLIES,
    KVB_RUN_RECEIVE,
    KVB_RUN_MONITOR,
    KVB_RUN_LINK,
    KVB_RUN_BATCHES,
    KVB_RUN_TICK,
    KVB_RUN_HAND_OVER,
    KVB_RUN_END
};

/* What a run is for. */
enum kvb_run_kind { KVB_RUN_OF_SOCKET, KVB_RUN_OF_SLICE, KVB_RUN_OF_TICK };

struct kvb_run {
    enum kvb_run_phase phase;
    enum kvb_run_kind kind;
    struct kvb_served *rank;    /* borrowed */
    bool has_replies, has_live; /* to read */
    unsigned replies;           /* taken so far */
    bool reads_monitor;
    struct kvb_link_report link;
};

enum kvb_list_phase { KVB_LIST_OVER, KVB_LIST_BEGIN, KVB_LIST_CHUNKS };

enum { kvb_server_chains = 1024 };

struct kvb_server {
    /* Set by the program: the clocks, as it read them last. */
    uint64_t clock_ns;
    uint64_t wall_us; /* gives a new epoch its first event id */
    /* How many times faster the clock of quarantines runs; 0: as the other. */
    unsigned share_speed;

    uint64_t live_runs;   /* of all ranks */
    size_t max_replaying; /* most replays at once, so far */
    bool is_mute;         /* nothing may be published */
    bool has_slices;      /* after a turn: slices are left, so take the next turn at once */
    struct kvb_coalescing coalescing;

    /* The rest is the turn's own. */
    struct kvb_action action;
    enum kvb_serve_phase phase;
    struct kvb_run run;
    enum kvb_list_phase list;
    struct kvb_served *list_of;    /* borrowed */
    struct kvb_router_batch chunk; /* owned: the newest of that list */
    bool has_listed;               /* a list was published in this turn */
    uint64_t now_ns;               /* when the turn began; 0: there was none */
    uint64_t slices_until_ns;      /* no slice begins after this time */
    struct kvb_served *at;         /* the rank that is next; borrowed */
    struct kvb_visit *due;         /* those of the round; borrowed */
    struct kvb_visit *due_at;      /* the one that is next; borrowed */
    struct kvb_visit *due_left;    /* the first whose list was not looked at yet; borrowed */
    struct kvb_replay_turns replays;
    uint64_t connects_seen;
    uint64_t next_work_ns;
    uint64_t next_round_ns;
    bool is_round_wanted; /* a stream has changed, was added or was removed */

    struct kvb_visits visits;
    struct kvb_served *first, *last;                 /* all ranks; borrowed */
    struct kvb_served *by_worker[kvb_server_chains]; /* the same by a hash of their worker's id */
    struct kvb_served *first_in_line, *last_in_line; /* those with slices left; borrowed */
};

/* Serves the rank from now on, beginning with the next round.  The server must not be moved
 * afterwards. */
void kvb_serve_add(struct kvb_server *server, struct kvb_served *rank);

/* Call it before the rank is freed, and between two turns.  A rank that was never added is fine. */
void kvb_serve_drop(struct kvb_served *rank);

/* Visits the rank in the next round.  Call it after each change to its stream, its advertiser or
 * what is published of it that is not a step.  A change without this call is noticed a second
 * later. */
void kvb_serve_wake(struct kvb_served *rank);

/* The stream was restored from a checkpoint.  needs_epoch: it needs a new epoch. */
void kvb_serve_restored(struct kvb_served *rank, bool needs_epoch, uint64_t now_ns);

/* Events were published outside of a turn, and may have been lost. */
void kvb_serve_lost(struct kvb_served *rank);

/* Begins a turn at now_ns, which is not before the turn before it. */
void kvb_serve_begin(struct kvb_server *server, uint64_t now_ns);

/* Begins a turn that publishes the end of one rank, because it leaves or the bridge stops. */
void kvb_serve_begin_goodbye(struct kvb_server *server, struct kvb_served *rank);

/* The next action, to be carried out and answered; NULL: the turn is over.  Borrowed until the next
 * call. */
struct kvb_action *kvb_serve_next(struct kvb_server *server);

/* {0} is a server without ranks.  Ranks are dropped before. */
void kvb_server_done(struct kvb_server *server);
