#pragma once

#include "model/load.h"

/* For fuzz targets of load figures. */

static inline bool is_ratio(float value)
{
    return value >= 0 && value <= 1; /* NaN is neither */
}

static inline bool is_same_load(const struct kvb_load *a, const struct kvb_load *b)
{
    return a->request_active_slots == b->request_active_slots &&
           a->request_total_slots == b->request_total_slots &&
           a->kv_active_blocks == b->kv_active_blocks && a->kv_total_blocks == b->kv_total_blocks &&
           a->num_requests_waiting == b->num_requests_waiting &&
           a->gpu_cache_usage_perc == b->gpu_cache_usage_perc &&
           a->gpu_prefix_cache_hit_rate == b->gpu_prefix_cache_hit_rate;
}
