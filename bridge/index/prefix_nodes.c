#include "core/array.h"
#include "index/prefix_inside.h"

#include <assert.h>

static uint32_t hash_child(uint32_t parent, uint64_t tokens)
{
    return kvb_id_hash(tokens + parent * UINT64_C(0x9e3779b97f4a7c15));
}

static uint32_t hash_placeholder(uint32_t slot, kvb_block_hash block)
{
    return kvb_id_hash(block.value + slot * UINT64_C(0x9e3779b97f4a7c15));
}

uint32_t kvb_prefix_child(const struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens)
{
    const uint32_t hash = hash_child(parent, tokens);
    size_t at = kvb_id_table_start(&index->children, hash);

    for (uint32_t id; (id = kvb_id_table_next(&index->children, hash, &at)) != KVB_NONE;) {
        if (index->nodes[id].parent == parent && index->nodes[id].key == tokens) {
            return id;
        }
    }
    return KVB_NONE;
}

uint32_t
kvb_prefix_placeholder(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block)
{
    const uint32_t hash = hash_placeholder(slot, block);
    size_t at = kvb_id_table_start(&index->placeholders, hash);

    for (uint32_t id; (id = kvb_id_table_next(&index->placeholders, hash, &at)) != KVB_NONE;) {
        if (index->nodes[id].slot == slot && index->nodes[id].key == block.value) {
            return id;
        }
    }
    return KVB_NONE;
}

/* ---- Coming ---- */

/* A free node, all links empty, still counted nowhere. */
static kvb_status draw_node(struct kvb_prefix_index *index, uint32_t *out_id)
{
    if (index->counters.nodes >= index->options.max_nodes) {
        return KVB_TOO_LARGE;
    }
    if (index->free_node != KVB_NONE) {
        *out_id = index->free_node;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &index->nodes, &index->node_capacity, index->node_end + 1, sizeof *index->nodes,
        index->options.max_nodes + 1));
    *out_id = (uint32_t)index->node_end;
    return KVB_OK;
}

static void take_node(struct kvb_prefix_index *index, uint32_t id, const struct prefix_node *node)
{
    if (id == index->free_node) {
        index->free_node = index->nodes[id].parent;
    } else {
        index->node_end++;
    }
    index->nodes[id] = *node;
    index->nodes[id].first_child = KVB_NONE;
    index->nodes[id].previous_sibling = KVB_NONE;
    index->nodes[id].next_sibling = KVB_NONE;
    index->nodes[id].first_member = KVB_NONE;
    index->counters.nodes++;
    index->counters.ghosts++; /* nobody holds it yet */
    index->counters.orphans += node->is_orphan;
}

static void link_child(struct kvb_prefix_index *index, uint32_t parent, uint32_t child)
{
    const uint32_t first = index->nodes[parent].first_child;

    index->nodes[child].parent = parent;
    index->nodes[child].previous_sibling = KVB_NONE;
    index->nodes[child].next_sibling = first;
    if (first != KVB_NONE) {
        index->nodes[first].previous_sibling = child;
    }
    index->nodes[parent].first_child = child;
}

static void unlink_child(struct kvb_prefix_index *index, uint32_t child)
{
    const struct prefix_node *node = &index->nodes[child];

    if (node->previous_sibling != KVB_NONE) {
        index->nodes[node->previous_sibling].next_sibling = node->next_sibling;
    } else {
        index->nodes[node->parent].first_child = node->next_sibling;
    }
    if (node->next_sibling != KVB_NONE) {
        index->nodes[node->next_sibling].previous_sibling = node->previous_sibling;
    }
}

kvb_status kvb_prefix_child_make(
    struct kvb_prefix_index *index, uint32_t parent, uint64_t tokens, uint32_t *out_node)
{
    uint32_t id = kvb_prefix_child(index, parent, tokens);

    if (id != KVB_NONE) {
        *out_node = id;
        return KVB_OK;
    }
    KVB_TRY(draw_node(index, &id));
    KVB_TRY(kvb_id_table_put(&index->children, hash_child(parent, tokens), id));
    const struct prefix_node node = { .key = tokens,
                                      .kind = node_content,
                                      .is_orphan = index->nodes[parent].is_orphan };
    take_node(index, id, &node);
    link_child(index, parent, id);
    *out_node = id;
    return KVB_OK;
}

kvb_status kvb_prefix_placeholder_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t *out_node)
{
    uint32_t id = kvb_prefix_placeholder(index, slot, block);

    if (id != KVB_NONE) {
        *out_node = id;
        return KVB_OK;
    }
    KVB_TRY(draw_node(index, &id));
    KVB_TRY(kvb_id_table_put(&index->placeholders, hash_placeholder(slot, block), id));
    const struct prefix_node node = { .key = block.value,
                                      .kind = node_placeholder,
                                      .slot = slot,
                                      .parent = KVB_NONE,
                                      .is_orphan = true };
    take_node(index, id, &node);
    *out_node = id;
    return KVB_OK;
}

