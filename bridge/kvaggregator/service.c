#include "core/clock.h"
#include "daemon/service_responder.h"
#include "kvaggregator/inside.h"

#include <stdio.h>
#include <string.h>

/* The aggregator as a NATS micro-service: one endpoint a kind of query, with what was
 * requested and answered over NATS.  nats-server gives each query to one aggregator of the queue
 * group; see kvaggregator/group.c. */

/* ---- Counting ---- */

void kvb_aggregator_note_request(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, uint64_t processing_ns,
    const char *error)
{
    struct aggregator_service *service = &aggregator->service;
    struct query_counts *counts = &service->counts[kvb_query_kind_number(kind)];

    (void)pthread_mutex_lock(&service->lock);
    counts->requests++;
    counts->processing_ns += processing_ns;
    (void)pthread_mutex_unlock(&service->lock);
    if (error) {
        kvb_aggregator_note_error(aggregator, kind, error);
    }
}

void kvb_aggregator_note_error(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, const char *error)
{
    struct aggregator_service *service = &aggregator->service;
    struct query_counts *counts = &service->counts[kvb_query_kind_number(kind)];

    (void)pthread_mutex_lock(&service->lock);
    counts->errors++;
    (void)snprintf(counts->last_error, sizeof counts->last_error, "%s", error);
    (void)pthread_mutex_unlock(&service->lock);
}

/* ---- On nats.c's threads ---- */

/* "kv_get.state" is the endpoint kv_get_state: a name has no dots. */
static void name_endpoint(const char *tail, struct kvb_service_endpoint *endpoint)
{
    (void)snprintf(endpoint->name, sizeof endpoint->name, "%s", tail);
    for (char *dot = strchr(endpoint->name, '.'); dot; dot = strchr(dot, '.')) {
        *dot = '_';
    }
}

static void
fill_load_endpoint(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct kvb_aggregator *aggregator = context;
    const char *tail = kvb_query_kind_tail(i);

    name_endpoint(tail, out_endpoint);
    (void)snprintf(/* fits: kvb_subject_make() has looked at both names */
                   out_endpoint->subject, sizeof out_endpoint->subject,
                   "namespace.%s.component.%s.%s", aggregator->config->router.name_space,
                   aggregator->config->router.component, tail);
    out_endpoint->queue_group = aggregator->config->router.queue_group;
    const struct query_counts *counts = &aggregator->service.shown[i];
    out_endpoint->num_requests = counts->requests;
    out_endpoint->num_errors = counts->errors;
    out_endpoint->processing_ns = counts->processing_ns;
    memcpy(out_endpoint->last_error, counts->last_error, sizeof counts->last_error);
}

static kvb_status list_load_endpoints(void *context, struct kvb_service_endpoints *out_list)
{
    struct kvb_aggregator *aggregator = context;
    struct aggregator_service *service = &aggregator->service;

    (void)pthread_mutex_lock(&service->lock);
    memcpy(service->shown, service->counts, sizeof service->shown);
    (void)pthread_mutex_unlock(&service->lock);
    *out_list = (struct kvb_service_endpoints){ .count = kvb_query_kind_count,
                                                .fill = fill_load_endpoint,
                                                .context = aggregator };
    return KVB_OK;
}

/* ---- Opening ---- */

kvb_status kvb_aggregator_open_service(struct kvb_aggregator *aggregator)
{
    const struct kvb_aggregator_config *config = aggregator->config;
    struct kvb_service *service = &aggregator->service.identity;

    KVB_TRY(kvb_service_identify(service));
    memcpy(service->name, "kvaggregator", sizeof "kvaggregator");
    service->description = "kvaggregator: which worker holds the longest prefix of a prompt";
    service->facts[0] = (struct kvb_service_fact){ "namespace", config->router.name_space };
    service->facts[1] = (struct kvb_service_fact){ "component", config->router.component };
    service->facts[2] =
        (struct kvb_service_fact){ "policy", kvb_route_policy_name(config->router.policy) };
    const struct kvb_service_responder_options options = {
        .bus = aggregator->bus,
        .service = service,
        .list = list_load_endpoints,
        .context = aggregator,
        .metrics = &aggregator->metrics,
        .first_metric = kvb_aggregator_service_ping,
    };
    return kvb_service_responder_open(&options, &aggregator->service.responder);
}
