#pragma once

#include "core/status.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/endpoint.h"
#include "kvaggregator/answers/query_context.h"
#include "model/query.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The pick of a gateway's request: that of POST /route (pick.h), among workers with an endpoint,
 * and as endpoints.  Threads: only the thread that owns the query context. */

enum { kvb_gateway_max_endpoints = 8, kvb_gateway_endpoints_bytes = 512 };

struct kvb_gateway_wish {
    size_t endpoints; /* how many at most, the best first; 1 or above */
    bool rank_ports;  /* the port of a rank is the worker's and the rank */
    bool is_promise;  /* the tokens are surely those of the prompt */
};

struct kvb_gateway_found {
    char endpoints[kvb_gateway_endpoints_bytes]; /* with commas between them */
    uint64_t prompt_tokens;
    uint64_t overlap_tokens;
    bool has_ranks;        /* the worker has several, and no port of its own for each */
    bool is_model_unknown; /* no worker has the model: its name was left aside, and the tokens */
    struct kvb_route_decision decision; /* entered in the books */
};

/* KVB_NOT_FOUND  nobody can be picked
 * KVB_NO_MEMORY */
kvb_status kvb_answer_gateway(
    struct kvb_query_context *ctx, struct kvb_query *query, const struct kvb_gateway_wish *wish,
    struct kvb_gateway_found *out_found);

/* The request went to another endpoint than the pick: its entry in the books moves there, without a
 * promise.  *decision has the request, and gets the worker.  KVB_NOT_FOUND: nobody of ours. */
kvb_status kvb_answer_gateway_moved(
    struct kvb_query_context *ctx, const struct kvb_endpoint *served, bool rank_ports,
    struct kvb_route_decision *decision);

/* How many different endpoints the workers have, and how many workers have none. */
void kvb_answer_gateway_count(
    struct kvb_query_context *ctx, size_t *out_endpoints, size_t *out_without);
