#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who holds how long a prefix of a prompt, exactly.
 *
 * Blocks form trees: a node is (parent node, tokens_hash), so equal prompts
 * share nodes whatever their engines call them; block hashes are the keys by
 * which events name nodes.  A slot is one (worker, rank, tier):
 *
 *     ROOT -- t0 {slots 1,2,3} -- t1 {1,2} -- t2 {1}
 *                             \-- t7 {3}
 *     match(t0 t1 t2) = slot 3: depth 1, slot 2: depth 2, slot 1: depth 3
 *
 * A slot's depth is the largest n such that it holds blocks 0 .. n-1 of the
 * query now: every position is verified, none is guessed.
 *
 * Ghosts: a node that nobody holds stays while some descendant is held; the last of
 * them takes it along.
 * Names belong to a slot: what one slot calls a block says nothing about what
 * another does, as parent, in a removal or in a query by names.  A name that already
 * means other content to the same slot is an alias: it comes to mean the new content
 * instead of the old, and is counted; what was stored below the old content stays
 * below it.  A slot may have several names for one node: it holds the node until the
 * last of them is removed.
 * Orphans: a run whose parent the slot does not hold by that name, never or no
 * longer, hangs below a placeholder, "what this slot calls P".  No query by content
 * or by names finds it; removals do.  When the slot stores P, the run joins the tree
 * there and merges with what is equal.  Names in a circle wait for each other until
 * one is stored elsewhere, or they are removed.
 *
 * Threads: none of its own; the caller locks.
 * Cost:    a block that comes, or goes for good, one cache line of a table and its part of
 *          an extent of 16; one that is held by one slot more or less, its part of the
 *          extent; a block of a query 12 bytes read in order.  A cleared slot costs the same
 *          whatever it held, orphans aside: what it leaves behind is swept up later, piece
 *          by piece, or at once when a run may find no room beside it.
 * Memory:  24 bytes a node in full extents and 18 in the table of names, whoever holds it;
 *          some 420 a node where each prompt is one block, and as much again where holes
 *          are left between them; 4 to 16 for each extent in which a slot holds something,
 *          however often it left it and came again; some 140 for each different set of
 *          holders of up to 512, in use; for up to 16 names, of an extent's nodes, that are a
 *          slot's own, 152 and 10 in a table, and 16 in another for each; 32 and 26 in tables
 *          for each other name that is not the node's.  At most max_nodes nodes, 16 times as
 *          many such names, and 65,536 slots that hold something.  It grows where it stands,
 *          and never shrinks; what is freed in it is used again. */
struct kvb_prefix_index;

struct kvb_prefix_index_options {
    size_t max_nodes; /* 1 .. kvb_max_index_blocks; ghosts and orphans count */
    size_t max_slots; /* 1 .. 2^20 */
    /* Goes into the hashes of names and contents, and into no answer.  Random, so that nobody
     * can make up prompts that meet in one line of a table; a constant where nobody would. */
    uint64_t hash_key;
};

/* On KVB_OK the caller owns *out_index.
 * KVB_TOO_LARGE  an option is 0 or above its range   KVB_NO_MEMORY */
kvb_status kvb_prefix_index_new(
    const struct kvb_prefix_index_options *options, struct kvb_prefix_index **out_index);

/* NULL is fine. */
void kvb_prefix_index_free(struct kvb_prefix_index *index);

/* Draws an empty slot.  KVB_TOO_LARGE: all max_slots are in use. */
kvb_status kvb_prefix_index_slot_new(struct kvb_prefix_index *index, kvb_slot_ref *out_slot);

/* Forgets all that the slot holds; the slot stays. */
void kvb_prefix_index_slot_clear(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Clears the slot and gives its number back, to be handed out again.  Nothing of its last
 * owner is in any answer then. */
void kvb_prefix_index_slot_free(struct kvb_prefix_index *index, kvb_slot_ref slot);

/* Blocks the slot holds, by name: a node of two names counts twice. */
size_t kvb_prefix_index_slot_blocks(const struct kvb_prefix_index *index, kvb_slot_ref slot);

/* A chain of blocks: each is the child of the one before, the first of parent. */
struct kvb_index_run {
    bool has_parent; /* else the first block begins a prompt */
    kvb_block_hash parent;
    const kvb_block_hash *blocks;
    const kvb_tokens_hash *tokens; /* parallel to blocks */
    size_t count;
};

/* The slot comes to hold the run.  out_changed, when not NULL, has room for
 * run->count bytes: 1 where the slot did not hold the block before.
 *
 * Duplicates, unknown parents and aliases are dealt with and counted, not
 * errors.  A run that contains its own parent is refused whole.
 * KVB_BAD_INPUT  the run names its own parent: nothing changed
 * KVB_TOO_LARGE  max_nodes, or the most names, is reached: the first part of the
 *                run is held, and out_changed says which; a clear refusal, nothing
 *                is evicted
 * KVB_NO_MEMORY  as KVB_TOO_LARGE */
kvb_status kvb_prefix_index_store(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run,
    uint8_t *out_changed);

/* The slot ceases to hold these blocks, in any order; unknown ones are counted.
 * out_changed as above: 1 where the slot held the block.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room for what would be left: then the slot is cleared,
 *                so that nothing that was removed is listed; out_changed says nothing */
kvb_status kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed);

