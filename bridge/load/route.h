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
 *     kv              overlap_weight * (prefill + pending - predicted) + decode - predicted
 *                     Dynamo's KV router since 0.3: potential prefill and decode blocks, of
 *                     which it counts equal ones once.  Predicted blocks of the prompt are
 *                     already being computed for another request.  If they counted, a burst
 *                     of one new prompt would be spread over all idle workers
 *     least_requests  4 * waiting + running
 *                     vLLM's client of data-parallel ranks (v1/engine/core_client.py)
 *     ttft            (pending + prefill) / rate, in seconds
 *                     the conductor of Mooncake (FAST '25): time in the queue and of the prefill
 *     round_robin     takes turns; a baseline
 *
 *     expected  blocks of the prompt that the worker has or will have soon:
 *               overlap_blocks + predicted_blocks, at most request_blocks
 *     prefill   request_blocks - expected
 *     predicted predicted_blocks; differences below 0 count as 0
 *     pending   pending_prefill_blocks
 *     decode    kv_active_blocks, in blocks of the events, - ended_blocks + routed_blocks
 *     waiting   num_requests_waiting + routed_requests: requests routed since the newest load
 *               report count as waiting, as in vLLM's client and Dynamo's selector
 *     running   request_active_slots - ended_requests: what was finished since that report
 *     rate      prefill_blocks_per_s; for a worker without one, the mean of the others
 *
 * How a policy chooses.  temperature 0: the lowest cost; workers with equal cost take
 * turns, because otherwise an idle fleet would send every request to one worker.  Above 0: a random
 * choice with the probabilities softmax(-cost / (highest - lowest cost) / temperature).
 * round_robin takes turns whatever the costs are.
 *
 * Turns.  The worker whose last turn is longest ago is chosen; of those that never had one, the one
 * with the lowest place.  Each decision is a turn of the worker that it chose, except one for the
 * worker that has more of the prompt than every other: if that counted, the next new prompt would
 * avoid this worker.  Under round_robin each decision is a turn.
 *
 * Threads: any thread; no state.  Time: three passes over the candidates. */

enum kvb_route_policy {
    KVB_ROUTE_KV,
    KVB_ROUTE_LEAST_REQUESTS,
    KVB_ROUTE_TTFT,
    KVB_ROUTE_ROUND_ROBIN,
    KVB_ROUTE_POLICY_COUNT
};

/* The name, such as "kv".  Never NULL. */
const char *kvb_route_policy_name(enum kvb_route_policy policy);
/* KVB_NOT_FOUND: no such policy. */
kvb_status kvb_route_policy_find(const char *name, enum kvb_route_policy *out_policy);

/* The name of the policy that serves in place of one of an earlier version.  NULL: no version had a
 * policy of this name that is gone. */
const char *kvb_route_policy_instead(const char *name);

struct kvb_route_options {
    enum kvb_route_policy policy;
    double overlap_weight;
    double temperature;      /* 0 or above */
    double unverified_tiers; /* the share of what only UNVERIFIED tiers hold that counts; 0 .. 1 */
};

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
    uint64_t ended_blocks;    /* in that load report, but of requests finished since */
    uint64_t ended_requests;  /* like ended_blocks */
    /* Blocks that the worker must still compute for routed requests, until their first token or the
     * next load report. */
    uint64_t pending_prefill_blocks;
    double prefill_blocks_per_s; /* learnt; 0: unknown */
    /* written by kvb_route_choose() */
    double cost;            /* also computed for candidates that do not compete */
    uint64_t decode_blocks; /* of block_size */
};

/* Fills the output fields of all candidates and returns the chosen one.  `draw` is a random number
 * of the caller, 0 <= draw < 1, which a temperature above 0 needs.
 * KVB_NOT_FOUND  there is no candidate, or all are DOWN or draining */
kvb_status kvb_route_choose(
    const struct kvb_route_options *options, double draw, struct kvb_route_candidate *candidates,
    size_t count, size_t *out_chosen);

/* Blocks of the request that the worker would have to compute. */
uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate);

/* False: all slots, or all blocks, are in use.  True when nothing is known. */
bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate);
