#pragma once

#include "core/status.h"
#include "model/load.h"
#include "model/stream_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chooses the worker for a request.
 *
 *     candidates --rules--> those that compete --policy--> cost of each --choice--> the chosen one
 *
 * Rules, for every policy: a candidate that is DOWN or draining is never chosen.  One that is said
 * not to be ready competes only when no other can be chosen: a readiness probe may fail of a worker
 * that is only busy.  One without capacity (all slots or all blocks in use) competes only when no
 * other has any.  Stores are no
 * candidates: the caller leaves them out.  A worker whose load is not known counts as idle.
 *
 * Policies.  The cost is compared among those that compete; lower is better.
 *
 *     kv                overlap_weight * (prefill + pending - predicted) + decode - predicted
 *                       Dynamo's KV router since 0.3: potential prefill and decode blocks, of
 *                       which it counts equal ones once.  What is predicted of the prompt is
 *                       computed and stored for another request already.  Were it counted, a
 *                       burst of one new prompt would be spread over all workers that are idle
 *     kv_waiting        -(2 * share - usage - waiting / max(waiting))
 *                       the default selector of Dynamo 0.1
 *     least_requests    4 * waiting + running
 *                       vLLM's client of data-parallel ranks (v1/engine/core_client.py)
 *     prefix_threshold  the longest prefix, if it is more than prefix_share of the prompt and the
 *                       worker has at most mean + load_std_factor * deviation requests (of equal
 *                       prefixes the one with the fewest requests); where there is none, the
 *                       fewest requests
 *                       AIBrix's gateway, algorithm prefix-cache
 *     weighted          -(weights.prefix * share + weights.queue * (max - waiting) / (max - min)
 *                       + weights.usage * (1 - usage))
 *                       the scorers of llm-d and of the Gateway API Inference Extension: prefix,
 *                       queue, kv-cache-utilization
 *     ttft              (pending + prefill) / rate, in seconds
 *                       the conductor of Mooncake (FAST '25): time in the queue and of the prefill
 *     p2c               the one with fewer requests, of two drawn at random
 *                       the power of two choices (Mitzenmacher 2001)
 *     round_robin       one after the other; a baseline
 *     random            drawn; a baseline
 *
 *     expected  blocks of the prompt that the worker has, or will have soon:
 *               overlap_blocks + predicted_blocks, at most request_blocks
 *     prefill   request_blocks - expected
 *     predicted predicted_blocks; a difference is 0 at least
 *     share     expected / request_blocks
 *     pending   pending_prefill_blocks
 *     decode    kv_active_blocks + routed_blocks
 *     usage     gpu_cache_usage_perc, or kv_active_blocks / kv_total_blocks where that is 0
 *     waiting   num_requests_waiting + routed_requests: what was routed since the newest load
 *               waits, as vLLM's client and Dynamo's selector count it
 *     running   request_active_slots
 *     requests  waiting + running
 *     rate      prefill_blocks_per_s; of a worker without one the mean of those that have one
 *
 * Choice of the policies with a cost.  temperature 0: the lowest; workers of equal cost take
 * turns, because an idle fleet would otherwise send every request to one worker.  Above 0: a
 * random choice with the probabilities softmax(-cost / (highest - lowest cost) / temperature).
 * p2c, round_robin and random have no temperature.
 *
 * Threads: any thread; no state.  Time: three passes over the candidates. */

enum kvb_route_policy {
    KVB_ROUTE_KV,
    KVB_ROUTE_KV_WAITING,
    KVB_ROUTE_LEAST_REQUESTS,
    KVB_ROUTE_PREFIX_THRESHOLD,
    KVB_ROUTE_WEIGHTED,
    KVB_ROUTE_TTFT,
    KVB_ROUTE_P2C,
    KVB_ROUTE_ROUND_ROBIN,
    KVB_ROUTE_RANDOM,
    KVB_ROUTE_POLICY_COUNT
};

/* How a policy chooses among those that compete. */
enum kvb_route_choice {
    KVB_ROUTE_CHOOSES_LOWEST, /* or, with a temperature, cheaper ones more often */
    KVB_ROUTE_CHOOSES_OF_TWO,
    KVB_ROUTE_CHOOSES_NEXT,
    KVB_ROUTE_CHOOSES_ANY
};

/* "kv".  Never NULL. */
const char *kvb_route_policy_name(enum kvb_route_policy policy);
/* KVB_NOT_FOUND: no such policy. */
kvb_status kvb_route_policy_find(const char *name, enum kvb_route_policy *out_policy);

enum kvb_route_choice kvb_route_policy_choice(enum kvb_route_policy policy);

struct kvb_route_options {
    enum kvb_route_policy policy;
    double overlap_weight;
    double temperature;     /* 0 or above */
    double prefix_share;    /* prefix_threshold: 0 .. 1 */
    double load_std_factor; /* prefix_threshold */
    struct kvb_route_weights {
        double prefix;
        double queue;
        double usage;
    } weights;              /* weighted */
    bool avoids_unverified; /* true: UNVERIFIED only when nothing better is there */
    bool avoids_stale;      /* the same for STALE */
};

/* The defaults of the configuration: policy kv, overlap_weight 1, temperature 0, prefix_share
 * 0.5, load_std_factor 1, weights 3, 1 and 1. */
extern const struct kvb_route_options kvb_route_defaults;

struct kvb_route_candidate {
    const struct kvb_stream_key *key; /* borrowed and not read here, like the next */
    const struct kvb_worker_facts *facts;
    enum kvb_stream_state state;
    uint32_t place; /* in the fleet, whatever the prompt: round_robin goes by it */
    uint64_t request_blocks;
    uint64_t overlap_blocks;   /* at most request_blocks */
    uint64_t predicted_blocks; /* of this prompt, beyond overlap_blocks, expected there soon */
    uint32_t block_size;       /* tokens */
    uint32_t lookahead;        /* tokens, of those blocks */
    bool is_draining;
    bool is_not_ready; /* false: ready, or not known */
    bool has_load;
    /* written by kvb_route_choose() */
    bool competes;
    uint8_t preference; /* lower is better */
    struct kvb_load load;
    uint64_t routed_blocks;   /* since that load; without one, of all requests in flight */
    uint64_t routed_requests; /* the same */
    /* Blocks that requests routed there still have to compute, until their first token or the
     * next load. */
    uint64_t pending_prefill_blocks;
    double prefill_blocks_per_s; /* learnt; 0: unknown */
    /* written by kvb_route_choose() */
    double cost; /* of one that does not compete: by the same formula, for comparison */
    uint64_t decode_blocks;
};

/* Randomness and turns, supplied by the caller. */
struct kvb_route_random {
    uint64_t turn;       /* number of the request: rotates the choice among equal costs */
    double draw;         /* 0 <= draw < 1 */
    double second_draw;  /* the same, for the second of two */
    uint32_t next_place; /* round_robin: the first place to look at */
};

/* Fills what is written of all candidates and returns the chosen one.
 * KVB_NOT_FOUND  no candidate, or all are DOWN or draining */
kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen);

/* Blocks of the request that the worker would have to compute. */
uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate);

/* False: all slots, or all blocks, are in use.  True when nothing is known. */
bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate);
