#pragma once

#include "model/load.h"

#include <stdbool.h>
#include <stdint.h>

/* The load of one rank, merged from several sources that each know a part of it:
 *
 *     coordinator, every 100 ms   active waiting       usage
 *     /metrics, every second      active waiting total usage hit rate
 *                                 -----------------------------------
 *     the newest of each            figures expire life_ns after they arrived
 *
 * If the newest figure about blocks in use is a share (usage), the number of blocks is computed
 * from it.
 *
 * Threads: the caller locks.  Memory: none of its own; {0} to begin with. */
struct kvb_newest_load {
    struct kvb_load load;
    struct kvb_received {
        uint64_t at_ns;    /* 0: never */
        uint64_t until_ns; /* when the figure expires */
        uint32_t source;
    } received[KVB_FIGURE_COUNT];
};

/* Configured values for what the engine does not report; 0: not known. */
struct kvb_load_fallback {
    uint64_t total_slots;
    uint64_t total_blocks;
};

/* Keeps the figures of the sample that are not older than the known ones.  They expire after
 * life_ns.  source: any number that identifies the source for kvb_newest_load_forget(). */
void kvb_newest_load_take(
    struct kvb_newest_load *newest, const struct kvb_load_sample *sample, uint32_t source,
    uint64_t now_ns, uint64_t life_ns);

/* Removes the figures of the source; figures that they had replaced do not come back. */
void kvb_newest_load_forget(struct kvb_newest_load *newest, uint32_t source);

/* True when any figure was received and not removed since, expired or not. */
bool kvb_newest_load_was_received(const struct kvb_newest_load *newest);

/* The load at this time; a figure that no source provides is 0, or the fallback.  False: no
 * source provides any, and nothing is written. */
bool kvb_newest_load_at(
    const struct kvb_newest_load *newest, const struct kvb_load_fallback *fallback, uint64_t now_ns,
    struct kvb_load *out_load);
