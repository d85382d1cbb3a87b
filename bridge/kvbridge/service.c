#include "daemon/service.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"
#include "load/worker_load.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t show_again_ns = KVB_NS_PER_S; /* although nothing is fresh */

/* The bridge as a NATS micro-service: one endpoint for each worker, with the name that Dynamo's
 * KvMetricsAggregator expects, and the worker's newest load as `data`.
 *
 *     ingest thread --every tick--> put_aside   (lock)
 *                                       |  copied on a request
 *     nats.c's thread               ranks --summed--> workers --> answer */
struct bridge_service {
    struct kvb_service service;
    struct kvb_service_responder *responder; /* owned */

    pthread_mutex_t lock;     /* put_aside, its two numbers and shown_ns */
    uint64_t shown_ns;        /* when they were set: a bridge that hangs has no figures */
    uint64_t changes;         /* of membership, at that time */
    struct figure *put_aside; /* owned */
    size_t rank_count;
    size_t capacity;

    /* Scratch space of the responder, for one request at a time. */
    struct kvb_rank_load *ranks; /* owned */
    size_t rank_capacity;
    struct kvb_worker_load *workers; /* owned */
    size_t worker_capacity;
};

/* One rank's newest load. */
struct figure {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool was_received;
    bool is_fresh;
    struct kvb_load load;
};

/* ---- On the ingest thread ---- */

/* True: what was put aside would be the same again, because no figure is fresh. */
static bool is_list_current(const struct kvb_bridge *bridge, uint64_t now_ns)
{
    const struct bridge_service *service = bridge->shown->service;

    /* Without the lock: no other thread writes these. */
    return service->shown_ns > bridge->publisher->load_until_ns &&
           now_ns < service->shown_ns + show_again_ns &&
           service->changes == bridge->membership->changes;
}

void kvb_bridge_show_loads(struct kvb_bridge *bridge)
{
    struct bridge_service *service = bridge->shown->service;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    if (is_list_current(bridge, now_ns)) {
        return;
    }
    service->changes = bridge->membership->changes;
    (void)pthread_mutex_lock(&service->lock);
    service->shown_ns = now_ns;
    service->rank_count =
        kvb_array_reserve(
            &service->put_aside, &service->capacity, bridge->membership->rank_count,
            sizeof *service->put_aside, kvb_max_streams) == KVB_OK
            ? bridge->membership->rank_count
            : 0; /* out of memory: no worker is listed */
    for (size_t i = 0; i < service->rank_count; i++) {
        const struct bridge_rank *rank = bridge->membership->ranks[i];
        struct figure *figure = &service->put_aside[i];
        *figure = (struct figure){ .worker_id = rank->worker_id,
                                   .dp_rank = rank->dp_rank,
                                   .was_received = kvb_newest_load_was_received(&rank->load) };
        figure->is_fresh = kvb_newest_load_at(&rank->load, &rank->known, now_ns, &figure->load);
    }
    (void)pthread_mutex_unlock(&service->lock);
}

/* ---- On nats.c's threads ---- */

static void
fill_rank_endpoint(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct bridge_service *service = context;

    kvb_service_name_worker(service->service.name, service->workers[i].worker_id, out_endpoint);
    out_endpoint->worker = service->workers[i];
}

/* The caller holds the lock. */
static kvb_status
copy_stats(struct bridge_service *service, uint64_t now_ns, size_t *out_rank_count)
{
    const size_t count = service->rank_count;

    KVB_TRY(kvb_array_reserve(
        &service->ranks, &service->rank_capacity, count, sizeof *service->ranks, kvb_max_streams));
    KVB_TRY(kvb_array_reserve(
        &service->workers, &service->worker_capacity, count, sizeof *service->workers,
        kvb_max_streams));
    /* What was fresh when it was put aside may be too old now: the bridge may hang. */
    for (size_t i = 0; i < count; i++) {
        const struct figure *figure = &service->put_aside[i];
        service->ranks[i] = (struct kvb_rank_load){
            .worker_id = figure->worker_id,
            .dp_rank = figure->dp_rank,
            .was_received = figure->was_received,
            .is_fresh =
                figure->is_fresh && now_ns < service->shown_ns + kvb_load_life_ms * KVB_NS_PER_MS,
            .load = figure->load,
        };
    }
    *out_rank_count = count;
    return KVB_OK;
}

static kvb_status list_rank_endpoints(void *context, struct kvb_service_endpoints *out_list)
{
    struct bridge_service *service = context;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    size_t rank_count = 0;

    (void)pthread_mutex_lock(&service->lock);
    const kvb_status status = copy_stats(service, now_ns, &rank_count);
    (void)pthread_mutex_unlock(&service->lock);
    KVB_TRY(status);
    /* Without the lock: what is summed and shown from here on is this responder's own. */
    *out_list = (struct kvb_service_endpoints){
        .count = kvb_worker_loads(service->ranks, rank_count, service->workers),
        .fill = fill_rank_endpoint,
        .context = service,
    };
    return KVB_OK;
}

/* ---- Opening and closing ---- */

static const char *formats_text(unsigned formats)
{
    if (!kvb_formats_have(formats, KVB_FORMAT_PROTOBUF)) {
        return "json";
    }
    return kvb_formats_have(formats, KVB_FORMAT_JSON) ? "json,protobuf" : "protobuf";
}

static void name_service(const struct kvb_bridge *bridge, struct kvb_service *service)
{
    const struct kvb_bridge_config *config = bridge->config;

    memcpy(service->name, bridge->publisher->names.service, sizeof service->name);
    service->description = "kvbridge: KV-cache events and load of inference engines";
    service->facts[0] = (struct kvb_service_fact){ "namespace", config->publish.name_space };
    service->facts[1] = (struct kvb_service_fact){ "component", config->publish.component };
    service->facts[2] =
        (struct kvb_service_fact){ "formats", formats_text(config->publish.formats) };
    service->facts[3] = (struct kvb_service_fact){ "bridge_id", bridge->bridge_id };
}

kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge)
{
    struct bridge_service *service = calloc(1, sizeof *service);

    if (!service) {
        return KVB_NO_MEMORY;
    }
    bridge->shown->service = service;               /* it is freed even after a failure */
    (void)pthread_mutex_init(&service->lock, NULL); /* cannot fail without attributes */
    KVB_TRY(kvb_service_identify(&service->service));
    name_service(bridge, &service->service);
    /* Before the first request can come. */
    kvb_bridge_show_loads(bridge);
    const struct kvb_service_responder_options options = {
        .bus = bridge->publisher->bus,
        .service = &service->service,
        .list = list_rank_endpoints,
        .context = service,
        .metrics = &bridge->shown->metrics,
        .first_metric = kvb_bridge_service_ping,
    };
    return kvb_service_responder_open(&options, &service->responder);
}

void kvb_bridge_close_service(struct bridge_shown *shown)
{
    struct bridge_service *service = shown->service;

    if (!service) {
        return;
    }
    /* First: no request is under way when it returns. */
    kvb_service_responder_close(service->responder);
    (void)pthread_mutex_destroy(&service->lock);
    free(service->put_aside);
    free(service->ranks);
    free(service->workers);
    free(service);
    shown->service = NULL;
}
