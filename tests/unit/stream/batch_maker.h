#pragma once

#include "stream/mirror/mirror.h"
#include "stream/mirror/picture.h"

/* Makes engine batches by hand for the tests of this room, with one token a block. tokens NULL:
 * BlockStored without tokens. */

void add_stored(
    struct kvb_event_batch *batch, const uint64_t *parent, const uint64_t *hashes,
    const uint32_t *tokens, size_t count);
void add_removed(struct kvb_event_batch *batch, const uint64_t *hashes, size_t count);
void add_cleared(struct kvb_event_batch *batch);
void add_skipped(struct kvb_event_batch *batch, enum kvb_skip skip);

/* Applies event number `at`, in parts of this much work. */
kvb_status apply_event(
    struct kvb_mirror *mirror, const struct kvb_event_batch *batch, size_t at, uint64_t part_work,
    struct kvb_router_batch *out);

/* Resets out, applies all events of the batch, which must succeed, and empties the batch. */
void apply_batch(
    struct kvb_mirror *mirror, struct kvb_event_batch *batch, struct kvb_router_batch *out);

/* Passes all listed blocks to `visit`, parents first, in chunks of at most max_chunk_blocks.  Stops
 * with the status of `visit` when that is not KVB_OK.  KVB_NO_MEMORY. */
typedef kvb_status (*visit_chunk)(void *context, struct kvb_router_batch *chunk);
kvb_status
show_all(struct kvb_mirror *mirror, size_t max_chunk_blocks, visit_chunk visit, void *context);

/* The event added last, which the caller may change. */
struct kvb_engine_event *last_event(struct kvb_event_batch *batch);

/* The published name of the last block of this path of tokens. */
kvb_block_hash name_of(const uint32_t *path, size_t depth);
