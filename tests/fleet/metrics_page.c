#include "fleet/metrics_page.h"

#include "core/buf.h"
#include "core/own.h"
#include "fleet/listen.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { max_page_bytes = 1 << 20 };

/* ---- The text ---- */

struct series {
    const char *name;
    const char *labels; /* besides engine and model_name */
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

/* Computed from the block counts, because the float of the load is rounded. */
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

static double awake(const struct kvb_engine_stats *stats)
{
    return stats->is_asleep ? 0 : 1;
}

static double weights_offloaded(const struct kvb_engine_stats *stats)
{
    return stats->is_asleep ? 1 : 0;
}

/* clang-format off */
static const struct series all_series[] = {
    { "vllm:num_requests_running", "", "gauge", "Number of requests in model execution batches.", running },
    { "vllm:num_requests_waiting", "", "gauge", "Number of requests waiting to be processed.", waiting },
    { "vllm:num_requests_waiting_by_reason", ",reason=\"capacity\"", "gauge", "Number of waiting requests by reason.", waiting },
    { "vllm:engine_sleep_state", ",sleep_state=\"awake\"", "gauge", "Engine sleep state.", awake },
    { "vllm:engine_sleep_state", ",sleep_state=\"weights_offloaded\"", "gauge", "Engine sleep state.", weights_offloaded },
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
    const bool has_head = series > all_series && strcmp(series[-1].name, series->name) == 0;

    if (!has_head) {
        KVB_TRY(append_metric_head(series->name, series->help, series->type, out));
    }
    for (uint32_t i = 0; i < source->ranks; i++) {
        KVB_TRY(kvb_buf_append_format(
            out, "%s{engine=\"%u\",model_name=\"%s\"%s} %.17g\n", series->name, i, source->model,
            series->labels, series->value(&source->stats[i])));
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
            name, source->block_size, i, (unsigned long long)(blocks * source->block_size),
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

/* ---- The server ---- */

struct kvb_metrics_page {
    struct kvb_metrics_page_options options;
    struct MHD_Daemon *daemon; /* owned */
    uint16_t port;
    pthread_mutex_t lock;           /* of figures */
    struct kvb_engine_stats *stats; /* owned; ranks of worker 0, of worker 1, ... */
};

/* "/workers/12/metrics" -> 12.  KVB_NOT_FOUND for any other path or worker. */
static kvb_status
parse_path(const struct kvb_metrics_page *page, const char *path, uint32_t *out_worker)
{
    static const char prefix[] = "/workers/";

    if (strncmp(path, prefix, sizeof prefix - 1) != 0) {
        return KVB_NOT_FOUND;
    }
    const char *digits = path + sizeof prefix - 1;
    char *end = NULL;
    const unsigned long long id = strtoull(digits, &end, 10);
    const unsigned long long worker = id - page->options.first_worker;
    if (*digits < '0' || *digits > '9' || strcmp(end, "/metrics") != 0 ||
        worker >= page->options.workers) {
        return KVB_NOT_FOUND;
    }
    *out_worker = (uint32_t)worker;
    return KVB_OK;
}

kvb_status
kvb_metrics_page_write(struct kvb_metrics_page *page, uint32_t worker, struct kvb_buf *out)
{
    const struct kvb_metrics_source source = {
        .model = page->options.model,
        .block_size = page->options.block_size,
        .stats = page->stats + (size_t)worker * page->options.ranks,
        .ranks = page->options.ranks,
    };
    pthread_mutex_lock(&page->lock);
    const kvb_status status = kvb_metrics_text(&source, out);
    pthread_mutex_unlock(&page->lock);
    return status;
}

static enum MHD_Result
answer_page(struct MHD_Connection *connection, unsigned code, struct kvb_buf *body)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_COPY);
    if (!response) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(
        response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    const enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

/* libmicrohttpd fixes the parameters. */
static enum MHD_Result handle_page_request(
    void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_len, void **request_context)
{
    (void)version;
    (void)upload;
    (void)request_context;
    KVB_OWN(kvb_buf_done) struct kvb_buf body = { 0 };
    uint32_t worker = 0;

    if (*upload_len > 0) {
        *upload_len = 0; /* ignore the body */
        return MHD_YES;
    }
    kvb_buf_init(&body, max_page_bytes);
    if (strcmp(method, "GET") != 0 || parse_path(context, path, &worker) != KVB_OK) {
        const kvb_status status =
            kvb_buf_append_text(&body, "here is only GET /workers/ID/metrics\n");
        return status == KVB_OK ? answer_page(connection, MHD_HTTP_NOT_FOUND, &body) : MHD_NO;
    }
    return kvb_metrics_page_write(context, worker, &body) == KVB_OK
               ? answer_page(connection, MHD_HTTP_OK, &body)
               : MHD_NO;
}

static kvb_status listen_for_pages(struct kvb_metrics_page *page, struct kvb_detail *detail)
{
    const struct kvb_listen_options options = {
        .address = page->options.address,
        .port = page->options.port,
        .on_request = handle_page_request,
        .context = page,
    };
    return options.address ? kvb_listen(&options, detail, &page->daemon, &page->port) : KVB_OK;
}

kvb_status kvb_metrics_page_start(
    const struct kvb_metrics_page_options *options, struct kvb_detail *detail,
    struct kvb_metrics_page **out_page)
{
    struct kvb_metrics_page *page = calloc(1, sizeof *page);
    if (!page) {
        return KVB_NO_MEMORY;
    }
    page->options = *options;
    (void)pthread_mutex_init(&page->lock, NULL); /* cannot fail with default attributes */
    page->stats = calloc((size_t)options->workers * options->ranks, sizeof *page->stats);

    const kvb_status status = page->stats ? listen_for_pages(page, detail) : KVB_NO_MEMORY;
    if (status != KVB_OK) {
        kvb_metrics_page_stop(page);
        return status;
    }
    page->options.address = NULL; /* was only borrowed for the call */
    *out_page = page;
    return KVB_OK;
}

void kvb_metrics_page_stop(struct kvb_metrics_page *page)
{
    if (!page) {
        return;
    }
    if (page->daemon) {
        MHD_stop_daemon(page->daemon);
    }
    pthread_mutex_destroy(&page->lock);
    free(page->stats);
    free(page);
}

uint16_t kvb_metrics_page_port(const struct kvb_metrics_page *page)
{
    return page->port;
}

void kvb_metrics_page_set(
    struct kvb_metrics_page *page, uint32_t worker, uint32_t rank,
    const struct kvb_engine_stats *stats)
{
    pthread_mutex_lock(&page->lock);
    page->stats[(size_t)worker * page->options.ranks + rank] = *stats;
    pthread_mutex_unlock(&page->lock);
}
