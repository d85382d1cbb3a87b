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
 * Rules for every policy: a candidate that is DOWN or draining is never chosen.  One that is
 * reported as not ready competes only when no other can be chosen, because the readiness probe of a
 * busy worker may fail.  One without capacity (all slots or all blocks in use) competes only when
 * no other has capacity.  Stores are not candidates: the caller leaves them out.  A worker with
 * unknown load counts as idle.
 *
 * Policies.  Costs are compared among the candidates that compete; lower is better.
 *
 *     kv                overlap_weight * (prefill + pending - predicted) + decode - predicted
 *                       Dynamo's KV router since 0.3: potential prefill and decode blocks, of
 *                       which it counts equal ones once.  Predicted blocks of the prompt are
 *                       already being computed for another request.  If they counted, a burst
 *                       of one new prompt would be spread over all idle workers
 *     kv_waiting        -(2 * share - usage - waiting / max(waiting))
 *                       the default selector of Dynamo 0.1
 *     least_requests    4 * waiting + running
 *                       vLLM's client of data-parallel ranks (v1/engine/core_client.py)
 *     prefix_threshold  the longest prefix, if it is more than prefix_share of the prompt and the
 *                       worker has at most mean + load_std_factor * deviation requests (with
 *                       equal prefixes the one with the fewest requests); if there is no such
 *                       worker, the fewest requests
 *                       AIBrix's gateway, algorithm prefix-cache
 *     weighted          -(weights.prefix * share + weights.queue * (max - waiting) / (max - min)
 *                       + weights.usage * (1 - usage))
 *                       the scorers of llm-d and of the Gateway API Inference Extension: prefix,
 *                       queue, kv-cache-utilization
 *     ttft              (pending + prefill) / rate, in seconds
 *                       the conductor of Mooncake (FAST '25): time in the queue and of the prefill
 *     p2c               the one with fewer requests, of two drawn at random
 *                       the power of two choices (Mitzenmacher 2001)
 *     round_robin       takes turns; a baseline
 *     random            one at random; a baseline
 *
 *     expected  blocks of the prompt that the worker has or will have soon:
 *               overlap_blocks + predicted_blocks, at most request_blocks
 *     prefill   request_blocks - expected
 *     predicted predicted_blocks; differences below 0 count as 0
 *     share     expected / request_blocks
 *     pending   pending_prefill_blocks
 *     decode    kv_active_blocks, in blocks of the events, + routed_blocks
 *     usage     gpu_cache_usage_perc, or kv_active_blocks / kv_total_blocks if that is 0
 *     waiting   num_requests_waiting + routed_requests: requests routed since the newest load
 *               report count as waiting, as in vLLM's client and Dynamo's selector
 *     running   request_active_slots
 *     requests  waiting + running
 *     rate      prefill_blocks_per_s; for a worker without one, the mean of the others
 *
 * How a policy with a cost chooses.  temperature 0: the lowest cost; workers with equal cost take
 * turns, because otherwise an idle fleet would send every request to one worker.  Above 0: a random
 * choice with the probabilities softmax(-cost / (highest - lowest cost) / temperature).  p2c,
 * round_robin and random have no temperature.
 *
 * Turns.  The worker whose last turn is longest ago is chosen; of those that never had one, the one
 * with the lowest place.  Each decision is a turn of the worker that it chose, except one for the
 * worker that has more of the prompt than every other: if that counted, the next new prompt would
 * avoid this worker.  Under round_robin each decision is a turn.
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

/* How a policy chooses among the candidates that compete. */
enum kvb_route_choice {
    KVB_ROUTE_CHOOSES_LOWEST, /* with a temperature: random, lower costs more often */
    KVB_ROUTE_CHOOSES_OF_TWO,
    KVB_ROUTE_CHOOSES_NEXT,
    KVB_ROUTE_CHOOSES_ANY
};

/* The name, such as "kv".  Never NULL. */
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
    } weights;               /* weighted */
    double unverified_tiers; /* the share of what only UNVERIFIED tiers hold that counts; 0 .. 1 */
    bool avoids_unverified;  /* true: UNVERIFIED workers compete only when there is no better one */
    bool avoids_stale;       /* the same for STALE workers */
};

/* The defaults of the configuration: policy kv, overlap_weight 1, temperature 0, prefix_share
 * 0.5, load_std_factor 1, weights 3, 1 and 1. */
extern const struct kvb_route_options kvb_route_defaults;

struct kvb_route_candidate {
    const struct kvb_stream_key *key; /* borrowed and not read here; the next field too */
    const struct kvb_worker_facts *facts;
    enum kvb_stream_state state;
    uint32_t place;     /* position in the fleet, independent of the prompt; for turns */
    uint64_t last_turn; /* number of the decision that was its last turn, from 1; 0: none yet */
    uint64_t request_blocks;
    uint64_t hit_tokens;       /* of the prompt, what the engine would take from its device */
    uint64_t overlap_blocks;   /* at most request_blocks */
    uint64_t predicted_blocks; /* more blocks of this prompt that are expected there soon */
    uint32_t block_size;       /* tokens */
    uint32_t lookahead;        /* lookahead tokens of these blocks */
    bool is_draining;
    bool is_not_ready; /* false: ready or unknown */
    bool has_load;
    /* written by kvb_route_choose() */
    bool competes;
    bool is_turn;       /* of the chosen one: this decision becomes its last turn */
    uint8_t preference; /* lower is better */
    struct kvb_load load;
    uint32_t load_block_size; /* tokens in the blocks of `load`; 0: as block_size */
    uint64_t routed_blocks;   /* since that load report; without one: of all requests in flight */
    uint64_t routed_requests; /* like routed_blocks */
    /* Blocks that the worker must still compute for routed requests, until their first token or the
     * next load report. */
    uint64_t pending_prefill_blocks;
    double prefill_blocks_per_s; /* learnt; 0: unknown */
    /* written by kvb_route_choose() */
    double cost;            /* also computed for candidates that do not compete */
    uint64_t decode_blocks; /* of block_size */
};

/* Random numbers, supplied by the caller: 0 <= number < 1. */
struct kvb_route_random {
    double draw;
    double second_draw; /* for the second of two */
};

/* Fills the output fields of all candidates and returns the chosen one.
 * KVB_NOT_FOUND  there is no candidate, or all are DOWN or draining */
kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen);

/* Blocks of the request that the worker would have to compute. */
uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate);

/* False: all slots, or all blocks, are in use.  True when nothing is known. */
bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate);
