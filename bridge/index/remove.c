#include "index/inside.h"

#include <string.h>

/* Removes blocks from a slot.
 *
 * Engines evict the end of a prompt first.  So in most cases the next block is the parent of the
 * block before it, and no other slot holds it.  Such a node is the last of its extent.  It is freed
 * together with the nodes of the extent that follow in the run.  For any other block, its node is
 * looked up and the slot is removed from the node's set. */

struct removing {
    struct kvb_prefix_index *index;
    uint32_t slot;
    uint32_t holder;
    struct prefix_names *names; /* names->at: number of blocks done */
    uint8_t *changed;           /* may be NULL */
    kvb_set_id from, to;        /* set of the previous node before and after the removal */
    uint32_t extent;            /* extent of the previous block, for a slot with its own names */
    uint32_t page; /* number of the first word in the slot's page for it, or KVB_NONE */
};

static void done_with_some(struct removing *removing, size_t count, bool was_held)
{
    struct kvb_prefix_index *index = removing->index;

    if (removing->changed) {
        memset(removing->changed + removing->names->at, was_held, count);
    }
    kvb_prefix_names_skip(removing->names, count);
    index->counters.removed += was_held ? count : 0;
    index->counters.unknown_removed += was_held ? 0 : count;
}

static kvb_block_hash next_block(const struct removing *removing)
{
    return removing->names->blocks[removing->names->at];
}

static void count_gone(struct removing *removing, size_t count)
{
    removing->index->slots[removing->slot].blocks -= count;
    removing->index->counters.memberships -= count;
}

static void guess_next(struct removing *removing, uint32_t node)
{
    removing->index->slots[removing->slot].next_removed = node;
    kvb_prefix_fetch_removed(removing->index, node, false);
}

/* ---- Fast path: slots with canonical names only ---- */

static uint32_t find_canonical(const struct removing *removing)
{
    const struct kvb_prefix_index *index = removing->index;
    const kvb_block_hash block = next_block(removing);
    const uint32_t guess = index->slots[removing->slot].next_removed;

    /* The parent of the block before, as engines evict from the end: no table is looked up. */
    if (kvb_prefix_is_canonical(index, removing->holder, guess, block)) {
        return guess;
    }
    kvb_prefix_names_begin(index, removing->names, 0);
    const uint32_t node = kvb_prefix_named(index, block.value);
    return node != KVB_NONE && kvb_prefix_holds(index, removing->holder, node) ? node : KVB_NONE;
}

static bool pop(struct removing *removing, uint32_t node)
{
    uint32_t above = kvb_root_node;
    const size_t at = removing->names->at;
    const uint32_t popped = kvb_prefix_pop(
        removing->index, node, removing->names, kvb_set_of_one(removing->holder), &above);

    if (popped == 0) {
        return false;
    }
    count_gone(removing, popped);
    guess_next(removing, above);
    if (removing->changed) {
        memset(removing->changed + at, 1, popped);
    }
    removing->index->counters.removed += popped;
    return true;
}

/* Removes the holder from the sets of `node` and of the nodes before it, `count` in all, which have
 * the same set. */
static kvb_status leave_nodes(struct removing *removing, uint32_t node, uint32_t count)
{
    struct kvb_prefix_index *index = removing->index;
    kvb_set_id *sets = kvb_prefix_set(index, node + 1 - count);
    const kvb_set_id from = *sets;
    uint32_t moved = count;

    /* The first node finds the changed set, which is the same for all others of this set. */
    if (from != removing->from || from == 0 || kvb_set_is_one(from)) {
        KVB_TRY(kvb_holder_sets_without(&index->sets, from, removing->holder, &removing->to));
        removing->from = removing->to == from ? 0 : from;
        moved--;
    }
    kvb_set_move(&index->sets, from, removing->to, moved);
    for (uint32_t i = 0; i < count; i++) {
        kvb_prefix_put_set(index, &sets[i], removing->to);
    }
    count_gone(removing, count);
    return KVB_OK;
}

/* Returns how many of the run's next blocks are `node` and the nodes before it in its extent, under
 * their canonical names.  `node` is one of them. */
static uint32_t count_canonical(const struct removing *removing, uint32_t node)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(removing->index, node);
    const uint32_t at = kvb_prefix_offset(node);
    const kvb_block_hash *blocks = removing->names->blocks + removing->names->at;
    const size_t left = removing->names->count - removing->names->at;
    const size_t max = left <= at ? left : at + 1;
    uint32_t count = 1;

    while (count < max && here->names[at - count] == blocks[count].value &&
           here->named >> (at - count) & 1) {
        count++;
    }
    return count;
}

/* Returns how many of `node` and the nodes before it, at most `max`, have the same set of several
 * holders.  `node` is one of them. */
static uint32_t count_alike(const struct removing *removing, uint32_t node, uint32_t max)
{
    const kvb_set_id *set = kvb_prefix_set(removing->index, node);
    uint32_t count = 1;

    while (count < max && !kvb_set_is_one(*set) && *(set - count) == *set) {
        count++;
    }
    return count;
}

