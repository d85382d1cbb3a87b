#pragma once

#include "model/stream.h"

#include <stdbool.h>
#include <stddef.h>
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

/* The single values: no source has all of them. */
enum kvb_load_figure {
    KVB_FIGURE_ACTIVE_SLOTS,
    KVB_FIGURE_TOTAL_SLOTS,
    KVB_FIGURE_ACTIVE_BLOCKS,
    KVB_FIGURE_TOTAL_BLOCKS,
    KVB_FIGURE_WAITING,
    KVB_FIGURE_USAGE,
    KVB_FIGURE_HIT_RATE,
    KVB_FIGURE_COUNT
};

/* What each value is called in the contract, and where it is stored. */
struct kvb_load_field {
    const char *name;
    const char *group; /* its object in the nested form: "worker_stats" or "kv_stats" */
    size_t offset;     /* in struct kvb_load */
    bool is_ratio;     /* a float from 0 to 1; else a u64 */
};

extern const struct kvb_load_field kvb_load_fields[KVB_FIGURE_COUNT];

/* Load values as one engine reported them; some engines name the rank. */
struct kvb_load_sample {
    struct kvb_load load;
    unsigned stats; /* bit 1 << kvb_load_figure for each value present; the others are 0 */
    bool has_rank;
    uint32_t dp_rank;
    bool is_of_scheduler; /* the struct of 2026, see wire/load/forward_pass.h */
};

/* Whether the value is in range: counts up to 2^53, which a double represents exactly, ratios
 * from 0 to 1; never NaN. */
bool kvb_load_can_be(bool is_ratio, double value);

/* Adds a value to the sample; kvb_load_can_be() is true for it. */
void kvb_load_sample_set(struct kvb_load_sample *sample, enum kvb_load_figure figure, double value);

bool kvb_load_equal(const struct kvb_load *a, const struct kvb_load *b);

/* Blocks in use, for engines that report only their share.  vLLM never allocates one of its
 * blocks: there, usable = total - 1.  usage: 0 .. 1. */
uint64_t kvb_load_active_blocks(double usage, uint64_t usable);

/* What a bridge publishes about the load of one rank. */
struct kvb_load_report {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint_name[kvb_name_bytes + 1];
    struct kvb_load load;
};
