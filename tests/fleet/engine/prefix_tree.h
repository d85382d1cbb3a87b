#pragma once

#include "core/id_table.h"
#include "core/ref.h"
#include "core/status.h"
#include "fleet/engine/content_log.h"

#include <stdint.h>

/* What the blocks of an engine hold: one node for each block content, whatever
 * the number of its physical copies; the parent is the block before it.
 *
 *     table   engine hash -> node
 *     nodes   [ hash, parent, copies ... ][ ... ] ...
 *     tokens  [ node 0's ][ node 1's ] ...      block_size each
 *
 * A node lives as long as it has copies or children, so each prefix can be named
 * by its tokens.  (An LRU that frees tails first never loses a parent before its
 * children, so there are no more nodes than physical blocks.)
 *
 * Threads: the caller locks.
 * Memory:  40 + 4 * block_size bytes a node, taken at the start, and the table. */

enum { kvb_no_node = 0x7fffffff, kvb_no_block = 0x7fffffff };

struct kvb_prefix_node {
    kvb_engine_hash hash;
    const char *salt; /* borrowed; NULL: none */
    uint32_t parent;  /* a node; kvb_no_node at a root; the next free node when unused */
    uint32_t children;
    uint32_t copies;
    uint32_t first_copy; /* blocks, oldest first: the block pool links them */
    uint32_t last_copy;
};

struct kvb_prefix_tree {
    struct kvb_prefix_node *nodes; /* owned, like tokens */
    uint32_t *tokens;
    struct kvb_id_table table;
    uint32_t capacity;
    uint32_t used;       /* nodes */
    uint32_t first_free; /* a node; kvb_no_node when full */
    uint32_t block_size;
};

/* KVB_NO_MEMORY.  tree is {0} before, and may be given to _done after a failure. */
kvb_status
kvb_prefix_tree_init(struct kvb_prefix_tree *tree, uint32_t capacity, uint32_t block_size);
void kvb_prefix_tree_done(struct kvb_prefix_tree *tree);

/* Forgets all nodes. */
void kvb_prefix_tree_clear(struct kvb_prefix_tree *tree);

/* kvb_no_node when no block has this content. */
uint32_t kvb_prefix_tree_find(const struct kvb_prefix_tree *tree, kvb_engine_hash hash);

/* Finds the node, or makes one without copies: give it one, or drop it.
 * parent is a node that is in use, or kvb_no_node.
 * KVB_TOO_LARGE  all nodes are used
 * KVB_NO_MEMORY  nothing changed */
kvb_status kvb_prefix_tree_put(
    struct kvb_prefix_tree *tree, uint32_t parent, const struct kvb_block_content *content,
    uint32_t *out_node);

/* Ends a node that has neither copies nor children, and then its parents
 * likewise; anything else is left alone. */
void kvb_prefix_tree_drop(struct kvb_prefix_tree *tree, uint32_t node);

/* block_size of them; borrowed until the node goes. */
const uint32_t *kvb_prefix_tree_tokens(const struct kvb_prefix_tree *tree, uint32_t node);
