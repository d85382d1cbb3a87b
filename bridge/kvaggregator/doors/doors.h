#pragma once

#include "core/span.h"
#include "core/status.h"
#include "grpc/session.h"

struct kvb_aggregator;
struct kvb_bus_message;
struct kvb_grpc_call;
struct kvb_http_answer;
struct kvb_http_request;

/* The doors at which queries arrive.  Each reads what it has received on the thread that has
 * received it, and submits it (queries.h); none knows the index.
 *
 *              takes                      refuses                         its own limits
 *     HTTP     the routes of              404, 405, 415, 4xx by its       16 large dumps
 *              answers/routes.h           route; 503: no time, no room
 *     NATS     kv_match, kv_route,        {"error":...}; without a        16,384 of a subject wait
 *              kv_get.*                   reply subject: counted          in nats.c; 64 long ones
 *     gRPC     MatchExternalKvPrefix      INVALID_ARGUMENT, UNAVAILABLE,  those of grpc/server.h
 *                                         RESOURCE_EXHAUSTED
 *
 * A query of text takes one way more: texts.h. */

/* Handlers; their context is the aggregator.  On threads of the HTTP server. */
void kvb_door_receive_http(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);

/* On nats.c's thread. */
void kvb_door_receive_nats(void *context, const struct kvb_bus_message *message);

/* Has long prompts over NATS read on a thread that is there while there are some.  After
 * kvb_queries_open().  KVB_NO_MEMORY. */
kvb_status kvb_door_open_prompts(struct kvb_aggregator *aggregator);
/* Reads those that are left. */
void kvb_door_close_prompts(struct kvb_aggregator *aggregator);
/* Reads and submits all that wait; the context is the aggregator. */
void kvb_door_read_prompts(void *context);

/* On the control thread. */
enum kvb_grpc_status
kvb_door_receive_grpc(void *context, struct kvb_grpc_call *call, size_t method, kvb_span message);
