#pragma once

#include "stream/mirror/inside.h"

/* One engine event on its way through the mirror; for the mirror_*.c files. */
struct mirror_change {
    struct kvb_mirror *mirror;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
    struct kvb_router_batch *out;
    size_t at;      /* the event's, in the batch */
    uint32_t group; /* its place in the list of groups */
    uint32_t size;  /* kvb_mirror_size_of() */
    bool is_window; /* of a sliding-window group */
    struct event_progress *progress;
    uint64_t work, max_work; /* of this call: done, and to be done at most */
    size_t first_out;        /* router events before this one are of earlier calls */
    uint32_t named; /* the entry whose published name is `name`, so that it is hashed once */
    kvb_block_hash name;
};

/* True when so much more work may be done in this call.  The first piece is always allowed. */
static inline bool kvb_mirror_may_do(struct mirror_change *change, uint64_t work)
{
    const bool may_do = change->work == 0 || change->work + work <= change->max_work;

    change->work += may_do ? work : 0;
    return may_do;
}

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
kvb_status kvb_mirror_publish_named(struct mirror_change *change, uint32_t id);

/* Takes change->event, a Stored, or the next part of it. */
kvb_status kvb_mirror_store(struct mirror_change *change);

/* Sets what the event's group is; it is known. */
void kvb_mirror_find_group(struct mirror_change *change);

/* Finds the event's group, or takes it up; names that a new one does not hold leave the lists
 * in which it counts.  *out_is_taken: the event is one for the lists, and change->group is
 * set. */
kvb_status kvb_mirror_meet_group(struct mirror_change *change, bool *out_is_taken);

/* ---- stream/mirror/proof.c ---- */

/* Does the Stored event report new copies, not a re-announcement?  False in doubt.  Called when
 * its block i is known already; the blocks before it were applied. */
bool kvb_mirror_is_real(struct mirror_change *change, uint32_t i);

/* An engine that stores a block behind a parent holds that parent and all its ancestors: confirms
 * unconfirmed ancestors before the event's own blocks are applied. */
kvb_status kvb_mirror_prove_ancestors(struct mirror_change *change);

/* The event's blocks were taken. */
void kvb_mirror_end_stored(struct mirror_change *change);
