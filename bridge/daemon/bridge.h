#pragma once

#include "core/detail.h"
#include "core/log.h"
#include "core/status.h"
#include "daemon/bridge_config.h"
#include "model/pulse.h"

#include <stdint.h>

/* The worker side, running: engines' sockets in, NATS out.
 *
 *     ingest thread   owns sockets, decoder, streams, publisher; woken by zmq_poll
 *     nats.c          connection callbacks, bridge_status of other bridges
 *     HTTP threads    read atomics, and a text made by the ingest thread
 *
 * Starting needs no engine and no nats-server: both may come later. */
struct kvb_bridge;

/* config and log are borrowed until kvb_bridge_stop().
 * KVB_BAD_CONFIG  something in the configuration cannot be had: an endpoint, a
 *                 port, descriptors; detail says which
 * KVB_IO, KVB_NO_MEMORY */
kvb_status kvb_bridge_start(
    const struct kvb_bridge_config *config, struct kvb_log *log, struct kvb_bridge **out_bridge,
    struct kvb_detail *detail);

/* Can this process open as many sockets as the configuration has?  Raises its limits as
 * far as it may.  KVB_BAD_CONFIG: no; detail says what to do. */
kvb_status
kvb_bridge_raise_limits(const struct kvb_bridge_config *config, struct kvb_detail *detail);

/* The port of the HTTP server; 0 when there is none. */
uint16_t kvb_bridge_http_port(const struct kvb_bridge *bridge);

/* Any thread. */
void kvb_bridge_pulse(const struct kvb_bridge *bridge, struct kvb_pulse *out_pulse);

/* Says goodbye for every stream, flushes, and frees it.  NULL is fine. */
void kvb_bridge_stop(struct kvb_bridge *bridge);
