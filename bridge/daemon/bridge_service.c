#include "core/clock.h"
#include "core/limits.h"
#include "daemon/bridge_inside.h"
#include "daemon/service_desk.h"

#include <stdlib.h>
#include <string.h>

/* The bridge as a NATS micro-service: one endpoint a worker, named as Dynamo's
 * KvMetricsAggregator looks for them, with the worker's newest load as `data`.
 *
 *     ingest thread --every tick--> put_aside   (lock)
 *                                       |  copied, when somebody asks
 *     nats.c's thread               ranks --summed--> workers --> answer */
struct bridge_service {
    struct kvb_service service;
    struct kvb_service_desk *desk; /* owned, like the arrays */
    size_t rank_count;             /* of each */

    pthread_mutex_t lock; /* put_aside, shown_ns */
    uint64_t shown_ns;    /* when they were: a bridge that stands still has no figures */
    uint64_t life_ns;
    struct figure *put_aside;

    /* The desk's, one request at a time. */
    struct kvb_rank_load *ranks;
    struct kvb_worker_load *workers;
};

/* One rank's newest load. */
struct figure {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool was_heard;
    bool is_fresh;
    struct kvb_load load;
};

/* ---- On the ingest thread ---- */

void kvb_bridge_show_loads(struct kvb_bridge *bridge)
{
    struct bridge_service *service = bridge->service;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    (void)pthread_mutex_lock(&service->lock);
    service->shown_ns = now_ns;
    for (size_t i = 0; i < service->rank_count; i++) {
        const struct bridge_rank *rank = &bridge->ranks[i];
        struct figure *figure = &service->put_aside[i];
        *figure = (struct figure){ .worker_id = rank->worker_id,
                                   .dp_rank = rank->dp_rank,
                                   .was_heard = kvb_newest_load_was_heard(&rank->load) };
        figure->is_fresh = kvb_newest_load_at(&rank->load, &rank->known, now_ns, &figure->load);
    }
    (void)pthread_mutex_unlock(&service->lock);
}

/* ---- On nats.c's threads ---- */

static void fill(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct bridge_service *service = context;

    kvb_service_name_worker(service->service.name, service->workers[i].worker_id, out_endpoint);
    out_endpoint->worker = service->workers[i];
}

static kvb_status list(void *context, struct kvb_service_endpoints *out_list)
{
    struct bridge_service *service = context;
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    (void)pthread_mutex_lock(&service->lock);
    for (size_t i = 0; i < service->rank_count; i++) {
        const struct figure *figure = &service->put_aside[i];
        service->ranks[i] = (struct kvb_rank_load){
            .worker_id = figure->worker_id,
            .dp_rank = figure->dp_rank,
            .was_heard = figure->was_heard,
            .is_fresh = figure->is_fresh && now_ns < service->shown_ns + service->life_ns,
            .load = figure->load,
        };
    }
    (void)pthread_mutex_unlock(&service->lock);
    *out_list = (struct kvb_service_endpoints){
        .count = kvb_worker_loads(service->ranks, service->rank_count, service->workers),
        .fill = fill,
        .context = service,
    };
    return KVB_OK;
}

/* ---- Opening and closing ---- */

static void name_service(const struct kvb_bridge *bridge, struct kvb_service *service)
{
    const struct kvb_bridge_config *config = bridge->config;

    kvb_service_name_of(config->publish.name_space, config->publish.component, service->name);
    service->description = "kvbridge: KV-cache events and load of inference engines";
    service->facts[0] = (struct kvb_service_fact){ "namespace", config->publish.name_space };
    service->facts[1] = (struct kvb_service_fact){ "component", config->publish.component };
    service->facts[2] =
        (struct kvb_service_fact){ "profile", kvb_profile_name(config->publish.profile) };
    service->facts[3] = (struct kvb_service_fact){ "bridge_id", bridge->bridge_id };
}

static kvb_status make_arrays(struct bridge_service *service, size_t rank_count)
{
    const size_t count = rank_count ? rank_count : 1;

    service->put_aside = calloc(count, sizeof *service->put_aside);
    service->ranks = calloc(count, sizeof *service->ranks);
    service->workers = calloc(count, sizeof *service->workers);
    service->rank_count = rank_count;
    return service->put_aside && service->ranks && service->workers ? KVB_OK : KVB_NO_MEMORY;
}

kvb_status kvb_bridge_open_service(struct kvb_bridge *bridge)
{
    struct bridge_service *service = calloc(1, sizeof *service);

    if (!service) {
        return KVB_NO_MEMORY;
    }
    bridge->service = service;                      /* closed in any case */
    (void)pthread_mutex_init(&service->lock, NULL); /* cannot fail without attributes */
    KVB_TRY(make_arrays(service, bridge->rank_count));
    KVB_TRY(kvb_service_identify(&service->service));
    name_service(bridge, &service->service);
    service->life_ns = bridge->config->publish.load_expire_ms * KVB_NS_PER_MS;
    kvb_bridge_show_loads(bridge);
    const struct kvb_service_desk_options options = {
        .bus = bridge->bus,
        .service = &service->service,
        .list = list,
        .context = service,
        .metrics = &bridge->metrics,
        .first_metric = kvb_bridge_service_ping,
    };
    return kvb_service_desk_open(&options, &service->desk);
}

void kvb_bridge_close_service(struct kvb_bridge *bridge)
{
    struct bridge_service *service = bridge->service;

    if (!service) {
        return;
    }
    kvb_service_desk_close(service->desk);
    (void)pthread_mutex_destroy(&service->lock);
    free(service->put_aside);
    free(service->ranks);
    free(service->workers);
    free(service);
    bridge->service = NULL;
}
