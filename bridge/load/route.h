#pragma once

#include "core/status.h"
#include "model/load.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chooses the worker for a request.
 *
 *     candidates --policy--> cost of each --temperature--> the chosen one
 *
 * Policy `kv`: cost = overlap_weight * prefill_blocks + decode_blocks, where
 * prefill_blocks = request blocks - overlap and decode_blocks = newest
 * kv_active_blocks + blocks routed there since.  A worker whose load is not
 * known counts as idle.
 *
 * A candidate that is DOWN is never chosen.  One without capacity (all slots or
 * all blocks in use) is chosen only when no other has any.
 *
 * temperature 0: the lowest cost; workers of equal cost take turns, because an idle
 * fleet would otherwise send every request to one worker.  Above 0: a random choice with
 * the probabilities softmax(-cost / (highest - lowest cost) / temperature).
 *
 * Threads: any thread; no state. */

enum kvb_route_policy { KVB_ROUTE_KV, KVB_ROUTE_POLICY_COUNT };

/* "kv".  Never NULL. */
const char *kvb_route_policy_name(enum kvb_route_policy policy);
/* KVB_NOT_FOUND: no such policy. */
kvb_status kvb_route_policy_find(const char *name, enum kvb_route_policy *out_policy);

struct kvb_route_options {
    enum kvb_route_policy policy;
    double overlap_weight;
    double temperature;     /* 0 or above */
    bool avoids_unverified; /* true: UNVERIFIED only when nothing better is there */
    bool avoids_stale;      /* the same for STALE */
};

struct kvb_route_candidate {
    const struct kvb_stream_id *id; /* borrowed; not read here */
    enum kvb_stream_state state;
    uint32_t block_size; /* tokens */
    uint64_t request_blocks;
    uint64_t overlap_blocks; /* at most request_blocks */
    bool has_load;
    struct kvb_load load;
    uint64_t routed_blocks; /* since that load */
    /* written by kvb_route_choose() */
    double cost;
    uint64_t decode_blocks;
};

/* Randomness, supplied by the caller. */
struct kvb_route_random {
    uint64_t turn; /* number of the request: rotates the choice among equal costs */
    double draw;   /* 0 <= draw < 1 */
};

/* Fills cost and decode_blocks of all candidates and returns the chosen one.
 * KVB_NOT_FOUND  no candidate, or all are DOWN */
kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen);

/* Blocks of the request that the worker does not hold and would have to compute. */
uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate);

/* False: all slots, or all blocks, are in use.  True when nothing is known. */
bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate);
