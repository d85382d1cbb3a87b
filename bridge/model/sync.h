#pragma once

#include "core/hash.h"
#include "core/ref.h"
#include "model/router_batch.h"

#include <stdbool.h>
#include <stdint.h>

/* Requests on P.kv_sync.{worker}.{rank}, by which a reader gets the events of a stream that it
 * missed. */

enum kvb_sync_kind {
    KVB_SYNC_RANGE,    /* events from_id .. to_id of the epoch */
    KVB_SYNC_SNAPSHOT, /* all blocks held, or those of some buckets */
    KVB_SYNC_DIGEST,   /* the sums of all buckets */
    KVB_SYNC_KIND_COUNT
};

/* A set of buckets of a digest (model/digest.h), one bit each. */
enum { kvb_sync_buckets = 256 };

struct kvb_bucket_set {
    uint64_t words[kvb_sync_buckets / 64];
};

struct kvb_sync_request {
    enum kvb_sync_kind kind;
    bool has_buckets; /* snapshot: only these */
    kvb_epoch epoch;  /* the requester's; unused for a snapshot of everything */
    uint64_t from_id; /* range */
    uint64_t to_id;   /* range, inclusive */
    struct kvb_bucket_set buckets;
};

enum kvb_sync_answer {
    KVB_SYNC_EVENTS,  /* of a range */
    KVB_SYNC_BLOCKS,  /* of a snapshot, as stored events without ids */
    KVB_SYNC_SUMS,    /* of a digest */
    KVB_SYNC_GONE,    /* the epoch is over, or the events were dropped: request a snapshot */
    KVB_SYNC_TOO_NEW, /* from_id was not published yet */
    KVB_SYNC_BUSY,    /* repeat the request in retry_ms */
    KVB_SYNC_ANSWER_COUNT
};

/* One chunk of an answer.  An answer has the chunks 0 .. n; is_last marks the last one.  All chunks
 * have the same epoch and barrier. */
struct kvb_sync_reply {
    enum kvb_sync_answer answer;
    uint64_t worker_id;
    uint32_t dp_rank;
    kvb_epoch epoch;
    uint32_t chunk;
    bool is_last;
    uint64_t barrier_id; /* snapshot, digest: the newest event when the answer began */
    uint64_t last_id;    /* the newest event when this chunk was made */
    uint32_t retry_ms;
    uint64_t digest_seed;
    const struct kvb_router_batch *events; /* borrowed; NULL for none */
    /* KVB_SYNC_SUMS: 256 sums for each tier, borrowed; NULL for empty tiers */
    const struct kvb_hash128 *sums[KVB_LIST_COUNT];
};
