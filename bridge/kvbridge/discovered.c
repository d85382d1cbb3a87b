#include "kvbridge/discovery.h"
#include "kvbridge/endpoint.h"

#include <stdio.h>
#include <string.h>

/* Converts an engine's discovery answer to workers. */

/* Converts an advertised address to one that this host can reach: * means the host that
 * answered. */
static kvb_status put_reachable_address(
    const struct kvb_worker_config *worker, const char *advertised,
    char out_address[kvb_endpoint_bytes], struct kvb_detail *detail)
{
    struct kvb_endpoint endpoint;

    if (advertised[0] == '\0') {
        return KVB_OK;
    }
    if (kvb_endpoint_parse(advertised, &endpoint, NULL) == KVB_OK &&
        endpoint.scheme == KVB_ENDPOINT_INPROC) {
        kvb_detail_set(
            detail,
            "%.80s is reachable only inside the engine's process: give the engine tcp://*:PORT",
            advertised);
        return KVB_BAD_CONFIG;
    }
    if (kvb_endpoint_parse(advertised, &endpoint, NULL) != KVB_OK ||
        kvb_endpoint_at_host(advertised, kvb_endpoint_host_of_url(worker->discover), out_address) !=
            KVB_OK) {
        kvb_detail_set(detail, "%.80s is not a socket address", advertised);
        return KVB_BAD_CONFIG;
    }
    return KVB_OK;
}

static kvb_status put_id(
    const struct kvb_worker_config *worker, uint32_t dp_rank, uint64_t *out_id,
    struct kvb_detail *detail)
{
    if (worker->id_count == 0) {
        *out_id = worker->id;
        return KVB_OK;
    }
    if (dp_rank >= worker->id_count) {
        kvb_detail_set(
            detail, "the engine has rank %u, but `ids` has only %zu ids: give one for each rank",
            dp_rank, worker->id_count);
        return KVB_BAD_CONFIG;
    }
    *out_id = worker->ids[dp_rank];
    return KVB_OK;
}

/* vLLM and SGLang bind an address that contains * or ::, and ipc and inproc addresses.  They
 * connect to any other address. */
static bool may_connect(const char *advertised)
{
    struct kvb_endpoint endpoint;

    return kvb_endpoint_parse(advertised, &endpoint, NULL) == KVB_OK &&
           endpoint.scheme == KVB_ENDPOINT_TCP && !strchr(advertised, '*') &&
           !strstr(advertised, "::");
}

static kvb_status make_discovered_rank(
    const struct kvb_worker_config *worker, const struct kvb_event_source *source,
    struct kvb_worker_config *out, struct kvb_detail *detail)
{
    *out = *worker;
    memset(out->discover, 0, sizeof out->discover);
    memset(out->events, 0, sizeof out->events); /* stays empty when the engine does not give it */
    memset(out->replay, 0, sizeof out->replay);
    memset(&out->load, 0, sizeof out->load);
    out->load.total_slots = worker->load.total_slots;
    KVB_TRY(put_id(worker, source->dp_rank, &out->id, detail));
    memset(out->ids, 0, sizeof out->ids);
    out->id_count = 0;
    KVB_TRY(put_reachable_address(worker, source->endpoint, out->events, detail));
    KVB_TRY(put_reachable_address(worker, source->replay_endpoint, out->replay, detail));
    (void)snprintf(out->topic, sizeof out->topic, "%s", source->topic);
    out->first_rank = source->dp_rank;
    out->ranks = 1;
    out->has_own_addresses = true;
    out->has_foreign_addresses = true;
    out->may_connect = may_connect(source->endpoint);
    return KVB_OK;
}

kvb_status kvb_discovery_workers_of(
    const struct kvb_worker_config *worker, const struct kvb_event_sources *sources,
    struct kvb_worker_config *out_workers, size_t *out_count, struct kvb_detail *detail)
{
    for (size_t i = 0; i < sources->count; i++) {
        KVB_TRY(make_discovered_rank(worker, &sources->sources[i], &out_workers[i], detail));
    }
    struct kvb_worker_config *whole = &out_workers[sources->count];
    *whole = *worker;
    whole->is_discovered = true;
    whole->ranks = sources->count > 0 ? sources->sources[sources->count - 1].dp_rank + 1 : 0;
    *out_count = sources->count + 1;
    return KVB_OK;
}
