#include "stream/mirror_entry.h"

#include <stdlib.h>

/* A walk follows each chain as far down as it can, so that it comes out as one event:
 *
 *             a - b - c - d        event 1: a b c d
 *                  \- e            event 2: e (parent b)
 *
 * Parents come first.  Chains begin where no parent is listed; then, for each block in the
 * order in which they were shown, at those of its children that were not; and last, where
 * an engine's own names form a circle, anywhere in it. */
struct walk {
    const struct kvb_mirror *mirror;
    unsigned list;
    uint32_t *order; /* owned: listed entries */
    size_t count;
    struct kvb_id_table children; /* parent's published name -> position in order */
    bool *is_shown;               /* owned, parallel to order */
    uint32_t *shown;              /* owned: positions, as they were shown */
    size_t shown_count;
    size_t searched; /* of them: all children were shown */
    struct kvb_router_batch chunk;
    size_t max_chunk_blocks;
    kvb_mirror_visitor visit;
    void *context;
};

static void walk_done(struct walk *walk)
{
    free(walk->order);
    free(walk->is_shown);
    free(walk->shown);
    kvb_id_table_done(&walk->children);
    kvb_router_batch_done(&walk->chunk);
}

static const struct mirror_entry *entry_at(const struct walk *walk, size_t i)
{
    return &walk->mirror->entries[walk->order[i]];
}

/* Fills order and children. */
static kvb_status prepare(struct walk *walk)
{
    const struct kvb_mirror *mirror = walk->mirror;
    const size_t room = mirror->entry_count ? mirror->entry_count : 1;

    walk->order = malloc(room * sizeof *walk->order);
    walk->shown = malloc(room * sizeof *walk->shown);
    walk->is_shown = calloc(room, sizeof *walk->is_shown);
    if (!walk->order || !walk->shown || !walk->is_shown) {
        return KVB_NO_MEMORY;
    }
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (kvb_mirror_speaks(mirror, (uint32_t)id, walk->list)) {
            walk->order[walk->count++] = (uint32_t)id;
        }
    }
    for (size_t i = 0; i < walk->count; i++) {
        const struct mirror_entry *entry = entry_at(walk, i);
        if (entry->has_parent) {
            KVB_TRY(kvb_id_table_put(&walk->children, kvb_id_hash(entry->parent), (uint32_t)i));
        }
    }
    return KVB_OK;
}

/* A position in order whose parent is the named block and that was not shown;
 * KVB_NO_ID when there is none.  Taken from the table: the next call finds another. */
static uint32_t take_child(struct walk *walk, kvb_block_hash block)
{
    const uint32_t hash = kvb_id_hash(block.value);
    size_t at = kvb_id_table_start(&walk->children, hash);

    for (uint32_t i; (i = kvb_id_table_next(&walk->children, hash, &at)) != KVB_NO_ID;) {
        if (entry_at(walk, i)->parent == block.value && !walk->is_shown[i]) {
            kvb_id_table_remove(&walk->children, hash, i);
            return i;
        }
    }
    return KVB_NO_ID;
}

static kvb_status flush(struct walk *walk)
{
    if (walk->chunk.event_count == 0) {
        return KVB_OK;
    }
    const kvb_status status = walk->visit(walk->context, &walk->chunk);
    kvb_router_batch_reset(&walk->chunk);
    return status;
}

static kvb_status begin_event(struct walk *walk, const struct mirror_entry *entry)
{
    const struct kvb_router_event event = kvb_mirror_stored_event(entry, walk->list);

    return kvb_router_batch_add_event(&walk->chunk, &event);
}

/* Shows the block at position i and its chain below. */
static kvb_status show_chain(struct walk *walk, size_t i)
{
    bool is_new_event = true;

    for (uint32_t next = (uint32_t)i; next != KVB_NO_ID;) {
        const struct mirror_entry *entry = entry_at(walk, next);
        const kvb_block_hash block = kvb_mirror_block(walk->mirror, entry);
        if (walk->chunk.block_count >= walk->max_chunk_blocks) {
            KVB_TRY(flush(walk));
            is_new_event = true;
        }
        if (is_new_event) {
            KVB_TRY(begin_event(walk, entry));
            is_new_event = false;
        }
        KVB_TRY(kvb_router_batch_add_block(&walk->chunk, block, entry->tokens));
        walk->is_shown[next] = true;
        walk->shown[walk->shown_count++] = next;
        next = take_child(walk, block);
    }
    return KVB_OK;
}

/* Shows the rest of the children of all that was shown, and of those.  Ends because each
 * block is shown once. */
static kvb_status show_children(struct walk *walk)
{
    for (; walk->searched < walk->shown_count; walk->searched++) {
        const struct mirror_entry *entry = entry_at(walk, walk->shown[walk->searched]);
        const kvb_block_hash block = kvb_mirror_block(walk->mirror, entry);
        for (uint32_t child; (child = take_child(walk, block)) != KVB_NO_ID;) {
            KVB_TRY(show_chain(walk, child));
        }
    }
    return KVB_OK;
}

static bool has_listed_parent(const struct walk *walk, size_t i)
{
    const struct mirror_entry *entry = entry_at(walk, i);

    return entry->has_parent &&
           kvb_mirror_lists(walk->mirror, (kvb_block_hash){ entry->parent }, walk->list);
}

/* The window list knows no chains: its blocks come in any order. */
static kvb_status show_all(struct walk *walk)
{
    for (size_t i = 0; i < walk->count; i++) {
        const struct mirror_entry *entry = entry_at(walk, i);
        if (walk->chunk.block_count >= walk->max_chunk_blocks) {
            KVB_TRY(flush(walk));
        }
        if (walk->chunk.event_count == 0) {
            KVB_TRY(begin_event(walk, entry));
        }
        KVB_TRY(kvb_router_batch_add_block(
            &walk->chunk, kvb_mirror_block(walk->mirror, entry), entry->tokens));
    }
    return flush(walk);
}

static kvb_status walk_list(struct walk *walk)
{
    KVB_TRY(prepare(walk));
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
        if (!walk->is_shown[i]) { /* in a circle */
            KVB_TRY(show_chain(walk, i));
            KVB_TRY(show_children(walk));
        }
    }
    return flush(walk);
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
