#include "model/load.h"

#include <string.h>

#define FIELD(field, part, ratio)                                                                  \
    {                                                                                              \
        .name = #field, .group = (part), .offset = offsetof(struct kvb_load, field),               \
        .is_ratio = (ratio)                                                                        \
    }

const struct kvb_load_field kvb_load_fields[KVB_FIGURE_COUNT] = {
    [KVB_FIGURE_ACTIVE_SLOTS] = FIELD(request_active_slots, "worker_stats", false),
    [KVB_FIGURE_TOTAL_SLOTS] = FIELD(request_total_slots, "worker_stats", false),
    [KVB_FIGURE_ACTIVE_BLOCKS] = FIELD(kv_active_blocks, "kv_stats", false),
    [KVB_FIGURE_TOTAL_BLOCKS] = FIELD(kv_total_blocks, "kv_stats", false),
    [KVB_FIGURE_WAITING] = FIELD(num_requests_waiting, "worker_stats", false),
    [KVB_FIGURE_USAGE] = FIELD(gpu_cache_usage_perc, "kv_stats", true),
    [KVB_FIGURE_HIT_RATE] = FIELD(gpu_prefix_cache_hit_rate, "kv_stats", true),
};
#undef FIELD

bool kvb_load_can_be(bool is_ratio, double value)
{
    return value >= 0 && value <= (is_ratio ? 1 : 0x1p53);
}

void kvb_load_sample_set(struct kvb_load_sample *sample, enum kvb_load_figure figure, double value)
{
    uint8_t *at = (uint8_t *)&sample->load + kvb_load_fields[figure].offset;
    const uint64_t number = (uint64_t)value;
    const float share = (float)value;

    /* The table knows offsets, not types. */
    if (kvb_load_fields[figure].is_ratio) {
        memcpy(at, &share, sizeof share);
    } else {
        memcpy(at, &number, sizeof number);
    }
    sample->stats |= 1U << figure;
}

bool kvb_load_equal(const struct kvb_load *a, const struct kvb_load *b)
{
    return a->request_active_slots == b->request_active_slots &&
           a->request_total_slots == b->request_total_slots &&
           a->kv_active_blocks == b->kv_active_blocks && a->kv_total_blocks == b->kv_total_blocks &&
           a->num_requests_waiting == b->num_requests_waiting &&
           a->gpu_cache_usage_perc == b->gpu_cache_usage_perc &&
           a->gpu_prefix_cache_hit_rate == b->gpu_prefix_cache_hit_rate;
}

uint64_t kvb_load_active_blocks(double usage, uint64_t usable)
{
    const double blocks = usage * (double)usable + 0.5;

    return blocks < (double)usable ? (uint64_t)blocks : usable; /* a peer may claim 2^64 - 1 */
}
