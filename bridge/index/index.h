#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The prefix index is a radix tree.  It finds the slots that hold a prefix of a prompt, and the
 * exact length of each prefix.
 *
 * Blocks form trees.  A node is (parent node, tokens_hash), so equal prompts share nodes whatever
 * block hashes their engines use.  Events refer to nodes by block hash, the name of a block.  A
 * slot is one (worker, rank, tier):
 *
 *     ROOT -- t0 {slots 1,2,3} -- t1 {1,2} -- t2 {1}
 *                             \-- t7 {3}
 *     match(t0 t1 t2) = slot 3: depth 1, slot 2: depth 2, slot 1: depth 3
 *
 * A slot's depth is the largest n such that the slot now holds blocks 0 .. n-1 of the query.
 * Queries check every position and infer none.
 *
 * Ghosts: a node without holders is kept as long as a descendant is held.
 *
 * Names are local to a slot: two slots may use one name for different blocks.  This is so for
 * parents, for removals and for queries by names.  A slot may store other content under a name that
 * it uses already.  Then the name is moved to the new content and counted as an alias, and the
 * blocks below the old content stay there.  A slot may have several names for one node.  It holds
 * the node until the last of them is removed.
 *
 * Orphans: a slot may store a run whose parent P it does not hold.  The run is kept below a
 * placeholder of the slot for the name P.  Removals find the run, queries do not.  When the slot
 * stores P, the run is moved below P and merged with equal nodes.  Names that are their own
 * ancestors stay orphans until one of them is stored elsewhere or removed.
 *
 * Threads: the caller locks.
 * Cost:    adding a block, or removing its last holder: one cache line of a table, and the block's
 *          part of an extent of 16.  Adding or removing another holder: the block's part of the
 *          extent.  One block of a query: 12 bytes read sequentially.  Clearing a slot takes
 *          constant time, plus the removal of its orphans.  Memory of cleared slots is reclaimed
 *          later in slices, or at once when a run might not fit otherwise.
 * Memory:  in bytes.
 *          node       24 in full extents and 18 in the table of names, for any number of holders;
 *                     some 420 where each prompt is one block; twice that with unused extents
 *          extent     4 to 16 for each slot that holds something in it
 *          set        some 140 for up to 512 holders
 *          orphan     some 110; counts as three nodes
 *          page       152 for a slot's names of up to 16 nodes of an extent, 10 in a table, and 16
 *                     in another table for each name
 *          alias      32, and 26 in tables
 *          Limits: max_nodes nodes, 16 times as many aliases and names in pages, and 65,536 slots
 *          that hold something.  The index grows in place and never shrinks.  It reuses freed
 *          memory. */
struct kvb_prefix_index;

struct kvb_prefix_index_options {
    size_t max_nodes; /* 1 .. kvb_max_index_blocks; ghosts count too, orphans three times */
    size_t max_slots; /* 1 .. 2^20 */
    /* Key of the hashes of all tables.  It affects no answer.  It is random so that untrusted
     * clients cannot construct prompts or names that collide.  Tests use a constant. */
    uint64_t hash_key;
};

/* On KVB_OK the caller owns *out_index.
 * KVB_TOO_LARGE  an option is 0 or above its range   KVB_NO_MEMORY */
kvb_status kvb_prefix_index_new(
    const struct kvb_prefix_index_options *options, struct kvb_prefix_index **out_index);

/* NULL is fine. */
void kvb_prefix_index_free(struct kvb_prefix_index *index);

/* Allocates an empty slot.  KVB_TOO_LARGE: all max_slots are in use. */
kvb_status kvb_prefix_index_slot_new(struct kvb_prefix_index *index, kvb_slot_ref *out_slot);

