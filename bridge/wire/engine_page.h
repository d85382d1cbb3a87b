#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

#include <stddef.h>
#include <stdint.h>

/* What an engine's GET /metrics says of its load, rank by rank.
 *
 *     begin, feed, feed, ..., end --> samples      one page, as it comes in
 *     begin, feed, ...                             the next one
 *
 * vLLM, with the label engine="rank" (old versions have none: the first rank):
 *
 *     vllm:num_requests_running, vllm:num_requests_waiting
 *     vllm:kv_cache_usage_perc             before 0.10: vllm:gpu_cache_usage_perc
 *     vllm:prefix_cache_{hits,queries}_total    before: vllm:gpu_prefix_cache_...
 *     vllm:cache_config_info{num_gpu_blocks, block_size, kv_cache_size_tokens}
 *
 * num_gpu_blocks is the sum over the ranks of the page, so blocks of a rank are
 * kv_cache_size_tokens / block_size, or without them num_gpu_blocks / ranks.  The hit
 * rate is that of the queries since the page before; 0 of 0 is 0.  The first page, and
 * one whose counters went back (a restart), are compared with 0.
 *
 * SGLang, of tp_rank 0 (with dp_rank: of the first tp_rank of each):
 *
 *     sglang:num_running_reqs, sglang:num_queue_reqs, sglang:token_usage,
 *     sglang:max_total_num_tokens / page size, sglang:cache_hit_rate
 *
 * Names are matched whole.  What is NaN or out of range is not told, and counted.
 *
 * Threads: the caller locks.
 * Memory:  250 bytes a rank, at most kvb_max_ranks, and a line. */
struct kvb_engine_page;

/* block_size: SGLang's page size, where the page does not tell; tokens.  KVB_NO_MEMORY. */
kvb_status kvb_engine_page_new(uint32_t block_size, struct kvb_engine_page **out_page);
/* NULL is fine. */
void kvb_engine_page_free(struct kvb_engine_page *page);

/* What was fed and not ended is forgotten. */
void kvb_engine_page_begin(struct kvb_engine_page *page);

/* KVB_TOO_LARGE  more ranks than kvb_max_ranks   KVB_NO_MEMORY */
kvb_status kvb_engine_page_feed(struct kvb_engine_page *page, kvb_span bytes);

/* Once after all of the page.  *out_samples is borrowed until the next call; each sample
 * has a rank unless the engine names none.
 * KVB_BAD_INPUT  there is nothing of an engine's load on the page
 * Else as kvb_engine_page_feed(). */
kvb_status kvb_engine_page_end(
    struct kvb_engine_page *page, const struct kvb_load_sample **out_samples, size_t *out_count);

struct kvb_engine_page_counts {
    uint64_t refused; /* lines that could not be read, figures that cannot be */
    uint64_t resets;  /* of a rank's counters */
};

/* Of all pages since _new(). */
struct kvb_engine_page_counts kvb_engine_page_count(const struct kvb_engine_page *page);
