#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

/* EndpointMetrics on P.load_metrics, compact JSON:
 *
 *     {"worker_id":W,"dp_rank":R,"endpoint_name":"generate","metrics":{...seven fields},
 *      "kv_block_size":n}
 *
 * The last member is optional.
 *
 * decode: KVB_BAD_INPUT  not JSON, or a missing or wrong field; a missing dp_rank is 0
 * both:   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_load_json_encode(const struct kvb_load_report *report, struct kvb_buf *out);
kvb_status kvb_load_json_decode(kvb_span json, struct kvb_load_report *out_report);

/* The `data` of an endpoint in a $SRV.STATS answer, for Dynamo's routers: the flat form (0.2) and
 * the nested form (0.3 to 0.5) in one object.
 *
 *     {...seven fields, "worker_stats":{...}, "kv_stats":{...}, "spec_decode_stats":null}
 *
 * dp_rank NULL: the values are of several ranks. */
kvb_status kvb_load_json_encode_stats(
    const struct kvb_load *load, const uint32_t *dp_rank, struct kvb_buf *out);
