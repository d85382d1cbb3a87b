#pragma once

#include "replica/follower.h"

#include <stdbool.h>
#include <stdint.h>

/* One turn of the event loop that owns the index: the order of its work, whether NATS works, and
 * how long messages wait.  It does nothing itself: it says which action is next, and the caller
 * carries that out.  The daemon and the simulator carry out the same actions.
 *
 *     while (kvb_replica_next(&turn, &facts, &action)) {
 *         switch (action.kind) { ... }        and after it: what of the facts has changed
 *     }
 *
 *     facts -> is NATS there?  -> SEND_ECHO, when one is due
 *                              -> APPLY_MESSAGES, for a while
 *     facts -> lag, pauses     -> ANSWER_QUERIES, unless they have to wait
 *                              -> SEND_REQUEST to a bridge, as many as are due
 *           -> time            -> TICK, every 100 ms
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
 * Pure.  Threads: the caller locks. */

/* What the caller knows.  It reads all of it before a turn, and again what APPLY_MESSAGES has
 * changed: the time, the lag, the echo that is applied. */
struct kvb_replica_facts {
    uint64_t now_ns;
    bool is_connected;      /* to NATS */
    uint64_t connects;      /* connections made so far */
    uint64_t echo_returned; /* the newest that has; 0: none */
    uint64_t echo_applied;  /* the newest that has, and all messages before it are applied */
    uint64_t lag_ns;        /* for how long the oldest message has waited here */
    uint64_t dropped;       /* messages that nats.c has dropped so far; only read for a TICK */
};

enum kvb_replica_action_kind {
    KVB_REPLICA_SEND_ECHO,      /* with `number`; when it is sent: kvb_replica_echo_sent() */
    KVB_REPLICA_APPLY_MESSAGES, /* at least one, if any waits, and others until until_ns */
    KVB_REPLICA_ANSWER_QUERIES,
    KVB_REPLICA_SEND_REQUEST, /* one that cannot be sent is as one that gets no answer */
    KVB_REPLICA_TICK          /* the caller's own work that time brings */
};

struct kvb_replica_action {
    enum kvb_replica_action_kind kind;
    uint64_t number;
    uint64_t until_ns;
    struct kvb_follower_request request;
};

/* Where the turn goes on. */
enum kvb_replica_step {
    KVB_REPLICA_BEGIN,
    KVB_REPLICA_MESSAGES,
    KVB_REPLICA_QUERIES,
    KVB_REPLICA_REQUESTS,
    KVB_REPLICA_TIME,
    KVB_REPLICA_END
};

struct kvb_replica_turn {
    struct kvb_followers *followers; /* borrowed; all else is 0 at first */
    enum kvb_replica_step step;
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
    uint64_t looked_ns;   /* when a turn last knew the time; 0: there was none */
    uint64_t behind_echo; /* after a pause: the lists lag until this echo is applied; 0: no */
    uint64_t behind_ns;   /* since then */
};

/* Longest time spent on messages before queries are answered. */
enum { kvb_replica_messages_a_turn_us = 200 };

/* The next action of this turn.  False: the turn is over.  If neither messages nor queries were
 * there, the caller may then wait for an event, at most until next_tick_ns. */
bool kvb_replica_next(
    struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts,
    struct kvb_replica_action *out_action);

/* The echo of a SEND_ECHO was sent.  Without this call another one follows in half a second. */
void kvb_replica_echo_sent(
    struct kvb_replica_turn *turn, uint64_t number, const struct kvb_replica_facts *facts);

/* True: apart from messages and queries, a turn now would find nothing new, so a query may be
 * answered between two turns, if no message waits.  False in particular when the thread has not
 * taken its turns in time, because then a loss of NATS may not have been noticed.  Of the facts:
 * time, connection and the echo that has returned. */
bool kvb_replica_turn_is_current(
    const struct kvb_replica_turn *turn, const struct kvb_replica_facts *facts);
