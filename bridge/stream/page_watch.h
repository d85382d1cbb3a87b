#pragma once

#include "model/load.h"
#include "stream/stream.h"

#include <stdint.h>

/* Compares what an engine's metrics page says about its cache with the list of one stream, and
 * finds what no event shows.
 *
 *     the page says                              then
 *     ----------------------------------------   ---------------------------------------------
 *     its process began later than any before,   the engine may have restarted: a probe
 *     or, where it names no start time, its      (kvb_stream_suspect_restart())
 *     counters are smaller, for the first time
 *     in 60 s
 *     the engine sleeps at level 1 or 2          its cache is discarded, and vLLM publishes
 *                                                AllBlocksCleared only with its next step:
 *                                                UNVERIFIED(asleep)
 *     fewer blocks than are listed fit into it   removals were lost before they were numbered:
 *     (3 readings in a row, 6 s)                 UNVERIFIED(occupancy)
 *     running requests use more than twice as    stores were lost before they were numbered:
 *     many blocks as are listed (the same)       UNVERIFIED(occupancy)
 *     SGLang caches fewer tokens than are        either of the two: UNVERIFIED(occupancy)
 *     listed, or more (the same, 45 s)
 *     vLLM has answered more requests that may   it publishes AllBlocksCleared only with its
 *     empty its cache than on the page before,   next step: UNVERIFIED(reset) until then
 *     and as many clears have not come.  On the
 *     first page: it has answered some
 *     SGLang has a pool beside that of full      its events leave out what limits a request:
 *     attention                                  UNVERIFIED(groups)
 *     vLLM counts drafts                         it speculates, by a method that the page does not
 *                                                name: UNVERIFIED(speculation), unless that is
 *                                                known from elsewhere
 *
 * No sign is a fall of vLLM's usage to 0: it counts the blocks of running requests, and is 0 on
 * every idle engine, however many blocks are cached.  The reset of an idle vLLM's cache is on its
 * page only as a request that its HTTP server has answered (POST /reset_prefix_cache); one within
 * its process is not.  A sleep of level 0 pauses requests and keeps the cache.
 *
 * A total of blocks may be wrong where it is divided by the ranks of a page, or computed with a
 * configured page size.  Then the list must first have fitted into it, at least half full, in three
 * readings between which the engine removed blocks: only a full engine evicts.
 *
 * An engine uses blocks that its events leave out: the last block of each request, those of
 * speculative tokens, those that a transfer has yet to fill (their requests count as waiting),
 * those of groups with a window, and those that no query can name.
 *
 * SGLang updates its gauges while it prefills, every 40 decode steps, and every 30 s when idle.  A
 * list may be ahead of them for that long, and by the tokens of a few seconds: less than an eighth
 * of the cache.
 *
 * Pure: no clock, no I/O.
 * Threads: the caller locks. */
struct kvb_page_watch {
    double started_s; /* the newest process that made a page; 0: none was named */
    uint64_t fell_ns; /* when counters of a page without a start time last fell; 0: never */
    enum kvb_engine_sleep sleep;
    uint64_t reset_requests; /* on the newest page */
    uint64_t restarts; /* of the engine, as the stream counts them: others begin all below anew */
    uint64_t removals; /* removals up to the last reading */
    unsigned full_readings;   /* readings in which a full engine's list fitted into its total */
    unsigned misfit_readings; /* readings in a row that contradict the list */
    uint64_t misfit_ns;       /* when the first of them was made */
};

struct kvb_page_reading {
    const struct kvb_load_sample *sample; /* of this stream's rank */
    uint64_t asked_ns; /* when the page was requested; monotonic, like the stream's inputs */
    uint64_t at_ns;    /* when it was complete */
};

/* What a reading has found, as bits. */
enum kvb_page_sign {
    KVB_SIGN_RESTART = 1,
    KVB_SIGN_ASLEEP = 2, /* newly */
    KVB_SIGN_AWAKE = 4,  /* again */
    KVB_SIGN_OCCUPANCY = 8,
    KVB_SIGN_RESET = 16,
    KVB_SIGN_HIDDEN_POOLS = 32 /* newly */
};

/* Takes one reading and notes in the stream what it has found.  Returns bits of enum kvb_page_sign.
 * {0} is the watch of a stream whose page was never read. */
unsigned kvb_page_watch_read(
    struct kvb_page_watch *watch, struct kvb_stream *stream,
    const struct kvb_page_reading *reading);
