#pragma once

#include "core/status.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The recent history of the fleet, in a ring buffer: one sample a second, the newest
 * `capacity` of them.
 *
 *     reading: counters since the start, gauges  --add-->  sample: rates, gauges
 *     samples [ 901 | 902 | 3 | 4 | ... | 899 | 900 ]   by second; the oldest is overwritten
 *
 * Seconds are counted from the start, the first is 1.  When the caller was too busy
 * to add a sample, that second is missing and the numbers jump.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns.
 * Memory:  about 100 bytes a sample, all at the start. */
struct kvb_history;

/* The values at one moment. */
struct kvb_history_reading {
    uint64_t events_applied;   /* counters; never go back */
    uint64_t asked_blocks;     /* blocks of the requests that were routed */
    uint64_t hit_blocks;       /* those of them that the chosen worker held */
    uint64_t promised_tokens;  /* of requests that were audited */
    uint64_t delivered_tokens; /* of these, at most what was promised */
    uint64_t held_blocks;      /* the fields from here on are gauges */
    double load_avg;
    double load_std;
    uint64_t streams[KVB_STREAM_STATE_COUNT];
};

struct kvb_history_sample {
    uint64_t second;
    double events_per_s;       /* since the previous sample */
    uint64_t asked_blocks;     /* since the previous sample */
    uint64_t hit_blocks;       /* since the previous sample */
    uint64_t promised_tokens;  /* since the previous sample */
    uint64_t delivered_tokens; /* since the previous sample */
    uint64_t held_blocks;      /* at the end of the second; the fields below too */
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

/* True when the current second has no sample yet. */
bool kvb_history_is_due(const struct kvb_history *history, uint64_t now_ns);

/* Adds a sample if one is due. */
void kvb_history_add(
    struct kvb_history *history, const struct kvb_history_reading *reading, uint64_t now_ns);

/* Copies the samples later than second `after`, oldest first, to out, which has room
 * for `capacity`; returns how many.  0 copies all, and so does a second in the future:
 * the reader got that number from an earlier process. */
size_t
kvb_history_copy(const struct kvb_history *history, uint64_t after, struct kvb_history_sample *out);
