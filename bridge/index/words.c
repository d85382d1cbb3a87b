#include "index/inside.h"

#include <assert.h>

static uint64_t place_hash(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    return kvb_hash_keyed(&index->key, node, holder);
}

static uint64_t hash_of_name(const void *context, uint32_t word)
{
    if (kvb_prefix_id_is_in_page(word)) {
        const struct prefix_page *page = kvb_prefix_page(context, word);
        const kvb_block_hash block = { page->names[kvb_prefix_offset(word)] };
        return kvb_prefix_word_hash(context, page->holder, block);
    }
    const struct prefix_word *here = kvb_prefix_word(context, word);
    return kvb_prefix_word_hash(context, here->holder, here->block);
}

static uint64_t hash_of_place(const void *context, uint32_t word)
{
    if (kvb_prefix_id_is_in_page(word)) {
        const struct prefix_page *page = kvb_prefix_page(context, word);
        return kvb_prefix_page_hash(context, page->holder, page->extent);
    }
    const struct prefix_word *here = kvb_prefix_word(context, word);
    return place_hash(context, here->holder, here->node);
}

/* ---- Creating and destroying ---- */

kvb_status kvb_prefix_words_open(struct kvb_prefix_index *index)
{
    const size_t max = kvb_prefix_max_words(index);

    KVB_TRY(kvb_region_open(&index->words, (max + 1) * sizeof(struct prefix_word)));
    KVB_TRY(kvb_prefix_pages_open(index));
    KVB_TRY(kvb_line_table_open(&index->words_by_name, max, kvb_line_roomy, hash_of_name, index));
    index->word_end = 1; /* word 0 is not used: 0 ends the free list */
    return kvb_line_table_open(&index->words_by_place, max, kvb_line_dense, hash_of_place, index);
}

void kvb_prefix_words_close(struct kvb_prefix_index *index)
{
    kvb_region_close(&index->words);
    kvb_region_close(&index->pages);
    kvb_line_table_close(&index->words_by_name);
    kvb_line_table_close(&index->words_by_place);
}

/* ---- Finding ---- */

static bool is_held_word(
    const struct kvb_prefix_index *index, uint32_t id, uint32_t holder, kvb_block_hash block)
{
    if (kvb_prefix_id_is_in_page(id)) {
        const struct prefix_page *page = kvb_prefix_page(index, id);
        return page->holder == holder && page->names[kvb_prefix_offset(id)] == block.value;
    }
    const struct prefix_word *word = kvb_prefix_word(index, id);
    return word->holder == holder && word->block.value == block.value;
}

uint32_t
kvb_prefix_private_word(const struct kvb_prefix_index *index, uint32_t holder, kvb_block_hash block)
{
    if (index->holders[holder].private_words == 0) {
        return KVB_NONE;
    }
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->words_by_name, kvb_prefix_word_hash(index, holder, block));

    for (uint32_t id; (id = kvb_line_probe_next(&index->words_by_name, &probe)) != KVB_NONE;) {
        if (is_held_word(index, id, holder, block)) {
            return id;
        }
    }
    return KVB_NONE;
}

uint32_t
kvb_prefix_overflow_words(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    if (!(kvb_prefix_extent_of(index, node)->overflow >> kvb_prefix_offset(node) & 1)) {
        return KVB_NONE;
    }
    struct kvb_line_probe probe =
        kvb_line_table_probe(&index->words_by_place, place_hash(index, holder, node));
    for (uint32_t id; (id = kvb_line_probe_next(&index->words_by_place, &probe)) != KVB_NONE;) {
        const struct prefix_word *word = kvb_prefix_word(index, id);
        if (!kvb_prefix_id_is_in_page(id) && word->holder == holder && word->node == node) {
            return id;
        }
    }
    return KVB_NONE;
}

bool kvb_prefix_is_unusual(const struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    return kvb_prefix_page_word(index, holder, node) != KVB_NONE ||
           kvb_prefix_overflow_words(index, holder, node) != KVB_NONE;
}

