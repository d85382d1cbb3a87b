#include "stream/mirror/change.h"

/* Blocks of sliding-window groups.  All groups of a model use the same hash for the same prefix,
 * but a window group leaves blocks out, and says not which: so a block is what the same hash is
 * in a full-attention group.  Only if no such group has the hash, and the event leaves no block
 * out, the event's own parent and tokens give the name.  Any other block is unplaced: its removal
 * is recognized, it is in no list, and it gets its name when a full-attention group stores it. */

/* What the entry of a full-attention group is, as a block of window group `group`. */
static struct mirror_block
block_like(const struct mirror_change *change, uint32_t full, uint32_t group)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct mirror_entry *entry = &mirror->entries[full];
    const bool is_rooted = entry->placement == placement_rooted;

    return (struct mirror_block){
        .engine = entry->engine,
        .block = is_rooted ? kvb_mirror_name_of(change, full) : (kvb_block_hash){ 0 },
        .tokens = entry->tokens,
        .parent = entry->parent,
        .seed = kvb_mirror_context(mirror, entry)->seed,
        .group = group,
        .placement = (enum placement)entry->placement,
        .has_parent = entry->has_parent,
    };
}

/* The place behind the event's parent, which stands in a full-attention group or in its own. */
static struct place place_by_parent(const struct mirror_change *change)
{
    const struct kvb_mirror *mirror = change->mirror;
    const struct kvb_engine_event *event = change->event;
    uint32_t parent = kvb_mirror_find_in_full(mirror, event->parent);

    if (parent == KVB_NO_ID) {
        parent = kvb_mirror_find(mirror, change->group, event->parent);
    }
    if (parent == KVB_NO_ID) {
        return (struct place){ .placement = placement_unplaced };
    }
    struct place place = kvb_mirror_place_after(change, parent);
    if (place.placement == placement_waiting) {
        place.placement = placement_unplaced;
    }
    if (event->salt.len > 0) {
        place.seed = kvb_mirror_seed_of(change);
    }
    return place;
}

static struct place first_window_place(const struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;

    if (change->mirror->hashes == KVB_HASHES_ENGINE) { /* the hash is the name */
        return (struct place){ .placement = placement_rooted, .seed = kvb_mirror_seed_of(change) };
    }
    if (event->token_count == 0) {
        return (struct place){ .placement = placement_unplaced };
    }
    return event->has_parent ? place_by_parent(change)
                             : (struct place){ .placement = placement_rooted,
                                               .seed = kvb_mirror_seed_of(change) };
}

static struct mirror_block
block_at(const struct mirror_change *change, uint32_t i, const struct place *place)
{
    const struct kvb_mirror *mirror = change->mirror;
    const kvb_engine_hash engine = change->batch->hashes[change->event->hash_at + i];
    const uint32_t full = kvb_mirror_find_in_full(mirror, engine);
    struct mirror_block block;

    if (full != KVB_NO_ID && mirror->entries[full].placement != placement_waiting) {
        return block_like(change, full, change->group);
    }
    kvb_mirror_read_block(change, i, place, &block);
    return block;
}

kvb_status kvb_mirror_store_in_window(struct mirror_change *change)
{
    const struct kvb_engine_event *event = change->event;
    struct event_progress *progress = change->progress;
    const uint32_t end = kvb_mirror_part_end(change);

    if (progress->next == 0) {
        progress->place = first_window_place(change);
    }
    for (uint32_t i = progress->next; i < end; i++) {
        uint32_t id = KVB_NO_ID;
        kvb_mirror_look_ahead(change->mirror, change->batch, change->group, event->hash_at + i);
        const struct mirror_block block = block_at(change, i, &progress->place);
        KVB_TRY(kvb_mirror_take_block(change, i, &block, &id));
        if (id == KVB_NO_ID) {
            progress->next = event->hash_count; /* what hangs below it has no parent either */
            return KVB_OK;
        }
        KVB_TRY(kvb_mirror_add_copy(change, i, id));
        if (event->token_count > 0) { /* else they are no chain */
            progress->place = kvb_mirror_place_after(change, id);
        }
    }
    progress->next = end;
    return KVB_OK;
}

kvb_status kvb_mirror_place_in_windows(struct mirror_change *change, uint32_t id)
{
    struct kvb_mirror *mirror = change->mirror;
    const kvb_engine_hash engine = mirror->entries[id].engine;

    for (uint32_t group = 0; group < mirror->groups.count; group++) {
        const bool is_window = mirror->groups.window_mask >> group & 1;
        const uint32_t other = is_window ? kvb_mirror_find(mirror, group, engine) : KVB_NO_ID;
        if (other == KVB_NO_ID || mirror->entries[other].placement != placement_unplaced) {
            continue;
        }
        const struct mirror_block named = block_like(change, id, group);
        KVB_TRY(kvb_mirror_name_entry(change, other, &named));
    }
    return KVB_OK;
}
