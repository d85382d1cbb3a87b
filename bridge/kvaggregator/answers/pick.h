#pragma once

#include "core/status.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/endpoint.h"
#include "kvaggregator/answers/query_context.h"
#include "load/route.h"
#include "model/query.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which worker gets a request: the part that POST /route, R.kv_route and gateways have in common.
 *
 *     query --> candidates with overlaps, load, predictions --> load/route.c --> the chosen one
 *                                                                 enter() --> the books
 *
 * Threads: only the thread that owns the query context. */

struct kvb_pick {
    struct kvb_route_options route;
    struct kvb_route_candidate *candidates; /* the context's, until the next query */
    size_t count;
    size_t chosen;
    struct kvb_route_decision decision;
    bool is_promise; /* true; the caller may take it back before kvb_pick_enter(): the tokens are
                        not all, or not surely, those of the prompt */
};

/* Chooses, and enters nothing.  Errors as kvb_answer_route(). */
kvb_status kvb_pick_make(
    struct kvb_query_context *ctx, struct kvb_query *query, struct kvb_pick *out_pick,
    struct kvb_detail *detail);

/* Enters in the books what the decision costs the chosen worker, and completes pick->decision. */
void kvb_pick_enter(
    struct kvb_query_context *ctx, const struct kvb_query *query, struct kvb_pick *pick);

/* A candidate's place in the order of costs.  Candidates are large: to sort them in place, or
 * through pointers, costs ten times as much. */
struct kvb_pick_place {
    double cost;
    uint64_t worker_id;
    uint32_t dp_rank;
    uint32_t at; /* index in the candidates */
};

/* Sorts the candidates; only the first `shown` are in order.  On KVB_OK the caller frees
 * *out_places.  KVB_NO_MEMORY */
kvb_status kvb_pick_sort(
    const struct kvb_route_candidate *candidates, size_t count, size_t shown,
    struct kvb_pick_place **out_places);

/* The endpoint of a follower, by its number.  False: it has no literal address. */
bool kvb_pick_endpoint(
    struct kvb_query_context *ctx, uint32_t number, const struct kvb_follower *follower,
    struct kvb_endpoint *out_endpoint);

/* What a gateway can send a request to: a worker with an endpoint, that is among those of the hint,
 * and computes answers. */
bool kvb_pick_is_reachable(
    struct kvb_query_context *ctx, const struct kvb_selection *selection, uint32_t number,
    const struct kvb_follower *follower);
