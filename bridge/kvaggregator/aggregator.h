#pragma once

#include "core/log.h"
#include "core/status.h"
#include "kvaggregator/config.h"
#include "model/liveness.h"

#include <stdint.h>

/* A running kvaggregator: follows bridges on NATS and answers requests.
 *
 *     nats.c's thread  puts each message into the bounded event ring, and drops
 *                      and counts it when that is full; reads short requests
 *     HTTP's threads   read queries; so does the control thread, which has gRPC
 *     index thread     owns index, followers, load tracker: takes events, then
 *                      queries, in turn, a bounded part of each; publishes
 *                      load_stats
 *
 *     events  --> [ ring ] --\
 *     queries --> [ ring ] ---+--> index thread --> answers, R.load_stats
 *
 * While the index thread waits for work, the thread that has received a short query answers it
 * (queries.h).  Whoever has answered a route request publishes its kv-hit-rate.
 *
 * It starts without nats-server, which may start later. */
struct kvb_aggregator;

/* config and log are borrowed until kvb_aggregator_stop().
 * KVB_BAD_CONFIG  a part of the configuration cannot be used, such as a port; detail says which
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_aggregator_start(
    const struct kvb_aggregator_config *config, struct kvb_log *log,
    struct kvb_aggregator **out_aggregator, struct kvb_detail *detail);

/* Has the servers of HTTP and gRPC read their certificates and token again. */
void kvb_aggregator_reload_files(struct kvb_aggregator *aggregator);

/* Replaces the login of NATS, with the errors of kvb_bus_renew(). */
kvb_status kvb_aggregator_renew_login(
    struct kvb_aggregator *aggregator, const struct kvb_bus_login *login,
    struct kvb_detail *detail);

/* The port of the HTTP server; 0 when there is none. */
uint16_t kvb_aggregator_http_port(const struct kvb_aggregator *aggregator);

/* Any thread. */
void kvb_aggregator_liveness(
    const struct kvb_aggregator *aggregator, struct kvb_liveness *out_liveness);

/* Leaves the queue group, answers the requests that were received, then ends; takes at most 5 s,
 * and a few milliseconds where nats-server answers and clients of gRPC close their connections.
 * Before that, where a gateway is connected: its withdraw_s, and up to drain_s for answers that
 * run. NULL is fine. */
void kvb_aggregator_stop(struct kvb_aggregator *aggregator);
