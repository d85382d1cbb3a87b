#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

/* ForwardPassMetrics as engines send them: a msgpack map, flat
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
 * KVB_NO_MEMORY  *out_sample is untouched on each of these */
kvb_status kvb_forward_pass_decode(kvb_span payload, struct kvb_load_sample *out_sample);