/* ---- Going ---- */

static void give_back(struct kvb_prefix_index *index, uint32_t id)
{
    struct prefix_node *node = &index->nodes[id];

    index->counters.nodes--;
    index->counters.ghosts--; /* nobody holds it any more */
    index->counters.orphans -= node->is_orphan;
    node->kind = node_free;
    node->parent = index->free_node;
    index->free_node = id;
}

static void unfile(struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_node *node = &index->nodes[id];

    if (node->kind == node_placeholder) {
        const kvb_block_hash block = { node->key };
        kvb_id_table_remove(&index->placeholders, hash_placeholder(node->slot, block), id);
    } else {
        kvb_id_table_remove(&index->children, hash_child(node->parent, node->key), id);
        unlink_child(index, id);
    }
}

/* Ends at ROOT, at a placeholder, or at a node that is needed. */
void kvb_prefix_release(struct kvb_prefix_index *index, uint32_t node)
{
    while (node != kvb_root_node && node != KVB_NONE &&
           index->nodes[node].first_child == KVB_NONE &&
           index->nodes[node].first_member == KVB_NONE) {
        const uint32_t parent = index->nodes[node].parent;
        unfile(index, node);
        give_back(index, node);
        node = parent;
    }
}

/* ---- Joining ---- */

static bool hangs_below(const struct kvb_prefix_index *index, uint32_t node, uint32_t above)
{
    while (node != above && node != kvb_root_node && node != KVB_NONE) {
        node = index->nodes[node].parent;
    }
    return node == above;
}

/* The node after `node` in a walk of the tree below `top`, parents first. */
static uint32_t next_below(const struct kvb_prefix_index *index, uint32_t node, uint32_t top)
{
    if (index->nodes[node].first_child != KVB_NONE) {
        return index->nodes[node].first_child;
    }
    while (node != top && index->nodes[node].next_sibling == KVB_NONE) {
        node = index->nodes[node].parent;
    }
    return node == top ? KVB_NONE : index->nodes[node].next_sibling;
}

/* All of a subtree is an orphan, or all of it is not. */
static void mark_rooted(struct kvb_prefix_index *index, uint32_t top)
{
    for (uint32_t node = top; node != KVB_NONE; node = next_below(index, node, top)) {
        index->counters.orphans -= index->nodes[node].is_orphan;
        index->nodes[node].is_orphan = false;
    }
}

static void move_members(struct kvb_prefix_index *index, uint32_t from, uint32_t to)
{
    while (index->nodes[from].first_member != KVB_NONE) {
        kvb_prefix_member_move(index, index->nodes[from].first_member, to);
    }
}

/* Hangs `child`, with all below it, under `to`.  The table loses a cell and gets
 * one: it cannot need to grow. */
static void move_child(struct kvb_prefix_index *index, uint32_t child, uint32_t to)
{
    const uint64_t tokens = index->nodes[child].key;

    kvb_id_table_remove(&index->children, hash_child(index->nodes[child].parent, tokens), child);
    unlink_child(index, child);
    const kvb_status status = kvb_id_table_put(&index->children, hash_child(to, tokens), child);
    assert(status == KVB_OK);
    (void)status;
    link_child(index, to, child);
    if (!index->nodes[to].is_orphan) {
        mark_rooted(index, child);
    }
}

/* Goes down both trees at once: what `to` lacks is moved over whole, what it has
 * is merged child by child.
 *
 *     from - a - b         to - a - c        to - a - c
 *             \- c    +                  =             \- b
 *
 * Ends: each round moves a child away from `from` or goes down to one that will
 * be empty when we come up again. */
void kvb_prefix_join(struct kvb_prefix_index *index, uint32_t placeholder, uint32_t node)
{
    uint32_t from = placeholder;
    uint32_t to = node;

    if (hangs_below(index, node, placeholder)) {
        return;
    }
    for (;;) {
        const uint32_t child = index->nodes[from].first_child;
        if (child == KVB_NONE && from == placeholder) {
            break;
        }
        if (child == KVB_NONE) { /* merged: up again */
            const uint32_t up = index->nodes[from].parent;
            unfile(index, from);
            give_back(index, from);
            from = up;
            to = index->nodes[to].parent;
            continue;
        }
        const uint32_t twin = kvb_prefix_child(index, to, index->nodes[child].key);
        if (twin == KVB_NONE) {
            move_child(index, child, to);
        } else {
            move_members(index, child, twin);
            from = child;
            to = twin;
        }
    }
    kvb_prefix_release(index, placeholder);
}
