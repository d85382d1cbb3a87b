#pragma once

#include "stream/mirror_entry.h"

/* One engine event on its way through the mirror; for the mirror_*.c files. */
struct mirror_change {
    struct kvb_mirror *mirror;
    const struct kvb_event_batch *batch;
    const struct kvb_engine_event *event;
    struct kvb_router_batch *out;
    size_t at;               /* the event's, in the batch */
    uint32_t group;          /* its place in the list of groups */
    bool is_window;          /* of a sliding-window group */
    bool has_new;            /* it held a block that was not there */
    bool is_judged, is_real; /* see kvb_mirror_is_real() */
    uint32_t last;           /* entry of its last block; KVB_NO_ID: none */
    size_t first_out;        /* router events before this one are of earlier engine events */
    uint32_t named; /* the entry whose published name is `name`, so that it is hashed once */
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

/* ---- mirror_group.c ---- */

/* Finds the event's group, or takes it up; names that a new one does not hold leave the lists
 * in which it counts.  *out_is_taken: the event is one for the lists, and change->group is
 * set. */
kvb_status kvb_mirror_meet_group(struct mirror_change *change, bool *out_is_taken);

/* ---- mirror_proof.c ---- */

/* Is the Stored one of new copies, and no re-announcement?  False in doubt.  Asked when block i
 * of it is there already; those before it were taken. */
bool kvb_mirror_is_real(struct mirror_change *change, uint32_t i);

/* Whoever stores behind a parent holds the parent and all before it: takes away doubts about
 * those, before the event's own blocks are taken. */
kvb_status kvb_mirror_prove_ancestors(struct mirror_change *change, bool *out_is_proven);

/* The event's blocks were taken. */
void kvb_mirror_end_stored(struct mirror_change *change, bool is_proven);

/* ---- mirror_window.c ---- */

/* Takes the blocks of a Stored of a sliding-window group. */
kvb_status kvb_mirror_store_in_window(struct mirror_change *change);

/* An entry of a full-attention group has its name: so have those of its hash in the window
 * groups. */
kvb_status kvb_mirror_place_in_windows(struct mirror_change *change, uint32_t id);

/* ---- mirror_store.c, for mirror_window.c ---- */

/* Where the next block of a Stored goes. */
struct place {
    enum standing standing;
    bool has_parent;
    uint64_t parent; /* rooted: published name; waiting: engine hash */
    uint64_t seed;
};

/* What block i of the event is at this place. */
void kvb_mirror_read_block(
    const struct mirror_change *change, uint32_t i, const struct place *place,
    struct mirror_block *block);

/* The place behind an entry. */
struct place kvb_mirror_place_after(const struct mirror_change *change, uint32_t id);

/* The seed by the event's own adapter and salt. */
uint64_t kvb_mirror_seed_of(const struct mirror_change *change);

/* Finds or makes the entry of block i.  An engine hash that comes with other
 * content than before takes the new content. */
kvb_status kvb_mirror_take_block(
    struct mirror_change *change, uint32_t i, const struct mirror_block *stored, uint32_t *out_id);

/* One copy more of block i, entry id, in the event's tier. */
kvb_status kvb_mirror_add_copy(struct mirror_change *change, uint32_t i, uint32_t id);

/* A waiting or unplaced entry gets its name; routers hear of the tiers that hold it. */
kvb_status
kvb_mirror_name_entry(struct mirror_change *change, uint32_t id, const struct mirror_block *named);

/* ---- mirror_change.c ---- */

/* A name leaves the list: to routers. */
kvb_status
kvb_mirror_tell_removed(struct mirror_change *change, kvb_block_hash block, unsigned list);
