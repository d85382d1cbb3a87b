#include "stream/mirror_entry.h"

#include <stdlib.h>

/* A walk goes through the shown blocks by depth and follows each as far down as
 * it can, so that chains come out as one event:
 *
 *     depth   0   1   2   3
 *             a - b - c - d        event 1: a b c d
 *                  \- e            event 2: e (parent b), when depth 2 comes by
 *
 * Parents come first: whatever starts at some depth, all shallower blocks have
 * been shown, at their own turn or in a run. */
struct walk {
    const struct kvb_mirror *mirror;
    enum kvb_tier tier;
    uint32_t *order; /* owned: entries by depth */
    size_t count;
    struct kvb_id_table children; /* parent's published name -> position in order */
    bool *is_shown;               /* owned, parallel to order */
    struct kvb_router_batch chunk;
    size_t max_chunk_blocks;
    kvb_mirror_visitor visit;
    void *context;
};

static void walk_done(struct walk *walk)
{
    free(walk->order);
    free(walk->is_shown);
    kvb_id_table_done(&walk->children);
    kvb_router_batch_done(&walk->chunk);
}

static bool is_listed(const struct walk *walk, size_t id)
{
    const struct mirror_entry *entry = &walk->mirror->entries[id];

    return entry->is_used && entry->standing == standing_rooted &&
           entry->copies[walk->tier].least > 0 &&
           kvb_mirror_speaks_for_block(walk->mirror, (uint32_t)id, walk->tier);
}

static int by_depth(const void *left, const void *right, void *context)
{
    const struct mirror_entry *entries = context;
    const uint32_t a = entries[*(const uint32_t *)left].depth;
    const uint32_t b = entries[*(const uint32_t *)right].depth;

    return (a > b) - (a < b);
}

/* Fills order and children. */
static kvb_status prepare(struct walk *walk)
{
    const struct kvb_mirror *mirror = walk->mirror;
    const size_t room = mirror->entry_count ? mirror->entry_count : 1;

    walk->order = malloc(room * sizeof *walk->order);
    walk->is_shown = calloc(room, sizeof *walk->is_shown);
    if (!walk->order || !walk->is_shown) {
        return KVB_NO_MEMORY;
    }
    for (size_t id = 0; id < mirror->entry_end; id++) {
        if (is_listed(walk, id)) {
            walk->order[walk->count++] = (uint32_t)id;
        }
    }
    qsort_r(walk->order, walk->count, sizeof *walk->order, by_depth, mirror->entries);
    for (size_t i = 0; i < walk->count; i++) {
        const struct mirror_entry *entry = &mirror->entries[walk->order[i]];
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
        const struct mirror_entry *entry = &walk->mirror->entries[walk->order[i]];
        if (entry->parent == block.value && !walk->is_shown[i]) {
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
    const struct kvb_router_event event = { .kind = KVB_ROUTER_STORED,
                                            .tier = walk->tier,
                                            .has_parent = entry->has_parent,
                                            .parent = { entry->parent } };
    return kvb_router_batch_add_event(&walk->chunk, &event);
}

/* Shows the block at position i and its chain below. */
static kvb_status show_chain(struct walk *walk, size_t i)
{
    bool is_new_event = true;

    for (uint32_t next = (uint32_t)i; next != KVB_NO_ID;) {
        const struct mirror_entry *entry = &walk->mirror->entries[walk->order[next]];
        if (walk->chunk.block_count >= walk->max_chunk_blocks) {
            KVB_TRY(flush(walk));
            is_new_event = true;
        }
        if (is_new_event) {
            KVB_TRY(begin_event(walk, entry));
            is_new_event = false;
        }
        KVB_TRY(kvb_router_batch_add_block(&walk->chunk, entry->block, entry->tokens));
        walk->is_shown[next] = true;
        next = take_child(walk, entry->block);
    }
    return KVB_OK;
}

static kvb_status walk_tier(struct walk *walk)
{
    KVB_TRY(prepare(walk));
    for (size_t i = 0; i < walk->count; i++) {
        if (!walk->is_shown[i]) {
            KVB_TRY(show_chain(walk, i));
        }
    }
    return flush(walk);
}

kvb_status kvb_mirror_walk(
    const struct kvb_mirror *mirror, size_t max_chunk_blocks, kvb_mirror_visitor visit,
    void *context)
{
    kvb_status status = KVB_OK;

    for (size_t tier = 0; tier < KVB_TIER_COUNT && status == KVB_OK; tier++) {
        struct walk walk = { .mirror = mirror,
                             .tier = (enum kvb_tier)tier,
                             .max_chunk_blocks = max_chunk_blocks,
                             .visit = visit,
                             .context = context };
        if (mirror->counts.held[tier] > 0) {
            status = walk_tier(&walk);
        }
        walk_done(&walk);
    }
    return status;
}
