#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

/* ForwardPassMetrics as engines send them: a msgpack map, flat
 *
 *     {"request_active_slots": 3, "kv_total_blocks": 4096, ...}
 *
 * or nested in "worker_stats" (with data_parallel_rank) and "kv_stats".
 * Source: Dynamo's ForwardPassMetrics, 0.2 (flat) and 0.3+ (nested).
 *
 * KVB_BAD_INPUT  no msgpack map, or a figure that cannot be: negative, NaN, a
 *                percentage outside 0 .. 1, a wrong type
 * KVB_TOO_LARGE  nested too deep, or above kvb_max_load_payload_bytes
 * KVB_NO_MEMORY  *out_sample is untouched on each of these */
kvb_status kvb_forward_pass_decode(kvb_span payload, struct kvb_load_sample *out_sample);

/* Appends the nested form when the sample has a rank, else the flat one.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append(); out is as it was */
kvb_status kvb_forward_pass_encode(const struct kvb_load_sample *sample, struct kvb_buf *out);
