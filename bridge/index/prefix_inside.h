#pragma once

#include "index/id_table.h"
#include "index/prefix_index.h"

/* The inside of a prefix index, for the prefix_*.c files alone.
 *
 *     node     one block of content: (parent node, tokens_hash)
 *     member   one slot's word for one node: (slot, block hash) -> node
 *
 *        ROOT ---- node ---- node          first_child / siblings
 *                   |         |
 *                 member    member         a node's list: who holds it
 *                   |         |
 *        slot ------+---------+---- ...    a slot's list: what it holds
 *
 * Names belong to a slot: what one engine calls a block never touches what another
 * does, so aliasing names cost nothing and cannot be wrong.
 *
 * A placeholder is a node without content: "what this slot calls P, not stored
 * yet".  It hangs nowhere, its children are orphans.  When the slot stores P, they
 * move below the node that P turned out to be, merging with what is there.
 *
 * A node lives while it has members or children.
 *
 * Memory: a node 40 bytes, a member 40, a table cell 8 (tables are 3/8 to 3/4
 * full). */

enum node_kind { node_free, node_root, node_content, node_placeholder };

#define KVB_NONE KVB_NO_ID

struct prefix_node {
    uint64_t key; /* content: tokens_hash; placeholder: block hash */
    uint32_t parent;
    uint32_t slot; /* placeholder: whose */
    uint32_t first_child;
    uint32_t previous_sibling;
    uint32_t next_sibling;
    uint32_t first_member;
    uint8_t kind;
    bool is_orphan; /* below a placeholder, or one */
};

struct prefix_member {
    kvb_block_hash block;
    kvb_block_hash parent_block; /* as the slot called it when it stored this one; not of roots */
    uint32_t slot;
    uint32_t node;
    uint32_t slot_previous; /* slot list */
    uint32_t slot_next;
    uint32_t node_previous; /* node list; slot_next doubles as the free list */
    uint32_t node_next;
};

struct prefix_slot {
    bool is_used;
    uint32_t first_member;
    uint32_t next_free;
    size_t members;
};

struct kvb_prefix_index {
    struct kvb_prefix_index_options options;

    struct prefix_node *nodes; /* owned; nodes[0] is ROOT */
    size_t node_capacity;
    size_t node_end;
    uint32_t free_node; /* through parent */

    struct prefix_member *members; /* owned */
    size_t member_capacity;
    size_t member_end;
    uint32_t free_member;

    struct prefix_slot *slots; /* owned */
    size_t slot_capacity;
    size_t slot_end;
    uint32_t free_slot;

    struct kvb_id_table children;     /* (parent, tokens_hash) -> node */
    struct kvb_id_table names;        /* (slot, block hash) -> member */
    struct kvb_id_table placeholders; /* (slot, block hash) -> node */

    uint32_t *depths; /* owned: per slot, scratch of a query */
    size_t depth_capacity;

    struct kvb_index_counters counters;
};

enum { kvb_root_node = 0 };

/* ---- prefix_nodes.c ---- */

/* The child of `parent` with this content, or KVB_NONE. */
uint32_t kvb_prefix_child(const struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens);

/* The same, made when it is not there.  KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_prefix_child_make(
    struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens, uint32_t *out_node);

/* The slot's placeholder for a block, or KVB_NONE; the same, made. */
uint32_t
kvb_prefix_placeholder(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block);
kvb_status kvb_prefix_placeholder_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t *out_node);

/* Frees the node if nothing needs it any more, and so on up. */
void kvb_prefix_release(struct kvb_prefix_index *index, uint32_t node);

/* Moves all that hangs below the placeholder below `node`.  Does nothing when
 * `node` itself hangs below it: names that form a circle stay unreachable. */
void kvb_prefix_join(struct kvb_prefix_index *index, uint32_t placeholder, uint32_t node);

/* ---- prefix_members.c ---- */

/* What the slot calls so, or KVB_NONE. */
uint32_t
kvb_prefix_member(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block);

/* KVB_TOO_LARGE, KVB_NO_MEMORY. */
kvb_status kvb_prefix_member_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    uint32_t *out_member);

/* Takes the member off its node's list and puts it on another's; the old node is
 * not released. */
void kvb_prefix_member_move(struct kvb_prefix_index *index, uint32_t member, uint32_t node);

/* Forgets the member; its node is not released. */
void kvb_prefix_member_drop(struct kvb_prefix_index *index, uint32_t member);

/* The slot's first member on a node, or KVB_NONE.  Cost: the node's members. */
uint32_t kvb_prefix_member_on(const struct kvb_prefix_index *index, uint32_t node, uint32_t slot);