/* Asks the memory for what such a change will need first, and returns at once: for those
 * who know the change after the next one while they make this one.  Nothing depends on it. */
void kvb_prefix_index_expect_store(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run);
void kvb_prefix_index_expect_remove(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks,
    size_t count);

/* ---- Asking ---- */

/* Slots whose held prefix is exactly `depth` blocks long: one, or a bit set of inside
 * numbers, for kvb_match_each() to read.  Levels come in rising depth, several may have
 * the same; a slot stands in one level at most; slots of depth 0 in none. */
struct kvb_match_level {
    uint32_t depth; /* blocks */
    uint32_t slot;  /* the one slot, when set_at is KVB_MATCH_ONE; else bit 0's number */
    size_t set_at;  /* first word in kvb_match.words, or KVB_MATCH_ONE */
};

#define KVB_MATCH_ONE SIZE_MAX
#define KVB_MATCH_WORDS 8 /* of a bit set */

/* Reused between queries; {0} to begin with, kvb_match_done() to end with.  To be read
 * before the index changes. */
struct kvb_match {
    struct kvb_match_level *levels; /* owned */
    size_t level_count, level_capacity;
    uint64_t *words; /* owned */
    size_t word_count, word_capacity;
    const uint32_t *slot_of; /* borrowed from the index: slots by inside number */
};

void kvb_match_done(struct kvb_match *match);

/* Fills *match for the query.  KVB_NO_MEMORY: *match holds no level. */
kvb_status kvb_prefix_index_match(
    struct kvb_prefix_index *index, const kvb_tokens_hash *query, size_t count,
    struct kvb_match *match);

/* The same question by block hashes: each names its node, the first must be a
 * prompt's beginning, each next a child of the one before. */
kvb_status kvb_prefix_index_match_blocks(
    struct kvb_prefix_index *index, const kvb_block_hash *query, size_t count,
    struct kvb_match *match);

/* Calls visit(context, slot, depth) for each slot of each level, in order.  Here, so that
 * the visitor is part of the loop: of a common prompt's answer, each slot of the fleet is. */
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

/* Shows all that the slot holds as runs, parents before children.  Storing the
 * runs in that order in an empty index gives the slot the same depths: a run
 * below a hole names its unheld parent as the slot called it, or, when that name
 * means another block by now, by one that the slot does not use.  The index must
 * not change meanwhile.
 * KVB_NO_MEMORY  the visitor was shown a part, or nothing */
kvb_status kvb_prefix_index_walk(
    struct kvb_prefix_index *index, kvb_slot_ref slot, kvb_index_visitor visit, void *context);

/* Calls visit(context, block) for each block that the slot holds, by name, in no
 * particular order.  The index must not change meanwhile. */
void kvb_prefix_index_each_block(
    struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* ---- Tending ---- */

/* Sweeps at most so many extents for what cleared slots have left behind; each change of
 * the index sweeps a few by itself.  Nothing of it is in any answer; it is only memory.
 * Returns whether anything is left.  Cost: well under 1 us each. */
bool kvb_prefix_index_tend(struct kvb_prefix_index *index, size_t extents);

/* ---- Counting ---- */

struct kvb_index_counters {
    uint64_t nodes;       /* in being; gauges up to here ... */
    uint64_t ghosts;      /* that nobody holds, placeholders included */
    uint64_t orphans;     /* nodes below placeholders, placeholders included */
    uint64_t memberships; /* (slot, name) pairs */
    uint64_t stored;      /* ... counters from here: (slot, name) pairs that came */
    uint64_t removed;
    uint64_t duplicate_stored;
    uint64_t unknown_removed;
    uint64_t unknown_parents;
    uint64_t self_parents;
    uint64_t aliases;
    uint64_t refused; /* blocks of runs that found no room or no memory */
};

void kvb_prefix_index_count(
    const struct kvb_prefix_index *index, struct kvb_index_counters *out_counters);

/* Memory that the index has taken so far; it never gives any back. */
size_t kvb_prefix_index_bytes(const struct kvb_prefix_index *index);
