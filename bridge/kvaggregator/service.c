#include "kvaggregator/service.h"

#include "bus/bus.h"
#include "core/clock.h"
#include "core/metric.h"
#include "core/own.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/config.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "load/route.h"
#include "wire/json/scan.h"

#include <stdio.h>
#include <string.h>

/* The aggregator as a NATS micro-service: one endpoint a kind of query, with what was
 * requested and answered over NATS.  nats-server gives each query to one aggregator of the queue
 * group; see kvaggregator/group.c. */

enum { page_bytes = 128 << 10 }; /* rows of a page: under 1 ms */

/* What one message takes. */
struct limits {
    size_t max_bytes;
    size_t max_rows;
};

struct kvb_query_kind {
    const char *tail;
    enum kvb_aggregator_metric counter;
    bool has_prompt;
    /* Appends the answer to pending->answer.body; on failure detail may say why. */
    kvb_status (*answer)(struct kvb_pending_query *pending, const struct limits *limits);
};

/* ---- With a prompt ---- */

static kvb_status answer_match(struct kvb_pending_query *pending, const struct limits *limits)
{
    return kvb_answer_match(
        pending->aggregator->ctx, &pending->query, limits->max_rows, &pending->answer.body,
        &pending->detail);
}

static kvb_status answer_route_query(struct kvb_pending_query *pending, const struct limits *limits)
{
    struct kvb_route_decision *decision = &pending->context.decision;

    KVB_TRY(kvb_answer_route(
        pending->aggregator->ctx, &pending->query, limits->max_rows, &pending->answer.body,
        decision, &pending->detail));
    pending->context.has_decision = !decision->is_dry_run;
    return KVB_OK;
}

/* ---- Without ---- */

static kvb_status answer_state_query(struct kvb_pending_query *pending, const struct limits *limits)
{
    (void)limits;
    return kvb_answer_state(pending->aggregator->ctx, &pending->answer.body);
}

static kvb_status answer_load(struct kvb_pending_query *pending, const struct limits *limits)
{
    return kvb_answer_load(pending->aggregator->ctx, limits->max_rows, &pending->answer.body);
}

/* Where the requester wants to go on: {"from":n} or {"stream":n,"row":n}. */
struct page {
    uint64_t from;
    struct kvb_dump_place place;
};

static kvb_status read_from(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->from);
}

static kvb_status read_stream(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->place.stream);
}

static kvb_status read_row(struct kvb_json_scan *scan, void *context)
{
    struct page *page = context;

    return kvb_json_u64(scan, &page->place.row);
}

/* An empty request means the first page. */
static kvb_status read_page(kvb_span payload, struct page *out_page, struct kvb_detail *detail)
{
    /* clang-format off */
    static const struct kvb_json_field fields[] = {
        { .name = "from",   .read = read_from },
        { .name = "stream", .read = read_stream },
        { .name = "row",    .read = read_row },
    };
    /* clang-format on */
    struct kvb_json_scan scan = kvb_json_scan_of(payload);

    if (payload.len == 0) {
        return KVB_OK;
    }
    if (kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out_page) != KVB_OK ||
        kvb_json_finish(&scan) != KVB_OK) {
        kvb_detail_set(
            detail,
            "expected nothing, {\"from\":n} or {\"stream\":n,\"row\":n} with whole numbers");
        return KVB_BAD_INPUT;
    }
    return KVB_OK;
}

static kvb_status answer_streams(struct kvb_pending_query *pending, const struct limits *limits)
{
    struct page page = { 0 };

    KVB_TRY(read_page(pending->payload, &page, &pending->detail));
    return kvb_answer_streams(
        pending->aggregator->ctx, page.from, limits->max_rows, &pending->answer.body);
}

static kvb_status answer_dump(struct kvb_pending_query *pending, const struct limits *limits)
{
    /* their line ends are two bytes each in JSON, and names may be longer, too */
    const size_t max = limits->max_bytes * 3 / 8;
    struct page page = { 0 };

    KVB_TRY(read_page(pending->payload, &page, &pending->detail));
    return kvb_answer_dump_page(
        pending->aggregator->ctx, max < page_bytes ? max : page_bytes, page.place,
        &pending->answer.body);
}

/* ---- The table ---- */

/* clang-format off */
static const struct kvb_query_kind query_kinds[] = {
    { "kv_match",       kvb_aggregator_queries_match, true,  answer_match },
    { "kv_route",       kvb_aggregator_queries_route, true,  answer_route_query },
    { "kv_get.state",   kvb_aggregator_queries_get,   false, answer_state_query },
    { "kv_get.load",    kvb_aggregator_queries_get,   false, answer_load },
    { "kv_get.streams", kvb_aggregator_queries_get,   false, answer_streams },
    { "kv_get.dump",    kvb_aggregator_queries_get,   false, answer_dump },
};
/* clang-format on */
_Static_assert(KVB_COUNT_OF(query_kinds) == kvb_query_kind_count, "each kind of query is counted");

const struct kvb_query_kind *kvb_query_kind_find(const char *tail)
{
    for (size_t i = 0; i < KVB_COUNT_OF(query_kinds); i++) {
        if (strcmp(query_kinds[i].tail, tail) == 0) {
            return &query_kinds[i];
        }
    }
    return NULL;
}

bool kvb_query_kind_has_prompt(const struct kvb_query_kind *kind)
{
    return kind->has_prompt;
}

/* ---- Counting ---- */

