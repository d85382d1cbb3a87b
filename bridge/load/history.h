#pragma once

#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the fleet looked like in the seconds that lie behind us: one sample a
 * second, the newest `capacity` of them.
 *
 *     reading: counters since the start, gauges  --add-->  sample: rates, gauges
 *     samples [ 901 | 902 | 3 | 4 | ... | 899 | 900 ]   by second; the oldest goes
 *
 * Seconds count from the start, the first is 1.  One that nobody took a sample in
 * (the caller was busy) is missing: numbers jump.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  about 100 bytes a sample, all at the start. */
struct kvb_history;

/* What the caller knows at one moment. */
struct kvb_history_reading {
    uint64_t events_applied; /* counters; never go back */
    uint64_t asked_blocks;   /* of the requests routed */
    uint64_t hit_blocks;     /* of those, held where they went */
    uint64_t held_blocks;    /* gauges from here */
    double load_avg;
    double load_std;
    uint64_t streams[KVB_STREAM_STATE_COUNT];
};

struct kvb_history_sample {
    uint64_t second;
    double events_per_s;   /* since the sample before */
    uint64_t asked_blocks; /* the same */
    uint64_t hit_blocks;   /* the same */
    uint64_t held_blocks;  /* at its end, like all below */
    double load_avg;
    double load_std;
    uint64_t streams[KVB_STREAM_STATE_COUNT];
};

/* The counters begin at 0 at now_ns.  On KVB_OK the caller owns *out_history.
 * KVB_TOO_LARGE  capacity is 0 or above kvb_max_history_samples
 * KVB_NO_MEMORY */
kvb_status kvb_history_new(size_t capacity, uint64_t now_ns, struct kvb_history **out_history);

/* NULL is fine. */
void kvb_history_free(struct kvb_history *history);

/* A second has begun that has no sample yet. */
bool kvb_history_is_due(const struct kvb_history *history, uint64_t now_ns);

/* Does nothing when it is not due. */
void kvb_history_add(
    struct kvb_history *history, const struct kvb_history_reading *reading, uint64_t now_ns);

/* Copies the samples later than second `after`, oldest first, to out, which has room
 * for `capacity`; returns how many.  0 is before all.  A second that has not come yet
 * is one of another process: then all are copied. */
size_t
kvb_history_copy(const struct kvb_history *history, uint64_t after, struct kvb_history_sample *out);
