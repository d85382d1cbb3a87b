#pragma once

#include "load/route.h"
#include "worth/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One router of the fleet, and what it knows: the prefix index, the loads, the requests in flight
 * and the predicted blocks of bridge/, fed with the engines' events as the picture allows.
 *
 *     engine --stored, removed--> delay --lost?--> prefix index --+
 *     engine --load, each 100 ms--> delay --> load tracker -------+--> candidates --policy-->
 * worker decisions, first tokens, ends: at once --> requests in flight +
 *
 * Threads: the caller locks.  No memory ends the program. */
struct worth_picture {
    const char *name;
    uint64_t delay_us;  /* of events and loads */
    double lost_events; /* 0 .. 1: never arrive, and are not repaired */
};

struct worth_router_options {
    uint32_t workers;
    enum kvb_route_policy policy;
    double overlap_weight;
    struct worth_picture picture;
    uint64_t predict_ms; /* how long blocks stay predicted; 0: none */
    uint64_t seed;
};

struct worth_router;

struct worth_router *worth_router_new(const struct worth_router_options *options);
void worth_router_free(struct worth_router *router);

/* Messages of the engines. The request and its blocks are borrowed until the router ends. */
void worth_router_stored(
    struct worth_router *router, uint32_t worker, const struct worth_stored *stored,
    uint64_t now_us);
void worth_router_removed(
    struct worth_router *router, uint32_t worker, kvb_block_hash block, uint64_t now_us);
void worth_router_load(
    struct worth_router *router, uint32_t worker, const struct kvb_load *load, uint64_t now_us);

/* Chooses a worker for the request; number identifies the request. */
uint32_t worth_router_choose(
    struct worth_router *router, const struct worth_request *request, size_t number,
    uint64_t now_us);
void worth_router_first_token(struct worth_router *router, size_t number, uint64_t now_us);
void worth_router_finished(struct worth_router *router, size_t number, uint64_t now_us);
