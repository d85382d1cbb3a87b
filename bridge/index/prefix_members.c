#include "core/array.h"
#include "index/prefix_inside.h"

/* How many slots may hold a node, on average. */
enum { members_a_node = 16 };

static const size_t most_members = (size_t)1 << 31;

static uint32_t hash_name(uint32_t slot, kvb_block_hash block)
{
    return kvb_id_hash(block.value + slot * UINT64_C(0x9e3779b97f4a7c15));
}

uint32_t
kvb_prefix_member(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block)
{
    const uint32_t hash = hash_name(slot, block);
    size_t at = kvb_id_table_start(&index->names, hash);

    for (uint32_t id; (id = kvb_id_table_next(&index->names, hash, &at)) != KVB_NONE;) {
        if (index->members[id].slot == slot && index->members[id].block.value == block.value) {
            return id;
        }
    }
    return KVB_NONE;
}

uint32_t kvb_prefix_member_on(const struct kvb_prefix_index *index, uint32_t node, uint32_t slot)
{
    uint32_t id = index->nodes[node].first_member;

    while (id != KVB_NONE && index->members[id].slot != slot) {
        id = index->members[id].node_next;
    }
    return id;
}

static void link_to_node(struct kvb_prefix_index *index, uint32_t id, uint32_t node)
{
    struct prefix_member *member = &index->members[id];
    const uint32_t first = index->nodes[node].first_member;

    member->node = node;
    member->node_previous = KVB_NONE;
    member->node_next = first;
    if (first != KVB_NONE) {
        index->members[first].node_previous = id;
    } else {
        index->counters.ghosts--;
    }
    index->nodes[node].first_member = id;
}

static void unlink_from_node(struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_member *member = &index->members[id];

    if (member->node_previous != KVB_NONE) {
        index->members[member->node_previous].node_next = member->node_next;
    } else {
        index->nodes[member->node].first_member = member->node_next;
    }
    if (member->node_next != KVB_NONE) {
        index->members[member->node_next].node_previous = member->node_previous;
    }
    index->counters.ghosts += index->nodes[member->node].first_member == KVB_NONE;
}

static void link_to_slot(struct kvb_prefix_index *index, uint32_t id, uint32_t slot)
{
    struct prefix_member *member = &index->members[id];
    const uint32_t first = index->slots[slot].first_member;

    member->slot = slot;
    member->slot_previous = KVB_NONE;
    member->slot_next = first;
    if (first != KVB_NONE) {
        index->members[first].slot_previous = id;
    }
    index->slots[slot].first_member = id;
    index->slots[slot].members++;
}

static void unlink_from_slot(struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_member *member = &index->members[id];

    if (member->slot_previous != KVB_NONE) {
        index->members[member->slot_previous].slot_next = member->slot_next;
    } else {
        index->slots[member->slot].first_member = member->slot_next;
    }
    if (member->slot_next != KVB_NONE) {
        index->members[member->slot_next].slot_previous = member->slot_previous;
    }
    index->slots[member->slot].members--;
}

static kvb_status draw_member(struct kvb_prefix_index *index, uint32_t *out_id)
{
    const size_t wanted = index->options.max_nodes * members_a_node;

    if (index->free_member != KVB_NONE) {
        *out_id = index->free_member;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &index->members, &index->member_capacity, index->member_end + 1, sizeof *index->members,
        wanted < most_members ? wanted : most_members));
    *out_id = (uint32_t)index->member_end;
    return KVB_OK;
}

kvb_status kvb_prefix_member_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    uint32_t *out_member)
{
    uint32_t id = KVB_NONE;

    KVB_TRY(draw_member(index, &id));
    KVB_TRY(kvb_id_table_put(&index->names, hash_name(slot, block), id));
    if (id == index->free_member) {
        index->free_member = index->members[id].slot_next;
    } else {
        index->member_end++;
    }
    index->members[id] = (struct prefix_member){ .block = block };
    link_to_node(index, id, node);
    link_to_slot(index, id, slot);
    index->counters.memberships++;
    *out_member = id;
    return KVB_OK;
}

void kvb_prefix_member_move(struct kvb_prefix_index *index, uint32_t member, uint32_t node)
{
    unlink_from_node(index, member);
    link_to_node(index, member, node);
}

void kvb_prefix_member_drop(struct kvb_prefix_index *index, uint32_t member)
{
    const struct prefix_member *dropped = &index->members[member];

    kvb_id_table_remove(&index->names, hash_name(dropped->slot, dropped->block), member);
    unlink_from_node(index, member);
    unlink_from_slot(index, member);
    index->members[member].slot_next = index->free_member;
    index->free_member = member;
    index->counters.memberships--;
}
