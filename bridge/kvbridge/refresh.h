#pragma once

#include "bus/bus.h"
#include "core/ring.h"
#include "core/status.h"
#include "kvbridge/refresh_plan.h"
#include "model/router_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All held blocks are stored again, one stream after another, for routers that start late.
 *
 *     nats.c --> a request, or why it is none --> ring --> granted or refused, then streams
 *                                       | full, or a reply subject that is refused
 *                                       +--> counted and dropped
 *
 * A plain message is a request too; it gets no answer.
 * Threads: kvb_bridge_refresh_receive() on nats.c's; the rest on the ingest thread. */

struct kvb_bridge;
struct bridge_rank;

struct bridge_refresh {
    struct kvb_ring *requests;             /* owned; from nats.c's thread */
    struct kvb_bus_subscription *incoming; /* owned */
    _Atomic uint64_t refused; /* what is no request, reply subjects that are refused, a flood's
                                 rest, and what a bridge without refreshes is asked */
    struct kvb_refresh_plan plan;
    struct bridge_rank *rank; /* the rank that is being refreshed; NULL: none */
    bool is_wished;           /* the refresh was requested */
    size_t asked;             /* requested ranks that still wait */
    size_t next_requested;    /* where the search for a requested rank continues */
    size_t next_rank;      /* where the search for a rank without a turn in this round continues */
    uint64_t next_look_ns; /* no search before this time */
    uint64_t next_measure_ns;
    struct kvb_router_batch events; /* owned: the part that is being published */
};

/* KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_bridge_open_refresh(struct kvb_bridge *bridge);
void kvb_bridge_close_refresh(struct bridge_refresh *refresh);

/* A kvb_bus_handler; the context is the struct above. */
void kvb_bridge_refresh_receive(void *context, const struct kvb_bus_message *message);

/* Called in every turn: takes requests, and stores a part of a stream again when that is due. */
void kvb_bridge_refresh(struct kvb_bridge *bridge, uint64_t now_ns);

/* When the next call has something to do; UINT64_MAX: after a request. */
uint64_t kvb_bridge_refresh_due_ns(const struct kvb_bridge *bridge);

/* The rank leaves. */
void kvb_bridge_drop_refresh(struct kvb_bridge *bridge, struct bridge_rank *rank);
