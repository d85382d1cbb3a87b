#include "index/inside.h"

#include <string.h>

/* Per-slot pages.  A page has a slot's names for the nodes of an extent where they differ from the
 * canonical names.
 *
 *     page 5 | holder 3, extent 7 | 1101...      `stand`: nodes 0, 1 and 3 have a word
 *            | P | n0 n1 n2 n3 ...               names; P is the name of node 0's parent
 *
 *     names             n1                    -> page 5, 1
 *     words_by_place    (holder 3, extent 7)  -> page 5
 *
 * So the names of a run are written to consecutive memory, as in an extent.  Each block takes one
 * random memory access, to the table `names`.  That table also has the canonical names, so one
 * look-up finds either.  A name that many slots use would fill its line of that table.  So `names`
 * gets at most two words in pages of the same name, and words_by_name gets the others:
 * (holder 3, n1) -> page 5, 1.
 *
 * n1 is also the slot's name for the parent of node 2.  It is still read after the word n1 was
 * removed.  So a name may change only while neither its node nor the next node has a word.  A word
 * that contradicts the page becomes an overflow alias (index/words.c). */

static const size_t max_pages = (size_t)1 << 26;

enum { max_of_a_name = 2 }; /* limit of words in pages that `names` has for one name */

kvb_status kvb_prefix_pages_open(struct kvb_prefix_index *index)
{
    const size_t wanted = index->options.max_nodes * kvb_pages_a_node;
    const size_t max = wanted < max_pages ? wanted : max_pages;

    index->page_end = 1; /* page 0 is not used: 0 ends the free list */
    return kvb_region_open(&index->pages, (max + 1) * sizeof(struct prefix_page));
}

/* ---- Finding ---- */

uint32_t kvb_prefix_page_of(const struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->words_by_place, kvb_prefix_page_hash(index, holder, extent));

    for (uint32_t id; (id = kvb_line_probe_next(&index->words_by_place, &probe)) != KVB_NONE;) {
        if (kvb_prefix_id_is_in_page(id)) {
            const struct prefix_page *page = kvb_prefix_page(index, id);
            if (page->holder == holder && page->extent == extent) {
                return id;
            }
        }
    }
    return KVB_NONE;
}

uint32_t kvb_prefix_page_word(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    const uint32_t at = kvb_prefix_offset(node);

    if (!(kvb_prefix_extent_of(index, node)->in_page >> at & 1)) {
        return KVB_NONE;
    }
    const uint32_t id = kvb_prefix_page_of(index, holder, node / kvb_extent_nodes);
    return id != KVB_NONE && kvb_prefix_page(index, id)->stand >> at & 1 ? id + at : KVB_NONE;
}

kvb_block_hash kvb_prefix_page_parent(const struct kvb_prefix_index *index, uint32_t id)
{
    const struct prefix_page *page = kvb_prefix_page(index, id);
    const uint32_t at = kvb_prefix_offset(id);

    return (kvb_block_hash){ at > 0 ? page->names[at - 1] : page->parent_name };
}

/* ---- Adding and removing ---- */

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
    page->private_names = 0;
    const uint32_t id = KVB_IN_PAGE | number * kvb_extent_nodes;
    const kvb_status status =
        kvb_line_table_put(&index->words_by_place, kvb_prefix_page_hash(index, holder, extent), id);
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
        &index->words_by_place, kvb_prefix_page_hash(index, page->holder, page->extent), id);
    give_back_page(index, (id & ~KVB_IN_PAGE) / kvb_extent_nodes);
}

/* Whether the word changes neither the name nor the parent's name of another word in the page. */
static bool
fits_page(const struct prefix_page *page, uint32_t at, kvb_block_hash block, kvb_block_hash parent)
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

