#pragma once

#include "core/status.h"
#include "pods/pod.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The pods that the API server lists, and which of them are workers.
 *
 *     list   begin, put, put, ..., end     pods that were not put are removed
 *     watch  put, drop
 *               |
 *            settle --> pods[i]->verdict: taken, or why not
 *
 * The UID identifies a pod.  The table is sorted by namespace and name.  Only one pod has a name at
 * a time, so a pod with a known name and another UID replaces the earlier pod.
 *
 * Pods are removed only at the end of a list, so a list that breaks off removes none.
 *
 * Pure.  Threads: the caller locks.
 * Memory: about 2.7 KB a pod, at most kvb_max_workers pods. */

/* The most sources: each watched namespace has lists and watches of its own. */
enum { kvb_max_pod_sources = 64 };

struct kvb_pods {
    struct kvb_pod **pods; /* owned; sorted by namespace and name */
    size_t count;
    size_t capacity;
    uint32_t rounds[kvb_max_pod_sources];
    size_t refused_now[kvb_max_pod_sources]; /* pods above the ceiling in the newest list; at least
                                                1 when only events after it were refused */
    bool is_listed[kvb_max_pod_sources];     /* a list is complete, and no new one has begun */
};

/* How the table has changed. */
enum kvb_pod_change {
    KVB_POD_SAME,      /* nothing that a bridge uses */
    KVB_POD_CHANGED,   /* pods were added or removed, or facts of one changed */
    KVB_POD_RESTARTED, /* a container of a pod has restarted */
};

/* {0} is an empty table. */
void kvb_pods_done(struct kvb_pods *pods);

void kvb_pods_begin_list(struct kvb_pods *pods, uint32_t source);
/* Removes the pods of the source that were not put since the list began. */
enum kvb_pod_change kvb_pods_end_list(struct kvb_pods *pods, uint32_t source);

/* Adds or updates a pod.  The pod is copied.
 * KVB_TOO_LARGE  the table has kvb_max_workers pods already; the pod is counted in refused_now
 * KVB_NO_MEMORY */
kvb_status kvb_pods_put(
    struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod,
    enum kvb_pod_change *out_change);

/* Handles the watch event DELETED.  A pod that still runs was only relabelled: it stays in the
 * table with that state until the next list, or until its place is needed. */
enum kvb_pod_change
kvb_pods_drop(struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod);

/* Decides which of several pods with one id, or one address, is taken as a worker.
 *
 *     one id        the older: the younger is a misconfiguration, and must not displace it
 *     one address   the younger: an address is reused after its first pod has ended
 *
 * KVB_NO_MEMORY: no verdict has changed */
kvb_status kvb_pods_settle(struct kvb_pods *pods);

/* How many pods have each verdict. */
void kvb_pods_count(const struct kvb_pods *pods, size_t out_counts[KVB_POD_STATE_COUNT]);

/* How many pods above the ceiling the newest lists of all sources had. */
size_t kvb_pods_beyond(const struct kvb_pods *pods);
