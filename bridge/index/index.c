#include "index/index.h"

#include "core/array.h"
#include "core/limits.h"
#include "index/inside.h"

#include <stdlib.h>
#include <string.h>

static const size_t max_slots = (size_t)1 << 20;

/* ---- Creating and destroying ---- */

static kvb_status open_parts(struct kvb_prefix_index *index)
{
    KVB_TRY(kvb_prefix_tree_open(index));
    KVB_TRY(kvb_holder_sets_open(&index->sets, index->options.max_nodes, &index->key));
    return kvb_prefix_words_open(index);
}

kvb_status kvb_prefix_index_new(
    const struct kvb_prefix_index_options *options, struct kvb_prefix_index **out_index)
{
    if (options->max_nodes == 0 || options->max_nodes > kvb_max_index_blocks ||
        options->max_slots == 0 || options->max_slots > max_slots) {
        return KVB_TOO_LARGE;
    }

    struct kvb_prefix_index *index = calloc(1, sizeof *index);
    if (!index) {
        return KVB_NO_MEMORY;
    }
    index->options = *options;
    index->key = kvb_hash_key_of(options->hash_key);
    index->compare = kvb_prefix_compare_best();
    index->free_slot = KVB_NONE;
    kvb_forest_init(&index->forest, &index->key);
    const kvb_status status = open_parts(index);
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
    kvb_prefix_tree_close(index);
    kvb_prefix_words_close(index);
    kvb_prefix_holders_close(index);
    kvb_holder_sets_close(&index->sets);
    kvb_forest_done(&index->forest);
    free(index->slots);
    free(index);
}

/* ---- Slots ---- */

static kvb_status draw_slot(struct kvb_prefix_index *index, uint32_t *out_slot)
{
    if (index->free_slot != KVB_NONE) {
        *out_slot = index->free_slot;
        index->free_slot = index->slots[*out_slot].next_free;
        return KVB_OK;
    }
    KVB_TRY(kvb_array_reserve(
        &index->slots, &index->slot_capacity, index->slot_end + 1, sizeof *index->slots,
        index->options.max_slots));
    *out_slot = (uint32_t)index->slot_end++;
    return KVB_OK;
}

kvb_status kvb_prefix_index_slot_new(struct kvb_prefix_index *index, kvb_slot_ref *out_slot)
{
    uint32_t slot = KVB_NONE;

    KVB_TRY(draw_slot(index, &slot));
    index->slots[slot] = (struct prefix_slot){ .is_used = true, .holder = KVB_NONE };
    out_slot->value = slot;
    return KVB_OK;
}

void kvb_prefix_index_slot_clear(struct kvb_prefix_index *index, kvb_slot_ref slot)
{
    struct prefix_slot *here = &index->slots[slot.value];

    index->counters.removed += here->blocks;
    index->counters.memberships -= here->blocks;
    /* Orphans go at once, because nobody sweeps the forest. */
    while (here->orphans.count > 0) {
        kvb_forest_member_drop(&index->forest, &here->orphans, here->orphans.first_member);
    }
    here->blocks = 0;
    here->own_words = 0;
    kvb_prefix_holder_retire(index, slot.value);
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
    return index->slots[slot.value].blocks;
}

/* ---- Storing ---- */

/* The memory of cleared slots must not cause a run to be refused.  So all of it is reclaimed when
 * the run may not fit. */
static void make_run_room(struct kvb_prefix_index *index, size_t blocks)
{
    const size_t max = index->options.max_nodes;
    /* Worst case: all blocks become orphans below a new placeholder, and canonical words become
     * aliases. */
    const bool is_tight = kvb_orphan_nodes * (blocks + 1) > kvb_prefix_room(index) ||
                          index->word_count + 2 * blocks > max * kvb_words_a_node;

    (void)kvb_prefix_index_reclaim(index, is_tight ? SIZE_MAX : kvb_swept_a_change);
}

size_t kvb_prefix_index_room(const struct kvb_prefix_index *index)
{
    return kvb_prefix_room(index);
}

static bool run_names_its_own_parent(const struct kvb_index_run *run)
{
    for (size_t i = 0; run->has_parent && i < run->count; i++) {
        if (run->blocks[i].value == run->parent.value) {
            return true;
        }
    }
    return false;
}

/* Finds the run's parent.  Most runs continue where the slot's last run ended. */
static struct prefix_found
find_run_parent(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block)
{
    const uint32_t guess = index->slots[slot].last_stored;

    const struct prefix_found found = kvb_prefix_guess(index, slot, guess, block);

    return found.kind != found_none ? found : kvb_prefix_find(index, slot, block);
}