static struct prefix_found
find_orphan(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block)
{
    const uint32_t member = index->slots[slot].orphans.count > 0
                                ? kvb_forest_member(&index->forest, slot, block)
                                : KVB_NONE;

    if (member == KVB_NONE) {
        return (struct prefix_found){ .kind = found_none };
    }
    return (struct prefix_found){ .kind = found_orphan,
                                  .node = index->forest.members[member].node,
                                  .id = member };
}

static struct prefix_found found_word(const struct kvb_prefix_index *index, uint32_t word)
{
    if (!kvb_prefix_id_is_in_page(word)) {
        return (struct prefix_found){ .kind = found_overflow,
                                      .node = kvb_prefix_word(index, word)->node,
                                      .id = word };
    }
    const uint32_t first = kvb_prefix_page(index, word)->extent * kvb_extent_nodes;
    return (struct prefix_found){ .kind = found_in_page,
                                  .node = first + kvb_prefix_offset(word),
                                  .id = word };
}

struct prefix_found
kvb_prefix_find(const struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block)
{
    const struct prefix_slot *here = &index->slots[slot];

    if (here->holder == KVB_NONE) {
        return find_orphan(index, slot, block);
    }
    const struct prefix_called called = kvb_prefix_called(index, here->holder, block.value);
    const uint32_t node = called.node;
    /* Words of its own come first: where the slot has one of this name, the node that has the name
     * as its canonical one is another block to it. */
    const uint32_t word =
        called.word != KVB_NONE ? called.word : kvb_prefix_private_word(index, here->holder, block);
    if (word != KVB_NONE) {
        return found_word(index, word);
    }
    /* It is in the node's set and has no other word for it: so it uses this one. */
    if (node != KVB_NONE && kvb_prefix_holds(index, here->holder, node) &&
        (here->own_words == 0 || !kvb_prefix_is_unusual(index, here->holder, node))) {
        return (struct prefix_found){ .kind = found_canonical, .node = node };
    }
    return find_orphan(index, slot, block);
}

struct prefix_found kvb_prefix_guess(
    const struct kvb_prefix_index *index, uint32_t slot, uint32_t node, kvb_block_hash block)
{
    static const struct prefix_found none = { .kind = found_none };
    const struct prefix_slot *here = &index->slots[slot];
    const struct prefix_extent *extent = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    if (here->holder == KVB_NONE || at >= extent->len ||
        !kvb_set_has(&index->sets, extent->sets[at], here->holder)) {
        return none;
    }
    if (here->own_words > 0) {
        /* A word in a page is the only one that the slot has for the node. */
        const uint32_t word = kvb_prefix_page_word(index, here->holder, node);
        if (word != KVB_NONE) {
            return kvb_prefix_page(index, word)->names[at] == block.value
                       ? (struct prefix_found){ .kind = found_in_page, .node = node, .id = word }
                       : none;
        }
        if (kvb_prefix_overflow_words(index, here->holder, node) != KVB_NONE) {
            return none; /* one of the aliases may have this name */
        }
    }
    return extent->names[at] == block.value && extent->named >> at & 1
               ? (struct prefix_found){ .kind = found_canonical, .node = node }
               : none;
}

/* ---- Overflow aliases ---- */

bool kvb_prefix_has_room_for_word(const struct kvb_prefix_index *index)
{
    return index->word_count < kvb_prefix_max_words(index);
}

static kvb_status draw_word(struct kvb_prefix_index *index, uint32_t *out_word)
{
    if (index->word_free != 0) {
        *out_word = index->word_free;
        index->word_free = kvb_prefix_word(index, *out_word)->next;
        return KVB_OK;
    }
    KVB_TRY(kvb_region_reach(
        &index->words, ((size_t)index->word_end + 1) * sizeof(struct prefix_word)));
    *out_word = index->word_end++;
    return KVB_OK;
}

