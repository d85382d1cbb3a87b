#include "index/prefix_inside.h"

/* What is left of cleared holders goes from the extents step by step.
 *
 *     clear     the holder's bit in `live` is cleared: no answer shows it any more, and its
 *               slot goes on with another holder.  Costs the same whatever it held.
 *     sweep     extent by extent of its list: out of the sets, odd words dropped, nodes
 *               that nobody needs freed.  A few with each change of the index, or as many
 *               as the caller has time for.
 *     end       nothing of it is left: its number may be drawn again.
 */

void kvb_prefix_holder_strike(struct kvb_prefix_index *index, uint32_t slot)
{
    const uint32_t number = index->slots[slot].holder;

    if (number == KVB_NONE) {
        return;
    }
    struct prefix_holder *holder = &index->holders[number];
    index->live[number / 64] &= ~(UINT64_C(1) << (number % 64));
    kvb_prefix_pass_leave(index, number);
    holder->next_free = index->dying;
    index->dying = number + 1;
    index->slots[slot].holder = KVB_NONE;
}

/* Out of each set of the extent, from its end on, so that what nobody needs goes at once.
 * No memory for what a set would become: false, to be tried again later; the holder is
 * struck from the answers anyway. */
static bool sweep_extent(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    struct prefix_extent *here = kvb_prefix_extent(index, extent);
    kvb_set_id from = 0;
    kvb_set_id to = 0;

    kvb_prefix_page_drop(index, holder, extent); /* while the nodes that it names are there */
    for (uint32_t i = here->len; i-- > 0;) {
        kvb_set_id *set = &here->sets[i];
        const kvb_set_id old = *set;
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
        kvb_prefix_odd_words_drop(index, holder, extent * kvb_extent_nodes + i);
    }
    if (here->len > 0) {
        kvb_prefix_trim(index, extent * kvb_extent_nodes + here->len - 1);
    }
    return true;
}

/* Of the extents that come soon: first their own lines, then those of the table that the
 * blocks which nobody else holds will be taken from. */
enum { extents_ahead = 8, names_ahead = 1 };

[[gnu::always_inline]] static inline void
look_ahead(const struct kvb_prefix_index *index, const struct prefix_holder *holder)
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

bool kvb_prefix_index_tend(struct kvb_prefix_index *index, size_t extents)
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
        look_ahead(index, holder);
        if (!sweep_extent(index, index->dying - 1, extent)) {
            return true;
        }
        holder->extent_count--;
    }
    return false;
}
