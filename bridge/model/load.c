#include "model/load.h"

#define FIELD(field, ratio)                                                                        \
    {                                                                                              \
        .offset = offsetof(struct kvb_load, field), .is_ratio = (ratio)                            \
    }

const struct kvb_load_field kvb_load_fields[KVB_FIGURE_COUNT] = {
    [KVB_FIGURE_ACTIVE_SLOTS] = FIELD(request_active_slots, false),
    [KVB_FIGURE_TOTAL_SLOTS] = FIELD(request_total_slots, false),
    [KVB_FIGURE_ACTIVE_BLOCKS] = FIELD(kv_active_blocks, false),
    [KVB_FIGURE_TOTAL_BLOCKS] = FIELD(kv_total_blocks, false),
    [KVB_FIGURE_WAITING] = FIELD(num_requests_waiting, false),
    [KVB_FIGURE_USAGE] = FIELD(gpu_cache_usage_perc, true),
    [KVB_FIGURE_HIT_RATE] = FIELD(gpu_prefix_cache_hit_rate, true),
};
#undef FIELD

uint64_t kvb_load_active_blocks(double usage, uint64_t usable)
{
    const double blocks = usage * (double)usable + 0.5;

    return blocks < (double)usable ? (uint64_t)blocks : usable; /* a peer's count: up to 2^64 */
}
