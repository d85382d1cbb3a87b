#pragma once

#include "core/buf.h"
#include "core/clock.h"
#include "core/status.h"
#include "load/worker_load.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The answers of a service to $SRV.PING, $SRV.INFO and $SRV.STATS, as JSON: the NATS
 * micro-service protocol (ADR-32 of nats-io), with which tools list services and
 * Dynamo's routers of 2025 read the load of workers.
 *
 * Threads: any thread; no state. */

enum {
    kvb_service_name_bytes = (2 * kvb_name_bytes) + 2, /* with the NUL, like all below */
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

/* One kind of request that a service answers; for a bridge, one worker. */
struct kvb_service_endpoint {
    char name[kvb_service_endpoint_bytes]; /* [A-Za-z0-9_-] */
    char subject[kvb_service_endpoint_bytes];
    const char *queue_group; /* borrowed; "": none, every instance answers */
    uint64_t num_requests;
    uint64_t num_errors; /* of them */
    uint64_t processing_ns;
    char last_error[kvb_service_error_bytes]; /* "": none yet */
    struct kvb_worker_load worker;            /* `data`; without has_load: null */
};

/* A list that is generated while it is read.  fill gets a zeroed endpoint. */
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

/* "PING", "INFO", "STATS". */
const char *kvb_service_verb_name(enum kvb_service_verb verb);

/* By its name, which ends at a dot or with the text.  KVB_NOT_FOUND. */
kvb_status kvb_service_verb_find(const char *text, enum kvb_service_verb *out_verb);

/* The name that Dynamo uses for a component: {namespace}_{component} in lower case,
 * without leading underscores.  Names that differ only in case, or in the position of the
 * underscore, share it; `metadata` distinguishes them. */
void kvb_service_name_of(
    const char *name_space, const char *component, char out[kvb_service_name_bytes]);

/* The endpoint of a worker's load, in the names that Dynamo looks for:
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
