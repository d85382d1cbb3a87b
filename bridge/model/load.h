#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stdint.h>

/* ForwardPassMetrics: how busy one rank of a worker is. */
struct kvb_load {
    uint64_t request_active_slots;
    uint64_t request_total_slots;
    uint64_t kv_active_blocks;
    uint64_t kv_total_blocks;
    uint64_t num_requests_waiting;
    float gpu_cache_usage_perc;      /* 0 .. 1 */
    float gpu_prefix_cache_hit_rate; /* 0 .. 1 */
};

/* What an engine said of itself.  Some say which rank they mean. */
struct kvb_load_sample {
    struct kvb_load load;
    bool has_rank;
    uint32_t dp_rank;
};

/* What a bridge publishes of one worker's rank. */
struct kvb_load_report {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint_name[kvb_name_bytes + 1];
    struct kvb_load load;
};
