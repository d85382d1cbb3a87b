#pragma once

#include "core/status.h"
#include "kvbridge/config.h"

#include <stdbool.h>
#include <stddef.h>

/* The workers of a list split into ranks, so that two lists can be compared rank by rank: a
 * running bridge opens added ranks, closes removed ones, and leaves the others alone.
 *
 *     { id = 7; events = tcp://h:5557; ranks = 2; load = { zmq = ... } }
 *          |
 *          +-> ranks   7/0 tcp://h:5557,  7/1 tcp://h:5558     one group a rank
 *          +-> loads   7/0 .. 7/1 load                         the group as it was
 *
 * A discovered worker has no ranks here: the ranks of its engine's answer are separate workers of
 * one rank each (discovery.h).
 *
 * Pure.  Threads: plain data. */
struct kvb_members {
    /* Of one rank each: its own id and addresses, nothing is added to them; no load but
     * total_slots. */
    struct kvb_worker_config *ranks; /* owned */
    size_t rank_count;
    struct kvb_worker_config *loads; /* owned; the workers that have a source of load */
    size_t load_count;
};

/* workers were read without a mistake.  KVB_NO_MEMORY */
kvb_status kvb_members_of(
    const struct kvb_worker_config *workers, size_t count, struct kvb_members *out_members);

/* {0} is fine. */
void kvb_members_done(struct kvb_members *members);

/* The removed and the added ranks between two lists; a changed rank is both. */
struct kvb_member_changes {
    bool *is_removed; /* owned; of each of the old */
    bool *is_added;   /* owned; of each of the new */
    size_t gone;      /* in the old list alone */
    size_t added;
    size_t changed; /* in both */
    size_t same;
};

/* No id and rank may stand twice in a list.  KVB_NO_MEMORY */
kvb_status kvb_members_compare(
    const struct kvb_worker_config *const *old, size_t old_count,
    const struct kvb_worker_config *new, size_t new_count, struct kvb_member_changes *out_changes);

/* {0} is fine. */
void kvb_member_changes_done(struct kvb_member_changes *changes);