/* Adds the word to `names` or words_by_name.  In most cases no other entry has this name. */
static kvb_status name_word(struct kvb_prefix_index *index, struct prefix_page *page, uint32_t id)
{
    const uint32_t at = kvb_prefix_offset(id);
    const kvb_block_hash block = { page->names[at] };
    const uint64_t hash = kvb_prefix_name_hash(index, block.value);
    const struct kvb_line_place place = kvb_line_table_place(&index->names, hash);

    page->private_names &= (uint16_t) ~(1U << at);
    if (kvb_line_place_is_clear(&place)) {
        kvb_line_table_put_at(&index->names, &place, id);
        return KVB_OK;
    }
    /* Others use the name, too: a few of them in one line, all further ones in the other table. */
    if (kvb_prefix_called(index, page->holder, block.value).others < max_of_a_name) {
        return kvb_line_table_put(&index->names, hash, id);
    }
    KVB_TRY(kvb_line_table_put(
        &index->words_by_name, kvb_prefix_word_hash(index, page->holder, block), id));
    page->private_names |= (uint16_t)(1U << at);
    index->holders[page->holder].private_words++;
    return KVB_OK;
}

static void unname_word(struct kvb_prefix_index *index, struct prefix_page *page, uint32_t id)
{
    const uint32_t at = kvb_prefix_offset(id);
    const kvb_block_hash block = { page->names[at] };

    if (page->private_names >> at & 1) {
        kvb_line_table_remove(
            &index->words_by_name, kvb_prefix_word_hash(index, page->holder, block), id);
        index->holders[page->holder].private_words--;
    } else {
        kvb_line_table_remove(&index->names, kvb_prefix_name_hash(index, block.value), id);
    }
}

/* Returns the first word's number in the holder's page for the extent, or KVB_NONE.  In most cases
 * it is the page that was written last. */
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
    } else if (!fits_page(kvb_prefix_page(index, id), at, block, parent_block)) {
        return KVB_NOT_FOUND;
    }
    index->page_last = id;
    /* The place before the word's own is the parent's name, so both are kept for the way back. */
    struct prefix_page *page = kvb_prefix_page(index, id);
    const kvb_block_hash old_name = { page->names[at] };
    const kvb_block_hash old_parent = kvb_prefix_page_parent(index, id + at);
    write_word(page, at, block, parent_block); /* before the put: the table may read it */
    const kvb_status status = name_word(index, page, id + at);
    if (status != KVB_OK) {
        write_word(page, at, old_name, old_parent);
        page->stand &= (uint16_t) ~(1U << at);
        if (page->stand == 0) {
            end_page(index, id);
        }
        return status;
    }
    kvb_prefix_extent_of(index, node)->in_page |= (uint16_t)(1U << at);
    index->word_count++;
    return KVB_OK;
}

void kvb_prefix_page_take(struct kvb_prefix_index *index, uint32_t id)
{
    struct prefix_page *page = kvb_prefix_page(index, id);
    const uint32_t at = kvb_prefix_offset(id);

    /* Its name stays in the page: it is also that of the next word's parent. */
    unname_word(index, page, id);
    page->stand &= (uint16_t) ~(1U << at);
    index->word_count--;
    if (page->stand == 0) {
        end_page(index, id - at);
    }
}

/* Terminates: each iteration removes a word, and the last one frees the page. */
void kvb_prefix_page_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t extent)
{
    const uint32_t id = kvb_prefix_extent(index, extent)->in_page != 0
                            ? kvb_prefix_page_of(index, holder, extent)
                            : KVB_NONE;
    const struct prefix_page *page = id != KVB_NONE ? kvb_prefix_page(index, id) : NULL;
    const uint32_t placement = page ? page->stand : 0;

    /* All lines are requested before the first one is needed. */
    for (uint32_t left = placement; left != 0; left &= left - 1) {
        const uint64_t name = page->names[__builtin_ctz(left)];
        kvb_line_table_prefetch(&index->names, kvb_prefix_name_hash(index, name));
    }
    for (uint32_t left = placement; left != 0; left &= left - 1) {
        kvb_prefix_page_take(index, id + (uint32_t)__builtin_ctz(left));
    }
}
