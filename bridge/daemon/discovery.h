#pragma once

#include "core/log.h"
#include "core/status.h"
#include "daemon/bridge_config.h"
#include "model/event_source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Workers whose addresses the engine itself tells: GET {discover}/kv_event_sources, and where
 * there is no such page {discover}/server_info.
 *
 *     file --set--> targets --GET, again with back-off until it answers--> ranks --take-->
 *                      ^                                                     the bridge
 *     a connection was lost, or is back: look_again
 *
 * The log names each trouble at once, then in pauses that grow, and what the engine says when
 * that has changed.
 *
 * An engine that is away keeps the ranks that it told last: they are DOWN.  One that is
 * back may have moved: it is asked until its ranks are connected.
 *
 * Threads: one of its own, on which take is called; the functions: any thread. */
struct kvb_discovery;

struct kvb_discovery_options {
    struct kvb_log *log; /* borrowed */
    /* The worker's ranks are these now, no more and no less; why says what was wrong. */
    kvb_status (*take)(
        void *context, uint32_t origin, const struct kvb_worker_config *workers, size_t count,
        struct kvb_detail *why);
    void *context;
    uint32_t first_origin; /* of so many as kvb_max_workers */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_discovery_start(const struct kvb_discovery_options *options, struct kvb_discovery **out);
/* No take runs after it returns; the rest may still be called.  NULL is fine, here too. */
void kvb_discovery_stop(struct kvb_discovery *discovery);
/* Stops it first. */
void kvb_discovery_free(struct kvb_discovery *discovery);

/* Those of these workers that are to be discovered; of any that is not among them any more
 * the ranks are taken away.  KVB_NO_MEMORY */
kvb_status kvb_discovery_set(
    struct kvb_discovery *discovery, const struct kvb_worker_config *workers, size_t count);

/* Whose ranks kvb_discovery_set() would take away. */
void kvb_discovery_foresee(
    struct kvb_discovery *discovery, const struct kvb_worker_config *workers, size_t count,
    bool out_goes[kvb_max_workers]);

/* Something happened to a rank of this origin. */
void kvb_discovery_look_again(struct kvb_discovery *discovery, uint32_t origin);

/* The ranks of a worker that its engine has told: each as a worker of one rank at its own
 * addresses, then the worker itself, for its source of load.  workers: room for
 * kvb_max_ranks + 1.
 * An address with a host of its own, tcp://10.0.0.5:5557, is one that the engine either has
 * bound (it was given port 0) or connects to: it does not say which.  may_connect marks it.
 * KVB_BAD_CONFIG  an address that is none, or that nobody else can reach (inproc), or an id
 *                 is missing; detail says */
kvb_status kvb_discovery_workers_of(
    const struct kvb_worker_config *worker, const struct kvb_event_sources *sources,
    struct kvb_worker_config *out_workers, size_t *out_count, struct kvb_detail *detail);
