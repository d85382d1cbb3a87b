#pragma once

#include "core/metric.h"
#include "daemon/http.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/answers/query_context.h"

#include <stdbool.h>

/* The aggregator's HTTP side as a table: request -> answer, no socket.
 *
 *     method path      --find-->  handler, or 404, 405, 415 at once
 *     handler + context --answer--> status, content type, body
 *
 *     body             --read--> query, or 400, 413, 422 at once
 *
 * What needs no query context (/livez /readyz /metrics /health, the status page and what it
 * polls) is answered on the HTTP thread; the rest runs where the query context is owned, after
 * its body was read on the HTTP thread: a prompt is the longest text there is.
 *
 * Where Dynamo's stand-alone indexer has the path, status codes, content types and
 * keys are as recorded of it: 400 not JSON, 404 no such model, 405, 415, 422 a
 * field is missing or wrong.
 *
 * Threads: find and read from any thread; answer only on the thread that owns the query context. */

struct kvb_http_route;

struct kvb_http_route_context {
    struct kvb_query_context *ctx;     /* NULL for routes that need none */
    const struct kvb_query *query;     /* what the body asks; borrowed */
    const struct kvb_metrics *metrics; /* borrowed */
    struct kvb_dashboard *dashboard;   /* borrowed */
    const char *not_ready;             /* why /readyz says no; NULL when all is well */
    const char *not_live;              /* the same of /livez */
    /* written by a route decision */
    bool has_decision;
    struct kvb_route_decision decision;
    struct kvb_dump dump; /* in the making; whoever made the context ends it */
    bool is_unfinished;   /* answer again, with the same context, for the rest of the body */
};

/* NULL: *answer is complete (404, 405, 415). */
const struct kvb_http_route *
kvb_http_route_find(const struct kvb_http_request *request, struct kvb_http_answer *answer);

bool kvb_http_route_needs_context(const struct kvb_http_route *found);

/* Some MiB are taken while it is answered: not many at a time. */
bool kvb_http_route_is_large(
    const struct kvb_http_route *found, const struct kvb_http_request *request);

/* Reads the body of a route that wants one; of all others *out_query is left empty.  On
 * true the caller owns *out_query; false: *answer is complete. */
bool kvb_http_route_read(
    const struct kvb_http_route *found, const struct kvb_http_request *request,
    struct kvb_query *out_query, struct kvb_http_answer *answer);

/* answer->body has its ceiling, and is appended to; context->query is what was read. */
void kvb_http_route_answer(
    const struct kvb_http_route *found, struct kvb_http_route_context *context,
    const struct kvb_http_request *request, struct kvb_http_answer *answer);