/* Removes all blocks of the slot and keeps the slot. */
void kvb_prefix_index_slot_clear(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Clears the slot and frees its number for reuse.  The next user of the number starts with an empty
 * slot. */
void kvb_prefix_index_slot_free(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Returns how many names the slot has.  A node with two names counts twice. */
size_t kvb_prefix_index_slot_blocks(const struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Returns how many new nodes max_nodes still allows.  Nodes of cleared slots count until they are
 * reclaimed. */
size_t kvb_prefix_index_room(const struct kvb_prefix_index *index);

/* A chain of blocks.  The first is a child of `parent`, each other one of the block before it. */
struct kvb_index_run {
    bool has_parent; /* false: the first block begins a prompt */
    kvb_block_hash parent;
    const kvb_block_hash *blocks;
    const kvb_tokens_hash *tokens; /* parallel to blocks */
    size_t count;
};

/* Adds the run to the blocks that the slot holds.  out_changed is NULL or has room for run->count
 * bytes; it gets 1 for each block that the slot did not hold before, else 0.
 *
 * Duplicates, unknown parents and aliases are counted; they are not errors.
 * KVB_BAD_INPUT  the run contains its own parent; nothing changed
 * KVB_TOO_LARGE  the limit of nodes or of names is reached; the first part of the run is stored,
 *                see out_changed; nothing is evicted
 * KVB_NO_MEMORY  as KVB_TOO_LARGE */
kvb_status kvb_prefix_index_store(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run,
    uint8_t *out_changed);

/* Removes these blocks, in any order, from those that the slot holds.  Unknown blocks are counted.
 * out_changed is NULL or gets 1 for each block that the slot held, else 0.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no memory for the changed state.  The slot is cleared, so that no
 *                removed block stays listed.  out_changed is undefined. */
kvb_status kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed);

/* Prefetch the memory that such a change reads first.  A caller that knows its next change may call
 * these some time before it.  They change nothing. */
void kvb_prefix_index_expect_store(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run);
void kvb_prefix_index_expect_remove(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks,
    size_t count);

/* ---- Queries ---- */

/* Slots that hold a prefix of exactly `depth` blocks: one slot, or a bit set of internal numbers.
 * kvb_match_each() reads both.  Levels are sorted by depth.  Several levels may have the same
 * depth.  A slot is in one level at most.  Slots of depth 0 are in none. */
struct kvb_match_level {
    uint32_t depth; /* blocks */
    uint32_t slot;  /* set_at is KVB_MATCH_ONE: the slot; else the internal number of bit 0 */
    size_t set_at;  /* first word in kvb_match.words, or KVB_MATCH_ONE */
};

#define KVB_MATCH_ONE SIZE_MAX
#define KVB_MATCH_WORDS 8 /* words of a bit set */

/* The answer of a query.  {0} before the first query; reused by later ones; freed by
 * kvb_match_done().  Valid until the index changes. */
struct kvb_match {
    struct kvb_match_level *levels; /* owned */
    size_t level_count, level_capacity;
    uint64_t *words; /* owned */
    size_t word_count, word_capacity;
    const uint32_t *slot_of; /* borrowed from the index: slots by internal number */
};

void kvb_match_done(struct kvb_match *match);

/* Fills *match for the query.  KVB_NO_MEMORY: *match has no level. */
kvb_status kvb_prefix_index_match(
    struct kvb_prefix_index *index, const kvb_tokens_hash *query, size_t count,
    struct kvb_match *match);

/* The same query by block hashes, the names of blocks.  The first block must begin a prompt.  Each
 * other block must be a child of the one before. */
kvb_status kvb_prefix_index_match_blocks(
    struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match);

typedef void kvb_match_visitor(void *context, kvb_slot_ref slot, uint32_t depth);

/* Visits the slots of one word.  The answer for a common prompt may contain every slot of the
 * fleet.  Then most words have all bits, and a counted loop takes half the time of a bit scan. */
static inline void kvb_match_each_of_word(
    uint64_t word, const uint32_t slot_of[64], uint32_t depth, kvb_match_visitor *visit,
    void *context)
{
    if (word == UINT64_MAX) {
        for (uint32_t bit = 0; bit < 64; bit++) {
            visit(context, (kvb_slot_ref){ slot_of[bit] }, depth);
        }
        return;
    }
    for (; word != 0; word &= word - 1) {
        visit(context, (kvb_slot_ref){ slot_of[__builtin_ctzll(word)] }, depth);
    }
}

/* Calls visit(context, slot, depth) for each slot, level by level.  Inline, so that the compiler
 * inlines the visitor too. */
static inline void
kvb_match_each(const struct kvb_match *match, kvb_match_visitor *visit, void *context)
{
    for (size_t i = 0; i < match->level_count; i++) {
        const struct kvb_match_level level = match->levels[i];
        if (level.set_at == KVB_MATCH_ONE) {
            visit(context, (kvb_slot_ref){ level.slot }, level.depth);
            continue;
        }
        for (uint32_t w = 0; w < KVB_MATCH_WORDS; w++) {
            kvb_match_each_of_word(
                match->words[level.set_at + w], match->slot_of + level.slot + (size_t)64 * w,
                level.depth, visit, context);
        }
    }
}

/* ---- Walking ---- */

/* A status other than KVB_OK stops the walk.  The walk returns that status. */
typedef kvb_status (*kvb_index_visitor)(void *context, const struct kvb_index_run *run);

/* Visits all blocks of the slot as runs, parents before children.  An empty index that stores the
 * runs in that order gives the slot the same depths.  A run below a block that the slot does not
 * hold has the slot's former name of that block as parent.  If the slot now uses that name for
 * another block, the parent gets a name that the slot does not use.
 *
 * It goes in steps, between which the index may change.  Each run is correct when it is visited.  A
 * block that is added or moved during the walk may be left out or visited twice.  The walk ends
 * when the slot is cleared.  Memory: some 48 bytes for 16 blocks. */
struct kvb_index_walk;

/* KVB_NO_MEMORY */
kvb_status kvb_index_walk_new(
    struct kvb_prefix_index *index, kvb_slot_ref slot, struct kvb_index_walk **out_walk);
void kvb_index_walk_free(struct kvb_index_walk *walk); /* NULL is fine */

/* Does one step.  Visiting a block takes 16 units of the budget, and finding it up to 8.  A unit is
 * some 10 ns; SIZE_MAX: the whole walk.  The visitor must not return KVB_AGAIN.
 * KVB_AGAIN      call again to continue
 * KVB_NO_MEMORY  the walk has ended: the visitor got a part of the runs, or none */
kvb_status kvb_index_walk_step(
    struct kvb_index_walk *walk, size_t budget, kvb_index_visitor visit, void *context);

/* Calls visit(context, block) for about max_blocks names of the slot, from *place on, and advances
 * *place.  The first call takes 0, and *place is KVB_INDEX_PLACE_END after the last page.  A page
 * may be empty without being the last.  The index may change between two pages.  A block that stays
 * in its place is visited at least once.  A block that is added or moved may be left out. */
#define KVB_INDEX_PLACE_END UINT64_MAX
void kvb_prefix_index_page(
    struct kvb_prefix_index *index, kvb_slot_ref slot, uint64_t *place, size_t max_blocks,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* Calls visit(context, block) for each name of the slot, in no particular order.  The index must
 * not change during the call. */
void kvb_prefix_index_each_block(
    struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* ---- Reclaiming ---- */

/* Incremental reclaim: frees the memory of cleared slots in at most so many extents.  Each change
 * of the index also reclaims a few extents.  Reclaiming never affects an answer.  Returns whether
 * anything is left to reclaim.  An extent takes well under 1 us. */
bool kvb_prefix_index_reclaim(struct kvb_prefix_index *index, size_t extents);

/* ---- Memory ahead of use ----
 *
 * The index grows in place.  The first access to new memory is a page fault, which costs 0.1 ms for
 * a huge page and many times that on a virtual machine.  A caller with time to spare makes the
 * memory resident before events need it:
 *
 *     extents        |== in use ==|-- populated: no fault --|.... address space ....
 *     names, edges   |== lines in use ==|-- populated ------|....
 *     sets           |== in use ==|-- populated ------------|....
 */

/* Populates memory for `spare` nodes more than there are, some 60 bytes each, and at most about
 * `bytes` of it in one call.  Returns whether any is left.  It affects no answer and no limit;
 * memory for more nodes is populated when they are stored.  Populating 2 MiB takes 0.1 ms, or up to
 * 5 ms on a virtual machine whose host has no memory behind it yet.  No call does less, because a
 * huge page is populated as a whole. */
bool kvb_prefix_index_prepare(struct kvb_prefix_index *index, size_t spare, size_t bytes);

/* ---- Counting ---- */

struct kvb_index_counters {
    uint64_t nodes;       /* nodes now; this and the next three are gauges */
    uint64_t ghosts;      /* without holders, placeholders included */
    uint64_t orphans;     /* nodes below placeholders, placeholders included */
    uint64_t memberships; /* (slot, name) pairs now; the last gauge */
    uint64_t stored;      /* (slot, name) pairs added; this and all below are counters */
    uint64_t removed;
    uint64_t duplicate_stored;
    uint64_t unknown_removed;
    uint64_t unknown_parents;
    uint64_t self_parents;
    uint64_t aliases;
    uint64_t refused; /* blocks that were not stored for lack of room or memory */
};

void kvb_prefix_index_count(
    const struct kvb_prefix_index *index, struct kvb_index_counters *out_counters);

/* Returns the memory that the index uses, in bytes.  It never shrinks. */
size_t kvb_prefix_index_bytes(const struct kvb_prefix_index *index);
