#pragma once

#include "model/load.h"

#include <stdbool.h>
#include <stdint.h>

/* The load of one rank, out of several sources that each know a part of it:
 *
 *     coordinator, every 100 ms   active waiting       usage
 *     /metrics, every second      active waiting total usage hit rate
 *                                 -----------------------------------
 *     the newest of each            ^ figures older than their life count no more
 *
 * Where the newest thing said of the blocks in use is their share, their number follows
 * from it.
 *
 * Threads: the caller locks.  Memory: none of its own; {0} to begin with. */
struct kvb_newest_load {
    struct kvb_load load;
    struct kvb_heard {
        uint64_t at_ns;    /* 0: never */
        uint64_t until_ns; /* not later than that */
        uint32_t source;
    } heard[KVB_FIGURE_COUNT];
};

/* What the operator knows better than a silent engine; 0: not known. */
struct kvb_load_fallback {
    uint64_t total_slots;
    uint64_t total_blocks;
};

/* Keeps the figures of the sample that are not older than those known.  life_ns: how
 * long they hold.  source: any number, for kvb_newest_load_forget(). */
void kvb_newest_load_take(
    struct kvb_newest_load *newest, const struct kvb_load_sample *sample, uint32_t source,
    uint64_t now_ns, uint64_t life_ns);

/* Forgets what the source said; what it replaced does not come back. */
void kvb_newest_load_forget(struct kvb_newest_load *newest, uint32_t source);

/* Was any figure ever told, and not forgotten? */
bool kvb_newest_load_was_heard(const struct kvb_newest_load *newest);

/* The load at this time; figures that nobody tells are 0, or the fallback.  False: nobody
 * tells any, and nothing is written. */
bool kvb_newest_load_at(
    const struct kvb_newest_load *newest, const struct kvb_load_fallback *fallback, uint64_t now_ns,
    struct kvb_load *out_load);
