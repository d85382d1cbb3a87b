#include "kvfleet/metrics_text.h"

#include "core/own.h"

#include <stddef.h>

struct series {
    const char *name;
    const char *labels; /* beside engine and model_name */
    const char *type;
    const char *help;
    double (*value)(const struct kvb_engine_stats *stats);
};

static double running(const struct kvb_engine_stats *stats)
{
    return (double)stats->load.request_active_slots;
}

static double waiting(const struct kvb_engine_stats *stats)
{
    return (double)stats->load.num_requests_waiting;
}

/* From the whole numbers: the load's float would show its rounding. */
static double usage(const struct kvb_engine_stats *stats)
{
    const double usable = (double)stats->load.kv_total_blocks - 1;
    return usable > 0 ? (double)stats->load.kv_active_blocks / usable : 0;
}

static double queries(const struct kvb_engine_stats *stats)
{
    return (double)stats->queried_tokens;
}

static double hits(const struct kvb_engine_stats *stats)
{
    return (double)stats->hit_tokens;
}

static double preemptions(const struct kvb_engine_stats *stats)
{
    return (double)stats->preemptions;
}

/* clang-format off */
static const struct series all_series[] = {
    { "vllm:num_requests_running", "", "gauge", "Number of requests in model execution batches.", running },
    { "vllm:num_requests_waiting", "", "gauge", "Number of requests waiting to be processed.", waiting },
    { "vllm:num_requests_waiting_by_reason", ",reason=\"capacity\"", "gauge", "Number of waiting requests by reason.", waiting },
    { "vllm:kv_cache_usage_perc", "", "gauge", "KV-cache usage. 1 means 100 percent usage.", usage },
    { "vllm:prefix_cache_queries_total", "", "counter", "Prefix cache queries, in terms of number of queried tokens.", queries },
    { "vllm:prefix_cache_hits_total", "", "counter", "Prefix cache hits, in terms of number of cached tokens.", hits },
    { "vllm:num_preemptions_total", "", "counter", "Cumulative number of preemption from the engine.", preemptions },
};
/* clang-format on */

static kvb_status
append_metric_head(const char *name, const char *help, const char *type, struct kvb_buf *out)
{
    return kvb_buf_append_format(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static kvb_status append_series(
    const struct kvb_metrics_source *source, const struct series *series, struct kvb_buf *out)
{
    KVB_TRY(append_metric_head(series->name, series->help, series->type, out));
    for (uint32_t i = 0; i < source->ranks; i++) {
        KVB_TRY(kvb_buf_append_format(
            out, "%s{engine=\"%u\",model_name=\"%s\"%s} %.17g\n", series->name,
            source->first_rank + i, source->model, series->labels,
            series->value(&source->stats[i])));
    }
    return KVB_OK;
}

static uint64_t total_engine_blocks(const struct kvb_metrics_source *source)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < source->ranks; i++) {
        sum += source->stats[i].load.kv_total_blocks;
    }
    return sum;
}

static kvb_status append_cache_config(const struct kvb_metrics_source *source, struct kvb_buf *out)
{
    static const char name[] = "vllm:cache_config_info";

    KVB_TRY(append_metric_head(name, "Information of the LLMEngine CacheConfig", "gauge", out));
    for (uint32_t i = 0; i < source->ranks; i++) {
        const uint64_t blocks = source->stats[i].load.kv_total_blocks;
        KVB_TRY(kvb_buf_append_format(
            out,
            "%s{block_size=\"%u\",cache_dtype=\"auto\",enable_prefix_caching=\"True\","
            "engine=\"%u\",kv_cache_size_tokens=\"%llu\",num_cpu_blocks=\"None\","
            "num_gpu_blocks=\"%llu\"} 1.0\n",
            name, source->block_size, source->first_rank + i,
            (unsigned long long)(blocks * source->block_size),
            (unsigned long long)total_engine_blocks(source)));
    }
    return KVB_OK;
}

kvb_status kvb_metrics_text(const struct kvb_metrics_source *source, struct kvb_buf *out)
{
    for (size_t i = 0; i < KVB_COUNT_OF(all_series); i++) {
        KVB_TRY(append_series(source, &all_series[i], out));
    }
    return append_cache_config(source, out);
}
