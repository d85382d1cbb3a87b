#pragma once

#include "model/load.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The load of whole workers, for readers that do not know ranks (Dynamo's scrape
 * names an endpoint by the worker id alone).
 *
 *     rank 0: 3 of 100 blocks --+
 *     rank 1: 5 of 100 blocks --+--> worker: 8 of 200 blocks
 *     rank 2: never received ---+
 *
 * Counts are summed.  gpu_cache_usage_perc is the mean weighted by the ranks' kv_total_blocks
 * (unweighted if no rank has any); gpu_prefix_cache_hit_rate the plain mean, because no rank
 * reports its number of requests.
 *
 * A worker has a load only while every rank that ever reported one still does: without a silent
 * rank the sum would be too low.  A rank that never reported does not count, because one source may
 * report for all ranks.
 *
 * Threads: the caller locks.  Memory: none of its own. */

struct kvb_rank_load {
    uint64_t worker_id;
    uint32_t dp_rank;
    bool was_received; /* the rank has reported a load at least once */
    bool is_fresh;     /* its newest load has not expired */
    struct kvb_load load;
};

struct kvb_worker_load {
    uint64_t worker_id;
    bool has_load; /* false: unknown, which does not mean idle */
    bool has_rank; /* it has one rank only: dp_rank */
    uint32_t dp_rank;
    struct kvb_load load;
};

/* Sorts ranks by worker and rank, and writes one row a worker to out_workers, which
 * has room for rank_count; returns how many.  Workers above 2^63-1 are left out:
 * one such id stops Dynamo's aggregator for good. */
size_t kvb_worker_loads(
    struct kvb_rank_load *ranks, size_t rank_count, struct kvb_worker_load *out_workers);
