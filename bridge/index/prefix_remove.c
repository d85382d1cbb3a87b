#include "index/prefix_inside.h"

#include <string.h>

/* Taking blocks from a slot.
 *
 * Engines let a prompt's end go first, so the next block is mostly the node above the last
 * one, and mostly nobody else holds it: then it is the last of its extent, and as many as
 * follow there are popped without another look at who holds them.  Every other block is
 * looked up and leaves its node's set one by one. */

struct removing {
    struct kvb_prefix_index *index;
    uint32_t slot;
    uint32_t holder;
    const kvb_block_hash *blocks;
    size_t count, at;
    uint8_t *changed;    /* may be NULL */
    kvb_set_id from, to; /* what the last node's set became */
};

static void done_with(struct removing *removing, size_t count, bool was_held)
{
    if (removing->changed) {
        memset(removing->changed + removing->at, was_held, count);
    }
    removing->at += count;
    if (was_held) {
        removing->index->counters.removed += count;
    } else {
        removing->index->counters.unknown_removed += count;
    }
}

static void count_gone(struct removing *removing, size_t count)
{
    removing->index->slots[removing->slot].blocks -= count;
    removing->index->counters.memberships -= count;
}

static void guess_next(struct removing *removing, uint32_t node)
{
    removing->index->slots[removing->slot].next_removed = node;
    __builtin_prefetch(kvb_prefix_extent_of(removing->index, node));
}

/* ---- The short way: a slot all of whose words are plain ---- */

static uint32_t find_plain(const struct removing *removing)
{
    const struct kvb_prefix_index *index = removing->index;
    const kvb_block_hash block = removing->blocks[removing->at];
    const uint32_t guess = index->slots[removing->slot].next_removed;

    if (kvb_prefix_is_plain(index, removing->holder, guess, block)) {
        return guess;
    }
    const uint32_t node = kvb_prefix_named(index, block.value);
    return node != KVB_NONE && kvb_prefix_holds(index, removing->holder, node) ? node : KVB_NONE;
}

static bool pop(struct removing *removing, uint32_t node)
{
    uint32_t above = kvb_root_node;
    const uint32_t popped = kvb_prefix_pop(
        removing->index, node, removing->blocks + removing->at, removing->count - removing->at,
        kvb_set_of_one(removing->holder), &above);

    if (popped == 0) {
        return false;
    }
    count_gone(removing, popped);
    guess_next(removing, above);
    done_with(removing, popped, true);
    return true;
}

static kvb_status leave(struct removing *removing, uint32_t node)
{
    struct kvb_prefix_index *index = removing->index;
    kvb_set_id *set = kvb_prefix_set(index, node);
    const kvb_set_id from = *set;

    if (from == removing->from && from != 0 && !kvb_set_is_one(from)) {
        kvb_set_keep(&index->sets, removing->to);
        kvb_set_drop(&index->sets, from);
    } else {
        KVB_TRY(kvb_holder_sets_without(&index->sets, from, removing->holder, &removing->to));
        removing->from = removing->to == from ? 0 : from;
    }
    kvb_prefix_put_set(index, set, removing->to);
    count_gone(removing, 1);
    return KVB_OK;
}

static kvb_status remove_plain(struct removing *removing)
{
    const uint32_t node = find_plain(removing);

    if (node == KVB_NONE) {
        done_with(removing, 1, false);
        return KVB_OK;
    }
    if (pop(removing, node)) {
        return KVB_OK;
    }
    KVB_TRY(leave(removing, node));
    guess_next(removing, kvb_prefix_parent(removing->index, node));
    kvb_prefix_trim(removing->index, node);
    done_with(removing, 1, true);
    return KVB_OK;
}

/* ---- The long way ---- */

static kvb_status remove_any(struct removing *removing)
{
    struct kvb_prefix_index *index = removing->index;
    const kvb_block_hash block = removing->blocks[removing->at];
    const struct prefix_found found = kvb_prefix_find(index, removing->slot, block);

    removing->from = 0; /* sets may go, and their numbers */
    if (found.kind != found_none) {
        KVB_TRY(kvb_prefix_word_drop(index, removing->slot, &found));
    }
    if (found.kind == found_plain || found.kind == found_odd) {
        kvb_prefix_trim(index, found.node);
    }
    done_with(removing, 1, found.kind != found_none);
    return KVB_OK;
}

kvb_status kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed)
{
    struct removing removing = { .index = index,
                                 .slot = slot.value,
                                 .holder = index->slots[slot.value].holder,
                                 .blocks = blocks,
                                 .count = count,
                                 .changed = out_changed };

    (void)kvb_prefix_index_tend(index, kvb_swept_a_change);
    kvb_prefix_look_at_first(index, blocks, count);
    while (removing.at < count) {
        kvb_prefix_look_ahead(index, blocks, count, removing.at + kvb_prefix_ahead);
        const kvb_status status = kvb_prefix_is_simple(index, slot.value) ? remove_plain(&removing)
                                                                          : remove_any(&removing);
        if (status != KVB_OK) {
            kvb_prefix_index_slot_clear(index, slot);
            return status;
        }
    }
    return KVB_OK;
}
