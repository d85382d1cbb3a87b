#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "index/id_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Runs whose parent a slot does not hold, for the prefix_*.c files alone.
 *
 *     "what slot 3 calls P" -- a {A} -- b {B, B'}      a tree for each name waited for
 *                                  \--- c {C}
 *
 * Each tree belongs to one slot: names say nothing about what another slot means by them.
 * A node lives while it has members, words of the slot for it, or children; so does the
 * placeholder on top.  When the slot stores P in the tree of the index, the runs move
 * there (kvb_prefix_join()); when P turns out to be an orphan itself, below it.
 *
 * Orphans are rare and their number is small: this is written for clearness.
 * Threads: the caller locks.
 * Memory: a node 40 bytes, a member 40, a table cell 8 (tables are 3/8 to 3/4 full). */
enum forest_kind { forest_free, forest_content, forest_placeholder };

struct forest_node {
    uint64_t key;    /* content: tokens_hash; placeholder: block hash */
    uint32_t parent; /* KVB_NO_ID: a placeholder */
    uint32_t slot;   /* placeholder: whose; content: the tree's node, during a join */
    uint32_t first_child;
    uint32_t previous_sibling;
    uint32_t next_sibling;
    uint32_t first_member;
    uint8_t kind;
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

/* A slot's part of it. */
struct kvb_forest_owner {
    uint32_t first_member;
    size_t count; /* members */
};

struct kvb_forest {
    struct forest_node *nodes; /* owned */
    size_t node_capacity, node_end;
    uint32_t free_node;            /* through parent */
    struct forest_member *members; /* owned */
    size_t member_capacity, member_end;
    uint32_t free_member;
    struct kvb_id_table children;     /* (parent, tokens_hash) -> node */
    struct kvb_id_table names;        /* (slot, block hash) -> member */
    struct kvb_id_table placeholders; /* (slot, block hash) -> node */
    size_t most_nodes;                /* as its owner allows just now */
    size_t node_count;
    size_t ghost_count; /* nodes without members, placeholders included */
};

void kvb_forest_init(struct kvb_forest *forest);
void kvb_forest_done(struct kvb_forest *forest);
size_t kvb_forest_bytes(const struct kvb_forest *forest);

/* The slot's placeholder for a block, or KVB_NO_ID; the same, made.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
uint32_t
kvb_forest_placeholder(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);
kvb_status kvb_forest_placeholder_make(
    struct kvb_forest *forest, uint32_t slot, kvb_block_hash block, uint32_t *out_node);

/* The child of `parent` with this content, made when it is not there.
 * KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_forest_child_make(
    struct kvb_forest *forest, uint32_t parent, uint64_t tokens, uint32_t *out_node);

/* Frees the node if nothing needs it any more, and so on up. */
void kvb_forest_release(struct kvb_forest *forest, uint32_t node);

/* Moves all that hangs below the placeholder below `node`, also of the forest.  Does
 * nothing when `node` itself hangs below it: names in a circle wait for each other. */
void kvb_forest_join(struct kvb_forest *forest, uint32_t placeholder, uint32_t node);

/* The node after `node` in a walk below `top`, parents first, or KVB_NO_ID. */
uint32_t kvb_forest_next(const struct kvb_forest *forest, uint32_t node, uint32_t top);

/* What the slot calls so, or KVB_NO_ID. */
uint32_t kvb_forest_member(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block);

/* KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_forest_member_make(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, const struct forest_member *made);

/* The member stands for another node from now on; the old one is not released. */
void kvb_forest_member_move(struct kvb_forest *forest, uint32_t member, uint32_t node);

/* Forgets the member and releases its node. */
void kvb_forest_member_drop(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t member);
