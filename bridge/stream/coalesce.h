#pragma once

#include <stdint.h>

/* Adaptive interrupt coalescing, as network cards do it, for the thread that serves all streams.
 *
 * Each batch that finds the thread asleep costs a wake-up, and a write to NATS of its own, which
 * wakes the server.  When many engines send seldom, that is most of what they cost.
 * The thread then pauses before it waits for input, so that one wake-up serves several batches:
 * 16 engines with 41 batches a second each cost bridge, nats-server and aggregator a sixth less
 * processor time together, and 2,048 engines with 5 each cost the bridge half as much.
 *
 * A pause delays a batch by 2 ms at most.  That is little beside the time between two batches of
 * an engine that sends seldom, and much beside that of a fast one.  So each window of 10 ms
 * decides for the next one:
 *
 *     in the window             runs      streams with two runs   pause
 *     -------------             ----      ---------------------   -----
 *     few engines               few       -                       no
 *     a fast engine             many      many                    no
 *     many slow engines         many      few                     2 ms
 *
 * Of the runs of stream/serve.h those count that received live batches.
 *
 * Pure: time is an argument.  Threads: the caller locks.  {0} is the beginning. */
struct kvb_coalescing {
    uint64_t windows;  /* that have ended */
    uint64_t began_ns; /* this window */
    uint64_t runs;     /* in this window */
    uint64_t repeats;  /* of these, those of a stream that had one in this window before */
    uint64_t pause_ns; /* decided by the window before */
};

/* A stream had a run.  newest: a number that belongs to the stream, and begins as 0. */
void kvb_coalescing_note(struct kvb_coalescing *coalescing, uint64_t *newest);

/* How long to pause before the next wait for input; 0: not at all.  Call it before each wait. */
uint64_t kvb_coalescing_pause_ns(struct kvb_coalescing *coalescing, uint64_t now_ns);
