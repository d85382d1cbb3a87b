#pragma once

#include "core/metric.h"
#include "daemon/exact_share.h"
#include "daemon/http.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/answers/query_context.h"

#include <stdbool.h>

/* The HTTP routes of the aggregator as a table, without sockets.
 *
 *     method path      --find-->  handler, or 404, 405, 415 at once
 *     handler + context --answer--> status, content type, body
 *
 *     body             --read--> query, or 400, 413, 422 at once
 *
 * The HTTP thread answers routes that need no query context: /livez, /readyz, /metrics, /health,
 * the status page and the routes that it polls.  Whoever owns the query context then answers the
 * others: the index thread, or, while that waits, the HTTP thread of a short one.  Bodies are
 * always parsed on the HTTP thread, because a prompt may have megabytes.
 *
 * Paths that Dynamo's stand-alone indexer also has return its status codes, content types and JSON
 * keys: 400 not JSON, 404 no such model, 405, 415, 422 a field is missing or wrong.
 *
 * Threads: find and read from any thread; answer only for who owns the query context then. */

struct kvb_http_route;

struct kvb_http_route_context {
    struct kvb_query_context *ctx;     /* NULL: the route needs none */
    struct kvb_query *query;           /* the parsed body; borrowed */
    const struct kvb_metrics *metrics; /* borrowed */
    struct kvb_dashboard *dashboard;   /* borrowed */
    const char *not_ready;             /* what /readyz answers with 503; NULL: ready */
    struct kvb_exact_share *share;     /* borrowed: what /readyz?exact= compares with */
    const char *not_live;              /* what /livez answers with 503; NULL: live */
    /* written by POST /route */
    bool has_decision;
    struct kvb_route_decision decision;
    /* written by POST /finished and /first_token, also when no such request is in flight here */
    bool has_request_report;
    enum kvb_request_report_kind request_report;
    struct kvb_dump dump;       /* the current dump; the creator of the context frees it */
    struct kvb_dump_place rows; /* where one of rows goes on */
    bool is_unfinished;         /* call kvb_http_route_answer() again for the rest of the body */
};

/* The route of a request.  NULL: there is none, and *answer is complete (404, 405, 415). */
const struct kvb_http_route *
kvb_http_route_find(const struct kvb_http_request *request, struct kvb_http_answer *answer);

bool kvb_http_route_needs_context(const struct kvb_http_route *found);

/* True: the answer is short and comes at once: that of each POST. */
bool kvb_http_route_is_short(const struct kvb_http_route *found);

/* True: answering takes some MiB of memory, so the caller limits how many run at a time. */
bool kvb_http_route_is_large(
    const struct kvb_http_route *found, const struct kvb_http_request *request);

/* Parses the body of a POST route; other routes leave *out_query empty.  True: the caller owns
 * *out_query.  False: the body is invalid and *answer is complete. */
bool kvb_http_route_read(
    const struct kvb_http_route *found, const struct kvb_http_request *request,
    struct kvb_query *out_query, struct kvb_http_answer *answer);

/* Appends to answer->body, up to the size limit that the caller has set.  context->query is what
 * kvb_http_route_read() returned. */
void kvb_http_route_answer(
    const struct kvb_http_route *found, struct kvb_http_route_context *context,
    const struct kvb_http_request *request, struct kvb_http_answer *answer);
