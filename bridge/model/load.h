#pragma once

#include "model/speculation.h"
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

/* The values of struct kvb_load.  A source may report only some of them. */
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

/* The name of each value in the published messages, and where it is stored. */
struct kvb_load_field {
    const char *name;
    const char *group; /* its object in the nested form: "worker_stats" or "kv_stats" */
    size_t offset;     /* in struct kvb_load */
    bool is_ratio;     /* a float from 0 to 1; else a u64 */
};

extern const struct kvb_load_field kvb_load_fields[KVB_FIGURE_COUNT];

/* Whether the engine sleeps, as vLLM's sleep mode: vllm:engine_sleep_state. */
enum kvb_engine_sleep {
    KVB_SLEEP_UNKNOWN, /* not reported */
    KVB_SLEEP_AWAKE,
    KVB_SLEEP_PAUSED,   /* level 0: no request runs, the cache stays */
    KVB_SLEEP_DISCARDED /* level 1 or 2: the cache is discarded */
};

/* Tokens of prompts that the engine looked up in its cache of the device, and found there; counters
 * since its start.  A prompt is counted when it is scheduled. */
struct kvb_prefix_counters {
    uint64_t queried_tokens;
    uint64_t cached_tokens; /* at most queried_tokens */
};

/* What a metrics page reports about the cache besides its load.  Events may not show it:
 * stream/page_watch.h. */
struct kvb_cache_signs {
    enum kvb_engine_sleep sleep;
    double started_s;           /* start of the process that made the page, Unix time; 0: none */
    bool is_counter_reset;      /* a counter is smaller than on the page before */
    bool is_prefix_caching_off; /* the engine reuses no blocks, whatever its events say */
    bool counts_running;        /* vLLM: usage counts the blocks of running requests only */
    uint32_t block_size; /* tokens in the page's blocks, which may be larger or smaller than those
                            of the events; 0: the page does not say */
    bool is_total_sure;  /* the total of blocks is this rank's own, as its engine reports it */
    bool has_occupancy;  /* SGLang: the two fields below are present */
    uint64_t evictable_tokens;        /* cached, and used by no request */
    uint64_t used_tokens;             /* used by requests, cached or not */
    bool has_hidden_pools;            /* SGLang: a sliding-window or Mamba pool */
    enum kvb_speculation speculation; /* vLLM: KEEPS: none; UNDECIDED: by an unnamed method */
    uint64_t reset_requests; /* vLLM: that its HTTP server has answered; 0 also without counters */
    bool has_prefix;         /* the counters are present */
    struct kvb_prefix_counters prefix;
};

/* Load values as one engine reported them; some engines name the rank. */
struct kvb_load_sample {
    struct kvb_load load;
    struct kvb_cache_signs signs; /* only of a metrics page; else 0 */
    unsigned stats; /* bit 1 << kvb_load_figure for each value present; the others are 0 */
    bool has_rank;
    uint32_t dp_rank;
    bool is_of_scheduler; /* from the scheduler's struct of 2026: wire/load/engine_message.h */
};

/* Whether the value is in range: a count from 0 to 2^53, which a double represents exactly, or a
 * ratio from 0 to 1.  NaN is out of range. */
bool kvb_load_can_be(bool is_ratio, double value);

/* Adds a value to the sample.  kvb_load_can_be() must be true for it. */
void kvb_load_sample_set(struct kvb_load_sample *sample, enum kvb_load_figure figure, double value);

bool kvb_load_equal(const struct kvb_load *a, const struct kvb_load *b);

/* The number of blocks in use, for engines that report only their share `usage` (0 .. 1).  vLLM
 * never allocates one of its blocks, so for vLLM usable = total - 1. */
uint64_t kvb_load_active_blocks(double usage, uint64_t usable);

/* What a bridge publishes about the load of one rank. */
struct kvb_load_report {
    uint64_t worker_id;
    uint32_t dp_rank;
    char endpoint_name[kvb_name_bytes + 1];
    struct kvb_load load;
    uint32_t block_size; /* tokens in the blocks of `load`; 0: not known, as those of the events */
};
