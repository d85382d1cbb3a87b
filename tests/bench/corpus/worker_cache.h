#pragma once

#include "core/id_table.h"
#include "core/ref.h"

#include <stdint.h>

/* The blocks that one worker keeps; the least recently used is evicted first.
 *
 *     place   0      1      2    ...  capacity-1   capacity
 *            [block][block][free]    [block]      [head of the rings]
 *
 *     idle ring:  head <-> used longest ago <-> ... <-> used last <-> head
 *     free places are a list, linked by `newer`
 *
 * A place that the current request uses is in neither.
 * Threads: the caller locks.
 * Memory:  16 bytes a place, and the table's cells. */
struct worker_place {
    uint64_t block;
    uint32_t older, newer;
};

struct worker_cache {
    struct worker_place *places; /* owned */
    struct kvb_id_table table;   /* block -> place */
    uint32_t capacity;
    uint32_t free; /* first free place, or WORKER_NO_PLACE */
};

#define WORKER_NO_PLACE UINT32_MAX

/* Ends the program when an allocation fails. */
void worker_cache_init(struct worker_cache *cache, uint32_t capacity);
void worker_cache_done(struct worker_cache *cache);

/* WORKER_NO_PLACE: the block is not in the cache. */
uint32_t worker_cache_find(const struct worker_cache *cache, kvb_block_hash block);

/* Takes an idle place out of the ring and puts it into use. */
void worker_cache_use(struct worker_cache *cache, uint32_t place);

/* Returns a place to the ring, as the one that is evicted last. */
void worker_cache_release(struct worker_cache *cache, uint32_t place);

/* A place in use for a block that is not kept; where none is free, in place of the idle
 * one that goes first, which is then added to evicted[*evicted_count].
 * WORKER_NO_PLACE: all are in use. */
uint32_t worker_cache_take(
    struct worker_cache *cache, kvb_block_hash block, kvb_block_hash *evicted,
    size_t *evicted_count);

/* Stores this block in the place, which must be in use. */
void worker_cache_rename(struct worker_cache *cache, uint32_t place, kvb_block_hash block);
