#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Detects a server that does not answer.  A pure state machine on the monotonic clock.
 *
 * The pings of nats.c use the realtime clock: when it is set back by an hour, nats.c sends no PING
 * for an hour.  So the pings of nats.c are switched off, and this machine decides:
 *
 *                1 s since the last PING             PONG
 *     resting --------------------------> waiting ---------> resting
 *                                            |
 *                                            | 2 s without a PONG
 *                                            v
 *                                          close
 *
 * A gap of more than 1 s between calls of kvb_bus_watch_look() does not count: the process or its
 * machine was suspended, and the PONG may be in the socket unread.
 *
 * Threads: the caller locks.  Times are of the monotonic clock, in ns. */
struct kvb_bus_watch {
    uint64_t looked_ns;
    uint64_t pinged_ns; /* the newest PING; while resting, the one that was answered */
    bool is_waiting;
};

enum kvb_bus_watch_step { KVB_BUS_WATCH_REST, KVB_BUS_WATCH_PING, KVB_BUS_WATCH_CLOSE };

enum { kvb_bus_ping_ms = 1000, kvb_bus_patience_ms = 2000, kvb_bus_look_ms = 500 };

/* Begins with a new connection, whose server has just answered. */
void kvb_bus_watch_begin(struct kvb_bus_watch *watch, uint64_t now_ns);

/* pinged(): a PING was sent.  A second one before the PONG changes nothing.
 * answered(): the PONG has arrived. */
void kvb_bus_watch_pinged(struct kvb_bus_watch *watch, uint64_t now_ns);
void kvb_bus_watch_answered(struct kvb_bus_watch *watch);

/* Returns what to do now. */
enum kvb_bus_watch_step kvb_bus_watch_look(struct kvb_bus_watch *watch, uint64_t now_ns);

/* When to look next: when there will be something to do, and often enough to notice a gap. */
uint64_t kvb_bus_watch_due_ns(const struct kvb_bus_watch *watch);
