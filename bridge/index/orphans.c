#include "index/inside.h"

/* Stores runs whose parent the slot does not hold in the forest, and moves them into the tree when
 * the slot stores the parent. */

/* ---- Storing in the forest ---- */

static void make_orphan_room(struct kvb_prefix_index *index)
{
    struct kvb_forest *forest = &index->forest;

    forest->max_nodes = forest->node_count + kvb_prefix_room(index) / kvb_orphan_nodes;
}

/* One node may have several names, so names are limited too.  Their limit is that of nodes. */
static bool has_room_for_name(const struct kvb_prefix_index *index)
{
    return index->forest.member_count < index->options.max_nodes / kvb_orphan_nodes;
}

/* Removes the slot's word if it is in the tree. */
static kvb_status
leave_tree_name(struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found)
{
    if (!kvb_prefix_is_in_tree(found)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_prefix_word_drop(index, slot, found));
    kvb_prefix_trim(index, found->node);
    return KVB_OK;
}

static kvb_status name_orphan(
    struct kvb_prefix_index *index, uint32_t slot, const struct forest_member *made,
    bool *out_is_new)
{
    struct kvb_forest *forest = &index->forest;
    const struct prefix_found found = kvb_prefix_find(index, slot, made->block);

    *out_is_new = found.kind == found_none;
    /* A name that the slot uses for another orphan moves to this one. */
    if (found.kind == found_orphan) {
        forest->members[found.id].parent_block = made->parent_block;
        index->counters.duplicate_stored += found.node == made->node;
        index->counters.aliases += found.node != made->node;
        if (found.node != made->node) {
            kvb_forest_member_move(forest, found.id, made->node);
            kvb_forest_release(forest, found.node);
        }
        return KVB_OK;
    }
    if (!has_room_for_name(index)) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(leave_tree_name(index, slot, &found));
    const kvb_status status = kvb_forest_member_make(forest, &index->slots[slot].orphans, made);
    if (status != KVB_OK) {
        index->counters.removed += !*out_is_new; /* the name was removed from its old node */
        return status;
    }
    index->slots[slot].blocks++;
    index->counters.memberships++;
    index->counters.stored += *out_is_new;
    index->counters.aliases += !*out_is_new;
    return KVB_OK;
}

/* Stores block `at` below the node *place.  Sets *place to the block's node, also when naming the
 * node fails. */
static kvb_status store_orphan(
    struct kvb_prefix_index *index, uint32_t slot, const struct kvb_index_run *run, size_t at,
    uint32_t *place, bool *out_is_new)
{
    struct kvb_forest *forest = &index->forest;
    struct forest_member made = { .block = run->blocks[at],
                                  .parent_block = at > 0 ? run->blocks[at - 1] : run->parent,
                                  .slot = slot };

    KVB_TRY(kvb_forest_child_make(forest, *place, run->tokens[at].value, &made.node));
    *place = made.node;
    KVB_TRY(name_orphan(index, slot, &made, out_is_new));
    /* Others may have waited for just this block: they move below it. */
    const uint32_t waiting = kvb_forest_placeholder(forest, slot, run->blocks[at]);
    if (waiting != KVB_NONE) {
        kvb_forest_join(forest, waiting, made.node);
    }
    return KVB_OK;
}

/* Finds or makes the node of the forest that is the run's parent. */
static kvb_status first_orphan_place(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *parent,
    const struct kvb_index_run *run, uint32_t *out_place)
{
    if (parent->kind == found_orphan) {
        *out_place = parent->node;
        return KVB_OK;
    }
    index->counters.unknown_parents++;
    return kvb_forest_placeholder_make(&index->forest, slot, run->parent, out_place);
}

