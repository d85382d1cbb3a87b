#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_pending_query;

/* The door of gateways: an endpoint picker for Envoy over ext_proc, one listener for each group of
 * `gateway` in the configuration.
 *
 *     Envoy <--> grpc/server.h <--> exchange.h    one for each HTTP request
 *                                     | the pick is due          ^ the pick
 *                                   a query (queries.h) ---> ring of calls
 *
 * All of it runs on the control thread, except where it says "with the index".  First tokens and
 * ends of requests are queries as well, like those that routers report over HTTP: entered in the
 * books before the answer goes on, and shared with the other aggregators.
 *
 * Memory: kvb_max_gateway_held_bytes of bodies for a listener. */
struct kvb_gateways;

/* Starts the listeners, if there are any.  KVB_BAD_CONFIG, KVB_IO: see detail.  KVB_NO_MEMORY */
kvb_status kvb_gateways_start(struct kvb_aggregator *aggregator, struct kvb_detail *detail);

/* Says NOT_SERVING, waits withdraw_s where somebody is connected, then takes no new streams and
 * waits for the others, drain_s at most. */
void kvb_gateways_stop(struct kvb_aggregator *aggregator);
/* When no query is left.  NULL is fine. */
void kvb_gateways_free(struct kvb_gateways *gateways);

/* Reads certificates again. */
void kvb_gateways_reload(struct kvb_gateways *gateways);

size_t kvb_gateways_files(const struct kvb_aggregator *aggregator);

/* The index thread, once a tick: counts endpoints. */
void kvb_gateways_count(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* ---- Queries of this door ---- */

/* With the index: picks, or enters a report. */
void kvb_gateway_answer(struct kvb_pending_query *pending);

/* Gives the call back, picked or not; a report that was refused is published all the same.  Any
 * thread. */
void kvb_gateway_give_back(struct kvb_pending_query *pending);

/* True: nobody waits for the pick any more.  Any thread. */
bool kvb_gateway_is_left(const struct kvb_pending_query *pending);
