#pragma once

#include "core/hash.h"
#include "core/id_table.h"
#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Orphans: runs whose parent a slot does not hold.  For the files of this room only.
 *
 *     "what slot 3 calls P" -- a {A} -- b {B, B'}      a tree for each name waited for
 *                                  \--- c {C}
 *
 * Each tree belongs to one slot, because different slots may use a name for different blocks.  A
 * node is kept while it has members (names that the slot uses for it) or children; so is the
 * placeholder at the root.  When the slot stores P in the tree of the index, the runs move there
 * (kvb_prefix_join()); when P itself is stored as an orphan, they move below it.
 *
 * Orphans are rare, but an engine may produce many: each store costs its own blocks times a
 * logarithm, however many orphans there are.
 * Threads: the caller locks.
 * Memory: a node 40 bytes, a tree 12, a member 40, a table cell 8 (tables are 3/8 to 3/4 full). */
enum forest_kind { forest_free, forest_content, forest_placeholder };

struct forest_node {
    uint64_t key;    /* content: tokens_hash; placeholder: block hash */
    uint32_t parent; /* KVB_NO_ID: a placeholder */
    uint32_t slot;   /* placeholder: its slot; content: its node in the tree, during a join */
    uint32_t first_child;
    uint32_t previous_sibling;
    uint32_t next_sibling;
    uint32_t first_member;
    uint32_t tree; /* the tree that it was added to; in kvb_forest.trees */
    uint32_t kind : 2;
    uint32_t weight : 30; /* number of children and members: the cost of moving them */
};

/* A placeholder and its subtree.  Trees form a union-find forest with union by rank, without
 * path compression: of two trees that are joined, the one of lower rank becomes part of the
 * other.  So it takes O(log n) steps to find out whether a node is below a placeholder, however
 * long the chain. */
struct forest_tree {
    uint32_t whole; /* the tree that it is part of, KVB_NO_ID: none; free list too */
    uint32_t rank;
    uint32_t uses; /* nodes that were added to it, and trees that are part of it */
};

struct forest_member {
    kvb_block_hash block;
    kvb_block_hash parent_block;
    uint32_t slot;
    uint32_t node;
    uint32_t slot_previous;
    uint32_t slot_next; /* free list too */
    uint32_t node_previous;
    uint32_t node_next;
};

/* The members of one slot. */
struct kvb_forest_owner {
    uint32_t first_member;
    size_t count; /* members */
};

struct kvb_forest {
    struct kvb_hash_key key;
    struct forest_node *nodes; /* owned */
    size_t node_capacity, node_end;
    uint32_t free_node;            /* through parent */
    struct forest_member *members; /* owned */
    size_t member_capacity, member_end;
    uint32_t free_member;
    struct forest_tree *trees; /* owned */
    size_t tree_end, tree_capacity;
    uint32_t free_tree;
    struct kvb_id_table children;     /* (parent, tokens_hash) -> node */
    struct kvb_id_table names;        /* (slot, block hash) -> member */
    struct kvb_id_table placeholders; /* (slot, block hash) -> node */
    size_t max_nodes;                 /* the current limit, set by the index */
    size_t node_count;
    size_t member_count;
    size_t ghost_count; /* nodes without members, placeholders included */
};

void kvb_forest_init(struct kvb_forest *forest, const struct kvb_hash_key *key);
void kvb_forest_done(struct kvb_forest *forest);
size_t kvb_forest_bytes(const struct kvb_forest *forest);

/* The slot's placeholder for a block, or KVB_NO_ID; _make() creates it when there is none.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
uint32_t
kvb_forest_placeholder(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);
kvb_status kvb_forest_placeholder_make(
    struct kvb_forest *forest, uint32_t slot, kvb_block_hash block, uint32_t *out_node);

/* The child of `parent` with this content; created when there is none.  KVB_TOO_LARGE,
 * KVB_NO_MEMORY */
kvb_status kvb_forest_child_make(
    struct kvb_forest *forest, uint32_t parent, uint64_t tokens, uint32_t *out_node);

/* Frees the node if nothing needs it any more, then its parent likewise, and so on. */
void kvb_forest_release(struct kvb_forest *forest, uint32_t node);

/* Moves everything below the placeholder to below `node`, another node of the forest.  Does
 * nothing when `node` itself is below the placeholder: names in a circle stay orphans. */
void kvb_forest_join(struct kvb_forest *forest, uint32_t placeholder, uint32_t node);

/* The node after `node` in a preorder walk below `top`, or KVB_NO_ID. */
uint32_t kvb_forest_next(const struct kvb_forest *forest, uint32_t node, uint32_t top);

/* The slot's member of this name, or KVB_NO_ID. */
uint32_t kvb_forest_member(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);

/* KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_forest_member_make(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, const struct forest_member *made);

/* Assigns the member to another node; the old node is not released. */
void kvb_forest_member_move(struct kvb_forest *forest, uint32_t member, uint32_t node);

/* Removes the member and releases its node. */
void kvb_forest_member_drop(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t member);
