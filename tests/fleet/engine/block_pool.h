#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "fleet/engine/content_log.h"
#include "fleet/engine/prefix_tree.h"
#include "model/event_batch.h"

#include <stdbool.h>
#include <stdint.h>

/* The physical blocks of one rank, as vLLM's BlockPool keeps them.
 *
 *     free queue   [ freed longest ago ] ... [ freed last ]
 *                    take ->                <- release
 *
 * A free block keeps its content until it is taken: that is the prefix cache.
 * Several blocks may hold the same content (copies); a look-up gives the oldest.
 * Like vLLM it keeps one block back that holds nothing, so `blocks` gives
 * blocks - 1 that can be used.
 *
 * Threads: the caller locks.
 * Memory:  24 bytes a block, and kvb_prefix_tree. */
struct kvb_block_pool;

/* blocks 2 .. kvb_max_stream_blocks, block_size 0 .. kvb_max_block_tokens; 0: contents have no
 * tokens, only names.
 * KVB_BAD_INPUT out of range, KVB_NO_MEMORY */
kvb_status
kvb_block_pool_new(uint32_t blocks, uint32_t block_size, struct kvb_block_pool **out_pool);

/* From now on tells the log what comes to be held and what ceases to be.  Borrowed
 * until _free(). */
void kvb_block_pool_log(struct kvb_block_pool *pool, struct kvb_content_log *log);

/* NULL is fine. */
void kvb_block_pool_free(struct kvb_block_pool *pool);

/* Takes the block that has been free longest, with one user.  When that loses
 * its content, a Removed is added to events first.
 * KVB_AGAIN  none is free
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room in events; nothing changed */
kvb_status kvb_block_pool_take(
    struct kvb_block_pool *pool, struct kvb_event_batch *events, uint32_t *out_block);

/* One more user; a free block leaves the queue with its content. */
void kvb_block_pool_hold(struct kvb_block_pool *pool, uint32_t block);

/* One user less; at none the block goes to the end of the queue. */
void kvb_block_pool_release(struct kvb_block_pool *pool, uint32_t block);

/* A block that was taken is now full.  before: the block in front of it in its
 * prompt, kvb_no_block at the root.
 * KVB_TOO_LARGE  more contents than blocks: cannot happen while tails go first */
kvb_status kvb_block_pool_fill(
    struct kvb_block_pool *pool, uint32_t block, uint32_t before,
    const struct kvb_block_content *content);

/* kvb_no_block when none holds this. */
uint32_t kvb_block_pool_find(const struct kvb_block_pool *pool, kvb_engine_hash hash);

/* Forgets all contents; users and the order of the queue stay. */
void kvb_block_pool_clear(struct kvb_block_pool *pool);

bool kvb_block_pool_is_free(const struct kvb_block_pool *pool, uint32_t block);
uint32_t kvb_block_pool_free_count(const struct kvb_block_pool *pool);

/* Copies included. */
uint32_t kvb_block_pool_filled_count(const struct kvb_block_pool *pool);

/* What is held.  Borrowed until the pool changes. */
const struct kvb_prefix_tree *kvb_block_pool_tree(const struct kvb_block_pool *pool);