static void give_back_word(struct kvb_prefix_index *index, uint32_t word)
{
    kvb_prefix_word(index, word)->next = index->word_free;
    index->word_free = word;
}

/* The table words_by_place has the holder's first alias for a node.  Further aliases are in a
 * doubly linked list behind it. */
static kvb_status link_to_place(struct kvb_prefix_index *index, uint32_t word)
{
    struct prefix_word *here = kvb_prefix_word(index, word);
    struct prefix_extent *extent = kvb_prefix_extent_of(index, here->node);
    const uint32_t first = kvb_prefix_overflow_words(index, here->holder, here->node);

    /* Behind the first one, so that the table need not change. */
    if (first != KVB_NONE) {
        here->previous = first;
        here->next = kvb_prefix_word(index, first)->next;
        kvb_prefix_word(index, first)->next = word;
        if (here->next != KVB_NONE) {
            kvb_prefix_word(index, here->next)->previous = word;
        }
        return KVB_OK;
    }
    here->previous = here->next = KVB_NONE;
    KVB_TRY(kvb_line_table_put(
        &index->words_by_place, place_hash(index, here->holder, here->node), word));
    extent->overflow |= (uint16_t)(1U << kvb_prefix_offset(here->node));
    return KVB_OK;
}

static void unlink_from_place(struct kvb_prefix_index *index, uint32_t word)
{
    const struct prefix_word *here = kvb_prefix_word(index, word);

    if (here->next != KVB_NONE) {
        kvb_prefix_word(index, here->next)->previous = here->previous;
    }
    if (here->previous != KVB_NONE) {
        kvb_prefix_word(index, here->previous)->next = here->next;
        return;
    }
    /* It was the first: the next one takes its place in the table. */
    const uint64_t hash = place_hash(index, here->holder, here->node);
    kvb_line_table_remove(&index->words_by_place, hash, word);
    if (here->next != KVB_NONE) {
        const kvb_status status = kvb_line_table_put(&index->words_by_place, hash, here->next);
        assert(status == KVB_OK); /* cannot fail: the remove freed a cell */
        (void)status;
    }
}

static kvb_status make_overflow_word(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    const uint32_t holder = index->slots[slot].holder;
    uint32_t word = 0;

    if (!kvb_prefix_has_room_for_word(index)) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(draw_word(index, &word));
    *kvb_prefix_word(index, word) = (struct prefix_word){
        .block = block, .parent_block = parent_block, .holder = holder, .node = node
    };
    const uint64_t hash = kvb_prefix_word_hash(index, holder, block);
    kvb_status status = kvb_line_table_put(&index->words_by_name, hash, word);
    if (status == KVB_OK) {
        status = link_to_place(index, word);
        if (status != KVB_OK) {
            kvb_line_table_remove(&index->words_by_name, hash, word);
        }
    }
    if (status != KVB_OK) {
        give_back_word(index, word);
        return status;
    }
    index->word_count++;
    index->holders[holder].private_words++;
    index->slots[slot].own_words++;
    return KVB_OK;
}

static void drop_overflow_word(struct kvb_prefix_index *index, uint32_t word)
{
    const struct prefix_word *here = kvb_prefix_word(index, word);

    kvb_line_table_remove(
        &index->words_by_name, kvb_prefix_word_hash(index, here->holder, here->block), word);
    index->holders[here->holder].private_words--;
    unlink_from_place(index, word);
    give_back_word(index, word);
    index->word_count--;
}

void kvb_prefix_overflow_words_drop(struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    uint32_t word = KVB_NONE;

    while ((word = kvb_prefix_overflow_words(index, holder, node)) != KVB_NONE) {
        drop_overflow_word(index, word);
    }
}

/* ---- Words ---- */

