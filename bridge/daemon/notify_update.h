#pragma once

#include "model/liveness.h"

#include <stdbool.h>
#include <stdint.h>

/* Which notifications a daemon sends to its service manager, and when; see sd_notify(3):
 *
 *     READY=1      once, after the first turn of the working thread
 *     STATUS=...   with it, and when it changes, at most every 3 s
 *     WATCHDOG=1   twice in the time that the manager waits, but only when the working
 *                  thread made a turn since the last one, so that a working thread that
 *                  hangs is detected even while other threads still run
 *
 * Pure: time and liveness are arguments.  Threads: the caller locks. */

enum { kvb_notify_text_bytes = 192 };

struct kvb_notify_update {
    uint64_t watchdog_ns; /* from one WATCHDOG=1 to the next; 0: not expected */
    uint64_t watched_ns;  /* when it was sent last, and at which turn */
    uint64_t watched_turns;
    bool is_ready;
    uint64_t sent_ns; /* the last STATUS */
    struct kvb_liveness sent;
};

/* limit_us: after so long without WATCHDOG=1 the manager treats the daemon as hung; 0:
 * never. */
void kvb_notify_update_init(struct kvb_notify_update *update, uint64_t limit_us);

/* Writes what is to be sent now, one assignment a line; "" for nothing. */
void kvb_notify_update_send(
    struct kvb_notify_update *update, uint64_t now_ns, const struct kvb_liveness *liveness,
    char out_text[kvb_notify_text_bytes]);

/* The time until the next call: short enough not to delay READY=1 or WATCHDOG=1. */
uint64_t kvb_notify_update_pause_ns(const struct kvb_notify_update *update);
