#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvbridge/worker_list.h"

#include <stdint.h>

/* Discovers the addresses of workers from the engine itself: GET {discover}/kv_event_sources, or
 * {discover}/server_info where there is no such page.  How vLLM speculates is asked for as well
 * (wire/engine/answers.h): kvb_part.speculation_of_server.
 *
 * It stands between a spec and its parts:
 *
 *     specs with `discover` --set--> targets --GET, again with back-off until it answers--> parts
 *                                       ^                                                     |
 *     a connection was lost or made: kvb_discovery_retry()                          take: the
 * bridge
 *
 * Each error is logged at once, then at growing intervals.  An engine's answer is logged when it
 * has changed.
 *
 * An engine without these pages is read at the `events` and `replay` of the spec, if present.  An
 * unreachable engine keeps the ranks of its last answer in state DOWN.  An engine that has returned
 * may have new addresses, so it is queried until its ranks are connected.
 *
 * Threads: a job of the control thread, whose work calls take; the functions: any thread. */
struct kvb_control;
struct kvb_discovery;
struct kvb_resolver;

enum { kvb_discovery_max_sources = 8 };

struct kvb_discovery_options {
    struct kvb_control *control;   /* borrowed */
    struct kvb_log *log;           /* borrowed */
    struct kvb_resolver *resolver; /* borrowed; for kvb_fetcher_new() */
    /* The parts of a worker of this source, by its engine's answer.  On failure *why gives the
     * reason, and the engine is asked again.  KVB_NOT_FOUND: the source's list has no such worker
     * any more. */
    kvb_status (*take)(
        void *context, uint32_t source, struct kvb_worker_spec *spec, struct kvb_parts *parts,
        struct kvb_detail *why);
    void *context;
    uint32_t sources; /* how many there are, at most kvb_discovery_max_sources */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_discovery_start(const struct kvb_discovery_options *options, struct kvb_discovery **out);
/* No `take` runs after it returns.  The other functions may still be called.  NULL is fine here and
 * in the next function. */
void kvb_discovery_stop(struct kvb_discovery *discovery);
/* Stops it first. */
void kvb_discovery_free(struct kvb_discovery *discovery);

/* The workers of a list that have a `discover` URL, by references.  *out_targets must be {0}.
 * KVB_NO_MEMORY */
kvb_status
kvb_discovery_choose(const struct kvb_worker_list *list, struct kvb_worker_list *out_targets);

/* Sets the workers of one source, which kvb_discovery_choose() has chosen; the caller frees those
 * that *targets has then.  A worker whose facts alone differ is not asked again.  At most
 * kvb_max_workers of all sources are discovered; the others wait until one is removed, and a
 * warning is logged. */
void kvb_discovery_set(
    struct kvb_discovery *discovery, uint32_t source, struct kvb_worker_list *targets);

/* A rank of this worker was connected or lost: ask its engine again.  Nothing happens if it is not
 * discovered. */
void kvb_discovery_retry(
    struct kvb_discovery *discovery, uint32_t source, const struct kvb_worker_spec *spec);