/* Prefetches the table lines that storing the run reads first.  A long run may begin with blocks
 * that exist; storing them looks up no table. */
[[gnu::always_inline]] static inline void fetch_first(
    const struct kvb_prefix_index *index, uint32_t slot, const struct kvb_index_run *run,
    struct prefix_names *names)
{
    kvb_prefix_names_init(names, index, slot, run->blocks, run->count);
    if (run->has_parent) {
        kvb_line_table_prefetch(&index->names, kvb_prefix_name_hash(index, run->parent.value));
    }
    if (run->count <= kvb_prefix_short || names->holder != KVB_NONE) {
        kvb_prefix_names_begin(index, names, 0);
    }
}

kvb_status kvb_prefix_index_store(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const struct kvb_index_run *run,
    uint8_t *out_changed)
{
    struct prefix_found parent = { .kind = found_canonical, .node = kvb_root_node };
    struct prefix_names names;

    if (out_changed && run->count > 0) {
        memset(out_changed, 0, run->count);
    }
    if (run->count == 0) {
        return KVB_OK;
    }
    /* The lines arrive while the run is checked. */
    fetch_first(index, slot.value, run, &names);
    if (run_names_its_own_parent(run)) {
        index->counters.self_parents++;
        return KVB_BAD_INPUT;
    }
    make_run_room(index, run->count);
    if (run->has_parent) {
        parent = find_run_parent(index, slot.value, run->parent);
    }
    return kvb_prefix_is_in_tree(&parent)
               ? kvb_prefix_store_in_tree(index, slot.value, parent.node, run, &names, out_changed)
               : kvb_prefix_store_orphans(index, slot.value, &parent, run, out_changed);
}

/* ---- Before a change ---- */

/* Number of blocks to prefetch.  The change itself prefetches the later ones. */
enum { expected_blocks = 4 };

[[gnu::always_inline]] static inline void expect_names(
    const struct kvb_prefix_index *index, uint32_t slot, const kvb_block_hash *blocks, size_t count)
{
    struct prefix_names names;

    kvb_prefix_names_init(&names, index, slot, blocks, count);
    for (size_t i = 0; i < expected_blocks; i++) {
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

/* ---- Memory ahead of use ---- */

/* Averages of chat traces.  Where there are fewer nodes in an extent, or more sets, the rest is
 * populated when it is used. */
enum { nodes_an_extent = 12, nodes_a_set = 128 };

bool kvb_prefix_index_prepare(struct kvb_prefix_index *index, size_t spare, size_t bytes)
{
    const size_t used = index->counters.nodes;
    const size_t left = used < index->options.max_nodes ? index->options.max_nodes - used : 0;
    const size_t nodes = spare < left ? spare : left;
    const size_t extents = nodes / nodes_an_extent;
    const size_t groups = extents / kvb_extent_group;
    const size_t group_bytes = kvb_extent_group * sizeof(struct prefix_extent);

    return kvb_line_table_populate(&index->names, nodes, bytes) ||
           kvb_line_table_populate(&index->edges, extents, bytes) ||
           kvb_region_populate(
               &index->extents, index->group_end * group_bytes, groups * group_bytes, bytes) ||
           kvb_region_populate(
               &index->groups, index->group_end * sizeof(struct prefix_group),
               groups * sizeof(struct prefix_group), bytes) ||
           kvb_holder_sets_populate(&index->sets, nodes / nodes_a_set, bytes);
}

/* ---- Counting ---- */

void kvb_prefix_index_count(
    const struct kvb_prefix_index *index, struct kvb_index_counters *out_counters)
{
    *out_counters = index->counters;
    out_counters->nodes += index->forest.node_count;
    out_counters->ghosts += index->forest.ghost_count;
    out_counters->orphans = index->forest.node_count;
}

size_t kvb_prefix_index_bytes(const struct kvb_prefix_index *index)
{
    const size_t extents = (size_t)index->group_end * kvb_extent_group;

    return sizeof *index + extents * sizeof(struct prefix_extent) +
           index->group_end * sizeof(struct prefix_group) + kvb_line_table_bytes(&index->names) +
           kvb_line_table_bytes(&index->edges) + kvb_holder_sets_bytes(&index->sets) +
           kvb_prefix_holders_bytes(index) + index->word_end * sizeof(struct prefix_word) +
           index->page_end * sizeof(struct prefix_page) +
           kvb_line_table_bytes(&index->words_by_name) +
           kvb_line_table_bytes(&index->words_by_place) +
           index->slot_capacity * sizeof *index->slots + kvb_forest_bytes(&index->forest) +
           index->child_overflow_capacity * sizeof *index->child_overflows;
}
