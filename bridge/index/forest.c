#include "index/forest.h"

#include "core/array.h"
#include "core/limits.h"

#include <assert.h>
#include <stdlib.h>

static uint32_t hash_child(const struct kvb_forest *forest, uint32_t parent, uint64_t tokens)
{
    return (uint32_t)kvb_hash_keyed(&forest->key, tokens, parent);
}

static uint32_t hash_name(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block)
{
    return (uint32_t)kvb_hash_keyed(&forest->key, block.value, slot);
}

/* ---- Creating and destroying ---- */

void kvb_forest_init(struct kvb_forest *forest, const struct kvb_hash_key *key)
{
    *forest = (struct kvb_forest){
        .key = *key, .free_node = KVB_NO_ID, .free_tree = KVB_NO_ID, .free_member = KVB_NO_ID
    };
}

void kvb_forest_done(struct kvb_forest *forest)
{
    kvb_id_table_done(&forest->children);
    kvb_id_table_done(&forest->names);
    kvb_id_table_done(&forest->placeholders);
    free(forest->nodes);
    free(forest->members);
    free(forest->trees);
}

static size_t table_bytes(const struct kvb_id_table *table)
{
    return table->cells ? (table->mask + 1) * sizeof *table->cells : 0;
}

size_t kvb_forest_bytes(const struct kvb_forest *forest)
{
    return forest->node_capacity * sizeof *forest->nodes +
           forest->member_capacity * sizeof *forest->members +
           forest->tree_capacity * sizeof *forest->trees + table_bytes(&forest->children) +
           table_bytes(&forest->names) + table_bytes(&forest->placeholders);
}

/* ---- Nodes ---- */

static uint32_t find_child(const struct kvb_forest *forest, uint32_t parent, uint64_t tokens)
{
    const uint32_t hash = hash_child(forest, parent, tokens);
    size_t at = kvb_id_table_start(&forest->children, hash);

    for (uint32_t id; (id = kvb_id_table_next(&forest->children, hash, &at)) != KVB_NO_ID;) {
        if (forest->nodes[id].parent == parent && forest->nodes[id].key == tokens) {
            return id;
        }
    }
    return KVB_NO_ID;
}

