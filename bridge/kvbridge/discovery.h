#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/config.h"
#include "wire/engine/event_sources.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Discovers the addresses of workers from the engine itself: GET {discover}/kv_event_sources, or
 * {discover}/server_info where there is no such page.  How vLLM speculates is asked for as well
 * (wire/engine/server_info.h): facts.speculation_of_server.
 *
 *     lists --set--> targets --GET, again with back-off until it answers--> ranks --take-->
 *                       ^                                                     the bridge
 *     a connection was lost or made: kvb_discovery_retry()
 *
 * Each error is logged at once, then at growing intervals.  An engine's answer is logged when it
 * has changed.
 *
 * An engine without these pages is read at the configured `events` and `replay`, if present.  An
 * unreachable engine keeps the ranks of its last answer in state DOWN.  An engine that has returned
 * may have new addresses, so it is queried until its ranks are connected.
 *
 * Threads: one of its own, on which take is called; the functions: any thread. */
struct kvb_discovery;
struct kvb_resolver;

enum { kvb_discovery_max_lists = 8 };

struct kvb_discovery_options {
    struct kvb_log *log;           /* borrowed; the next too */
    struct kvb_resolver *resolver; /* for kvb_fetcher_new() */
    /* Replaces the ranks of the worker with this origin.  On failure *why gives the reason. */
    kvb_status (*take)(
        void *context, uint32_t origin, const struct kvb_worker_config *workers, size_t count,
        struct kvb_detail *why);
    /* Only the facts of a worker have changed; it may have no ranks yet.  After an error the call
     * is repeated. */
    kvb_status (*update)(void *context, uint32_t origin, const struct kvb_worker_facts *facts);
    void *context;
    uint32_t
        lists; /* how many lists kvb_discovery_set() may set, at most kvb_discovery_max_lists */
    uint32_t first_origin; /* the first of kvb_max_workers origins, one for each worker */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_discovery_start(const struct kvb_discovery_options *options, struct kvb_discovery **out);
/* No `take` runs after it returns.  The other functions may still be called.  NULL is fine here and
 * in the next function. */
void kvb_discovery_stop(struct kvb_discovery *discovery);
/* Stops it first. */
void kvb_discovery_free(struct kvb_discovery *discovery);

/* Sets the workers of one list, 0 .. lists - 1; only those with a `discover` URL are used.  The
 * ranks of a worker that is no longer in the list are removed.  A worker whose facts alone differ
 * (members.h) keeps its ranks.  At most kvb_max_workers of all lists are discovered; the others
 * wait until one is removed, and a warning is logged.
 * KVB_NO_MEMORY */
kvb_status kvb_discovery_set(
    struct kvb_discovery *discovery, uint32_t list, const struct kvb_worker_config *workers,
    size_t count);

/* Tells which workers kvb_discovery_set() would remove.  KVB_NO_MEMORY */
kvb_status kvb_discovery_foresee(
    struct kvb_discovery *discovery, uint32_t list, const struct kvb_worker_config *workers,
    size_t count, bool out_removed[kvb_max_workers]);

/* A rank of this origin was connected or lost: query its engine again. */
void kvb_discovery_retry(struct kvb_discovery *discovery, uint32_t origin);

/* Converts an engine's answer to workers: one worker of one rank for each answered rank, then the
 * worker itself for its load source.  out_workers has room for kvb_max_ranks + 1.  The engine may
 * have bound an address with a specific host, such as tcp://10.0.0.5:5557, or connect to it; the
 * answer does not say which.  may_connect marks such an address.
 * KVB_BAD_CONFIG  an address is invalid or cannot be reached from outside its process (inproc),
 *                 or an id is missing; detail says which */
kvb_status kvb_discovery_workers_of(
    const struct kvb_worker_config *worker, const struct kvb_event_sources *sources,
    struct kvb_worker_config *out_workers, size_t *out_count, struct kvb_detail *detail);
