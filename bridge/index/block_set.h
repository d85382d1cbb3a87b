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
 *     hash [ 0x41 ][ 0    ][ 0x9c ][ 0x1c ][ 0 ]      0: free; has_zero stands for the hash 0
 *                          home 2  home 2, put in the next free cell
 *
 * Backward-shift deletion needs no tombstones, so a look-up that misses ends at the first free
 * cell.
 *
 * Threads: the caller locks.
 * Memory:  8 bytes per cell.  At most 3/4 of the cells are full; then their number doubles.
 *          Clearing the set frees them. */
struct kvb_block_set {
    uint64_t *cells; /* owned; NULL before the first block */
    size_t cell_count;
    size_t count;
    size_t max_blocks; /* ceiling */
    struct kvb_hash_key key;
    bool has_zero;
};

/* Makes an empty set of at most max_blocks blocks.  Where untrusted clients choose prompts, the key
 * is random, so that they cannot construct blocks that collide.  Elsewhere it is a constant. */
void kvb_block_set_init(struct kvb_block_set *set, size_t max_blocks, uint64_t key);

/* Removes all blocks and frees the cells.  The set can be used again.  {0} is fine. */
void kvb_block_set_clear(struct kvb_block_set *set);

/* Adds the block.  *out_is_new, when not NULL: whether the block was not in the set before.
 * KVB_TOO_LARGE  the set has max_blocks blocks; nothing changed
 * KVB_NO_MEMORY  nothing changed */
kvb_status kvb_block_set_add(struct kvb_block_set *set, kvb_block_hash block, bool *out_is_new);

/* Removes the block.  Returns whether it was in the set. */
bool kvb_block_set_remove(struct kvb_block_set *set, kvb_block_hash block);

bool kvb_block_set_has(const struct kvb_block_set *set, kvb_block_hash block);

/* Calls visit(context, block) for each block, in no particular order.  The set must not change
 * during the call. */
void kvb_block_set_each(
    const struct kvb_block_set *set, void (*visit)(void *context, kvb_block_hash block),
    void *context);

/* The same for the blocks in at most `cells` cells from *cell on; advances *cell.  The first call
 * takes 0.  Returns false after the last cell.  The set may change between two calls.  A block that
 * stays in the set is visited at least once, unless a removal or the growth of the table moves it
 * to a cell before *cell. */
bool kvb_block_set_page(
    const struct kvb_block_set *set, uint64_t *cell, size_t cells,
    void (*visit)(void *context, kvb_block_hash block), void *context);
