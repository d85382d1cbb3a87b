#pragma once

#include "core/hash.h"
#include "core/id_table.h"
#include "core/ref.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Orphans are runs whose parent a slot does not hold.  Only the files of this folder include this
 * header.
 *
 *     "what slot 3 calls P" -- a {A} -- b {B, B'}      one tree for each missing parent
 *                                  \--- c {C}
 *
 * Each tree belongs to one slot, because different slots may use a name for different blocks.  A
 * member is a name that the slot uses for a node.  A node is kept while it has members or children.
 * The placeholder at the root is kept while it has children.  When the slot stores P in the tree of
 * the index, the runs move there (kvb_prefix_join()).  When the slot stores P as an orphan, the
 * runs move below it.
 *
 * Orphans are rare, but an engine may produce many.  Storing n blocks among m orphans takes
 * O(n log m) steps.
 * Threads: the caller locks.
 * Memory: 40 bytes for a node, 12 for a tree, 40 for a member, 8 for a table cell.  Tables are 3/8
 * to 3/4 full. */
enum forest_kind { forest_free, forest_content, forest_placeholder };

struct forest_node {
    uint64_t key;    /* content: tokens_hash; placeholder: block hash */
    uint32_t parent; /* KVB_NO_ID: a placeholder */
    uint32_t slot;   /* placeholder: its slot; content: its node in the tree, while joined */
    uint32_t first_child;
    uint32_t previous_sibling;
    uint32_t next_sibling;
    uint32_t first_member;
    uint32_t tree; /* number in kvb_forest.trees: the tree that the node was added to */
    uint32_t kind : 2;
    uint32_t weight : 30; /* number of children and members */
};

/* A placeholder and its subtree.  Trees form a disjoint-set forest (union-find) with union by rank
 * and without path compression: when two trees are joined, the one of lower rank becomes part of
 * the other.  So it takes O(log n) steps to find out whether a node is below a placeholder. */
struct forest_tree {
    uint32_t whole; /* the tree that it is part of, or KVB_NO_ID; if free: the next free tree */
    uint32_t rank;
    uint32_t uses; /* number of nodes added to it, and of trees that are part of it */
};

struct forest_member {
    kvb_block_hash block;
    kvb_block_hash parent_block;
    uint32_t slot;
    uint32_t node;
    uint32_t slot_previous;
    uint32_t slot_next; /* next member of the slot; in a free member: the next free one */
    uint32_t node_previous;
    uint32_t node_next;
};

/* The members of one slot. */
struct kvb_forest_owner {
    uint32_t first_member;
    size_t count; /* number of members */
};

struct kvb_forest {
    struct kvb_hash_key key;
    struct forest_node *nodes; /* owned */
    size_t node_capacity, node_end;
    uint32_t free_node;            /* first of a list linked through `parent` */
    struct forest_member *members; /* owned */
    size_t member_capacity, member_end;
    uint32_t free_member;
    struct forest_tree *trees; /* owned */
    size_t tree_end, tree_capacity;
    uint32_t free_tree;
    struct kvb_id_table children;     /* (parent, tokens_hash) -> node */
    struct kvb_id_table names;        /* (slot, block hash) -> member */
    struct kvb_id_table placeholders; /* (slot, block hash) -> node */
    size_t max_nodes;                 /* the index sets it before each store */
    size_t node_count;
    size_t member_count;
    size_t ghost_count; /* nodes without members, placeholders included */
};

void kvb_forest_init(struct kvb_forest *forest, const struct kvb_hash_key *key);
void kvb_forest_done(struct kvb_forest *forest);
size_t kvb_forest_bytes(const struct kvb_forest *forest);

/* Returns the slot's placeholder for a block, or KVB_NO_ID.  _make() creates it when there is none.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
uint32_t
kvb_forest_placeholder(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);
kvb_status kvb_forest_placeholder_make(
    struct kvb_forest *forest, uint32_t slot, kvb_block_hash block, uint32_t *out_node);

/* Finds the child of `parent` with this content, or creates it.  KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_forest_child_make(
    struct kvb_forest *forest, uint32_t parent, uint64_t tokens, uint32_t *out_node);

/* Frees the node if it has neither members nor children, then its parent likewise, and so on. */
void kvb_forest_release(struct kvb_forest *forest, uint32_t node);

/* Moves everything below the placeholder to below `node`, another node of the forest.  Does nothing
 * when `node` is below the placeholder: the node would become its own ancestor. */
void kvb_forest_join(struct kvb_forest *forest, uint32_t placeholder, uint32_t node);

/* Returns the node after `node` in a preorder walk below `top`, or KVB_NO_ID. */
uint32_t kvb_forest_next(const struct kvb_forest *forest, uint32_t node, uint32_t top);

/* Returns the slot's member of this name, or KVB_NO_ID. */
uint32_t kvb_forest_member(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);

/* KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_forest_member_make(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, const struct forest_member *made);

/* Assigns the member to another node; the old node is not released. */
void kvb_forest_member_move(struct kvb_forest *forest, uint32_t member, uint32_t node);

/* Removes the member and releases its node. */
void kvb_forest_member_drop(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t member);
