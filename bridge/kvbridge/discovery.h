#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/config.h"
#include "wire/engine/event_sources.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Discovers the addresses of workers from the engine itself: GET {discover}/kv_event_sources, or
 * {discover}/server_info where there is no such page.
 *
 *     lists --set--> targets --GET, again with back-off until it answers--> ranks --take-->
 *                       ^                                                     the bridge
 *     a connection was lost, or is back: look_again
 *
 * Each error is logged at once, then at growing intervals.  An engine's answer is logged when it
 * has changed.
 *
 * An engine without these pages is read at the worker's own `events` and `replay`, where it has
 * them.  An unreachable engine keeps the ranks of its last answer: they are DOWN.  One that is back
 * may have other addresses: it is queried until its ranks are connected.
 *
 * Threads: one of its own, on which take is called; the functions: any thread. */
struct kvb_discovery;
struct kvb_networks;
struct kvb_resolver;

enum { kvb_discovery_max_lists = 8 };

struct kvb_discovery_options {
    struct kvb_log *log;                 /* borrowed, like the next */
    struct kvb_resolver *resolver;       /* as kvb_fetcher_new() */
    const struct kvb_networks *networks; /* as struct kvb_fetch_options */
    /* The worker's ranks are these now, no more and no less; why says what was wrong. */
    kvb_status (*take)(
        void *context, uint32_t origin, const struct kvb_worker_config *workers, size_t count,
        struct kvb_detail *why);
    /* The facts of a worker have changed, and nothing else; it may have no ranks yet.  After an
     * error it is called again. */
    kvb_status (*update)(void *context, uint32_t origin, const struct kvb_worker_facts *facts);
    void *context;
    uint32_t lists;        /* whose workers are set one by one: at most kvb_discovery_max_lists */
    uint32_t first_origin; /* of so many as kvb_max_workers */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_discovery_start(const struct kvb_discovery_options *options, struct kvb_discovery **out);
/* No take runs after it returns; the rest may still be called.  NULL is fine, here too. */
void kvb_discovery_stop(struct kvb_discovery *discovery);
/* Stops it first. */
void kvb_discovery_free(struct kvb_discovery *discovery);

/* Sets the workers of one list, 0 .. lists - 1, that are discovered: those that have a `discover`
 * URL.  The ranks of a worker that is no longer among them are removed; one of which only facts
 * differ (members.h) keeps its own.  Of all lists together kvb_max_workers are discovered; those
 * above wait for a place, and the log says so.
 * KVB_NO_MEMORY */
kvb_status kvb_discovery_set(
    struct kvb_discovery *discovery, uint32_t list, const struct kvb_worker_config *workers,
    size_t count);

/* The workers from which kvb_discovery_set() would remove the ranks.  KVB_NO_MEMORY */
kvb_status kvb_discovery_foresee(
    struct kvb_discovery *discovery, uint32_t list, const struct kvb_worker_config *workers,
    size_t count, bool out_removed[kvb_max_workers]);

/* Something happened to a rank of this origin. */
void kvb_discovery_retry(struct kvb_discovery *discovery, uint32_t origin);

/* The ranks that a worker's engine has answered with: each as a worker of one rank at its own
 * addresses, then the worker itself, for its source of load.  workers: room for
 * kvb_max_ranks + 1.
 * An address with a host of its own, tcp://10.0.0.5:5557, is one that the engine either has
 * bound (it was given port 0) or connects to: it does not say which.  may_connect marks it.
 * KVB_BAD_CONFIG  an address is invalid or cannot be reached from outside its process (inproc),
 *                 or an id is missing; detail says which */
kvb_status kvb_discovery_workers_of(
    const struct kvb_worker_config *worker, const struct kvb_event_sources *sources,
    struct kvb_worker_config *out_workers, size_t *out_count, struct kvb_detail *detail);