/* Removes the slot from `node` and from as many of the nodes before it, `max` in all, as can be
 * done at once.  Returns their number in *out_count. */
static kvb_status
leave_some(struct removing *removing, uint32_t node, uint32_t max, uint32_t *out_count)
{
    struct kvb_prefix_index *index = removing->index;

    *out_count = kvb_holder_sets_edit_without(
        &index->sets, kvb_prefix_set(index, node), max, removing->holder);
    if (*out_count > 0) {
        count_gone(removing, *out_count);
        return KVB_OK;
    }
    *out_count = count_alike(removing, node, max);
    return leave_nodes(removing, node, *out_count);
}

static kvb_status remove_canonical(struct removing *removing)
{
    struct kvb_prefix_index *index = removing->index;
    const uint32_t node = find_canonical(removing);
    uint32_t count = 0;

    if (node == KVB_NONE) {
        done_with_some(removing, 1, false);
        return KVB_OK;
    }
    /* Nobody else holds it: freed, with those before it in the extent. */
    if (pop(removing, node)) {
        return KVB_OK;
    }
    /* Others do, and mostly those before it, too: the holder leaves their sets. */
    KVB_TRY(leave_some(removing, node, count_canonical(removing, node), &count));
    guess_next(removing, kvb_prefix_parent(index, node + 1 - count));
    kvb_prefix_trim(index, node);
    done_with_some(removing, count, true);
    return KVB_OK;
}

/* ---- Slots that also have other words ---- */

static kvb_status remove_overflow(struct removing *removing, const struct prefix_found *found)
{
    struct kvb_prefix_index *index = removing->index;

    removing->from = 0; /* the drop below may free sets, and their numbers may be reused */
    if (found->kind != found_none) {
        KVB_TRY(kvb_prefix_word_drop(index, removing->slot, found));
    }
    if (kvb_prefix_is_in_tree(found)) {
        guess_next(removing, kvb_prefix_parent(index, found->node));
        kvb_prefix_trim(index, found->node);
    }
    done_with_some(removing, 1, found->kind != found_none);
    return KVB_OK;
}

/* Returns the first candidate for the holder's page for the extent.  Does not verify it, so that no
 * page is read. */
static uint32_t first_page(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->words_by_place, kvb_prefix_page_hash(index, holder, extent));
    const uint32_t id = kvb_line_probe_next(&index->words_by_place, &probe);

    return id != KVB_NONE && kvb_prefix_id_is_in_page(id) ? id : KVB_IN_PAGE;
}

/* Prefetches the table line in which the page is looked up. */
[[gnu::always_inline]] static inline void
expect_page(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    kvb_line_table_prefetch(&index->words_by_place, kvb_prefix_page_hash(index, holder, extent));
}

[[gnu::always_inline]] static inline void
fetch_page(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    if (kvb_prefix_extent(index, extent)->in_page != 0) {
        const char *line = (const char *)kvb_prefix_page(index, first_page(index, holder, extent));

        for (size_t at = 0; at < sizeof(struct prefix_page); at += 64) {
            __builtin_prefetch(line + at, 1);
        }
    }
}

/* Prefetches table lines for the nodes of the extent up to `node` that only this slot holds.
 * Removing the run frees them, and their canonical names may differ from the names in the run. */
[[gnu::always_inline]] static inline void
fetch_own_names(const struct removing *removing, uint32_t node)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(removing->index, node);
    const kvb_set_id alone = kvb_set_of_one(removing->holder);

    for (uint32_t i = 0; i <= kvb_prefix_offset(node); i++) {
        if (here->sets[i] == alone && here->in_page >> i & 1) {
            kvb_line_table_prefetch(
                &removing->index->names, kvb_prefix_name_hash(removing->index, here->names[i]));
        }
    }
}

/* Prefetches what the removal needs in the parent extent, because a run continues upwards.  There
 * are two steps, because the second reads memory that the first prefetches. */
static void prefetch_removal(struct removing *removing, uint32_t node)
{
    enum { half_way = kvb_extent_nodes / 2 };
    const struct kvb_prefix_index *index = removing->index;
    const uint32_t above = kvb_prefix_extent_of(index, node)->parent;
    const bool is_new = removing->extent != node / kvb_extent_nodes;

    if (is_new) {
        if (removing->extent == 0) {
            fetch_own_names(removing, node);
        }
        removing->extent = node / kvb_extent_nodes;
        removing->page = kvb_prefix_extent_of(index, node)->in_page != 0
                             ? kvb_prefix_page_of(index, removing->holder, removing->extent)
                             : KVB_NONE;
        kvb_prefix_fetch_removed(index, above, true);
        expect_page(index, removing->holder, above / kvb_extent_nodes);
    }
    if (kvb_prefix_offset(node) == half_way || (is_new && kvb_prefix_offset(node) < half_way)) {
        fetch_own_names(removing, above);
        fetch_page(index, removing->holder, above / kvb_extent_nodes);
    }
}