kvb_status kvb_prefix_store_orphans(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *parent,
    const struct kvb_index_run *run, uint8_t *out_changed)
{
    uint32_t place = KVB_NONE;

    make_orphan_room(index);
    kvb_status status = first_orphan_place(index, slot, parent, run, &place);
    for (size_t i = 0; i < run->count; i++) {
        bool is_new = false;
        if (status == KVB_OK) {
            make_orphan_room(index); /* removing a name from the tree may have freed nodes */
            status = store_orphan(index, slot, run, i, &place, &is_new);
        }
        index->counters.refused += status != KVB_OK;
        if (out_changed) {
            out_changed[i] = is_new && status == KVB_OK;
        }
    }
    if (place != KVB_NONE) {
        kvb_forest_release(&index->forest, place); /* a refused block may leave an unused node */
    }
    return status;
}

/* ---- Moving into the tree ---- */

/* Returns the slot's name for the node.  If the node has no word, a word of a child gives the name
 * of its parent. */
static uint64_t name_of(const struct kvb_forest *forest, uint32_t node)
{
    const struct forest_node *here = &forest->nodes[node];

    if (here->first_member != KVB_NONE) {
        return forest->members[here->first_member].block.value;
    }
    const uint32_t word = forest->nodes[here->first_child].first_member;
    return word != KVB_NONE ? forest->members[word].parent_block.value : 0;
}

/* Returns the node of the tree that becomes the parent of `from`.  For a child of the placeholder
 * it is `below`.  Any other parent in the forest has its node of the tree in `slot`. */
static uint32_t
parent_in_tree(const struct kvb_prefix_index *index, uint32_t from, uint32_t top, uint32_t below)
{
    const uint32_t parent = index->forest.nodes[from].parent;
    return parent == top ? below : index->forest.nodes[parent].slot;
}

/* Finds or makes the node of the tree for this node of the forest.  On failure *out_to is
 * unchanged. */
static kvb_status
map_node(struct kvb_prefix_index *index, uint32_t from, uint32_t parent, uint32_t *out_to)
{
    struct forest_node *here = &index->forest.nodes[from];
    uint32_t to = kvb_prefix_child(index, parent, here->key);

    if (to == KVB_NONE) {
        const uint64_t name = name_of(&index->forest, from);
        const bool is_named = kvb_prefix_named(index, name) == KVB_NONE;
        KVB_TRY(kvb_prefix_child_new(index, parent, here->key, name, is_named, &to));
    }
    here->slot = to;
    *out_to = to;
    return KVB_OK;
}

/* Moves all words of the node into the tree.  The last one frees the node of the forest if it has
 * no children. */
static kvb_status move_words(struct kvb_prefix_index *index, uint32_t slot, uint32_t from)
{
    const uint32_t to = index->forest.nodes[from].slot;
    uint32_t member = index->forest.nodes[from].first_member;

    while (member != KVB_NONE) {
        const struct forest_member moved = index->forest.members[member];
        const struct prefix_found orphan = { .kind = found_orphan, .id = member };
        /* The new word before the old one goes: without memory the name stays where it was. */
        KVB_TRY(kvb_prefix_word_make(index, slot, moved.block, to, moved.parent_block));
        KVB_TRY(kvb_prefix_word_drop(index, slot, &orphan));
        member = moved.node_next;
    }
    return KVB_OK;
}

/* A preorder walk.  It does not check the limit of nodes, because each new node of the tree
 * replaces one of the forest.  Terminates: the next node is read before the current one may be
 * freed, and it is never an ancestor of the current one. */
kvb_status
kvb_prefix_join(struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node)
{
    const uint32_t top = index->slots[slot].orphans.count > 0
                             ? kvb_forest_placeholder(&index->forest, slot, block)
                             : KVB_NONE;
    uint32_t from = top != KVB_NONE ? kvb_forest_next(&index->forest, top, top) : KVB_NONE;

    while (from != KVB_NONE) {
        const uint32_t next = kvb_forest_next(&index->forest, from, top);
        /* Parents come first, so the parent's place in the tree is known. */
        const uint32_t parent = parent_in_tree(index, from, top, node);
        uint32_t to = parent;
        kvb_status status = map_node(index, from, parent, &to);
        if (status == KVB_OK) {
            status = move_words(index, slot, from);
        }
        if (status != KVB_OK) {
            kvb_prefix_trim(index, to); /* `to` may still have no holder */
            return status;
        }
        from = next;
    }
    return KVB_OK;
}
