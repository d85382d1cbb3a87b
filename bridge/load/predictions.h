#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Predicted blocks: the blocks that streams will hold soon, because a prompt was routed to them.
 * Between a decision and the Stored events of its prefill, seconds pass, during which a second
 * request with the same prompt must be routed to the same stream.
 *
 *     decision: prompt a b c d, stream 7 holds a        stored: b of 7     ttl_ns over
 *     predicted for 7:    b c d                    -->      c d        -->
 *
 * Predictions are separate from the index: a predicted block never counts as held.  A prediction
 * ends when the stream stores the block, when its TTL is over, when the stream clears its list or
 * begins another epoch, and when the stream is removed.
 *
 * A block that is already predicted keeps its deadline.  Otherwise each request that is routed
 * because of a prediction would prolong it, and a prediction whose events were lost would attract
 * requests for ever.
 *
 * Look-up: a decision predicts a run of blocks, and the name of a block covers its whole prefix.
 * Therefore exponential search finds how far a prompt is predicted, with O(log blocks) probes of a
 * hash table of (block, stream) for each stream that has predictions.
 *
 * Threads: the caller locks.  No clock: now is an argument, monotonic ns, and never goes back.
 * Memory:  56 bytes a block, at most max_blocks; beyond that the oldest are dropped. */
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

/* Predicts that the stream will hold these consecutive blocks, the part of a prompt that it does
 * not hold yet.
 * KVB_TOO_LARGE  max_streams streams have predictions already
 * KVB_NO_MEMORY  only the first part of the blocks is predicted */
kvb_status kvb_predictions_add(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id,
    const kvb_block_hash *blocks, size_t count, uint64_t now_ns);

/* False: no stream has predictions. */
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

/* Drops all predictions of a stream that was removed or has cleared its list.  Constant time; the
 * memory is freed when the deadlines are over. */
void kvb_predictions_retire(struct kvb_predictions *predictions, const struct kvb_stream_id *id);

/* Notes the epoch of the stream's newest message.  A new epoch drops the predictions of the
 * previous one. */
void kvb_predictions_note_epoch(
    struct kvb_predictions *predictions, const struct kvb_stream_id *id, const kvb_epoch *epoch);

/* Frees at most `max` blocks whose TTL is over.  True: there are more.  Expired blocks are in no
 * answer even before they are freed. */
bool kvb_predictions_expire(struct kvb_predictions *predictions, uint64_t now_ns, size_t max);

struct kvb_prediction_counters {
    uint64_t blocks;    /* gauge: predicted blocks, and dropped ones that still take memory */
    uint64_t predicted; /* the fields from here on are counters of blocks */
    uint64_t confirmed; /* stored by the stream in time */
    uint64_t expired;   /* not stored in time */
    uint64_t retired;   /* of streams that were removed or cleared */
    uint64_t evicted;   /* dropped early because max_blocks was reached */
};

void kvb_predictions_count(
    const struct kvb_predictions *predictions, struct kvb_prediction_counters *out_counters);
