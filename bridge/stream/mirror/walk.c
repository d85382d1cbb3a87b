#include "stream/mirror/inside.h"

#include <stdlib.h>

/* A walk follows each chain down to its end, so that the chain becomes one event:
 *
 *             a - b - c - d        event 1: a b c d
 *                  \- e            event 2: e (parent b)
 *
 * Parents come first.  Chains begin at blocks whose parent is not listed; then, for each shown
 * block in order, at its children that were not shown yet; and last, if an engine's own names form
 * a cycle, anywhere in it. */
struct walk {
    const struct kvb_mirror *mirror;
    unsigned list;
    uint32_t *order; /* owned: listed entries */
    size_t count;
    struct kvb_id_table children; /* parent's published name -> first position in order */
    uint32_t *siblings;           /* owned, parallel to order: the next sibling */
    bool *is_shown;               /* owned, parallel to order */
    uint32_t *shown;              /* owned: positions, in the order in which they were shown */
    size_t shown_count;
    size_t searched; /* how many of them had all their children shown */
    struct kvb_router_batch chunk;
    size_t max_chunk_blocks;
    kvb_mirror_visitor visit;
    void *context;
};

static void walk_done(struct walk *walk)
{
    free(walk->order);
    free(walk->siblings);
    free(walk->is_shown);
    free(walk->shown);
    kvb_id_table_done(&walk->children);
    kvb_router_batch_done(&walk->chunk);
}

static const struct mirror_entry *walked_entry_at(const struct walk *walk, size_t i)
{
    return &walk->mirror->entries[walk->order[i]];
}

/* The index in the table of a parent's first child, or KVB_NO_ID. */
static uint32_t first_child(const struct walk *walk, uint64_t parent)
{
    const uint32_t hash = kvb_mirror_hash(walk->mirror, parent, 0);
    size_t at = kvb_id_table_start(&walk->children, hash);

    for (uint32_t i; (i = kvb_id_table_next(&walk->children, hash, &at)) != KVB_NO_ID;) {
        if (walked_entry_at(walk, i)->parent == parent) {
            return i;
        }
    }
    return KVB_NO_ID;
}

/* Sets the first child of a parent: replaces `first`, or adds it.  child KVB_NO_ID: removes it. */
static kvb_status
set_first_child(struct walk *walk, uint64_t parent, uint32_t first, uint32_t child)
{
    const uint32_t hash = kvb_mirror_hash(walk->mirror, parent, 0);

    if (first != KVB_NO_ID) {
        kvb_id_table_remove(&walk->children, hash, first);
    }
    return child != KVB_NO_ID ? kvb_id_table_put(&walk->children, hash, child) : KVB_OK;
}

/* Links from the last to the first, so that siblings are in the order of their entries. */
static kvb_status link_children(struct walk *walk)
{
    for (size_t i = walk->count; i-- > 0;) {
        const struct mirror_entry *entry = walked_entry_at(walk, i);
        if (entry->has_parent) {
            walk->siblings[i] = first_child(walk, entry->parent);
            KVB_TRY(set_first_child(walk, entry->parent, walk->siblings[i], (uint32_t)i));
        }
    }
    return KVB_OK;
}

/* Fills order and children. */
static kvb_status prepare_walk(struct walk *walk)
{
    const struct kvb_mirror *mirror = walk->mirror;
    const size_t room = mirror->entry_count ? mirror->entry_count : 1;

    walk->order = malloc(room * sizeof *walk->order);
    walk->siblings = malloc(room * sizeof *walk->siblings);
    walk->shown = malloc(room * sizeof *walk->shown);
    walk->is_shown = calloc(room, sizeof *walk->is_shown);
    if (!walk->order || !walk->siblings || !walk->shown || !walk->is_shown) {
        return KVB_NO_MEMORY;
    }
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (kvb_mirror_speaks(mirror, (uint32_t)id, walk->list)) {
            walk->order[walk->count++] = (uint32_t)id;
        }
    }
    return link_children(walk);
}

/* Takes the first remaining child of a block from the table: its position in `order`; KVB_NO_ID: no
 * more. */
static uint32_t take_child(struct walk *walk, kvb_block_hash block)
{
    const uint32_t first = first_child(walk, block.value);
    uint32_t child = first;

    while (child != KVB_NO_ID && walk->is_shown[child]) {
        child = walk->siblings[child];
    }
    const uint32_t rest = child != KVB_NO_ID ? walk->siblings[child] : KVB_NO_ID;
    const kvb_status status = set_first_child(walk, block.value, first, rest);
    assert(status == KVB_OK); /* into a cell that has just come free, if any */
    (void)status;
    return child;
}