void kvb_aggregator_note_request(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, uint64_t processing_ns,
    const char *error)
{
    struct kvb_aggregator_service *service = aggregator->service;
    struct kvb_query_counts *counts = &service->counts[kind - query_kinds];

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
    struct kvb_aggregator_service *service = aggregator->service;
    struct kvb_query_counts *counts = &service->counts[kind - query_kinds];

    (void)pthread_mutex_lock(&service->lock);
    counts->errors++;
    (void)snprintf(counts->last_error, sizeof counts->last_error, "%s", error);
    (void)pthread_mutex_unlock(&service->lock);
}

/* ---- Answering ---- */

/* Each answer is a JSON object; its last member becomes "aggregator":"{id}", so that the requester
 * knows whom to ask for the next page. */
static kvb_status answer_as(struct kvb_pending_query *pending, const struct limits *limits)
{
    static const char before[] = ",\"aggregator\":\"";
    const char *id = pending->aggregator->service->identity.id; /* needs no escapes */
    struct kvb_buf *out = &pending->answer.body;

    KVB_TRY(pending->kind->answer(pending, limits));
    /* Over the brace at the end; no answer is an empty object. */
    out->len--;
    KVB_TRY(kvb_buf_append(out, before, sizeof before - 1));
    KVB_TRY(kvb_buf_append(out, id, strlen(id)));
    return kvb_buf_append(out, "\"}", 2);
}

void kvb_query_kind_answer(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct limits limits = { .max_bytes = kvb_bus_max_payload(aggregator->bus) };

    limits.max_rows = limits.max_bytes / kvb_query_row_bytes;
    kvb_status status = answer_as(pending, &limits);
    /* With long names, rows are larger than usual: then the answer is made again with fewer rows.
     * A route is chosen only once. */
    while (status == KVB_OK && pending->answer.body.len > limits.max_bytes && limits.max_rows > 1 &&
           !pending->context.has_decision) {
        limits.max_rows /= 2;
        kvb_buf_reset(&pending->answer.body);
        status = answer_as(pending, &limits);
    }
    const uint64_t processing_ns = kvb_clock_monotonic_ns() - began_ns;
    if (status != KVB_OK) {
        const char *why = pending->detail.text;
        kvb_query_kind_fail(pending, processing_ns, why[0] ? why : kvb_status_name(status));
        return;
    }
    kvb_metric_add(aggregator->metrics, pending->kind->counter, 1);
    kvb_aggregator_note_request(aggregator, pending->kind, processing_ns, NULL);
}

void kvb_query_kind_fail(
    struct kvb_pending_query *pending, uint64_t processing_ns, const char *sentence)
{
    kvb_aggregator_note_request(pending->aggregator, pending->kind, processing_ns, sentence);
    kvb_metric_add(pending->aggregator->metrics, kvb_aggregator_queries_failed, 1);
    kvb_buf_reset(&pending->answer.body);
    /* Without memory even for this, the requester runs into its own deadline. */
    (void)kvb_http_write_error(sentence, &pending->answer.body);
}

/* ---- The micro-service, on nats.c's thread ---- */

static void
fill_query_endpoint(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint)
{
    const struct kvb_aggregator *aggregator = context;
    const char *tail = query_kinds[i].tail;

    /* "kv_get.state" is the endpoint kv_get_state: a name has no dots. */
    (void)snprintf(out_endpoint->name, sizeof out_endpoint->name, "%s", tail);
    for (char *dot = out_endpoint->name; (dot = strchr(dot, '.'));) {
        *dot = '_';
    }
    (void)snprintf(/* fits: kvb_subject_make() has looked at both names */
                   out_endpoint->subject, sizeof out_endpoint->subject,
                   "namespace.%s.component.%s.%s", aggregator->config->router.name_space,
                   aggregator->config->router.component, tail);
    out_endpoint->queue_group = aggregator->config->router.queue_group;
    const struct kvb_query_counts *counts = &aggregator->service->shown[i];
    out_endpoint->num_requests = counts->requests;
    out_endpoint->num_errors = counts->errors;
    out_endpoint->processing_ns = counts->processing_ns;
    memcpy(out_endpoint->last_error, counts->last_error, sizeof counts->last_error);
}

static kvb_status list_query_endpoints(void *context, struct kvb_service_endpoints *out_list)
{
    struct kvb_aggregator *aggregator = context;
    struct kvb_aggregator_service *service = aggregator->service;

    /* A copy, so that all endpoints of an answer are shown as they are at one moment. */
    (void)pthread_mutex_lock(&service->lock);
    memcpy(service->shown, service->counts, sizeof service->shown);
    (void)pthread_mutex_unlock(&service->lock);
    *out_list = (struct kvb_service_endpoints){ .count = kvb_query_kind_count,
                                                .fill = fill_query_endpoint,
                                                .context = aggregator };
    return KVB_OK;
}

/* ---- Opening ---- */

kvb_status kvb_aggregator_open_service(struct kvb_aggregator *aggregator)
{
    const struct kvb_aggregator_config *config = aggregator->config;
    struct kvb_service *service = &aggregator->service->identity;

    KVB_TRY(kvb_service_identify(service));
    memcpy(service->name, aggregator->names->service, sizeof service->name);
    service->description = "kvaggregator: which worker holds the longest prefix of a prompt";
    service->facts[0] = (struct kvb_service_fact){ "namespace", config->router.name_space };
    service->facts[1] = (struct kvb_service_fact){ "component", config->router.component };
    service->facts[2] =
        (struct kvb_service_fact){ "policy", kvb_route_policy_name(config->router.policy) };
    const struct kvb_service_responder_options options = {
        .bus = aggregator->bus,
        .service = service,
        .list = list_query_endpoints,
        .context = aggregator,
        .metrics = aggregator->metrics,
        .first_metric = kvb_aggregator_service_ping,
    };
    return kvb_service_responder_open(&options, &aggregator->service->responder);
}