uint32_t
kvb_forest_placeholder(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block)
{
    const uint32_t hash = hash_name(forest, slot, block);
    size_t at = kvb_id_table_start(&forest->placeholders, hash);

    for (uint32_t id; (id = kvb_id_table_next(&forest->placeholders, hash, &at)) != KVB_NO_ID;) {
        if (forest->nodes[id].slot == slot && forest->nodes[id].key == block.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

/* ---- Trees ---- */

static kvb_status draw_tree(struct kvb_forest *forest, uint32_t *out_tree)
{
    if (forest->free_tree != KVB_NO_ID) {
        *out_tree = forest->free_tree;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &forest->trees, &forest->tree_capacity, forest->tree_end + 1, sizeof *forest->trees,
        kvb_max_index_blocks));
    *out_tree = (uint32_t)forest->tree_end;
    return KVB_OK;
}

static void take_tree(struct kvb_forest *forest, uint32_t tree)
{
    if (tree == forest->free_tree) {
        forest->free_tree = forest->trees[tree].whole;
    } else {
        forest->tree_end++;
    }
    forest->trees[tree] = (struct forest_tree){ .whole = KVB_NO_ID };
}

static void leave_forest_tree(struct kvb_forest *forest, uint32_t tree)
{
    /* A tree that nobody uses any more is one use less of the tree that it is part of. */
    while (tree != KVB_NO_ID && --forest->trees[tree].uses == 0) {
        const uint32_t whole = forest->trees[tree].whole;
        forest->trees[tree].whole = forest->free_tree;
        forest->free_tree = tree;
        tree = whole;
    }
}

static uint32_t whole_tree_of(const struct kvb_forest *forest, uint32_t node)
{
    uint32_t tree = forest->nodes[node].tree;

    while (forest->trees[tree].whole != KVB_NO_ID) {
        tree = forest->trees[tree].whole;
    }
    return tree;
}

static void unite_trees(struct kvb_forest *forest, uint32_t a, uint32_t b)
{
    const bool is_a_larger = forest->trees[a].rank > forest->trees[b].rank;
    struct forest_tree *whole = &forest->trees[is_a_larger ? a : b];
    struct forest_tree *part = &forest->trees[is_a_larger ? b : a];

    /* By rank, so that the way up to the whole stays short. */
    part->whole = is_a_larger ? a : b;
    whole->uses++;
    whole->rank += whole->rank == part->rank;
}

/* ---- Adding ---- */

/* Returns the number of a free node.  take_node() then takes it. */
static kvb_status draw_node(struct kvb_forest *forest, uint32_t *out_id)
{
    if (forest->node_count >= forest->max_nodes) {
        return KVB_TOO_LARGE;
    }
    if (forest->free_node != KVB_NO_ID) {
        *out_id = forest->free_node;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &forest->nodes, &forest->node_capacity, forest->node_end + 1, sizeof *forest->nodes,
        kvb_max_index_blocks));
    *out_id = (uint32_t)forest->node_end;
    return KVB_OK;
}

static void take_node(struct kvb_forest *forest, uint32_t id, const struct forest_node *node)
{
    if (id == forest->free_node) {
        forest->free_node = forest->nodes[id].parent;
    } else {
        forest->node_end++;
    }
    forest->nodes[id] = *node;
    forest->nodes[id].first_child = KVB_NO_ID;
    forest->nodes[id].previous_sibling = KVB_NO_ID;
    forest->nodes[id].next_sibling = KVB_NO_ID;
    forest->nodes[id].first_member = KVB_NO_ID;
    forest->trees[node->tree].uses++;
    forest->node_count++;
    forest->ghost_count++; /* it has no member yet */
}

static void link_child(struct kvb_forest *forest, uint32_t parent, uint32_t child)
{
    const uint32_t first = forest->nodes[parent].first_child;

    forest->nodes[child].parent = parent;
    forest->nodes[child].previous_sibling = KVB_NO_ID;
    forest->nodes[child].next_sibling = first;
    if (first != KVB_NO_ID) {
        forest->nodes[first].previous_sibling = child;
    }
    forest->nodes[parent].first_child = child;
    forest->nodes[parent].weight++;
}

static void unlink_child(struct kvb_forest *forest, uint32_t child)
{
    const struct forest_node *node = &forest->nodes[child];

    if (node->previous_sibling != KVB_NO_ID) {
        forest->nodes[node->previous_sibling].next_sibling = node->next_sibling;
    } else {
        forest->nodes[node->parent].first_child = node->next_sibling;
    }
    if (node->next_sibling != KVB_NO_ID) {
        forest->nodes[node->next_sibling].previous_sibling = node->previous_sibling;
    }
    forest->nodes[node->parent].weight--;
}

kvb_status kvb_forest_child_make(
    struct kvb_forest *forest, uint32_t parent, uint64_t tokens, uint32_t *out_node)
{
    uint32_t id = find_child(forest, parent, tokens);

    if (id != KVB_NO_ID) {
        *out_node = id;
        return KVB_OK;
    }
    KVB_TRY(draw_node(forest, &id));
    KVB_TRY(kvb_id_table_put(&forest->children, hash_child(forest, parent, tokens), id));
    const struct forest_node node = { .key = tokens,
                                      .tree = forest->nodes[parent].tree,
                                      .kind = forest_content };
    take_node(forest, id, &node);
    link_child(forest, parent, id);
    *out_node = id;
    return KVB_OK;
}

kvb_status kvb_forest_placeholder_make(
    struct kvb_forest *forest, uint32_t slot, kvb_block_hash block, uint32_t *out_node)
{
    uint32_t id = kvb_forest_placeholder(forest, slot, block);

    if (id != KVB_NO_ID) {
        *out_node = id;
        return KVB_OK;
    }
    uint32_t tree = KVB_NO_ID;

    /* Numbers are drawn first and taken last: a failure in between leaves nothing behind. */
    KVB_TRY(draw_node(forest, &id));
    KVB_TRY(draw_tree(forest, &tree));
    KVB_TRY(kvb_id_table_put(&forest->placeholders, hash_name(forest, slot, block), id));
    const struct forest_node node = { .key = block.value,
                                      .kind = forest_placeholder,
                                      .slot = slot,
                                      .tree = tree,
                                      .parent = KVB_NO_ID };
    take_tree(forest, tree);
    take_node(forest, id, &node);
    *out_node = id;
    return KVB_OK;
}

/* ---- Removing ---- */

static void give_node_back(struct kvb_forest *forest, uint32_t id)
{
    struct forest_node *node = &forest->nodes[id];

    forest->node_count--;
    forest->ghost_count--; /* a node without members is freed */
    leave_forest_tree(forest, node->tree);
    node->kind = forest_free;
    node->parent = forest->free_node;
    forest->free_node = id;
}

static void unfile_node(struct kvb_forest *forest, uint32_t id)
{
    const struct forest_node *node = &forest->nodes[id];

    if (node->kind == forest_placeholder) {
        const kvb_block_hash block = { node->key };
        kvb_id_table_remove(&forest->placeholders, hash_name(forest, node->slot, block), id);
    } else {
        kvb_id_table_remove(&forest->children, hash_child(forest, node->parent, node->key), id);
        unlink_child(forest, id);
    }
}

/* Stops after a placeholder, or at a node that has members or children. */
void kvb_forest_release(struct kvb_forest *forest, uint32_t node)
{
    while (node != KVB_NO_ID && forest->nodes[node].first_child == KVB_NO_ID &&
           forest->nodes[node].first_member == KVB_NO_ID) {
        const uint32_t parent = forest->nodes[node].parent;
        unfile_node(forest, node);
        give_node_back(forest, node);
        node = parent;
    }
}

/* ---- Joining ---- */

uint32_t kvb_forest_next(const struct kvb_forest *forest, uint32_t node, uint32_t top)
{
    if (forest->nodes[node].first_child != KVB_NO_ID) {
        return forest->nodes[node].first_child;
    }
    /* Up again, to the first that has another child. */
    while (node != top && forest->nodes[node].next_sibling == KVB_NO_ID) {
        node = forest->nodes[node].parent;
    }
    return node == top ? KVB_NO_ID : forest->nodes[node].next_sibling;
}

static void move_members(struct kvb_forest *forest, uint32_t from, uint32_t to)
{
    while (forest->nodes[from].first_member != KVB_NO_ID) {
        kvb_forest_member_move(forest, forest->nodes[from].first_member, to);
    }
}

/* Moves `child` and its subtree below `to`.  The table loses one entry and gets one, so the put
 * cannot fail. */
static void move_child(struct kvb_forest *forest, uint32_t child, uint32_t to)
{
    const uint64_t tokens = forest->nodes[child].key;

    kvb_id_table_remove(
        &forest->children, hash_child(forest, forest->nodes[child].parent, tokens), child);
    unlink_child(forest, child);
    const kvb_status status =
        kvb_id_table_put(&forest->children, hash_child(forest, to, tokens), child);
    assert(status == KVB_OK);
    (void)status;
    link_child(forest, to, child);
}

/* Swaps the child with its duplicate, the node of the same content below another parent.  The table
 * loses two entries and gets two, so the puts cannot fail. */
static void swap_duplicates(struct kvb_forest *forest, uint32_t child, uint32_t duplicate)
{
    const uint32_t from = forest->nodes[child].parent;
    const uint32_t to = forest->nodes[duplicate].parent;
    const uint64_t tokens = forest->nodes[child].key;
    const uint32_t hash_of_child = hash_child(forest, from, tokens);
    const uint32_t hash_of_duplicate = hash_child(forest, to, tokens);

    kvb_id_table_remove(&forest->children, hash_of_child, child);
    kvb_id_table_remove(&forest->children, hash_of_duplicate, duplicate);
    kvb_status status = kvb_id_table_put(&forest->children, hash_of_child, duplicate);
    assert(status == KVB_OK);
    status = kvb_id_table_put(&forest->children, hash_of_duplicate, child);
    assert(status == KVB_OK);
    (void)status;
    unlink_child(forest, child);
    unlink_child(forest, duplicate);
    link_child(forest, to, child);
    link_child(forest, from, duplicate);
}

/* Merges two nodes of the same content.  *out_to is the node that stays and has the members of
 * both. *out_from is the node that will be freed. */
static void merge_duplicates(
    struct kvb_forest *forest, uint32_t child, uint32_t duplicate, uint32_t *out_from,
    uint32_t *out_to)
{
    const bool is_heavier = forest->nodes[child].weight > forest->nodes[duplicate].weight;

    if (is_heavier) {
        swap_duplicates(forest, child, duplicate);
    }
    *out_from = is_heavier ? duplicate : child;
    *out_to = is_heavier ? child : duplicate;
    move_members(forest, *out_from, *out_to);
}

/* Merges two tries.  A child that `to` lacks is moved with its subtree.  A child that `to` has is
 * merged with its duplicate recursively.
 *
 *     from - a - b         to - a - c        to - a - c
 *             \- c    +                  =             \- b
 *
 * Small-to-large merging: of two duplicates the one with more children and members stays.  So each
 * moved item ends in a node that is at least twice as heavy, and moves O(log n) times, however
 * often trees merge.  Terminates: each iteration moves, enters or frees a node. */
void kvb_forest_join(struct kvb_forest *forest, uint32_t placeholder, uint32_t node)
{
    const uint32_t own_tree = whole_tree_of(forest, placeholder);
    const uint32_t other_tree = whole_tree_of(forest, node);
    uint32_t from = placeholder;
    uint32_t to = node;

    if (own_tree == other_tree) {
        return; /* the node is below the placeholder */
    }
    unite_trees(forest, own_tree, other_tree);
    for (;;) {
        const uint32_t child = forest->nodes[from].first_child;
        /* Each child is moved away or merged, so the first one is always a new one. */
        if (child == KVB_NO_ID && from == placeholder) {
            break;
        }
        if (child == KVB_NO_ID) { /* `from` is merged: return to its parent */
            const uint32_t up = forest->nodes[from].parent;
            unfile_node(forest, from);
            give_node_back(forest, from);
            from = up;
            to = forest->nodes[to].parent;
            continue;
        }
        const uint32_t duplicate = find_child(forest, to, forest->nodes[child].key);
        if (duplicate == KVB_NO_ID) {
            move_child(forest, child, to);
        } else { /* goes down one level: from and to become the pair */
            merge_duplicates(forest, child, duplicate, &from, &to);
        }
    }
    kvb_forest_release(forest, placeholder);
}

/* ---- Members ---- */

uint32_t kvb_forest_member(const struct kvb_forest *forest, uint32_t slot, kvb_block_hash block)
{
    const uint32_t hash = hash_name(forest, slot, block);
    size_t at = kvb_id_table_start(&forest->names, hash);

    for (uint32_t id; (id = kvb_id_table_next(&forest->names, hash, &at)) != KVB_NO_ID;) {
        if (forest->members[id].slot == slot && forest->members[id].block.value == block.value) {
            return id;
        }
    }
    return KVB_NO_ID;
}

static void link_to_node(struct kvb_forest *forest, uint32_t id, uint32_t node)
{
    struct forest_member *member = &forest->members[id];
    const uint32_t first = forest->nodes[node].first_member;

    member->node = node;
    member->node_previous = KVB_NO_ID;
    member->node_next = first;
    if (first != KVB_NO_ID) {
        forest->members[first].node_previous = id;
    } else { /* its first name: it is held from here on */
        forest->ghost_count--;
    }
    forest->nodes[node].first_member = id;
    forest->nodes[node].weight++;
}

static void unlink_from_node(struct kvb_forest *forest, uint32_t id)
{
    const struct forest_member *member = &forest->members[id];

    if (member->node_previous != KVB_NO_ID) {
        forest->members[member->node_previous].node_next = member->node_next;
    } else {
        forest->nodes[member->node].first_member = member->node_next;
    }
    if (member->node_next != KVB_NO_ID) {
        forest->members[member->node_next].node_previous = member->node_previous;
    }
    forest->nodes[member->node].weight--;
    forest->ghost_count += forest->nodes[member->node].first_member == KVB_NO_ID;
}

static void link_to_slot(struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t id)
{
    struct forest_member *member = &forest->members[id];

    member->slot_previous = KVB_NO_ID;
    member->slot_next = owner->count > 0 ? owner->first_member : KVB_NO_ID;
    if (owner->count > 0) {
        forest->members[owner->first_member].slot_previous = id;
    }
    owner->first_member = id;
    owner->count++;
}

static void unlink_from_slot(struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t id)
{
    const struct forest_member *member = &forest->members[id];

    if (member->slot_previous != KVB_NO_ID) {
        forest->members[member->slot_previous].slot_next = member->slot_next;
    } else {
        owner->first_member = member->slot_next;
    }
    if (member->slot_next != KVB_NO_ID) {
        forest->members[member->slot_next].slot_previous = member->slot_previous;
    }
    owner->count--;
}

static kvb_status draw_member(struct kvb_forest *forest, uint32_t *out_id)
{
    if (forest->free_member != KVB_NO_ID) {
        *out_id = forest->free_member;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &forest->members, &forest->member_capacity, forest->member_end + 1, sizeof *forest->members,
        kvb_max_index_blocks));
    *out_id = (uint32_t)forest->member_end;
    return KVB_OK;
}