static kvb_status flush_chunk(struct walk *walk)
{
    if (walk->chunk.event_count == 0) {
        return KVB_OK;
    }
    const kvb_status status = walk->visit(walk->context, &walk->chunk);
    kvb_router_batch_reset(&walk->chunk);
    return status;
}

static kvb_status begin_walked_event(struct walk *walk, const struct mirror_entry *entry)
{
    const struct kvb_router_event event = kvb_mirror_stored_event(entry, walk->list);

    return kvb_router_batch_add_event(&walk->chunk, &event);
}

/* True: the last event of the chunk may have more blocks. */
static bool chunk_has_room(const struct walk *walk)
{
    return walk->chunk.events[walk->chunk.event_count - 1].block_count < kvb_max_event_blocks;
}

/* Shows the block at position i and its chain below. */
static kvb_status show_chain(struct walk *walk, size_t i)
{
    bool is_new_event = true;

    for (uint32_t next = (uint32_t)i; next != KVB_NO_ID;) {
        const struct mirror_entry *entry = walked_entry_at(walk, next);
        const kvb_block_hash block = kvb_mirror_block(walk->mirror, entry);
        if (walk->chunk.block_count >= walk->max_chunk_blocks) {
            KVB_TRY(flush_chunk(walk));
            is_new_event = true;
        }
        if (is_new_event || !chunk_has_room(walk)) {
            KVB_TRY(begin_walked_event(walk, entry));
            is_new_event = false;
        }
        KVB_TRY(kvb_router_batch_add_block(&walk->chunk, block, entry->tokens));
        walk->is_shown[next] = true;
        walk->shown[walk->shown_count++] = next;
        next = take_child(walk, block);
    }
    return KVB_OK;
}

/* Shows the remaining children of all shown blocks, and their children.  It ends because each block
 * is shown once. */
static kvb_status show_children(struct walk *walk)
{
    for (; walk->searched < walk->shown_count; walk->searched++) {
        const struct mirror_entry *entry = walked_entry_at(walk, walk->shown[walk->searched]);
        const kvb_block_hash block = kvb_mirror_block(walk->mirror, entry);
        for (uint32_t child; (child = take_child(walk, block)) != KVB_NO_ID;) {
            KVB_TRY(show_chain(walk, child));
        }
    }
    return KVB_OK;
}

static bool has_listed_parent(const struct walk *walk, size_t i)
{
    const struct mirror_entry *entry = walked_entry_at(walk, i);

    return entry->has_parent &&
           kvb_mirror_lists(walk->mirror, (kvb_block_hash){ entry->parent }, walk->list);
}

/* Shows the window list, which has no chains, in any order. */
static kvb_status show_all(struct walk *walk)
{
    for (size_t i = 0; i < walk->count; i++) {
        const struct mirror_entry *entry = walked_entry_at(walk, i);
        if (walk->chunk.block_count >= walk->max_chunk_blocks) {
            KVB_TRY(flush_chunk(walk));
        }
        if (walk->chunk.event_count == 0 || !chunk_has_room(walk)) {
            KVB_TRY(begin_walked_event(walk, entry));
        }
        const kvb_block_hash block = kvb_mirror_block(walk->mirror, entry);
        KVB_TRY(kvb_router_batch_add_block(
            &walk->chunk, kvb_mirror_listed_name(walk->mirror, entry, block, walk->list),
            entry->tokens));
    }
    return flush_chunk(walk);
}

static kvb_status walk_list(struct walk *walk)
{
    KVB_TRY(prepare_walk(walk));
    if (walk->list == KVB_LIST_WINDOW) {
        return show_all(walk);
    }
    for (size_t i = 0; i < walk->count; i++) {
        if (!has_listed_parent(walk, i)) {
            KVB_TRY(show_chain(walk, i));
        }
    }
    KVB_TRY(show_children(walk));
    for (size_t i = 0; i < walk->count; i++) {
        if (!walk->is_shown[i]) { /* in a cycle */
            KVB_TRY(show_chain(walk, i));
            KVB_TRY(show_children(walk));
        }
    }
    return flush_chunk(walk);
}

kvb_status kvb_mirror_walk(
    const struct kvb_mirror *mirror, size_t max_chunk_blocks, kvb_mirror_visitor visit,
    void *context)
{
    kvb_status status = KVB_OK;

    for (unsigned list = 0; list < KVB_LIST_COUNT && status == KVB_OK; list++) {
        struct walk walk = { .mirror = mirror,
                             .list = list,
                             .max_chunk_blocks = max_chunk_blocks,
                             .visit = visit,
                             .context = context };
        if (mirror->counts.held[list] > 0) {
            status = walk_list(&walk);
        }
        walk_done(&walk);
    }
    return status;
}

/* ---- Entry by entry ----
 *
 * Visits what a mirror lists entry by entry: for its digest, and for walks during which it may
 * change. */