/* Checks whether the slot uses the name `block` for `node`, a guess in removing->extent.  Needs no
 * look-up, because the page of that extent is known. */
static struct prefix_found
guess_in_extent(const struct removing *removing, uint32_t node, kvb_block_hash block)
{
    const struct kvb_prefix_index *index = removing->index;
    const uint32_t at = kvb_prefix_offset(node);
    const struct prefix_page *page =
        removing->page != KVB_NONE ? kvb_prefix_page(index, removing->page) : NULL;

    if (page && page->stand >> at & 1) {
        return page->names[at] == block.value ? (struct prefix_found){ .kind = found_in_page,
                                                                       .node = node,
                                                                       .id = removing->page + at }
                                              : (struct prefix_found){ .kind = found_none };
    }
    return !(kvb_prefix_extent_of(index, node)->overflow >> at & 1) &&
                   kvb_prefix_is_canonical(index, removing->holder, node, block)
               ? (struct prefix_found){ .kind = found_canonical, .node = node }
               : (struct prefix_found){ .kind = found_none };
}

static struct prefix_found find_any(const struct removing *removing, kvb_block_hash block)
{
    const struct kvb_prefix_index *index = removing->index;
    const uint32_t guess = index->slots[removing->slot].next_removed;
    const struct prefix_found found = guess / kvb_extent_nodes == removing->extent
                                          ? guess_in_extent(removing, guess, block)
                                          : kvb_prefix_guess(index, removing->slot, guess, block);

    return found.kind != found_none ? found : kvb_prefix_find(index, removing->slot, block);
}

static void take_in_page(struct removing *removing, uint32_t id)
{
    const uint32_t left = kvb_prefix_page(removing->index, id)->stand;

    if ((left & (left - 1)) == 0) {
        removing->page = KVB_NONE; /* removing its last word frees the page */
    }
    kvb_prefix_page_take(removing->index, id);
    removing->index->slots[removing->slot].own_words--;
}

static kvb_status remove_any(struct removing *removing)
{
    struct kvb_prefix_index *index = removing->index;

    kvb_prefix_names_begin(index, removing->names, 0);
    const struct prefix_found found = find_any(removing, next_block(removing));

    if (kvb_prefix_is_in_tree(&found)) {
        prefetch_removal(removing, found.node);
    }
    /* Aliases, orphans, unknown names: one by one, and rare. */
    if (found.kind != found_canonical && found.kind != found_in_page) {
        return remove_overflow(removing, &found);
    }
    if (found.kind == found_canonical && pop(removing, found.node)) {
        return KVB_OK;
    }
    KVB_TRY(leave_nodes(removing, found.node, 1));
    if (found.kind == found_in_page) {
        take_in_page(removing, found.id);
    }
    guess_next(removing, kvb_prefix_parent(index, found.node));
    kvb_prefix_trim(index, found.node);
    done_with_some(removing, 1, true);
    return KVB_OK;
}

/* Whether the run begins at a guessed node that other slots hold too.  Then they hold the nodes
 * above it in most cases, and the removal looks up no table. */
static bool begins_shared(const struct removing *removing)
{
    const struct kvb_prefix_index *index = removing->index;

    if (removing->names->count == 0 || !kvb_prefix_is_simple(index, removing->slot)) {
        return false;
    }
    const uint32_t guess = index->slots[removing->slot].next_removed;
    return !kvb_set_is_one(*kvb_prefix_set(index, guess)) &&
           kvb_prefix_is_canonical(index, removing->holder, guess, next_block(removing));
}

kvb_status kvb_prefix_index_remove(
    struct kvb_prefix_index *index, kvb_slot_ref slot, const kvb_block_hash *blocks, size_t count,
    uint8_t *out_changed)
{
    struct prefix_names names;
    struct removing removing = {
        .index = index,
        .slot = slot.value,
        .holder = index->slots[slot.value].holder,
        .names = &names,
        .page = KVB_NONE,
    };

    removing.changed = out_changed;
    kvb_prefix_names_init(&names, index, slot.value, blocks, count);
    (void)kvb_prefix_index_reclaim(index, kvb_swept_a_change);
    if (!begins_shared(&removing)) {
        kvb_prefix_names_begin(index, &names, 0);
    }
    if (names.holder != KVB_NONE) {
        const uint32_t guess = index->slots[slot.value].next_removed;
        fetch_page(index, removing.holder, guess / kvb_extent_nodes);
    }
    while (names.at < count) {
        /* For each block anew: with its last own word a slot becomes a simple one. */
        const kvb_status status = kvb_prefix_is_simple(index, slot.value)
                                      ? remove_canonical(&removing)
                                      : remove_any(&removing);
        if (status != KVB_OK) { /* a list that shows what is gone is worse than none */
            kvb_prefix_index_slot_clear(index, slot);
            return status;
        }
    }
    return KVB_OK;
}
