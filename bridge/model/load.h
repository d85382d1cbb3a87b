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

/* Its figures, one by one: no source names them all. */
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

/* Where each of them stands. */
struct kvb_load_field {
    size_t offset; /* in struct kvb_load */
    bool is_ratio; /* a float from 0 to 1; else a u64 */
};

extern const struct kvb_load_field kvb_load_fields[KVB_FIGURE_COUNT];

/* What an engine said of itself.  Some say which rank they mean. */
struct kvb_load_sample {
    struct kvb_load load;
    unsigned figures; /* 1 << kvb_load_figure of each that was named; the others are 0 */
    bool has_rank;
    uint32_t dp_rank;
    bool is_of_scheduler; /* the struct of 2026, see wire/forward_pass.h */
};

/* Can a figure be that?  Counts go as far as a double counts without gaps, ratios from 0
 * to 1, and NaN is neither. */
bool kvb_load_can_be(bool is_ratio, double value);

/* The sample names this figure too: a value that can be. */
void kvb_load_sample_set(struct kvb_load_sample *sample, enum kvb_load_figure figure, double value);

bool kvb_load_equal(const struct kvb_load *a, const struct kvb_load *b);

/* Blocks in use, where an engine tells their share alone.  vLLM never hands out one of
 * its blocks: usable = total - 1 there.  usage: 0 .. 1. */
uint64_t kvb_load_active_blocks(double usage, uint64_t usable);

/* What a bridge publishes of one worker's rank. */
struct kvb_load_report {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint_name[kvb_name_bytes + 1];
    struct kvb_load load;
};
