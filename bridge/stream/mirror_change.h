#pragma once

#include "stream/mirror_entry.h"

/* One engine event on its way through the mirror; for the mirror_*.c files. */
struct mirror_change {
    struct kvb_mirror *mirror;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
    struct kvb_router_batch *out;
    size_t first_out; /* router events before this one are of earlier engine events */
    uint32_t named;   /* the entry whose published name is `name`, so that it is hashed once */
    kvb_block_hash name;
};

/* As kvb_mirror_block(). */
static inline kvb_block_hash kvb_mirror_name_of(const struct mirror_change *change, uint32_t id)
{
    return id == change->named ? change->name
                               : kvb_mirror_block(change->mirror, &change->mirror->entries[id]);
}

/* Changes one tier's copies of an entry and tells routers when the block, under
 * its published name, comes to be held there or ceases to be. */
kvb_status kvb_mirror_change_copies(
    struct mirror_change *change, uint32_t id, enum kvb_tier tier, struct copies copies);

/* Tells routers of the tiers in which a freshly named entry is held. */
kvb_status kvb_mirror_tell_named(struct mirror_change *change, uint32_t id);

/* Takes change->event, a Stored. */
kvb_status kvb_mirror_store(struct mirror_change *change);