/* Whether the canonical name of the node implies this name for the parent. */
static bool
has_usual_parent(const struct kvb_prefix_index *index, uint32_t node, kvb_block_hash parent_block)
{
    return kvb_prefix_parent(index, node) == kvb_root_node ||
           kvb_prefix_usual_parent(index, node) == parent_block.value;
}

static kvb_block_hash usual_parent(const struct kvb_prefix_index *index, uint32_t node)
{
    const bool is_first = kvb_prefix_parent(index, node) == kvb_root_node;
    return (kvb_block_hash){ is_first ? 0 : kvb_prefix_usual_parent(index, node) };
}

static bool would_be_canonical(
    const struct kvb_prefix_index *index, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    const struct prefix_extent *here = kvb_prefix_extent_of(index, node);
    const uint32_t at = kvb_prefix_offset(node);

    return here->names[at] == block.value && here->named >> at & 1 &&
           has_usual_parent(index, node, parent_block);
}

static void take_page_word(struct kvb_prefix_index *index, uint32_t slot, uint32_t word)
{
    kvb_prefix_page_take(index, word);
    index->slots[slot].own_words--;
}

/* Converts the slot's canonical word for the node to an alias of the same name. */
static kvb_status make_canonical_overflow(
    struct kvb_prefix_index *index, uint32_t slot, uint32_t node, kvb_block_hash parent_block)
{
    const kvb_block_hash name = { kvb_prefix_name(index, node) };
    return make_overflow_word(index, slot, name, node, parent_block);
}

static kvb_status enter_set(struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    kvb_set_id set = *kvb_prefix_set(index, node);

    KVB_TRY(kvb_prefix_note_extent(index, holder, node / kvb_extent_nodes));
    KVB_TRY(kvb_holder_sets_with(&index->sets, set, holder, &set));
    kvb_prefix_put_set(index, kvb_prefix_set(index, node), set);
    return KVB_OK;
}

static kvb_status leave_set(struct kvb_prefix_index *index, uint32_t holder, uint32_t node)
{
    kvb_set_id set = *kvb_prefix_set(index, node);

    KVB_TRY(kvb_holder_sets_without(&index->sets, set, holder, &set));
    kvb_prefix_put_set(index, kvb_prefix_set(index, node), set);
    return KVB_OK;
}

/* Converts the slot's word in a page for the node to an alias of the same name. */
static kvb_status make_page_overflow(
    struct kvb_prefix_index *index, uint32_t slot, uint32_t word, kvb_block_hash parent_block)
{
    const struct prefix_found found = found_word(index, word);
    const kvb_block_hash name = { kvb_prefix_page(index, word)->names[kvb_prefix_offset(word)] };

    KVB_TRY(make_overflow_word(index, slot, name, found.node, parent_block));
    take_page_word(index, slot, word);
    return KVB_OK;
}

/* Adds a word that is not canonical.  A word of another name goes into the page.  A word of the
 * canonical name that names the parent differently is rare, so it becomes an alias. */
static kvb_status make_unusual_word(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    kvb_status status = KVB_NOT_FOUND;

    if (kvb_prefix_name(index, node) != block.value) {
        status = kvb_prefix_page_put(index, index->slots[slot].holder, block, node, parent_block);
        index->slots[slot].own_words += status == KVB_OK;
    }
    return status == KVB_NOT_FOUND || status == KVB_TOO_LARGE
               ? make_overflow_word(index, slot, block, node, parent_block)
               : status;
}

static void drop_unusual_words(struct kvb_prefix_index *index, uint32_t slot, uint32_t node)
{
    const uint32_t holder = index->slots[slot].holder;
    const uint32_t word = kvb_prefix_page_word(index, holder, node);

    if (word != KVB_NONE) {
        take_page_word(index, slot, word);
    } else {
        kvb_prefix_overflow_words_drop(index, holder, node);
        index->slots[slot].own_words--;
    }
}

