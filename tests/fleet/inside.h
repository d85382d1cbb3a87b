#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/fleet.h"

#include <stddef.h>
#include <stdint.h>

/* The fleet's inside, shared by fleet.c and sockets.c. */

struct kvb_fleet_worker {
    enum kvb_dialect dialect;
    struct kvb_fleet_ports ports;
    void *feed; /* owned; the PUB socket of its load figures, from _open() to _close() */
};

struct kvb_fleet_rank {
    struct kvb_engine *engine; /* owned, like publisher */
    struct kvb_publisher *publisher;
    uint64_t seed;
    uint64_t withheld;     /* batches that are still not to be published */
    uint64_t published_ns; /* the newest batch; 0: none since the restart */
    uint64_t batches;
    uint64_t malformed;    /* sent */
    size_t malformed_next; /* kinds that were asked for */
    size_t malformed_end;
};

struct kvb_fleet {
    struct kvb_fleet_options options;
    struct kvb_fleet_worker *workers; /* owned */
    struct kvb_fleet_rank *ranks;     /* owned; those of worker 0, then of worker 1, ... */
    size_t rank_count;
    void *zmq_context; /* owned */
    uint64_t rng;
    uint64_t next_row; /* of the trace */
    double requests_due;
    uint64_t last_tick_ns; /* 0: none yet */
    struct kvb_trace_request request;
    struct kvb_buf payload;
    struct kvb_buf malformed;
    struct kvb_buf load;            /* one message */
    struct kvb_fleet_totals totals; /* those that are counted here */
};

/* Binds all sockets and starts all publishers. */
kvb_status kvb_fleet_open(struct kvb_fleet *fleet, struct kvb_detail *detail);

/* One worker's load figures on its PUB socket: ForwardPassMetrics in msgpack, one frame, nested
 * with data_parallel_rank.  Never waits: a slow peer misses figures, and one that is not sent is
 * soon followed by a newer one. */
void kvb_fleet_send_rank_load(
    struct kvb_fleet *fleet, uint32_t worker, uint32_t rank, const struct kvb_load *load);

/* Also of a fleet that is half open. */
void kvb_fleet_close(struct kvb_fleet *fleet);
