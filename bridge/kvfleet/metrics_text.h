#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "kvfleet/engine/engine.h"

#include <stdint.h>

/* One worker's GET /metrics as vLLM words it: the series that a bridge reads, with
 * the label engine="rank", and one neighbour whose name begins alike.  Under data
 * parallelism num_gpu_blocks is the sum over the ranks, as in vLLM.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  as kvb_buf_append() */
struct kvb_metrics_source {
    const char *model; /* borrowed; no quotes or backslashes in it */
    uint32_t first_rank;
    uint32_t block_size;
    const struct kvb_engine_stats *stats; /* one a rank; borrowed */
    uint32_t ranks;
};

kvb_status kvb_metrics_text(const struct kvb_metrics_source *source, struct kvb_buf *out);
