#pragma once

#include "model/pulse.h"

#include <stdbool.h>
#include <stdint.h>

/* What a daemon tells its service manager, and when, in the words of sd_notify(3):
 *
 *     READY=1      once, after the first turn of the working thread
 *     STATUS=...   with it, and when it changes, at most every 3 s
 *     WATCHDOG=1   every half of the time that the manager waits, but only when the
 *                  working thread made a turn since the last one: one that hangs
 *                  falls silent, whatever the other threads still do
 *
 * Pure: time and pulse are arguments.  Threads: the caller locks. */

enum { kvb_notify_text_bytes = 192 };

struct kvb_notify_news {
    uint64_t watchdog_ns; /* from one WATCHDOG=1 to the next; 0: nobody waits for it */
    uint64_t watched_ns;  /* when it was said last, and at which turn */
    uint64_t watched_turns;
    bool is_ready;
    uint64_t told_ns; /* the last STATUS */
    struct kvb_pulse told;
};

/* limit_us: after so long without WATCHDOG=1 the manager gives the daemon up; 0:
 * never. */
void kvb_notify_news_init(struct kvb_notify_news *news, uint64_t limit_us);

/* Writes what is to be said now, one assignment a line; "" for nothing. */
void kvb_notify_news_tell(
    struct kvb_notify_news *news, uint64_t now_ns, const struct kvb_pulse *pulse,
    char out_text[kvb_notify_text_bytes]);

/* Until the next look: short enough to miss neither the start nor a beat. */
uint64_t kvb_notify_news_pause_ns(const struct kvb_notify_news *news);
