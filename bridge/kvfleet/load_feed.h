#pragma once

#include "core/detail.h"
#include "core/status.h"
#include "model/load.h"

#include <stdint.h>

/* One worker's load figures on a PUB socket: ForwardPassMetrics in msgpack, one
 * frame, nested with data_parallel_rank.
 * Threads: only the thread that made it. */
struct kvb_load_feed;

/* port 0: any free one.
 * KVB_AGAIN  the port is in use
 * KVB_BAD_CONFIG  the address cannot be bound: detail says why
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_load_feed_new(
    void *zmq_context, const char *address, uint16_t port, struct kvb_detail *detail,
    struct kvb_load_feed **out_feed);

/* NULL is fine. */
void kvb_load_feed_free(struct kvb_load_feed *feed);

/* What was bound. */
uint16_t kvb_load_feed_port(const struct kvb_load_feed *feed);

/* Never waits: a slow peer misses figures.  KVB_NO_MEMORY, KVB_IO */
kvb_status
kvb_load_feed_send(struct kvb_load_feed *feed, uint32_t rank, const struct kvb_load *load);
