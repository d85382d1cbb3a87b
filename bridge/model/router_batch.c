#include "model/router_batch.h"

#include "core/array.h"
#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>

void kvb_router_batch_done(struct kvb_router_batch *batch)
{
    free(batch->events);
    free(batch->blocks);
    free(batch->tokens);
    *batch = (struct kvb_router_batch){ 0 };
}

void kvb_router_batch_reset(struct kvb_router_batch *batch)
{
    batch->event_count = 0;
    batch->block_count = 0;
    batch->has_epoch = false;
}

/* Fast path, called for each block: usually all three arrays have room. */
static bool batch_has_room(const struct kvb_router_batch *batch, size_t events, size_t blocks)
{
    return batch->event_count + events <= batch->event_capacity &&
           batch->block_count + blocks <= batch->block_capacity &&
           batch->block_count + blocks <= batch->token_capacity;
}

[[gnu::hot]] static kvb_status
reserve_batch(struct kvb_router_batch *batch, size_t events, size_t blocks)
{
    if (batch_has_room(batch, events, blocks)) {
        return KVB_OK;
    }
    /* Blocks and tokens grow one after the other: either may fail alone. */
    KVB_TRY(kvb_array_reserve(
        &batch->events, &batch->event_capacity, batch->event_count + events, sizeof *batch->events,
        kvb_max_router_events));
    KVB_TRY(kvb_array_reserve(
        &batch->blocks, &batch->block_capacity, batch->block_count + blocks, sizeof *batch->blocks,
        kvb_max_router_blocks));
    return kvb_array_reserve(
        &batch->tokens, &batch->token_capacity, batch->block_count + blocks, sizeof *batch->tokens,
        kvb_max_router_blocks);
}

[[gnu::hot]] kvb_status
kvb_router_batch_add_event(struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    KVB_TRY(reserve_batch(batch, 1, 0));
    batch->events[batch->event_count] = *event;
    batch->events[batch->event_count].block_at = (uint32_t)batch->block_count;
    batch->events[batch->event_count].block_count = 0;
    batch->event_count++;
    return KVB_OK;
}

[[gnu::hot]] kvb_status kvb_router_batch_add_block(
    struct kvb_router_batch *batch, kvb_block_hash block, kvb_tokens_hash tokens)
{
    assert(batch->event_count > 0);
    KVB_TRY(reserve_batch(batch, 0, 1));
    batch->blocks[batch->block_count] = block;
    batch->tokens[batch->block_count] = tokens;
    batch->block_count++;
    batch->events[batch->event_count - 1].block_count++;
    return KVB_OK;
}
