#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Predicted blocks: what streams will hold soon, because a prompt was routed to them.  Between a
 * decision and the Stored events of its prefill lie seconds, in which a second request of the
 * same prompt must find its way to the same stream.
 *
 *     decision: prompt a b c d, stream 7 holds a        stored: b of 7     ttl_ns over
 *     predicted for 7:    b c d                    -->      c d        -->
 *
 * The overlay lies beside the index and is no part of it: a predicted block is never a held one.
 * It goes when the stream stores the block, when its TTL is over, when the stream clears its
 * list or begins another epoch, and when the stream goes.
 *
 * A block that is predicted already keeps its deadline.  Otherwise each request that goes where a
 * block is predicted would keep the prediction alive, and one whose events were lost for good
 * would attract requests for ever.
 *
 * Lookup: a decision predicts a whole run, and of blocks named by their whole prefix.  So how far
 * a prompt is predicted is found by doubling and bisection, with O(log blocks) probes of one
 * hash table of (block, stream) for each stream that has predictions.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns, and never goes back.
 * Memory:  56 bytes a block, at most max_blocks; when there are so many, the oldest leave. */
struct kvb_predictions;

struct kvb_predictions_options {
    size_t max_blocks; /* 1 .. kvb_max_predicted_blocks */
    size_t max_streams;
    uint64_t ttl_ns;   /* 0: nothing is predicted */
    uint64_t hash_key; /* of the tables: random in a daemon */
};

/* On KVB_OK the caller owns *out_predictions.  KVB_NO_MEMORY. */
kvb_status kvb_predictions_new(
    const struct kvb_predictions_options *options, struct kvb_predictions **out_predictions);

/* NULL is fine. */
void kvb_predictions_free(struct kvb_predictions *predictions);

/* The stream will hold these blocks, which follow each other: the part of a prompt that it does
 * not hold yet.
 * KVB_TOO_LARGE  blocks of max_streams streams are predicted
 * KVB_NO_MEMORY  a part of them is predicted, from the first on */
kvb_status kvb_predictions_add(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id,
    const kvb_block_hash *blocks, size_t count, uint64_t now_ns);

/* False: nothing is predicted of anybody. */
bool kvb_predictions_any(const struct kvb_predictions *predictions);

bool kvb_predictions_has_stream(
    const struct kvb_predictions *predictions, const struct kvb_stream_key *key);

/* How many blocks from prompt[held] on are predicted for the stream. */
size_t kvb_predictions_beyond(
    const struct kvb_predictions *predictions, const struct kvb_stream_key *key,
    const kvb_block_hash *prompt, size_t count, size_t held, uint64_t now_ns);

/* The stream has stored these blocks. */
void kvb_predictions_stored(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id,
    const kvb_block_hash *blocks, size_t count);

/* The stream is gone, or has cleared its list: nothing is predicted for it.  Constant time; the
 * memory is free when the deadlines are over. */
void kvb_predictions_retire(struct kvb_predictions *predictions, const struct kvb_stream_id *id);

/* The stream's newest message is of this epoch.  Another one than before retires what was
 * predicted in that one. */
void kvb_predictions_note_epoch(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id, const kvb_epoch *epoch);

/* Frees blocks whose TTL is over, at most `max`.  True: there are more.  They are in no answer
 * even before that. */
bool kvb_predictions_expire(struct kvb_predictions *predictions, uint64_t now_ns, size_t max);

struct kvb_prediction_counters {
    uint64_t blocks;    /* gauge: predicted, and retired ones that still take memory */
    uint64_t predicted; /* counters from here on: blocks */
    uint64_t confirmed; /* stored by the stream in time */
    uint64_t expired;   /* not stored in time */
    uint64_t retired;   /* of streams that went or were cleared */
    uint64_t evicted;   /* left early for want of room */
};

void kvb_predictions_count(
    const struct kvb_predictions *predictions, struct kvb_prediction_counters *out_counters);
