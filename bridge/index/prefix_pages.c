#include "index/prefix_inside.h"

#include <string.h>

/* What a slot calls the nodes of an extent, where their own names do not say it.
 *
 *     page 5 | holder 3, extent 7 | 1101...      which words stand
 *            | P | n0 n1 n2 n3 ...               names; P: its parent's, above n0
 *
 *     names             n1                    -> page 5, 1
 *     words_by_place    (holder 3, extent 7)  -> page 5
 *
 * A run of blocks is so written down line by line, as an extent is: the one line of memory
 * that a block costs is that of `names`, where the nodes' own names stand too, so that a
 * slot need not ask two tables.  A name that many slots have for the same or for other
 * nodes would fill its line there: more than two of one name stand in words_by_name,
 * (holder 3, n1) -> page 5, 1.
 *
 * What the slot called the parent of n2 is n1, and is read there even when the word n1
 * does not stand any more.  So a name may change only when neither its word nor the next
 * one stands; words that do not fit in are odd ones (prefix_words.c). */

static const size_t most_pages = (size_t)1 << 26;

enum { most_of_a_name = 2 }; /* paged words in `names` */

kvb_status kvb_prefix_pages_open(struct kvb_prefix_index *index)
{
    const size_t wanted = index->options.max_nodes * kvb_pages_a_node;
    const size_t most = wanted < most_pages ? wanted : most_pages;

    index->page_end = 1; /* 0 ends the free list */
    return kvb_region_open(&index->pages, (most + 1) * sizeof(struct prefix_page));
}

/* ---- Finding ---- */

uint32_t kvb_prefix_page_of(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->words_by_place, kvb_prefix_page_hash(holder, extent));

    for (uint32_t id; (id = kvb_line_probe_next(&index->words_by_place, &probe)) != KVB_NONE;) {
        if (kvb_prefix_id_is_paged(id)) {
            const struct prefix_page *page = kvb_prefix_page(index, id);
            if (page->holder == holder && page->extent == extent) {
                return id;
            }
        }
    }
    return KVB_NONE;
}

uint32_t kvb_prefix_paged_word(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    const uint32_t at = kvb_prefix_offset(node);

    if (!(kvb_prefix_extent_of(index, node)->paged >> at & 1)) {
        return KVB_NONE;
    }
    const uint32_t id = kvb_prefix_page_of(index, holder, node / kvb_extent_nodes);
    return id != KVB_NONE && kvb_prefix_page(index, id)->stand >> at & 1 ? id + at : KVB_NONE;
}

kvb_block_hash kvb_prefix_paged_parent(const struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_page *page = kvb_prefix_page(index, id);
    const uint32_t at = kvb_prefix_offset(id);

    return (kvb_block_hash){ at > 0 ? page->names[at - 1] : page->parent_name };
}

/* ---- Coming and going ---- */

static kvb_status draw_page(struct kvb_prefix_index *index, uint32_t *out_page)
{
    if (index->page_free != 0) {
        *out_page = index->page_free;
        index->page_free = kvb_prefix_page_at(index, *out_page)->extent;
        return KVB_OK;
    }
    KVB_TRY(kvb_region_reach(
        &index->pages, ((size_t)index->page_end + 1) * sizeof(struct prefix_page)));
    *out_page = index->page_end++;
    return KVB_OK;
}

static void give_back_page(struct kvb_prefix_index *index, uint32_t page)
{
    kvb_prefix_page_at(index, page)->holder = KVB_NONE;
    kvb_prefix_page_at(index, page)->extent = index->page_free;
    index->page_free = page;
}

static kvb_status
begin_page(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent, uint32_t *out_id)
{
    uint32_t number = 0;

    KVB_TRY(draw_page(index, &number));
    struct prefix_page *page = kvb_prefix_page_at(index, number);
    page->holder = holder;
    page->extent = extent;
    page->stand = 0;
    page->aside = 0;
    const uint32_t id = KVB_PAGED | number * kvb_extent_nodes;
    const kvb_status status =
        kvb_line_table_put(&index->words_by_place, kvb_prefix_page_hash(holder, extent), id);
    if (status != KVB_OK) {
        give_back_page(index, number);
        return status;
    }
    *out_id = id;
    return KVB_OK;
}

static void end_page(struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_page *page = kvb_prefix_page(index, id);

    kvb_line_table_remove(
        &index->words_by_place, kvb_prefix_page_hash(page->holder, page->extent), id);
    give_back_page(index, (id & ~KVB_PAGED) / kvb_extent_nodes);
}

/* No word that stands would be told another name, or another parent's. */
static bool
fits(const struct prefix_page *page, uint32_t at, kvb_block_hash block, kvb_block_hash parent)
{
    const bool is_parent_kept = at > 0 && page->stand >> (at - 1) & 1;
    const bool is_name_kept = at + 1 < kvb_extent_nodes && page->stand >> (at + 1) & 1;

    return (!is_parent_kept || page->names[at - 1] == parent.value) &&
           (!is_name_kept || page->names[at] == block.value);
}

