#pragma once

#include "core/status.h"
#include "model/load.h"
#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which worker takes the request.
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
 * temperature 0: the lowest cost; equal ones take turns, or an idle fleet would
 * send every request to one worker.  Above 0: by chance, with the probability
 * of softmax(-cost / (highest - lowest cost) / temperature).
 *
 * Threads: any thread; nothing is kept. */

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

/* Randomness from outside. */
struct kvb_route_luck {
    uint64_t turn; /* counts requests: who of equal ones is next */
    double draw;   /* 0 <= draw < 1 */
};

/* Fills cost and decode_blocks of all candidates and says which one it is.
 * KVB_NOT_FOUND  no candidate, or all are DOWN */
kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_luck luck,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen);

/* Blocks that the worker would have to compute: what is not there yet. */
uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate);

/* False: all slots, or all blocks, are in use.  True when nothing is known. */
bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate);
