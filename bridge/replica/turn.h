#pragma once

#include "replica/follower.h"

#include <stdbool.h>
#include <stdint.h>

/* One iteration of the event loop that owns the index: the order of its work, whether NATS works,
 * and how long messages wait.  NATS, rings and clocks are behind a table of functions, so that the
 * daemon and the simulator run the same code.
 *
 *     NATS works? -> messages, for a while -> lag -> queries -> requests to bridges -> tick
 *
 * NATS works when it is connected and delivers what this process publishes: an echo is sent twice a
 * second.  One that does not return within 1.5 s (half of the silence after which a stream is DOWN)
 * means that NATS is at fault, not the bridges, whose heartbeats are missing in both cases.  A
 * connection that was replaced between two turns counts as lost and made again, because messages
 * published meanwhile are missing.
 *
 * Lag is the time that the oldest message has waited.  From 1 s on all lists are STALE(lagging),
 * until it is below 0.25 s.
 *
 * A message counts from when this process has read it.  A process that did not run for a while
 * (SIGSTOP, a paused container) has read nothing meanwhile: its first turn finds no message,
 * although some have waited for as long in the connection.  So after a pause of 1 s all lists are
 * STALE(lagging) until all that came before an echo of the first turn is applied.  Queries wait for
 * that too, at most 0.5 s, because not every kind of answer can say STALE:
 *
 *     events     a b c | d e     f
 *     here       a b c | pause | echo sent ... d e f are applied, then the echo
 *     lists      EXACT           STALE(lagging)                         EXACT
 *     queries    answered        wait                                   answered
 *
 * Pure: all I/O is in the caller's functions.  Threads: the caller locks. */

/* The caller's functions. */
struct kvb_replica_world {
    uint64_t (*clock_ns)(void *context);
    bool (*is_connected)(void *context); /* connected to NATS */
    uint64_t (*connects)(void *context); /* connections made so far */
    /* number identifies it; numbers grow by 1.  False: it was not sent. */
    bool (*send_echo)(void *context, uint64_t number);
    uint64_t (*echoes)(void *context);       /* the newest that has returned; 0: none */
    uint64_t (*applied_echo)(void *context); /* the newest that has, and all messages before it are
                                                applied */
    uint64_t (*dropped)(void *context);      /* messages dropped before take_message(), so far */
    /* Applies the next message, or a part of it; false: there is none. */
    bool (*take_message)(void *context, uint64_t now_ns);
    uint64_t (*lag_ns)(void *context, uint64_t now_ns);
    bool (*answer_queries)(void *context); /* true: there were some */
    void (*send_request)(void *context, const struct kvb_follower_request *request);
    void (*tick)(void *context, uint64_t now_ns); /* called after kvb_followers_tick() */
};

struct kvb_replica_turn {
    const struct kvb_replica_world *world; /* borrowed; the next two too */
    void *context;
    struct kvb_followers *followers;
    bool was_connected; /* in the last turn NATS was connected and returned echoes in time */
    bool is_lagging;
    uint64_t connects_seen;
    uint64_t dropped_seen;
    uint64_t echo_number;  /* of the newest echo sent */
    uint64_t echo_awaited; /* the oldest that has not returned; or the newest, when all have */
    uint64_t echo_sent_ns; /* when that one was sent */
    uint64_t next_echo_ns;
    uint64_t echo_silences; /* times that NATS was connected but did not return echoes, so far */
    uint64_t next_tick_ns;
    uint64_t looked_ns;   /* when a turn last read the clock; 0: there was none */
    uint64_t behind_echo; /* after a pause: the lists lag until this echo is applied; 0: no */
    uint64_t behind_ns;   /* since then */
};

/* Longest time spent on messages before queries are answered. */
enum { kvb_replica_messages_a_turn_us = 200 };

/* True: there was work, so the caller takes the next turn at once.  False: it may wait for an
 * event, at most until next_tick_ns.  *out_now_ns: the time after the messages were applied. */
bool kvb_replica_take_turn(struct kvb_replica_turn *turn, uint64_t *out_now_ns);

/* True: apart from messages and queries, a turn now would find nothing new, so a query may be
 * answered between two turns, if no message waits.  False in particular when the thread has not
 * taken its turns in time, because then a loss of NATS may not have been noticed. */
bool kvb_replica_turn_is_current(const struct kvb_replica_turn *turn, uint64_t now_ns);

/* A part of kvb_replica_take_turn(): measures the lag, and sets or ends STALE(lagging) of all
 * lists. */
void kvb_replica_watch_lag(struct kvb_replica_turn *turn, uint64_t now_ns);
