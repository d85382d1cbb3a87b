#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "model/tier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Events for routers: the changes of one stream, in order.
 *
 *     events  [ stored: block_at 0, block_count 2 ][ removed: block_at 2 ] ...
 *     blocks  [ b0 ][ b1 ] [ r0 ] ...       block hashes
 *     tokens  [ t0 ][ t1 ] [ -- ] ...       the tokens_hash of each stored block
 *
 * Threads: the caller locks.  Memory: reused; ceilings in core/limits.h. */

enum kvb_router_kind {
    KVB_ROUTER_STORED,
    KVB_ROUTER_REMOVED,
    KVB_ROUTER_CLEARED /* the whole stream, every tier */
};

struct kvb_router_event {
    uint64_t event_id;
    kvb_block_hash parent;
    uint32_t block_at;
    uint32_t block_count;
    enum kvb_router_kind kind : 8;
    enum kvb_tier tier : 8;
    bool has_parent; /* stored only */
};

struct kvb_router_batch {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool has_epoch; /* JSON carries none */
    kvb_epoch epoch;

    struct kvb_router_event *events; /* owned, like the two below */
    kvb_block_hash *blocks;
    kvb_tokens_hash *tokens; /* parallel to blocks; 0 for removed ones */
    size_t event_count, event_capacity;
    size_t block_count, block_capacity, token_capacity;
};

/* {0} is an empty batch. */
void kvb_router_batch_done(struct kvb_router_batch *batch);
void kvb_router_batch_reset(struct kvb_router_batch *batch);

/* Adds an event without blocks.  The blocks that are added next belong to it.
 * KVB_TOO_LARGE at the ceiling, KVB_NO_MEMORY: nothing changed. */
kvb_status
kvb_router_batch_add_event(struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Adds one block to the last event. */
kvb_status kvb_router_batch_add_block(
    struct kvb_router_batch *batch, kvb_block_hash block, kvb_tokens_hash tokens);