kvb_status kvb_forest_member_make(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, const struct forest_member *made)
{
    uint32_t id = KVB_NO_ID;

    /* As with nodes: the number is taken when the table has it. */
    KVB_TRY(draw_member(forest, &id));
    KVB_TRY(kvb_id_table_put(&forest->names, hash_name(forest, made->slot, made->block), id));
    if (id == forest->free_member) {
        forest->free_member = forest->members[id].slot_next;
    } else {
        forest->member_end++;
    }
    forest->members[id] = *made;
    forest->member_count++;
    link_to_node(forest, id, made->node);
    link_to_slot(forest, owner, id);
    return KVB_OK;
}

void kvb_forest_member_move(struct kvb_forest *forest, uint32_t member, uint32_t node)
{
    unlink_from_node(forest, member);
    link_to_node(forest, member, node);
}

void kvb_forest_member_drop(
    struct kvb_forest *forest, struct kvb_forest_owner *owner, uint32_t member)
{
    const struct forest_member dropped = forest->members[member];

    kvb_id_table_remove(&forest->names, hash_name(forest, dropped.slot, dropped.block), member);
    unlink_from_node(forest, member);
    unlink_from_slot(forest, owner, member);
    forest->members[member].slot_next = forest->free_member;
    forest->free_member = member;
    forest->member_count--;
    /* Last, because it may free the node and those above it. */
    kvb_forest_release(forest, dropped.node);
}
