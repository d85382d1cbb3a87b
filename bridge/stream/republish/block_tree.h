#pragma once

#include "core/buf.h"
#include "core/ref.h"
#include "core/span.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "model/tier.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What one engine holds, with tokens and under the engine's own hashes, and which part of it was
 * republished to readers (shown).
 *
 * One node per engine hash:
 *
 *     root - a - b - c        held:  tiers in which the mirror has the block
 *             \- d            shown: readers have the block, by the events so far
 *
 * Readers hash tokens themselves and skip a block whose parent they do not know.  So a block is
 * shown only if its tokens are known and its parent is shown:
 *
 *     wanted = held on the device, the content can be shown, and the block has no parent or
 *              the parent is shown
 *
 * Each call for changes makes `shown` equal to `wanted` for some more nodes, parents first, and
 * writes the difference as events: each block is stored once and removed once.  A block is
 * removed together with its parent, and is stored again when the parent is.  So readers that
 * followed the changes have exactly what a snapshot contains.
 *
 * While a snapshot is taken, no changes are taken: they gather in a list of nodes, each node at
 * most once, and `shown` stays as it is.
 *
 * Left out, with everything below them: blocks with a salt or multimodal identifiers, without
 * tokens, of another block size, keyed by something that no query contains; and blocks for which
 * there is no room.
 *
 * Pure.  Threads: the caller locks.
 * Memory: 40 bytes a node and 4 a token, at most max_blocks nodes; some 16 bytes a node in a table.
 */
struct kvb_block_tree;

enum { kvb_max_shown_loras = 1024, kvb_max_shown_event_blocks = 1 << 16 };

struct kvb_block_tree_options {
    uint32_t block_size; /* tokens; blocks of another size are left out */
    size_t max_blocks;   /* nodes: blocks, and ancestors that are not held */
    uint64_t hash_key;   /* of the table; random */
    kvb_span lora_name;  /* where the events name none; copied */
};

/* KVB_TOO_LARGE  max_blocks is 0, or block_size * max_blocks cannot be addressed
 * KVB_NO_MEMORY */
kvb_status
kvb_block_tree_new(const struct kvb_block_tree_options *options, struct kvb_block_tree **out_tree);
/* NULL is fine. */
void kvb_block_tree_free(struct kvb_block_tree *tree);

/* ---- From the mirror.  None of these fails: a block for which there is no room is left out. ----
 */

/* Block i of the event, a Stored with tokens.  Whether it is held is another call. */
void kvb_block_tree_store(
    struct kvb_block_tree *tree, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event, uint32_t i);

/* The block is now held in these tiers (a bit each); of the others than the device its tokens are
 * kept, for its return. */
void kvb_block_tree_hold(struct kvb_block_tree *tree, kvb_engine_hash engine, unsigned tiers);

/* Nothing is held.  The next changes begin with a Cleared. */
void kvb_block_tree_clear(struct kvb_block_tree *tree);

/* While the list is hidden, readers are sent an empty one.  A list that was restored is hidden
 * until the engine has proven that it is right.  Looks at all nodes. */
void kvb_block_tree_hide(struct kvb_block_tree *tree, bool is_hidden);

/* ---- For a checkpoint ---- */

/* Appends records of held blocks whose content is known.  The first call has *place 0; each call
 * goes on where the one before stopped, because max_bytes were written or max_looks nodes were
 * looked at; *place is SIZE_MAX when there are no more.  The tree may change between two calls:
 * each record is true by itself.  KVB_TOO_LARGE, KVB_NO_MEMORY of out */
kvb_status kvb_block_tree_save(
    const struct kvb_block_tree *tree, size_t max_bytes, size_t max_looks, size_t *place,
    struct kvb_buf *out);

/* Takes records that were saved with the same block size, before the mirror says what is held.
 * KVB_BAD_INPUT: the last record is not complete; those before it were taken */
kvb_status kvb_block_tree_load(struct kvb_block_tree *tree, kvb_span records);

/* ---- For readers ---- */

bool kvb_block_tree_has_changes(const struct kvb_block_tree *tree);

/* Appends events to `out` until they have max_blocks blocks, looking at max_looks nodes at most.
 * KVB_TOO_LARGE, KVB_NO_MEMORY of out: some change is lost; readers need a snapshot. */
kvb_status kvb_block_tree_take_changes(
    struct kvb_block_tree *tree, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out);

/* ---- A snapshot: all that is shown, parents first.  One at a time. ----
 *
 *     begin    walk, walk, ...    end       between them the mirror may change the tree, but
 *                                           kvb_block_tree_take_changes() must not be called
 */
void kvb_block_tree_walk_begin(struct kvb_block_tree *tree);
void kvb_block_tree_walk_end(struct kvb_block_tree *tree);

/* Appends the next blocks, max_blocks at most (one node is always taken), looking at max_looks
 * nodes at most.  *out_is_done: there are no more. KVB_CLOSED     the tree was cleared since the
 * beginning, or a hash has other content now KVB_TOO_LARGE, KVB_NO_MEMORY of out */
kvb_status kvb_block_tree_walk(
    struct kvb_block_tree *tree, size_t max_blocks, size_t max_looks, struct kvb_event_batch *out,
    bool *out_is_done);

struct kvb_block_tree_counts {
    uint64_t held;  /* blocks on the device; the first four are gauges */
    uint64_t shown; /* of them, those that readers have */
    uint64_t nodes;
    uint64_t bytes;         /* memory of nodes and tokens */
    bool has_signed_hashes; /* the engine's hashes came as signed numbers */
    uint64_t contents;      /* ... counters from here: records that a newer
                               kvb_block_tree_save() may write and an older one did not */
    uint64_t no_room;       /* nodes or names that found no room */
};

/* Borrowed. */
const struct kvb_block_tree_counts *kvb_block_tree_count(const struct kvb_block_tree *tree);

/* Blocks that are held and not shown.  It includes blocks whose changes were not taken yet, and is
 * 0 while more removals than stores wait to be taken. */
uint64_t kvb_block_tree_left_out(const struct kvb_block_tree *tree);
