#pragma once

#include "core/limits.h"
#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The load that engines publish over ZMQ: messages of MessagePack. */

/* ForwardPassMetrics: a map, flat
 *
 *     {"request_active_slots": 3, "kv_total_blocks": 4096, ...}
 *
 * or nested in "worker_stats" (with data_parallel_rank) and "kv_stats".  A key that is missing
 * or nil is an absent value.  Source: Dynamo's ForwardPassMetrics, 0.2 (flat) and 0.3+ (nested).
 *
 * Since 2026 schedulers send another struct under the same name, known by its "version":
 *
 *     {"version": 1, "worker_id": "", "dp_rank": 0, ...,
 *      "scheduled_requests": {"num_prefill_requests": 1, "num_decode_requests": 7, ...},
 *      "queued_requests": {"num_prefill_requests": 2, "num_decode_requests": 0, ...}}
 *
 * It gives active slots (scheduled) and waiting requests (queued); the sample has
 * is_of_scheduler.  Source: dynamo.common.forward_pass_metrics, vLLM's and SGLang's copies.
 *
 * KVB_BAD_INPUT  not a msgpack map, or an invalid value: negative, NaN, a
 *                percentage outside 0 .. 1, a wrong type
 * KVB_TOO_LARGE  nested too deep, or above kvb_max_load_payload_bytes
 * On failure *out_sample is untouched. */
kvb_status kvb_forward_pass_decode(kvb_span payload, struct kvb_load_sample *out_sample);

/* The message that vLLM's data-parallel coordinator sends to its front ends every 100 ms:
 *
 *     [[[waiting, running, kv_usage], ...], wave, is_running]     one entry for each rank, from 0
 *     [[[waiting, running], ...], wave, is_running]               before 0.32
 *     [nil, wave, is_running]                                     no entries
 *
 * An entry or a value may also be nil, which means unknown.  The number of entries changes when
 * ranks are added or removed.  Source: vllm/v1/engine/coordinator.py. */
struct kvb_coordinator_update {
    struct kvb_load_sample samples[kvb_max_ranks]; /* one for each rank with an entry */
    size_t count;
    bool has_ranks;      /* else the message has no entries */
    uint32_t rank_count; /* the ranks are 0 .. rank_count - 1 */
    size_t refused;      /* values out of range: NaN, negative, a share above 1 */
};

/* KVB_BAD_INPUT  not such a message, or more bytes after it
 * KVB_TOO_LARGE  nested too deep, above kvb_max_load_payload_bytes or kvb_max_ranks
 * On failure *out_update is undefined, because it is too large to be copied. */
kvb_status kvb_coordinator_decode(kvb_span frame, struct kvb_coordinator_update *out_update);
