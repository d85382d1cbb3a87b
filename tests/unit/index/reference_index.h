#pragma once

#include "index/index.h"

#include <stddef.h>
#include <stdint.h>

/* The simplest implementation that answers as the prefix index does, for comparison with it.
 *
 * A place is a path of contents.  It begins at ROOT, or at a name that its slot has not
 * stored yet:
 *
 *     ROOT -- t0 -- t1 -- t2         each slot has a list of names, and each name stands
 *                \- t7               for one place
 *     "what slot 3 calls P" -- t4
 *
 *     (above, content) -> place     three hash tables, and nothing else: no extents, no
 *     (slot, name)     -> member    sets, no short ways, nothing left for later
 *     (slot, place)    -> how many names
 *
 * A name that is stored again elsewhere stands for the later place.  When the name that a
 * path waits for is stored, each member that waits is given its longer path, one by one.
 * Places that no name stands for, and that nothing hangs below, go at once: so those in
 * being are what the index counts as nodes.
 *
 * Calls and results mean what they mean there; slots are 0 .. slots - 1.  No memory: the
 * test ends.  Threads: the caller locks. */
struct reference_index;

struct reference_index *reference_index_new(uint32_t slots, size_t max_nodes);
void reference_index_free(struct reference_index *dull);

/* out_changed has room for run->count. */
kvb_status reference_index_store(
    struct reference_index *dull, uint32_t slot, const struct kvb_index_run *run,
    uint8_t *out_changed);
void reference_index_remove(
    struct reference_index *dull, uint32_t slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed);
void reference_index_clear(struct reference_index *dull, uint32_t slot);

uint32_t reference_index_depth(
    const struct reference_index *dull, uint32_t slot, const kvb_tokens_hash *query, size_t count);
uint32_t reference_index_depth_by_names(
    const struct reference_index *dull, uint32_t slot, const kvb_block_hash *query, size_t count);

const struct kvb_index_counters *reference_index_counters(const struct reference_index *dull);
size_t reference_index_blocks(const struct reference_index *dull, uint32_t slot);

/* A sum over the slot's names that other names would hardly have. */
uint64_t reference_index_names_sum(const struct reference_index *dull, uint32_t slot);
uint64_t reference_name_sum(kvb_block_hash name);

/* How long the path is that this name of the slot's stands for; 0: for none. */
uint32_t
reference_index_path_length(const struct reference_index *dull, uint32_t slot, kvb_block_hash name);

/* The path of the slot's `back`-th latest name, or of its first one; cut at `most`.
 * Returns its length, 0 when the slot holds nothing. */
size_t reference_index_path(
    const struct reference_index *dull, uint32_t slot, uint32_t back, kvb_tokens_hash *out_tokens,
    size_t max);
