#include "index/prefix_index.h"

#include "core/array.h"
#include "core/limits.h"
#include "index/prefix_inside.h"

#include <stdlib.h>

static const size_t most_slots = (size_t)1 << 20;

/* ---- Life ---- */

static kvb_status make_root(struct kvb_prefix_index *index)
{
    KVB_TRY(kvb_array_reserve(
        &index->nodes, &index->node_capacity, 1, sizeof *index->nodes,
        index->options.max_nodes + 1));
    index->nodes[kvb_root_node] = (struct prefix_node){ .kind = node_root,
                                                        .parent = KVB_NONE,
                                                        .first_child = KVB_NONE,
                                                        .previous_sibling = KVB_NONE,
                                                        .next_sibling = KVB_NONE,
                                                        .first_member = KVB_NONE };
    index->node_end = 1;
    return KVB_OK;
}

kvb_status kvb_prefix_index_new(
    const struct kvb_prefix_index_options *options, struct kvb_prefix_index **out_index)
{
    if (options->max_nodes == 0 || options->max_nodes > kvb_max_index_blocks ||
        options->max_slots == 0 || options->max_slots > most_slots) {
        return KVB_TOO_LARGE;
    }

    struct kvb_prefix_index *index = calloc(1, sizeof *index);
    if (!index) {
        return KVB_NO_MEMORY;
    }
    index->options = *options;
    index->free_node = KVB_NONE;
    index->free_member = KVB_NONE;
    index->free_slot = KVB_NONE;
    const kvb_status status = make_root(index);
    if (status != KVB_OK) {
        kvb_prefix_index_free(index);
        return status;
    }
    *out_index = index;
    return KVB_OK;
}

void kvb_prefix_index_free(struct kvb_prefix_index *index)
{
    if (!index) {
        return;
    }
    kvb_id_table_done(&index->children);
    kvb_id_table_done(&index->names);
    kvb_id_table_done(&index->placeholders);
    free(index->nodes);
    free(index->members);
    free(index->slots);
    free(index->depths);
    free(index);
}

/* ---- Slots ---- */

/* The scratch of queries grows along, so that a query cannot lack it. */
static kvb_status draw_slot(struct kvb_prefix_index *index, uint32_t *out_slot)
{
    if (index->free_slot != KVB_NONE) {
        *out_slot = index->free_slot;
        index->free_slot = index->slots[*out_slot].next_free;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &index->depths, &index->depth_capacity, index->slot_end + 1, sizeof *index->depths,
        index->options.max_slots));
    KVB_TRY(kvb_array_reserve(
        &index->slots, &index->slot_capacity, index->slot_end + 1, sizeof *index->slots,
        index->options.max_slots));
    index->depths[index->slot_end] = 0;
    *out_slot = (uint32_t)index->slot_end++;
    return KVB_OK;
}

kvb_status kvb_prefix_index_slot_new(struct kvb_prefix_index *index, kvb_slot_ref *out_slot)
{
    uint32_t slot = KVB_NONE;

    KVB_TRY(draw_slot(index, &slot));
    index->slots[slot] = (struct prefix_slot){ .is_used = true, .first_member = KVB_NONE };
    out_slot->value = slot;
    return KVB_OK;
}

static void forget_member(struct kvb_prefix_index *index, uint32_t member)
{
    const uint32_t node = index->members[member].node;

    kvb_prefix_member_drop(index, member);
    kvb_prefix_release(index, node);
    index->counters.removed++;
}

void kvb_prefix_index_slot_clear(struct kvb_prefix_index *index, kvb_slot_ref slot)
{
    while (index->slots[slot.value].first_member != KVB_NONE) {
        forget_member(index, index->slots[slot.value].first_member);
    }
}

void kvb_prefix_index_slot_free(struct kvb_prefix_index *index, kvb_slot_ref slot)
{
    kvb_prefix_index_slot_clear(index, slot);
    index->slots[slot.value].is_used = false;
    index->slots[slot.value].next_free = index->free_slot;
    index->free_slot = slot.value;
}

size_t kvb_prefix_index_slot_blocks(const struct kvb_prefix_index *index, kvb_slot_ref slot)
{
    return index->slots[slot.value].members;
}

void kvb_prefix_index_each_block(
    const struct kvb_prefix_index *index, kvb_slot_ref slot,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    uint32_t member = index->slots[slot.value].first_member;

    for (; member != KVB_NONE; member = index->members[member].slot_next) {
        visit(context, index->members[member].block);
    }
}

/* ---- Storing ---- */

