#pragma once

#include "core/status.h"
#include "pods/pod.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The pods that the API server lists, and which of them are workers.
 *
 *     list   begin, put, put, ..., end     what was not put has gone
 *     watch  put, drop
 *               |
 *            settle --> pods[i]->verdict: taken, or why not
 *
 * A pod is its UID.  The table is sorted by namespace and name, which only one pod has at a time:
 * a pod of the same name with another UID takes the place of the one before.
 *
 * A list changes nothing before its end but what it puts, so a list that breaks off loses no pod.
 *
 * Pure.  Threads: the caller locks.
 * Memory: some 2.7 KB a pod, at most kvb_max_workers of them. */

/* Each namespace that is watched has lists of its own. */
enum { kvb_max_pod_sources = 64 };

struct kvb_pods {
    struct kvb_pod **pods; /* owned; sorted by namespace and name */
    size_t count;
    size_t capacity;
    uint32_t rounds[kvb_max_pod_sources];
    size_t refused_now[kvb_max_pod_sources]; /* of the newest list: above the ceiling; at least 1
                                                where only later events were */
    bool is_listed[kvb_max_pod_sources];     /* and not in the middle of a list */
};

/* What has become of the table. */
enum kvb_pod_change {
    KVB_POD_SAME,      /* nothing that matters here */
    KVB_POD_CHANGED,   /* there are other pods, or other facts of one */
    KVB_POD_RESTARTED, /* and a container of it has restarted */
};

/* {0} is an empty table. */
void kvb_pods_done(struct kvb_pods *pods);

void kvb_pods_begin_list(struct kvb_pods *pods, uint32_t source);
/* Removes the pods of the source that were not put since it began. */
enum kvb_pod_change kvb_pods_end_list(struct kvb_pods *pods, uint32_t source);

/* A pod is there, or is another one now; it is copied.
 * KVB_TOO_LARGE  there are kvb_max_workers already; it is counted in refused_now
 * KVB_NO_MEMORY */
kvb_status kvb_pods_put(
    struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod,
    enum kvb_pod_change *out_change);

/* A pod is listed no more.  One that still runs was relabelled: it stays as that until the next
 * list, or until its place is needed. */
enum kvb_pod_change
kvb_pods_drop(struct kvb_pods *pods, uint32_t source, const struct kvb_pod *pod);

/* Decides who of several pods with one id, or one address, is taken.
 *
 *     one id        the older: the younger is a misconfiguration, and must not push it out
 *     one address   the younger: an address is given to another pod when the first has ended
 *
 * KVB_NO_MEMORY: nothing has changed */
kvb_status kvb_pods_settle(struct kvb_pods *pods);

/* By verdict. */
void kvb_pods_count(const struct kvb_pods *pods, size_t out_counts[KVB_POD_STATE_COUNT]);

/* Above the ceiling, in the newest lists. */
size_t kvb_pods_beyond(const struct kvb_pods *pods);