/* Adds the slot's first word for the node. */
static kvb_status make_first_word(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    const uint32_t holder = index->slots[slot].holder;

    if (would_be_canonical(index, block, node, parent_block)) {
        return enter_set(index, holder, node);
    }
    KVB_TRY(make_unusual_word(index, slot, block, node, parent_block));
    const kvb_status status = enter_set(index, holder, node);
    if (status != KVB_OK) {
        drop_unusual_words(index, slot, node);
    }
    return status;
}

/* Converts the slot's word for the node to an alias, unless it is one.  The caller then adds a
 * second word for the node. */
static kvb_status make_all_overflow(struct kvb_prefix_index *index, uint32_t slot, uint32_t node)
{
    const uint32_t holder = index->slots[slot].holder;
    const uint32_t word = kvb_prefix_page_word(index, holder, node);

    if (word != KVB_NONE) {
        return make_page_overflow(index, slot, word, kvb_prefix_page_parent(index, word));
    }
    return kvb_prefix_overflow_words(index, holder, node) == KVB_NONE
               ? make_canonical_overflow(index, slot, node, usual_parent(index, node))
               : KVB_OK;
}

kvb_status kvb_prefix_word_make(
    struct kvb_prefix_index *index, uint32_t slot, kvb_block_hash block, uint32_t node,
    kvb_block_hash parent_block)
{
    const uint32_t holder = index->slots[slot].holder;

    if (!kvb_prefix_holds(index, holder, node)) {
        KVB_TRY(make_first_word(index, slot, block, node, parent_block));
    } else { /* a second name: from here on all are aliases, of which a node may have many */
        KVB_TRY(make_all_overflow(index, slot, node));
        KVB_TRY(make_overflow_word(index, slot, block, node, parent_block));
    }
    index->slots[slot].blocks++;
    index->counters.memberships++;
    return KVB_OK;
}

kvb_status kvb_prefix_word_again(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found,
    kvb_block_hash parent_block)
{
    /* Only the parent's name can differ from the first time.  An alias keeps it itself; of the
     * others it may be that of a neighbour, too. */
    if (found->kind == found_overflow) {
        kvb_prefix_word(index, found->id)->parent_block = parent_block;
        return KVB_OK;
    }
    if (found->kind == found_in_page) {
        return kvb_prefix_page_parent(index, found->id).value == parent_block.value ||
                       kvb_prefix_parent(index, found->node) == kvb_root_node
                   ? KVB_OK
                   : make_page_overflow(index, slot, found->id, parent_block);
    }
    return has_usual_parent(index, found->node, parent_block)
               ? KVB_OK
               : make_canonical_overflow(index, slot, found->node, parent_block);
}

static kvb_status
drop_overflow(struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found)
{
    const uint32_t holder = index->slots[slot].holder;
    const uint32_t first = kvb_prefix_overflow_words(index, holder, found->node);

    /* The set first, because that may fail: then nothing has changed. */
    if (first == found->id && kvb_prefix_word(index, first)->next == KVB_NONE) {
        KVB_TRY(leave_set(index, holder, found->node)); /* its last word for the node */
    }
    drop_overflow_word(index, found->id);
    index->slots[slot].own_words--;
    return KVB_OK;
}

kvb_status kvb_prefix_word_drop(
    struct kvb_prefix_index *index, uint32_t slot, const struct prefix_found *found)
{
    if (found->kind == found_orphan) {
        kvb_forest_member_drop(&index->forest, &index->slots[slot].orphans, found->id);
    } else if (found->kind == found_overflow) {
        KVB_TRY(drop_overflow(index, slot, found));
    } else if (found->kind == found_in_page) { /* it is the slot's only word for the node */
        KVB_TRY(leave_set(index, index->slots[slot].holder, found->node));
        take_page_word(index, slot, found->id);
    } else {
        KVB_TRY(leave_set(index, index->slots[slot].holder, found->node));
    }
    index->slots[slot].blocks--;
    index->counters.memberships--;
    return KVB_OK;
}
