#pragma once

#include "core/span.h"
#include "core/status.h"
#include "model/load.h"

#include <stddef.h>
#include <stdint.h>

/* Reads the load of each rank from an engine's GET /metrics page.
 *
 *     begin, feed, feed, ..., end --> samples      one page, in pieces as it arrives
 *     begin, feed, ...                             the next one
 *
 * vLLM, with the label engine="rank" (old versions have no such label, so the sample has no rank):
 *
 *     vllm:num_requests_running, vllm:num_requests_waiting
 *     vllm:kv_cache_usage_perc             before 0.10: vllm:gpu_cache_usage_perc
 *     vllm:prefix_cache_{hits,queries}_total    before: vllm:gpu_prefix_cache_...
 *     vllm:cache_config_info{num_gpu_blocks, block_size, kv_cache_size_tokens,
 *                            enable_prefix_caching}
 *     vllm:engine_sleep_state{sleep_state="awake" | "weights_offloaded" | "discard_all"}
 *     vllm:spec_decode_num_drafts_total    there, even at 0, if and only if the engine speculates
 *
 * num_gpu_blocks is the sum over the ranks of the page, so a rank has kv_cache_size_tokens /
 * block_size blocks, or without these labels num_gpu_blocks / ranks.  The hit rate covers the
 * queries since the previous page; without queries it is 0.  If the page is the first, or its
 * counters decreased (a restart), it covers all queries that they count.
 *
 * SGLang, where dp_rank is the rank; without it only tp_rank 0 is read:
 *
 *     sglang:num_running_reqs, sglang:num_queue_reqs, sglang:token_usage,
 *     sglang:max_total_num_tokens / page size, sglang:cache_hit_rate
 *     sglang:kv_used_tokens, sglang:kv_evictable_tokens
 *
 *     sglang:swa_*, sglang:mamba_*         one of them above 0: the model has such a pool
 *
 * Of the whole server, for all ranks of its page:
 *
 *     process_start_time_seconds           vLLM leaves it out where several processes make one page
 *     http_requests_total{handler="/reset_prefix_cache"}, and the other paths of vLLM that may
 *                                          empty the cache: their sum
 *
 * Several rows of one series and rank: those of the worker's model, of them those of the lowest
 * tp_rank, pp_rank and so on, of them those with the fewest further labels.  Where still several
 * stand side by side, requests and counters are added, of shares and sizes the largest is used, and
 * of requests with a pid too, because each process repeats the engine's value.  The order of the
 * rows never matters.
 *
 * Names must match exactly.  A value that is NaN or out of range is ignored and counted.
 *
 * Threads: the caller locks.
 * Memory:  900 bytes per rank, at most kvb_max_ranks, and a line. */
struct kvb_engine_page;

/* block_size: SGLang's page size in tokens, used when the page does not contain it.  model: of the
 * worker, at most kvb_model_bytes, copied; "": not known.
 * KVB_NO_MEMORY. */
kvb_status
kvb_engine_page_new(uint32_t block_size, const char *model, struct kvb_engine_page **out_page);
/* NULL is fine. */
void kvb_engine_page_free(struct kvb_engine_page *page);

/* Begins a page; an unfinished one is discarded. */
void kvb_engine_page_begin(struct kvb_engine_page *page);

/* KVB_TOO_LARGE  more ranks than kvb_max_ranks   KVB_NO_MEMORY */
kvb_status kvb_engine_page_feed(struct kvb_engine_page *page, kvb_span bytes);

/* Called once at the end of the page.  *out_samples is borrowed until the next call; each sample
 * has a rank unless the engine reports none.
 * KVB_BAD_INPUT  the page has no load values of an engine
 * Others as kvb_engine_page_feed(). */
kvb_status kvb_engine_page_end(
    struct kvb_engine_page *page, const struct kvb_load_sample **out_samples, size_t *out_count);

struct kvb_engine_page_counts {
    uint64_t refused; /* unreadable lines, and values out of range */
    uint64_t resets;  /* how often a rank's counters decreased */
};

/* Totals of all pages since _new(). */
struct kvb_engine_page_counts kvb_engine_page_count(const struct kvb_engine_page *page);
