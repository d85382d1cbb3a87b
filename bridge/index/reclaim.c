#include "core/array.h"
#include "index/inside.h"

/* Incremental reclaim.  A holder's number is allocated for a slot.  It is reused when no extent
 * contains the holder any more.
 *
 *     retire    clears the holder's bit in `live`, so that queries leave it out.  The slot gets
 *               another holder.  Takes constant time.
 *     sweep     for each extent of the holder's list: removes the holder from the sets, drops its
 *               own words, frees unused nodes.  Each change of the index sweeps a few extents.  The
 *               caller may have more swept.
 *     end       frees the number for reuse when the list is empty.
 */

static kvb_status draw_holder(struct kvb_prefix_index *index, uint32_t *out_holder)
{
    if (index->holder_free != 0) {
        *out_holder = index->holder_free - 1;
        index->holder_free = index->holders[*out_holder].next_free;
        return KVB_OK;
    }
    const size_t needed = (size_t)index->holder_end + 1;
    KVB_TRY(kvb_array_reserve(
        &index->slot_of, &index->slot_of_capacity, needed, sizeof *index->slot_of,
        kvb_max_holders));
    KVB_TRY(kvb_array_reserve(
        &index->holders, &index->holder_capacity, needed, sizeof *index->holders, kvb_max_holders));
    *out_holder = index->holder_end++;
    index->holders[*out_holder] = (struct prefix_holder){ 0 };
    return KVB_OK;
}

kvb_status kvb_prefix_holder_of(struct kvb_prefix_index *index, uint32_t slot)
{
    uint32_t holder = index->slots[slot].holder;

    if (holder != KVB_NONE) {
        return KVB_OK;
    }
    kvb_status status = draw_holder(index, &holder);
    if (status == KVB_TOO_LARGE && index->dying != 0) {
        (void)kvb_prefix_index_reclaim(index, SIZE_MAX); /* frees numbers of holders */
        status = draw_holder(index, &holder);
    }
    KVB_TRY(status);
    /* The list of the number's last owner is empty; its memory is used on. */
    struct prefix_holder *here = &index->holders[holder];
    index->slot_of[holder] = slot;
    here->extent_count = 0;
    here->kept_before = 0;
    here->pass = 0;
    index->live[holder / 64] |= UINT64_C(1) << (holder % 64);
    index->slots[slot].holder = holder;
    return KVB_OK;
}

void kvb_prefix_holder_retire(struct kvb_prefix_index *index, uint32_t slot)
{
    const uint32_t number = index->slots[slot].holder;

    if (number == KVB_NONE) {
        return;
    }
    struct prefix_holder *holder = &index->holders[number];
    /* Sets and names still have it: from here on only this bit says that it is gone. */
    index->live[number / 64] &= ~(UINT64_C(1) << (number % 64));
    kvb_prefix_pass_leave(index, number);
    holder->next_free = index->dying;
    index->dying = number + 1;
    index->slots[slot].holder = KVB_NONE;
}

/* Removes the holder from each set of the extent, from the extent's end up.  Then frees unused
 * nodes.  Returns false when there is no memory for a new set; a later call tries again.  Queries
 * leave the holder out in any case. */
static bool sweep_extent(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    struct prefix_extent *here = kvb_prefix_extent(index, extent);
    kvb_set_id from = 0;
    kvb_set_id to = 0;

    kvb_prefix_page_drop(index, holder, extent); /* before its nodes are freed */
    for (uint32_t i = here->len; i-- > 0;) {
        kvb_set_id *set = &here->sets[i];
        const kvb_set_id old = *set;
        /* The same set as of the node before: so is the result. */
        if (old == from && from != 0 && !kvb_set_is_one(from)) {
            kvb_set_keep(&index->sets, to);
            kvb_set_drop(&index->sets, old);
        } else if (!kvb_set_has(&index->sets, old, holder)) {
            continue;
        } else if (kvb_holder_sets_without(&index->sets, old, holder, &to) != KVB_OK) {
            return false;
        } else {
            from = to == old ? 0 : old;
        }
        kvb_prefix_put_set(index, set, to);
        kvb_prefix_overflow_words_drop(index, holder, extent * kvb_extent_nodes + i);
    }
    if (here->len > 0) {
        kvb_prefix_trim(index, extent * kvb_extent_nodes + here->len - 1);
    }
    return true;
}

/* How far ahead to prefetch: cache lines of extents, and table lines of blocks that only this
 * holder holds. */
enum { extents_ahead = 8, names_ahead = 1 };

[[gnu::always_inline]] static inline void
prefetch_holder(const struct kvb_prefix_index *index, const struct prefix_holder *holder)
{
    const size_t left = holder->extent_count;

    if (left > extents_ahead) {
        const uint32_t later = holder->extents[left - 1 - extents_ahead];
        kvb_prefix_fetch_removed(index, later * kvb_extent_nodes, true);
    }
    if (left > names_ahead) {
        const uint32_t number = (uint32_t)(holder - index->holders);
        const struct prefix_extent *soon =
            kvb_prefix_extent(index, holder->extents[left - 1 - names_ahead]);
        for (uint32_t i = 0; i < soon->len; i++) {
            if (soon->sets[i] == kvb_set_of_one(number)) {
                kvb_line_table_prefetch(&index->names, kvb_prefix_name_hash(index, soon->names[i]));
            }
        }
    }
}

static void end_holder(struct kvb_prefix_index *index)
{
    const uint32_t number = index->dying - 1;
    struct prefix_holder *holder = &index->holders[number];

    index->dying = holder->next_free;
    holder->next_free = index->holder_free;
    index->holder_free = number + 1;
}

bool kvb_prefix_index_reclaim(struct kvb_prefix_index *index, size_t extents)
{
    while (index->dying != 0) {
        struct prefix_holder *holder = &index->holders[index->dying - 1];
        uint32_t extent = 0;
        if (!kvb_prefix_last_extent(holder, &extent)) {
            end_holder(index);
            continue;
        }
        if (extents-- == 0) {
            return true;
        }
        /* The extent leaves the list only when it is swept: without memory it is tried again. */
        prefetch_holder(index, holder);
        if (!sweep_extent(index, index->dying - 1, extent)) {
            return true;
        }
        holder->extent_count--;
    }
    return false;
}
