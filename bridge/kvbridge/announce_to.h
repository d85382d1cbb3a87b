#pragma once

#include "core/log.h"
#include "core/metric.h"
#include "core/status.h"
#include "core/url_show.h"
#include "kvbridge/config.h"
#include "wire/query/dynamo_worker.h"

#include <stdbool.h>
#include <stddef.h>

/* Registers the sockets of republished ranks at Dynamo services over HTTP, and takes the
 * registrations back when a rank leaves or the bridge ends.
 *
 *     ingest thread --ranks--+                 own thread
 *     SIGHUP -----services---+--> one announcer (announcer.h) for each service --> HTTP
 *
 * Threads: one of its own; the functions: any thread. */
struct kvb_announce_to;
struct kvb_resolver;

struct kvb_announce_to_options {
    struct kvb_log *log;           /* borrowed, like the next two */
    struct kvb_resolver *resolver; /* for kvb_fetcher_new() */
    struct kvb_metrics *metrics;
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_announce_to_start(const struct kvb_announce_to_options *options, struct kvb_announce_to **out);

/* Takes the registrations back, for at most 2 s, and ends the thread.  The other functions may
 * still be called.  NULL is fine here and in the next function. */
void kvb_announce_to_stop(struct kvb_announce_to *announce);
/* Stops it first. */
void kvb_announce_to_free(struct kvb_announce_to *announce);

/* Replaces the services; those without a URL are ignored.  Registrations at those that are left out
 * are taken back. */
void kvb_announce_to_set_services(
    struct kvb_announce_to *announce, const struct kvb_announce_config *services, size_t count);

/* Replaces the ranks.  Their sockets are those at which they listen, such as tcp://0.0.0.0:5657.
 * KVB_NO_MEMORY */
kvb_status kvb_announce_to_set_ranks(
    struct kvb_announce_to *announce, const struct kvb_dynamo_worker *ranks, size_t count);

struct kvb_announce_status {
    char url[kvb_url_shown_bytes]; /* without a password */
    enum kvb_dynamo_api api;
    bool is_failing;
    size_t wanted;
    size_t present; /* of these, registered */
    struct kvb_detail why;
};

/* Returns the number of services; out has room for kvb_max_announce_services. */
size_t kvb_announce_to_read(struct kvb_announce_to *announce, struct kvb_announce_status *out);

/* The id of one rank alone: that of its worker for rank 0, else a hash below 2^53 of both. */
uint64_t kvb_announce_rank_id(uint64_t worker_id, uint32_t dp_rank);
