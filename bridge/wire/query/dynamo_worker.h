#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/stream.h"
#include "model/worker_facts.h"
#include "wire/query/registration.h"

#include <stdint.h>

/* How a worker is registered at a Dynamo service over HTTP.  There are two:
 *
 *                     select_service (port 8092)         stand-alone indexer (port 8090)
 *     list            GET /workers                       GET /workers
 *     add             POST /workers, 201                 POST /register, 201; 409 if it is there
 *                     (replaces the one with that id)
 *     remove          DELETE /workers/{id}, 200          POST /unregister, 200
 *                     404: it is not there               404: it is not there
 *     other's paths   404                                404, or 405
 *
 * select_service takes a replay socket only of a worker with one rank, so each rank is a worker
 * with an id of its own there; the indexer knows ranks.
 *
 * Source: ai-dynamo-runtime 1.6.1 as it answered; tests/data/vectors/dynamo-indexer-http-1.6.1.txt
 * and dynamo-select-service-http-1.6.1.txt.
 * Threads: any thread. */

enum kvb_dynamo_api {
    KVB_DYNAMO_UNKNOWN,
    KVB_DYNAMO_SELECT_SERVICE,
    KVB_DYNAMO_INDEXER,
    KVB_DYNAMO_API_COUNT
};

/* "unknown", "select_service", "indexer". */
const char *kvb_dynamo_api_name(enum kvb_dynamo_api api);

/* One rank of a worker, and the sockets where a service reads its events. */
struct kvb_dynamo_worker {
    uint64_t worker_id;
    uint64_t rank_id; /* of this rank alone, for select_service */
    uint32_t dp_rank;
    uint32_t block_size;
    uint32_t max_batched_tokens; /* of one step of the engine; 0: not known */
    char events[kvb_registration_address_bytes];
    char replay[kvb_registration_address_bytes]; /* "": none */
    char model[kvb_model_bytes + 1];
    char address[kvb_worker_address_bytes + 1]; /* where requests are sent; "": not known */
};

/* The body of POST /workers or /register.  KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_dynamo_add_encode(
    enum kvb_dynamo_api api, const struct kvb_dynamo_worker *worker, struct kvb_buf *out);

/* The body of POST /unregister; the other API has none. */
kvb_status kvb_dynamo_remove_encode(const struct kvb_dynamo_worker *worker, struct kvb_buf *out);

/* What a service lists of one rank. */
struct kvb_dynamo_listed {
    enum kvb_dynamo_api api; /* whose list this is */
    uint64_t id;             /* instance_id or worker_id */
    uint32_t dp_rank;
    const char *events; /* borrowed for the call; "": none */
    const char *model;
    uint64_t block_size;
    const char *why; /* why the service does not use it; "": it does, or does not say */

    /* Of select_service alone; "" and 0: none. */
    const char *replay; /* NULL: the list does not have these three */
    const char *address;
    uint64_t max_batched_tokens;
};

typedef void (*kvb_dynamo_visitor)(void *context, const struct kvb_dynamo_listed *listed);

/* Reads the answer to GET /workers.  An entry that cannot be read is skipped.
 * KVB_BAD_INPUT  not a list of objects   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_dynamo_list_decode(kvb_span json, kvb_dynamo_visitor visit, void *context);

/* Why a service does not use a worker that it has taken, or has not taken it: the reason in the
 * answer; "" when there is none.  Text that is no JSON is taken as it is. */
void kvb_dynamo_reason_decode(kvb_span answer, struct kvb_detail *out_reason);
