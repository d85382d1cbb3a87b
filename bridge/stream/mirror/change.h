#pragma once

#include "stream/mirror/inside.h"

/* The state while the mirror applies one engine event.  Internal to this room. */
struct mirror_change {
    struct kvb_mirror *mirror;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
    struct kvb_router_batch *out;
    size_t at;      /* index of the event in the batch */
    uint32_t group; /* index of its group in the list of groups */
    uint32_t size;  /* kvb_mirror_size_of() */
    bool is_window; /* the event is of a sliding-window group */
    struct event_progress *progress;
    uint64_t work, max_work; /* work done in this call, and its limit */
    size_t first_out;        /* router events before this one come from earlier calls */
    uint32_t named;          /* the newest rooted entry of this call, with its name and seed */
    kvb_block_hash name;
    uint64_t seed;
    bool is_name_new; /* no other entry had this name when it was inserted; one that is named
                       * later in this call, after its copies, may have it too */
};

/* True: this much more work may be done in this call.  The first piece is always allowed. */
static inline bool kvb_mirror_may_do(struct mirror_change *change, uint64_t work)
{
    const bool may_do = change->work == 0 || change->work + work <= change->max_work;

    change->work += may_do ? work : 0;
    return may_do;
}

/* Like kvb_mirror_block(), but uses the cached name. */
static inline kvb_block_hash kvb_mirror_name_of(const struct mirror_change *change, uint32_t id)
{
    return id == change->named ? change->name
                               : kvb_mirror_block(change->mirror, &change->mirror->entries[id]);
}

/* Sets the copies of an entry in one tier.  Appends a router event when the block, under its
 * published name, begins or ceases to be held there. */
kvb_status kvb_mirror_change_copies(
    struct mirror_change *change, uint32_t id, enum kvb_tier tier, struct copies copies);

/* Appends stored events for all tiers in which a newly named entry is held. */
kvb_status kvb_mirror_publish_named(struct mirror_change *change, uint32_t id);

/* Applies change->event, a Stored, or the next part of it. */
kvb_status kvb_mirror_store(struct mirror_change *change);

/* Sets change->group of an event whose group is known. */
void kvb_mirror_find_group(struct mirror_change *change);

/* Finds the event's group, or adds it.  When a new group begins to count in a list, the names that
 * it does not hold leave that list.  *out_is_taken: the event is to be applied, and change->group
 * is set. */
kvb_status kvb_mirror_meet_group(struct mirror_change *change, bool *out_is_taken);

/* The blocks before this one of a chunk that the event names by its last block alone, nearest
 * first; as far as they are known.  Returns how many. */
size_t kvb_mirror_rest_of_chunk(
    const struct mirror_change *change, uint32_t id, uint32_t out_ids[kvb_max_chunk_blocks]);

/* ---- stream/mirror/proof.c ---- */

/* The parent of an entry in its group; KVB_NO_ID: it is not known, or there is none. */
uint32_t kvb_mirror_parent(const struct kvb_mirror *mirror, uint32_t id, uint32_t group);

/* True: the Stored event certainly reports new copies and is not a re-announcement.  Called when
 * its block i is already known and the blocks before i are applied. */
bool kvb_mirror_is_real(struct mirror_change *change, uint32_t i);

/* An engine that stores a block behind a parent holds that parent and all its ancestors: confirms
 * unconfirmed ancestors before the event's own blocks are applied. */
kvb_status kvb_mirror_prove_ancestors(struct mirror_change *change);

/* Call it after all blocks of the event are applied. */
void kvb_mirror_end_stored(struct mirror_change *change);
