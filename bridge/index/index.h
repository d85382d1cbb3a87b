#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The prefix index, a radix tree: which slots hold a prefix of a prompt, and exactly how long a
 * prefix.
 *
 * Blocks form trees: a node is (parent node, tokens_hash), so equal prompts share nodes whatever
 * block hashes their engines use; events refer to nodes by block hash, a block's name.  A slot
 * is one (worker, rank, tier):
 *
 *     ROOT -- t0 {slots 1,2,3} -- t1 {1,2} -- t2 {1}
 *                             \-- t7 {3}
 *     match(t0 t1 t2) = slot 3: depth 1, slot 2: depth 2, slot 1: depth 3
 *
 * A slot's depth is the largest n such that it holds blocks 0 .. n-1 of the query now: every
 * position is checked, none is inferred.
 *
 * Ghosts: a node without holders is kept while a descendant is held, and freed with the last
 * of these.
 *
 * Names are local to a slot: two slots may use one name for different blocks, as a parent, in a
 * removal or in a query by names.  When a slot stores other content under a name that it uses
 * already, the name is moved to the new content, and counted as an alias; blocks below the old
 * content stay there.  A slot may have several names for one node: it holds the node until the
 * last of them is removed.
 *
 * Orphans: a run whose parent the slot does not hold, not yet or no longer, is kept below a
 * placeholder, "what this slot calls P".  Removals find it, queries do not.  When the slot stores
 * P, the run is moved below P and merged with equal nodes.  Names in a circle stay orphans until
 * one of them is stored elsewhere or removed.
 *
 * Threads: the caller locks.
 * Cost:    a new block, or the last removal of a block: one cache line of a table and its part
 *          of an extent of 16; another holder of a block, or one fewer: its part of the extent;
 *          a block of a query: 12 bytes read sequentially.  Clearing a slot takes constant time,
 *          except for its orphans: the memory is reclaimed later in slices, or at once when a
 *          run might find no room otherwise.
 * Memory:  in bytes.  A node: 24 in full extents and 18 in the table of names, for any number of
 *          holders; some 420 where each prompt is one block, and twice that with holes between
 *          extents.  An extent in which a slot holds something: 4 to 16 per slot.  A set of up
 *          to 512 holders in use: some 140.  An orphan: some 110, and it counts as three nodes.
 *          A per-slot page (a slot's own names of up to 16 nodes of an extent): 152, 10 in a
 *          table, and 16 in another for each name.  An overflow alias: 32, and 26 in tables.  At
 *          most max_nodes nodes, 16 times as many own names and aliases, and 65,536 slots that
 *          hold something.  The index grows in place and never shrinks; freed memory is reused. */
struct kvb_prefix_index;

struct kvb_prefix_index_options {
    size_t max_nodes; /* 1 .. kvb_max_index_blocks; ghosts count too, orphans three times */
    size_t max_slots; /* 1 .. 2^20 */
    /* The key of the hashes of all tables; it affects no answer.  Random, so that untrusted
     * clients cannot construct prompts or names that collide; a constant in tests. */
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

/* Removes all blocks of the slot; the slot stays. */
void kvb_prefix_index_slot_clear(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Clears the slot and frees its number for reuse.  Answers contain nothing of the previous
 * owner. */
void kvb_prefix_index_slot_free(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Number of names that the slot holds: a node with two names counts twice. */
size_t kvb_prefix_index_slot_blocks(const struct kvb_prefix_index *index, kvb_slot_ref slot);

/* How many new nodes max_nodes allows, once the memory of cleared slots is reclaimed. */
size_t kvb_prefix_index_room(const struct kvb_prefix_index *index);

/* A chain of blocks: each is the child of the one before, the first of parent. */
struct kvb_index_run {
    bool has_parent; /* else the first block begins a prompt */
    kvb_block_hash parent;
    const kvb_block_hash *blocks;
    const kvb_tokens_hash *tokens; /* parallel to blocks */
    size_t count;
};

/* Adds the run to the blocks that the slot holds.  out_changed, when not NULL, has room for
 * run->count bytes: 1 where the slot did not hold the block before.
 *
 * Duplicates, unknown parents and aliases are handled and counted; they are not errors.  A run
 * that contains its own parent is refused as a whole.
 * KVB_BAD_INPUT  the run names its own parent: nothing changed
 * KVB_TOO_LARGE  the limit of nodes or of names is reached: the first part of the run
 *                is stored, see out_changed; nothing is evicted
 * KVB_NO_MEMORY  as KVB_TOO_LARGE */
kvb_status kvb_prefix_index_store(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run,
    uint8_t *out_changed);

/* Removes these blocks, in any order, from those that the slot holds; unknown ones are counted.
 * out_changed as above: 1 where the slot held the block.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no memory for the remaining state: then the slot is cleared, so
 *                that no removed block stays listed; out_changed is undefined */
kvb_status kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed);

/* Prefetches the memory that such a change reads first, and returns at once: for a caller that
 * already knows a later change.  Only a hint. */
void kvb_prefix_index_expect_store(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run);
void kvb_prefix_index_expect_remove(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks,
    size_t count);

/* ---- Queries ---- */

/* Slots whose held prefix is exactly `depth` blocks long: one slot, or a bit set of internal
 * numbers, which kvb_match_each() reads.  Levels are sorted by depth, and several may have the
 * same depth.  A slot is in one level at most; slots of depth 0 are in none. */
struct kvb_match_level {
    uint32_t depth; /* blocks */
    uint32_t slot;  /* the slot, when set_at is KVB_MATCH_ONE; else bit 0's internal number */
    size_t set_at;  /* first word in kvb_match.words, or KVB_MATCH_ONE */
};

#define KVB_MATCH_ONE SIZE_MAX
#define KVB_MATCH_WORDS 8 /* of a bit set */

/* Reused between queries; {0} at first, freed by kvb_match_done().  Valid until the index
 * changes. */
struct kvb_match {
    struct kvb_match_level *levels; /* owned */
    size_t level_count, level_capacity;
    uint64_t *words; /* owned */
    size_t word_count, word_capacity;
    const uint32_t *slot_of; /* borrowed from the index: slots by internal number */
};

void kvb_match_done(struct kvb_match *match);

/* Fills *match for the query.  KVB_NO_MEMORY: *match holds no level. */
kvb_status kvb_prefix_index_match(
    struct kvb_prefix_index *index, const kvb_tokens_hash *query, size_t count,
    struct kvb_match *match);

/* The same query by block hashes, the names of the nodes: the first must begin a prompt, each
 * other one must be a child of the one before. */
kvb_status kvb_prefix_index_match_blocks(
    struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match);

/* Calls visit(context, slot, depth) for each slot of each level, in order.  Inline, so that the
 * visitor is inlined too: the answer for a common prompt may contain every slot of the fleet. */
static inline void kvb_match_each(
    const struct kvb_match *match, void (*visit)(void *context, kvb_slot_ref slot, uint32_t depth),
    void *context)
{
    for (size_t i = 0; i < match->level_count; i++) {
        const struct kvb_match_level *level = &match->levels[i];
        if (level->set_at == KVB_MATCH_ONE) {
            visit(context, (kvb_slot_ref){ level->slot }, level->depth);
            continue;
        }
        for (uint32_t w = 0; w < KVB_MATCH_WORDS; w++) {
            for (uint64_t left = match->words[level->set_at + w]; left; left &= left - 1) {
                const uint32_t number = level->slot + w * 64 + (uint32_t)__builtin_ctzll(left);
                visit(context, (kvb_slot_ref){ match->slot_of[number] }, level->depth);
            }
        }
    }
}

/* ---- Walking ---- */

/* Return other than KVB_OK to stop the walk with that status. */
typedef kvb_status (*kvb_index_visitor)(void *context, const struct kvb_index_run *run);

/* Visits all blocks of the slot as runs, parents before children.  Storing the runs in that
 * order in an empty index gives the slot the same depths.  A run below a block that is not held
 * names that parent as the slot did; if the slot uses that name for another block by now, the
 * parent gets a name that the slot does not use.  The index must not change meanwhile.
 * KVB_NO_MEMORY  the visitor got a part of the runs, or none */
kvb_status kvb_prefix_index_walk(
    struct kvb_prefix_index *index, kvb_slot_ref slot, kvb_index_visitor visit, void *context);

/* The same in steps, between which the index may change.  Each run is correct when it is
 * visited.  A block that is added or moved meanwhile may be left out or visited twice, and the
 * walk ends when the slot is cleared.  Memory: some 48 bytes for 16 blocks. */
struct kvb_index_walk;

/* KVB_NO_MEMORY */
kvb_status kvb_index_walk_new(
    struct kvb_prefix_index *index, kvb_slot_ref slot, struct kvb_index_walk **out_walk);
void kvb_index_walk_free(struct kvb_index_walk *walk); /* NULL is fine */

/* budget: 16 per block visited, and up to 8 to find it; a unit is some 10 ns.  KVB_AGAIN: call
 * again to continue.  Other results as above; the visitor must not return KVB_AGAIN. */
kvb_status kvb_index_walk_step(
    struct kvb_index_walk *walk, size_t budget, kvb_index_visitor visit, void *context);

/* Calls visit(context, block) for about max_blocks names that the slot holds, from *place on,
 * and advances *place; begin with 0.  A page may be empty without being the last.  The index may
 * change between two pages: a block that is held throughout is visited, maybe twice. */
#define KVB_INDEX_PLACE_END UINT64_MAX
void kvb_prefix_index_page(
    struct kvb_prefix_index *index, kvb_slot_ref slot, uint64_t *place, size_t max_blocks,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* Calls visit(context, block) for each block that the slot holds, by name, in no
 * particular order.  The index must not change meanwhile. */
void kvb_prefix_index_each_block(
    struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* ---- Reclaiming ---- */

/* Incremental reclaim: frees what cleared slots left in at most so many extents.  Each change of
 * the index reclaims a few by itself.  It never affects an answer.  Returns whether anything is
 * left.  Cost: well under 1 us for each extent. */
bool kvb_prefix_index_reclaim(struct kvb_prefix_index *index, size_t extents);

/* ---- Counting ---- */

struct kvb_index_counters {
    uint64_t nodes;       /* nodes now; gauges from here ... */
    uint64_t ghosts;      /* without holders, placeholders included */
    uint64_t orphans;     /* nodes below placeholders, placeholders included */
    uint64_t memberships; /* (slot, name) pairs now; ... to here */
    uint64_t stored;      /* counters from here on: (slot, name) pairs added */
    uint64_t removed;
    uint64_t duplicate_stored;
    uint64_t unknown_removed;
    uint64_t unknown_parents;
    uint64_t self_parents;
    uint64_t aliases;
    uint64_t refused; /* blocks of runs refused for lack of room or memory */
};

void kvb_prefix_index_count(
    const struct kvb_prefix_index *index, struct kvb_index_counters *out_counters);

/* Memory that the index uses; it never shrinks. */
size_t kvb_prefix_index_bytes(const struct kvb_prefix_index *index);