static bool names_its_own_parent(const struct kvb_index_run *run)
{
    for (size_t i = 0; run->has_parent && i < run->count; i++) {
        if (run->blocks[i].value == run->parent.value) {
            return true;
        }
    }
    return false;
}

/* The node below which the run begins. */
static kvb_status first_place(
    struct kvb_prefix_index *index, uint32_t slot, const struct kvb_index_run *run,
    uint32_t *out_node)
{
    if (!run->has_parent) {
        *out_node = kvb_root_node;
        return KVB_OK;
    }
    const uint32_t member = kvb_prefix_member(index, slot, run->parent);
    if (member != KVB_NONE) {
        *out_node = index->members[member].node;
        return KVB_OK;
    }
    index->counters.unknown_parents++;
    return kvb_prefix_placeholder_make(index, slot, run->parent, out_node);
}

/* The slot's member for a block at `node`; a name that stood for other content
 * moves here. */
static kvb_status name_block(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    uint32_t *out_member, bool *out_is_new)
{
    const uint32_t member = kvb_prefix_member(index, slot, block);

    *out_is_new = member == KVB_NONE;
    if (*out_is_new) {
        KVB_TRY(kvb_prefix_member_make(index, slot, block, node, out_member));
        index->counters.stored++;
        return KVB_OK;
    }
    *out_member = member;
    const uint32_t old = index->members[member].node;
    if (old == node) {
        index->counters.duplicate_stored++;
        return KVB_OK;
    }
    index->counters.aliases++;
    kvb_prefix_member_move(index, member, node);
    kvb_prefix_release(index, old);
    return KVB_OK;
}

/* Block i of the run, as a child of *place.  *place becomes its node as soon as
 * there is one, also when naming it fails: the caller releases it then. */
static kvb_status store_block(
    struct kvb_prefix_index *index, uint32_t slot, const struct kvb_index_run *run, size_t i,
    uint32_t *place, bool *out_is_new)
{
    uint32_t node = KVB_NONE;
    uint32_t member = KVB_NONE;

    KVB_TRY(kvb_prefix_child_make(index, *place, run->tokens[i].value, &node));
    *place = node;
    KVB_TRY(name_block(index, slot, run->blocks[i], node, &member, out_is_new));
    index->members[member].parent_block = i > 0 ? run->blocks[i - 1] : run->parent;
    const uint32_t waiting = kvb_prefix_placeholder(index, slot, run->blocks[i]);
    if (waiting != KVB_NONE) {
        kvb_prefix_join(index, waiting, node);
    }
    return KVB_OK;
}

kvb_status kvb_prefix_index_store(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run,
    uint8_t *out_changed)
{
    uint32_t place = KVB_NONE;

    for (size_t i = 0; out_changed && i < run->count; i++) {
        out_changed[i] = 0;
    }
    if (run->count == 0) {
        return KVB_OK;
    }
    if (names_its_own_parent(run)) {
        index->counters.self_parents++;
        return KVB_BAD_INPUT;
    }
    kvb_status status = first_place(index, slot.value, run, &place);
    for (size_t i = 0; i < run->count; i++) {
        bool is_new = false;
        if (status == KVB_OK) {
            status = store_block(index, slot.value, run, i, &place, &is_new);
        }
        index->counters.refused += status != KVB_OK;
        if (out_changed) {
            out_changed[i] = is_new && status == KVB_OK;
        }
    }
    if (place != KVB_NONE) {
        kvb_prefix_release(index, place); /* what a refused block leaves behind, if anything */
    }
    return status;
}

void kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t member = kvb_prefix_member(index, slot.value, blocks[i]);
        if (out_changed) {
            out_changed[i] = member != KVB_NONE;
        }
        if (member == KVB_NONE) {
            index->counters.unknown_removed++;
        } else {
            forget_member(index, member);
        }
    }
}

void kvb_prefix_index_count(
    const struct kvb_prefix_index *index, struct kvb_index_counters *out_counters)
{
    *out_counters = index->counters;
}

static size_t table_bytes(const struct kvb_id_table *table)
{
    return table->cells ? (table->mask + 1) * sizeof *table->cells : 0;
}

size_t kvb_prefix_index_bytes(const struct kvb_prefix_index *index)
{
    return sizeof *index + index->node_capacity * sizeof *index->nodes +
           index->member_capacity * sizeof *index->members +
           index->slot_capacity * sizeof *index->slots +
           index->depth_capacity * sizeof *index->depths + table_bytes(&index->children) +
           table_bytes(&index->names) + table_bytes(&index->placeholders);
}
