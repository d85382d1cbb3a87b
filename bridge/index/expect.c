#include "index/inside.h"

/* Number of blocks to prefetch.  The change itself prefetches the later ones. */
enum { expected = 4 };

[[gnu::always_inline]] static inline void expect_names(
    const struct kvb_prefix_index *index, uint32_t slot, const kvb_block_hash *blocks, size_t count)
{
    struct prefix_names names;

    kvb_prefix_names_init(&names, index, slot, blocks, count);
    for (size_t i = 0; i < expected; i++) {
        kvb_prefix_names_fetch(index, &names, i);
    }
}

void kvb_prefix_index_expect_store(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run)
{
    expect_names(index, slot.value, run->blocks, run->count);
    if (run->has_parent) {
        kvb_line_table_prefetch(&index->names, kvb_prefix_name_hash(index, run->parent.value));
        kvb_prefix_fetch_stored(index, index->slots[slot.value].last_stored);
    }
}

void kvb_prefix_index_expect_remove(
    const struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks,
    size_t count)
{
    const struct prefix_slot *here = &index->slots[slot.value];
    const uint32_t guess = here->next_removed;

    expect_names(index, slot.value, blocks, count);
    kvb_prefix_fetch_removed(index, guess, count > kvb_prefix_offset(guess));
    if (here->own_words > 0) {
        const uint64_t hash = kvb_prefix_page_hash(index, here->holder, guess / kvb_extent_nodes);
        kvb_line_table_prefetch(&index->words_by_place, hash);
    }
}
