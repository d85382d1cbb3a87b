#include "core/array.h"
#include "core/limits.h"
#include "index/prefix_inside.h"

#include <stdlib.h>

/* A walk shows a slot's blocks as runs.  It begins at each held node whose parent
 * node the slot does not hold, and goes down through held nodes, parents first; a
 * node that is not held ends the way down, what is held below it begins anew:
 *
 *     a - b - (c) - d       a b and d are shown; d names its unheld parent c */
struct walk {
    const struct kvb_prefix_index *index;
    uint32_t slot;
    kvb_index_visitor visit;
    void *context;
    kvb_block_hash *blocks;  /* owned: the run being made */
    kvb_tokens_hash *tokens; /* owned, parallel */
    size_t block_capacity;
    size_t token_capacity;
    struct kvb_index_run run;
    uint32_t last_node; /* of the run */
};

static kvb_status flush(struct walk *walk)
{
    kvb_status status = KVB_OK;

    if (walk->run.count > 0) {
        walk->run.blocks = walk->blocks;
        walk->run.tokens = walk->tokens;
        status = walk->visit(walk->context, &walk->run);
    }
    walk->run.count = 0;
    return status;
}

static uint32_t held_on(const struct walk *walk, uint32_t node)
{
    return kvb_prefix_member_on(walk->index, node, walk->slot);
}

/* What to call an unheld parent: as the slot called it.  When that name means
 * another block by now, who reads the walk would hang the run below that one and
 * see a prefix that nobody holds: then a name that the slot does not use. */
static kvb_block_hash unheld_name(const struct walk *walk, const struct prefix_member *member)
{
    const uint32_t parent_node = walk->index->nodes[member->node].parent;
    kvb_block_hash name = member->parent_block;

    if (walk->index->nodes[parent_node].kind == node_placeholder) {
        return name; /* it is what the run waits for */
    }
    while (kvb_prefix_member(walk->index, walk->slot, name) != KVB_NONE) {
        name.value++;
    }
    return name;
}

/* The parent by the name it has now, or had when it was held. */
static void begin_run(struct walk *walk, const struct prefix_member *member)
{
    const uint32_t parent_node = walk->index->nodes[member->node].parent;

    walk->run.has_parent = parent_node != kvb_root_node;
    if (walk->run.has_parent) {
        const uint32_t parent = held_on(walk, parent_node);
        walk->run.parent =
            parent != KVB_NONE ? walk->index->members[parent].block : unheld_name(walk, member);
    }
}

static kvb_status add_block(struct walk *walk, const struct prefix_member *member)
{
    const size_t need = walk->run.count + 1;

    KVB_TRY(kvb_array_reserve(
        &walk->blocks, &walk->block_capacity, need, sizeof *walk->blocks, kvb_max_index_blocks));
    KVB_TRY(kvb_array_reserve(
        &walk->tokens, &walk->token_capacity, need, sizeof *walk->tokens, kvb_max_index_blocks));
    walk->blocks[walk->run.count] = member->block;
    walk->tokens[walk->run.count].value = walk->index->nodes[member->node].key;
    walk->run.count = need;
    return KVB_OK;
}

/* Names may form a circle; a run that contained its own parent would be refused. */
static bool is_parent_of_run(const struct walk *walk, const struct prefix_member *member)
{
    return walk->run.has_parent && walk->run.parent.value == member->block.value;
}

/* A slot that has two names for a node shows it twice, the second time alone. */
static kvb_status show_node(struct walk *walk, uint32_t node)
{
    const struct prefix_member *members = walk->index->members;
    bool continues = walk->run.count > 0 && walk->index->nodes[node].parent == walk->last_node;

    for (uint32_t id = held_on(walk, node); id != KVB_NONE; id = members[id].node_next) {
        if (members[id].slot != walk->slot) {
            continue;
        }
        if (!continues || is_parent_of_run(walk, &members[id])) {
            KVB_TRY(flush(walk));
            begin_run(walk, &members[id]);
        }
        KVB_TRY(add_block(walk, &members[id]));
        continues = false;
    }
    walk->last_node = node;
    return KVB_OK;
}

static uint32_t first_held(const struct walk *walk, uint32_t node)
{
    while (node != KVB_NONE && held_on(walk, node) == KVB_NONE) {
        node = walk->index->nodes[node].next_sibling;
    }
    return node;
}

/* The held node after `node` below `top`, parents first. */
static uint32_t next_held(const struct walk *walk, uint32_t node, uint32_t top)
{
    const struct prefix_node *nodes = walk->index->nodes;
    const uint32_t child = first_held(walk, nodes[node].first_child);

    if (child != KVB_NONE) {
        return child;
    }
    while (node != top) {
        const uint32_t sibling = first_held(walk, nodes[node].next_sibling);
        if (sibling != KVB_NONE) {
            return sibling;
        }
        node = nodes[node].parent;
    }
    return KVB_NONE;
}

static bool is_top(const struct walk *walk, uint32_t member)
{
    const uint32_t node = walk->index->members[member].node;
    const uint32_t parent = walk->index->nodes[node].parent;
    const bool has_held_parent =
        parent != kvb_root_node && parent != KVB_NONE && held_on(walk, parent) != KVB_NONE;

    return !has_held_parent && held_on(walk, node) == member;
}

static kvb_status walk_slot(struct walk *walk)
{
    const struct kvb_prefix_index *index = walk->index;

    for (uint32_t id = index->slots[walk->slot].first_member; id != KVB_NONE;
         id = index->members[id].slot_next) {
        const uint32_t top = index->members[id].node;
        if (!is_top(walk, id)) {
            continue;
        }
        for (uint32_t node = top; node != KVB_NONE; node = next_held(walk, node, top)) {
            KVB_TRY(show_node(walk, node));
        }
        KVB_TRY(flush(walk));
    }
    return KVB_OK;
}

kvb_status kvb_prefix_index_walk(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, kvb_index_visitor visit, void *context)
{
    struct walk walk = { .index = index, .slot = slot.value, .visit = visit, .context = context };
    const kvb_status status = walk_slot(&walk);

    free(walk.blocks);
    free(walk.tokens);
    return status;
}
