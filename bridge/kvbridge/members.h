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
    size_t *worker_of_rank; /* owned, like the next: of each rank its worker's place in the list */
    size_t *worker_of_load;
};

/* workers were read without a mistake; published: publish.labels.  KVB_NO_MEMORY */
kvb_status kvb_members_of(
    const struct kvb_worker_config *workers, size_t count, const struct kvb_label_names *published,
    struct kvb_members *out_members);

/* What a member's facts are of a worker's: without labels that are not published. */
void kvb_members_limit_facts(
    struct kvb_worker_facts *facts, const struct kvb_label_names *published);

/* {0} is fine. */
void kvb_members_done(struct kvb_members *members);

/* Whether both are the same member, whatever is said about it.  What makes another member, and what
 * is a fact about the same one:
 *
 *     another member   every key of a worker but the three below; what is in its files of
 *                      CURVE keys; the pod's UID
 *     a fact           address, role, labels; pod, namespace, node, ready, draining */
bool kvb_members_are_same(
    const struct kvb_worker_config *one, const struct kvb_worker_config *other);

/* The differences between two lists.  A changed rank is removed and added; one of which only facts
 * differ is updated: it stays open. */
struct kvb_member_changes {
    bool *is_removed; /* owned; of each of the old */
    bool *is_added;   /* owned; of each of the new */
    /* owned; of each of the old the facts that it has now, borrowed from the new; NULL: the same
     * as before, or it is removed */
    const struct kvb_worker_facts **updates;
    size_t gone; /* in the old list alone */
    size_t added;
    size_t changed; /* in both */
    size_t same;    /* in both, those with other facts too */
    size_t updated; /* of those the same: with other facts */
};

/* No id and rank may stand twice in a list.  KVB_NO_MEMORY */
kvb_status kvb_members_compare(
    const struct kvb_worker_config *const *old, size_t old_count,
    const struct kvb_worker_config *new, size_t new_count, struct kvb_member_changes *out_changes);

/* {0} is fine. */
void kvb_member_changes_done(struct kvb_member_changes *changes);