/* ---- Digest ---- */

/* All zero. */
static const struct kvb_digest empty_digest;

void kvb_mirror_zero_digests(struct kvb_mirror *mirror)
{
    for (size_t list = 0; list < KVB_LIST_COUNT; list++) {
        if (mirror->digests[list]) {
            *mirror->digests[list] = empty_digest;
        }
    }
}

/* Most streams use one list of five, so a digest is allocated with the first name of its list. */
static kvb_status open_digest(struct kvb_mirror *mirror, unsigned list)
{
    if (!mirror->digests[list]) {
        mirror->digests[list] = calloc(1, sizeof *mirror->digests[list]);
    }
    return mirror->digests[list] ? KVB_OK : KVB_NO_MEMORY;
}

kvb_status
kvb_mirror_note_held(struct kvb_mirror *mirror, kvb_block_hash block, unsigned list, bool is_held)
{
    KVB_TRY(open_digest(mirror, list));
    struct kvb_digest *digest = mirror->digests[list];

    if (is_held) {
        mirror->counts.held[list]++;
        kvb_digest_add(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    } else {
        mirror->counts.held[list]--;
        kvb_digest_subtract(digest, &mirror->digest_key, (enum kvb_tier)list, block);
    }
    return KVB_OK;
}

void kvb_mirror_begin_digest(struct kvb_mirror *mirror, const struct kvb_digest_key *key)
{
    mirror->digest_key = *key;
    kvb_mirror_zero_digests(mirror);
    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        for (size_t id = 0; mirror->counts.held[list] > 0 && id < mirror->entry_end; id++) {
            const struct mirror_entry *entry = &mirror->entries[id];
            if (kvb_mirror_speaks(mirror, (uint32_t)id, list)) {
                kvb_digest_add(
                    mirror->digests[list], key, (enum kvb_tier)list,
                    kvb_mirror_listed_name(mirror, entry, kvb_mirror_block(mirror, entry), list));
            }
        }
    }
}

const struct kvb_digest *kvb_mirror_digest(const struct kvb_mirror *mirror, enum kvb_tier tier)
{
    return mirror->digests[tier] ? mirror->digests[tier] : &empty_digest;
}

/* ---- Slices ---- */

static bool is_bucket_wanted(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, unsigned list,
    kvb_block_hash block)
{
    if (!buckets) {
        return true;
    }
    const size_t bucket = kvb_digest_bucket(&mirror->digest_key, (enum kvb_tier)list, block);
    return buckets->words[bucket / 64] >> (bucket % 64) & 1;
}

/* Entries of one Stored are adjacent, so their chain becomes one event. */
static bool continues_slice_event(
    const struct kvb_router_batch *out, const struct mirror_entry *entry, unsigned list)
{
    if (out->event_count == 0) {
        return false;
    }
    const struct kvb_router_event *last = &out->events[out->event_count - 1];
    return (unsigned)last->tier == list &&
           (list == KVB_LIST_WINDOW ||
            (entry->has_parent && out->blocks[out->block_count - 1].value == entry->parent));
}

static kvb_status show_sliced(
    const struct mirror_entry *entry, kvb_block_hash block, unsigned list,
    struct kvb_router_batch *out)
{
    if (!continues_slice_event(out, entry, list)) {
        const struct kvb_router_event event = kvb_mirror_stored_event(entry, list);
        KVB_TRY(kvb_router_batch_add_event(out, &event));
    }
    return kvb_router_batch_add_block(out, block, entry->tokens);
}

static kvb_status show_entry(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, uint32_t id,
    struct kvb_router_batch *out)
{
    const struct mirror_entry *entry = &mirror->entries[id];

    for (unsigned list = 0; list < KVB_LIST_COUNT; list++) {
        if (!kvb_mirror_speaks(mirror, id, list)) {
            continue;
        }
        const kvb_block_hash block =
            kvb_mirror_listed_name(mirror, entry, kvb_mirror_block(mirror, entry), list);
        if (is_bucket_wanted(mirror, buckets, list, block)) {
            KVB_TRY(show_sliced(entry, block, list, out));
        }
    }
    return KVB_OK;
}

kvb_status kvb_mirror_slice(
    const struct kvb_mirror *mirror, const struct kvb_bucket_set *buckets, size_t max_entries,
    size_t max_blocks, size_t *place, struct kvb_router_batch *out)
{
    const size_t begun = out->block_count;
    size_t id = *place;

    for (size_t i = 0;
         i < max_entries && id < mirror->entry_end && out->block_count - begun < max_blocks;
         i++, id++) {
        KVB_TRY(show_entry(mirror, buckets, (uint32_t)id, out));
    }
    *place = id < mirror->entry_end ? id : SIZE_MAX;
    return KVB_OK;
}
