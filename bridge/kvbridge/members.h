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
    /* Workers of one rank each, with the rank's own id and addresses, and of load only
     * total_slots. */
    struct kvb_worker_config *ranks; /* owned */
    size_t rank_count;
    struct kvb_worker_config *loads; /* owned; the workers that have a load source */
    size_t load_count;
    size_t *worker_of_rank; /* owned; for each rank the index of its worker in the list */
    size_t *worker_of_load;
};

/* Splits workers, which must be valid, into ranks and loads.  published: publish.labels.
 * KVB_NO_MEMORY */
kvb_status kvb_members_of(
    const struct kvb_worker_config *workers, size_t count, const struct kvb_label_names *published,
    struct kvb_members *out_members);

/* Removes labels that are not published. */
void kvb_members_limit_facts(
    struct kvb_worker_facts *facts, const struct kvb_label_names *published);

/* {0} is fine. */
void kvb_members_done(struct kvb_members *members);

/* True: both are the same member, even if its facts differ.  A different key makes another member;
 * a different fact does not:
 *
 *     another member   every key of a worker except the three below; the pod's UID
 *     a fact           address, role, labels; pod, namespace, node, ready, draining */
bool kvb_members_are_same(
    const struct kvb_worker_config *one, const struct kvb_worker_config *other);

/* The differences between two lists.  A changed rank is removed and added again.  A rank whose
 * facts alone differ is updated and stays open. */
struct kvb_member_changes {
    bool *is_removed; /* owned; one for each old member */
    bool *is_added;   /* owned; one for each new member */
    /* owned; for each old member its new facts, borrowed from the new list; NULL: unchanged, or the
     * member is removed */
    const struct kvb_worker_facts **updates;
    size_t gone; /* only in the old list */
    size_t added;
    size_t changed; /* in both, with a different key */
    size_t same;    /* in both, including those with other facts */
    size_t updated; /* how many of `same` have other facts */
};

/* Compares two lists.  In a list, a pair of id and rank must be unique.  KVB_NO_MEMORY */
kvb_status kvb_members_compare(
    const struct kvb_worker_config *const *old, size_t old_count,
    const struct kvb_worker_config *new, size_t new_count, struct kvb_member_changes *out_changes);

/* {0} is fine. */
void kvb_member_changes_done(struct kvb_member_changes *changes);
