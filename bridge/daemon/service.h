#pragma once

#include "bus/bus.h"
#include "bus/contract.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/metric.h"
#include "core/status.h"
#include "load/worker_load.h"
#include "model/stream.h"

#include <stddef.h>
#include <stdint.h>

/* Answers $SRV.PING, $SRV.INFO and $SRV.STATS with JSON: the NATS micro-service protocol (ADR-32 of
 * nats-io).  Tools use it to list services.  Dynamo's routers of 2025 use it to read the load of
 * workers. */

/* ---- Answers: any thread; no state ---- */

enum {
    kvb_service_name_bytes = kvb_subject_service_bytes, /* with the NUL, like all below */
    kvb_service_id_bytes = 33,
    kvb_service_facts = 4,
    kvb_service_endpoint_bytes = 256,
    kvb_service_error_bytes = 256
};

/* One entry of a service's metadata. */
struct kvb_service_fact {
    const char *key; /* borrowed, like value; NULL: none */
    const char *value;
};

struct kvb_service {
    char name[kvb_service_name_bytes]; /* [A-Za-z0-9_-]: shared by all services of a kind */
    char id[kvb_service_id_bytes];     /* [A-Za-z0-9_-]: unique to this process */
    const char *version;               /* borrowed, like description; semantic versioning */
    const char *description;
    struct kvb_service_fact facts[kvb_service_facts]; /* `metadata` */
    char started[kvb_clock_text_bytes];               /* RFC 3339, UTC */
};

/* Sets version, a random id, and the time of the start. */
kvb_status kvb_service_identify(struct kvb_service *service);

/* One kind of request that a service answers; for a bridge, one worker. */
struct kvb_service_endpoint {
    char name[kvb_service_endpoint_bytes]; /* [A-Za-z0-9_-] */
    char subject[kvb_service_endpoint_bytes];
    const char *queue_group; /* borrowed; "": none, so that every instance answers */
    uint64_t num_requests;
    uint64_t num_errors; /* failed requests among them */
    uint64_t processing_ns;
    char last_error[kvb_service_error_bytes]; /* "": none yet */
    struct kvb_worker_load worker;            /* `data`; without has_load: null */
};

/* A list that is generated while it is read.  fill gets an endpoint with zeros and empty texts. */
struct kvb_service_endpoints {
    size_t count;
    void (*fill)(const void *context, size_t i, struct kvb_service_endpoint *out_endpoint);
    const void *context; /* borrowed */
};

enum kvb_service_verb {
    KVB_SERVICE_PING,
    KVB_SERVICE_INFO,
    KVB_SERVICE_STATS,
    KVB_SERVICE_VERB_COUNT
};

/* Finds a verb by its name.  The name in text ends at a dot or at the end.  KVB_NOT_FOUND. */
kvb_status kvb_service_verb_find(const char *text, enum kvb_service_verb *out_verb);

/* The name that Dynamo uses for a component: {namespace}_{component} in lower case,
 * without leading underscores.  Components whose names differ only in case, or in the
 * position of the underscore, get the same name; `metadata` distinguishes them. */
void kvb_service_name_of(
    const char *name_space, const char *component, char out[kvb_service_name_bytes]);

/* Names the endpoint of a worker's load as Dynamo expects it:
 * {name}-load_metrics-{hex}, {name}.load_metrics-{hex}, queue group "q". */
void kvb_service_name_worker(
    const char *service_name, uint64_t worker_id, struct kvb_service_endpoint *endpoint);

/* Appends one answer.  A list that does not fit max_bytes is split into several:
 *
 *     {"type":...,"endpoints":[0 .. 699],"more":800}     *next: 0 -> 700
 *     {"type":...,"endpoints":[700 .. 1399],"more":100}         700 -> 1400
 *     {"type":...,"endpoints":[1400 .. 1499]}                  1400 -> 1500 = count
 *
 * Each has at least one endpoint and is complete JSON.  For a PING, list may be NULL and
 * *next stays.  On failure the caller discards what was appended.
 * KVB_TOO_LARGE  above the ceiling of out          KVB_NO_MEMORY */
struct kvb_service_request {
    enum kvb_service_verb verb;
    size_t max_bytes;
};
kvb_status kvb_service_answer(
    const struct kvb_service *service, const struct kvb_service_endpoints *list,
    struct kvb_service_request request, size_t *next, struct kvb_buf *out);

/* ---- The responder ---- */

/* Answers requests for one service: requests to all services ($SRV.PING), to services of its name
 * ($SRV.PING.name), and to this process ($SRV.PING.name.id).  Three subscriptions match these
 * subjects only.
 *
 *     $SRV.*            --+
 *     $SRV.*.name       --+--> responder: one request at a time --> answer, on nats.c's thread
 *     $SRV.*.name.id    --+               |
 *                                 list() of the daemon: reads only values that their
 *                                 owner thread has published
 *
 * A flood of requests causes at most kvb_max_service_bytes_a_second of answers (each counts
 * for at least 4 KiB); further requests are dropped and counted.  The payload of a request
 * is not read.  Some reply subjects are refused: see kvb_reply_is_refused().
 *
 * Threads: any thread for open and close; list() runs on threads of nats.c, one call
 * at a time. */
struct kvb_service_responder;

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_SERVICE_METRICS(X) \
    X(service_ping, COUNTER, "kvb_service_requests_total", "verb=\"ping\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_info, COUNTER, "kvb_service_requests_total", "verb=\"info\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_stats, COUNTER, "kvb_service_requests_total", "verb=\"stats\"", "Requests of the NATS micro-service protocol answered, by verb") \
    X(service_mute, COUNTER, "kvb_service_refused_total", "reason=\"no_reply\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_bad_reply, COUNTER, "kvb_service_refused_total", "reason=\"bad_reply\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_unknown, COUNTER, "kvb_service_refused_total", "reason=\"unknown_verb\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_busy, COUNTER, "kvb_service_refused_total", "reason=\"busy\"", "Requests of the NATS micro-service protocol not answered, by reason") \
    X(service_failed, COUNTER, "kvb_service_refused_total", "reason=\"failed\"", "Requests of the NATS micro-service protocol not answered, by reason")
/* clang-format on */

struct kvb_service_responder_options {
    struct kvb_bus *bus;               /* borrowed, like all below */
    const struct kvb_service *service; /* constant while the responder is open */
    /* Writes the endpoints for INFO and STATS.  The list is constant until the next call. */
    kvb_status (*list)(void *context, struct kvb_service_endpoints *out_list);
    void *context;
    struct kvb_metrics *metrics;
    size_t first_metric; /* of the block above */
};

/* On KVB_OK the caller owns *out_responder.  KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_service_responder_open(
    const struct kvb_service_responder_options *options,
    struct kvb_service_responder **out_responder);

/* No list() runs after it returns.  NULL is fine. */
void kvb_service_responder_close(struct kvb_service_responder *responder);
