#pragma once

#include "core/hash.h"
#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A set of block hashes, without order or parents.
 *
 * Open addressing with linear probing in a power-of-two table:
 *
 *     cell   0      1      2      3      4 ...
 *     hash [ 0x41 ][ 0    ][ 0x9c ][ 0x1c ][ 0 ]      0: free; the hash 0 is kept aside
 *                          home 2  home 2 -> probed on to 3
 *
 * Removing shifts later cells of the run back, so there are no tombstones and a lookup
 * that misses ends at the first free cell.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes per cell, at most 3/4 of them full, doubling; freed when the set is cleared. */
struct kvb_block_set {
    uint64_t *cells; /* owned; NULL before the first block */
    size_t cell_count;
    size_t count;
    size_t max_blocks; /* ceiling */
    struct kvb_hash_key key;
    bool has_zero;
};

/* An empty set of at most max_blocks blocks.  key: random where untrusted clients choose
 * prompts, so that they cannot construct blocks that collide; a constant elsewhere. */
void kvb_block_set_init(struct kvb_block_set *set, size_t max_blocks, uint64_t key);

/* Frees the cells; the set is empty and can be used again.  {0} is fine. */
void kvb_block_set_clear(struct kvb_block_set *set);

/* *out_is_new, when not NULL: whether the block was not in the set before.
 * KVB_TOO_LARGE  the set has max_blocks blocks   KVB_NO_MEMORY
 * On both nothing changed. */
kvb_status kvb_block_set_add(struct kvb_block_set *set, kvb_block_hash block, bool *out_is_new);

/* Returns whether the block was in the set. */
bool kvb_block_set_remove(struct kvb_block_set *set, kvb_block_hash block);

bool kvb_block_set_has(const struct kvb_block_set *set, kvb_block_hash block);

/* Calls visit(context, block) for each block, in no particular order.  The set must not
 * change meanwhile. */
void kvb_block_set_each(
    const struct kvb_block_set *set, void (*visit)(void *context, kvb_block_hash block),
    void *context);

/* The same for the blocks in at least `cells` cells from *cell on, and advances *cell; begin
 * with 0.  False: that was the end.  The set may change between two calls: a block that is in it
 * throughout is visited, maybe twice, unless an earlier block is removed meanwhile. */
bool kvb_block_set_page(
    const struct kvb_block_set *set, uint64_t *cell, size_t cells,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* Memory of the cells. */
size_t kvb_block_set_bytes(const struct kvb_block_set *set);
