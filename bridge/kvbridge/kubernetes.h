#pragma once

#include "core/log.h"
#include "core/metric.h"
#include "core/status.h"
#include "kvbridge/bridge.h"
#include "kvbridge/config.h"

#include <stddef.h>
#include <stdint.h>

/* Watches the pods of Kubernetes and hands those that are engines to the bridge as its list of
 * workers.
 *
 *     API server --list, watch--> splitter --> pods --settle--> workers --> the bridge
 *                 (pods/watch.h)  (pods/splitter.h) (pods/table.h)
 *
 * A list is taken some milliseconds after a change, so that a rolling update causes a few lists
 * instead of one for each event.  While the API server is unreachable, all workers stay.
 *
 * In a cluster, the service account gives the address of the API server, its CA, the token and the
 * bridge's namespace.  The token is read again every minute, and at once when it is refused.
 *
 * Threads: one of its own, which waits while the bridge takes the list; the functions: any thread.
 * Memory: the pods (pods/table.h), and about as much again while a list is taken. */
struct kvb_kubernetes;
struct kvb_resolver;

struct kvb_kubernetes_options {
    const struct kvb_kubernetes_config *config; /* borrowed */
    const struct kvb_worker_defaults *defaults; /* borrowed; what a pod does not say */
    struct kvb_log *log;                        /* borrowed */
    struct kvb_resolver *resolver;              /* borrowed */
    struct kvb_metrics *metrics;                /* borrowed; of kvbridge/metrics.h */
    kvb_take_list *take;                        /* gives the bridge the list of pods */
    void *context;
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_kubernetes_new(const struct kvb_kubernetes_options *options, struct kvb_kubernetes **out);

/* KVB_IO: the thread cannot be started. */
kvb_status kvb_kubernetes_start(struct kvb_kubernetes *kubernetes);
/* The bridge is given nothing after it returns.  NULL is fine here and in the next function. */
void kvb_kubernetes_stop(struct kvb_kubernetes *kubernetes);
void kvb_kubernetes_free(struct kvb_kubernetes *kubernetes);

/* The state of all watches together, for /state. */
enum kvb_kubernetes_state {
    KVB_KUBERNETES_STARTING, /* the first lists are not complete */
    KVB_KUBERNETES_WATCHING,
    KVB_KUBERNETES_EMPTY, /* watching, but no pod matches the selectors */
    KVB_KUBERNETES_AWAY,  /* the API server does not answer, or refuses requests */
    KVB_KUBERNETES_STATE_COUNT
};

/* "starting", ...: never NULL. */
const char *kvb_kubernetes_state_name(enum kvb_kubernetes_state state);

enum { kvb_max_pods_shown = 32 };

/* A pod that is not taken. */
struct kvb_pod_shown {
    char name[kvb_pod_name_bytes + 1];
    char name_space[kvb_pod_namespace_bytes + 1];
    enum kvb_pod_state state;
};

struct kvb_kubernetes_status {
    enum kvb_kubernetes_state state;
    uint64_t away_ns;      /* since when, monotonic; 0: it is reachable */
    struct kvb_detail why; /* why it is away, or why part of the newest list was not taken; "" */
    size_t counts[KVB_POD_STATE_COUNT];
    /* Objects since the start; KVB_POD_CEILING: pods now. */
    uint64_t refused[KVB_POD_REFUSAL_COUNT];
    struct kvb_detail refused_why; /* reason of the newest refusal; "": none */
    size_t shown_count;
    struct kvb_pod_shown shown[kvb_max_pods_shown]; /* pods that are not taken; the first by name */
};

void kvb_kubernetes_read_status(
    struct kvb_kubernetes *kubernetes, struct kvb_kubernetes_status *out_status);