static void
write_word(struct prefix_page *page, uint32_t at, kvb_block_hash block, kvb_block_hash parent)
{
    page->names[at] = block.value;
    *(at > 0 ? &page->names[at - 1] : &page->parent_name) = parent.value;
    page->stand |= (uint16_t)(1U << at);
}

/* Into the table that is to find the word.  Mostly nothing of this name is there. */
static kvb_status name_word(struct kvb_prefix_index *index, struct prefix_page *page, uint32_t id)
{
    const uint32_t at = kvb_prefix_offset(id);
    const kvb_block_hash block = { page->names[at] };
    const uint64_t hash = kvb_prefix_name_hash(index, block.value);
    const struct kvb_line_place place = kvb_line_table_place(&index->names, hash);

    page->aside &= (uint16_t) ~(1U << at);
    if (kvb_line_place_is_clear(&place)) {
        kvb_line_table_put_at(&index->names, &place, id);
        return KVB_OK;
    }
    if (kvb_prefix_called(index, page->holder, block.value).others < most_of_a_name) {
        return kvb_line_table_put(&index->names, hash, id);
    }
    KVB_TRY(kvb_line_table_put(
        &index->words_by_name, kvb_prefix_word_hash(index, page->holder, block), id));
    page->aside |= (uint16_t)(1U << at);
    index->holders[page->holder].aside_words++;
    return KVB_OK;
}

static void unname_word(struct kvb_prefix_index *index, struct prefix_page *page, uint32_t id)
{
    const uint32_t at = kvb_prefix_offset(id);
    const kvb_block_hash block = { page->names[at] };

    if (page->aside >> at & 1) {
        kvb_line_table_remove(
            &index->words_by_name, kvb_prefix_word_hash(index, page->holder, block), id);
        index->holders[page->holder].aside_words--;
    } else {
        kvb_line_table_remove(&index->names, kvb_prefix_name_hash(index, block.value), id);
    }
}

/* Mostly that of the last word that was put. */
static uint32_t
page_to_write(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    if (index->page_last != 0) {
        const struct prefix_page *page = kvb_prefix_page(index, index->page_last);
        if (page->holder == holder && page->extent == extent) {
            return index->page_last;
        }
    }
    return kvb_prefix_page_of(index, holder, extent);
}

kvb_status kvb_prefix_page_put(
    struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    const uint32_t at = kvb_prefix_offset(node);
    uint32_t id = page_to_write(index, holder, node / kvb_extent_nodes);

    if (!kvb_prefix_has_room_for_word(index)) {
        return KVB_TOO_LARGE;
    }
    if (id == KVB_NONE) {
        KVB_TRY(begin_page(index, holder, node / kvb_extent_nodes, &id));
    } else if (!fits(kvb_prefix_page(index, id), at, block, parent_block)) {
        return KVB_NOT_FOUND;
    }
    index->page_last = id;
    struct prefix_page *page = kvb_prefix_page(index, id);
    const kvb_block_hash old_name = { page->names[at] };
    const kvb_block_hash old_parent = kvb_prefix_paged_parent(index, id + at);
    write_word(page, at, block, parent_block); /* the table may read it */
    const kvb_status status = name_word(index, page, id + at);
    if (status != KVB_OK) {
        write_word(page, at, old_name, old_parent);
        page->stand &= (uint16_t) ~(1U << at);
        if (page->stand == 0) {
            end_page(index, id);
        }
        return status;
    }
    kvb_prefix_extent_of(index, node)->paged |= (uint16_t)(1U << at);
    index->word_count++;
    return KVB_OK;
}

void kvb_prefix_page_take(struct kvb_prefix_index *index, uint32_t id)
{
    struct prefix_page *page = kvb_prefix_page(index, id);
    const uint32_t at = kvb_prefix_offset(id);

    unname_word(index, page, id);
    page->stand &= (uint16_t) ~(1U << at);
    index->word_count--;
    if (page->stand == 0) {
        end_page(index, id - at);
    }
}

/* Ends: a word less each time, and the page goes with the last. */
void kvb_prefix_page_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    const uint32_t id = kvb_prefix_extent(index, extent)->paged != 0
                            ? kvb_prefix_page_of(index, holder, extent)
                            : KVB_NONE;
    const struct prefix_page *page = id != KVB_NONE ? kvb_prefix_page(index, id) : NULL;
    const uint32_t standing = page ? page->stand : 0;

    for (uint32_t left = standing; left != 0; left &= left - 1) {
        const uint64_t name = page->names[__builtin_ctz(left)];
        kvb_line_table_prefetch(&index->names, kvb_prefix_name_hash(index, name));
    }
    for (uint32_t left = standing; left != 0; left &= left - 1) {
        kvb_prefix_page_take(index, id + (uint32_t)__builtin_ctz(left));
    }
}
