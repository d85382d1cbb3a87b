#include "core/limits.h"
#include "kvaggregator/answers/answers.h"
#include "wire/json/writer.h"

static void write_load_data(struct kvb_json_writer *json, const struct kvb_load *load)
{
    kvb_json_write_pair_begin(json, "data", '{');
    kvb_json_write_pair_u64(json, "request_active_slots", load->request_active_slots);
    kvb_json_write_pair_u64(json, "request_total_slots", load->request_total_slots);
    kvb_json_write_pair_u64(json, "kv_active_blocks", load->kv_active_blocks);
    kvb_json_write_pair_u64(json, "kv_total_blocks", load->kv_total_blocks);
    kvb_json_write_pair_number(json, "gpu_cache_usage_perc", (double)load->gpu_cache_usage_perc);
    kvb_json_write_pair_number(
        json, "gpu_prefix_cache_hit_rate", (double)load->gpu_prefix_cache_hit_rate);
    kvb_json_write_pair_u64(json, "num_requests_waiting", load->num_requests_waiting);
    kvb_json_write_end(json, '}');
}

static void write_load_names(struct kvb_json_writer *json, const struct kvb_load_endpoint *endpoint)
{
    kvb_json_write_pair_u64(json, "worker_id", endpoint->id.worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", endpoint->id.dp_rank);
    kvb_json_write_pair_text(json, "name", endpoint->endpoint_name);
}

static void
write_load_endpoint(struct kvb_json_writer *json, const struct kvb_load_endpoint *endpoint)
{
    kvb_json_write_begin(json, '{');
    write_load_names(json, endpoint);
    if (endpoint->block_size > 0) {
        kvb_json_write_pair_u64(json, "kv_block_size", endpoint->block_size);
    }
    write_load_data(json, &endpoint->load);
    kvb_json_write_end(json, '}');
}

static void write_stale(struct kvb_json_writer *json, const struct kvb_load_endpoint *endpoint)
{
    kvb_json_write_begin(json, '{');
    write_load_names(json, endpoint);
    kvb_json_write_end(json, '}');
}

/* Writes the endpoints that are stale, or those that are not, each with `write`. */
static void write_load_list(
    struct kvb_json_writer *json, const struct kvb_load_tracker *tracker, bool is_stale,
    size_t max_rows, void (*write)(struct kvb_json_writer *, const struct kvb_load_endpoint *))
{
    size_t shown = 0;

    kvb_json_write_begin(json, '[');
    for (size_t i = 0; i < kvb_load_tracker_limit(tracker) && shown < max_rows; i++) {
        const struct kvb_load_endpoint *endpoint = kvb_load_tracker_at(tracker, i);
        if (endpoint && endpoint->is_stale == is_stale) {
            write(json, endpoint);
            shown++;
        }
    }
    kvb_json_write_end(json, ']');
}

/* True: the endpoint has the lowest rank of its worker.  A worker has one endpoint for each rank,
 * but is listed once. */
static bool
is_first_rank(const struct kvb_load_tracker *tracker, const struct kvb_load_endpoint *endpoint)
{
    struct kvb_stream_id id = endpoint->id;

    for (id.dp_rank = 0; id.dp_rank < endpoint->id.dp_rank && id.dp_rank < kvb_max_ranks;
         id.dp_rank++) {
        const struct kvb_load_endpoint *other = kvb_load_tracker_find(tracker, &id);
        if (other && !other->is_stale) {
            return false;
        }
    }
    return true;
}

static void write_worker_ids(
    struct kvb_json_writer *json, const struct kvb_load_tracker *tracker, size_t max_rows)
{
    size_t shown = 0;

    kvb_json_write_begin(json, '[');
    for (size_t i = 0; i < kvb_load_tracker_limit(tracker) && shown < max_rows; i++) {
        const struct kvb_load_endpoint *endpoint = kvb_load_tracker_at(tracker, i);
        if (endpoint && !endpoint->is_stale && is_first_rank(tracker, endpoint)) {
            kvb_json_write_u64(json, endpoint->id.worker_id);
            shown++;
        }
    }
    kvb_json_write_end(json, ']');
}

kvb_status kvb_answer_load(struct kvb_query_context *ctx, size_t max_rows, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    struct kvb_load_stats stats;

    kvb_load_tracker_stats(ctx->tracker, &stats);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_key(&json, "endpoints");
    write_load_list(&json, ctx->tracker, false, max_rows, write_load_endpoint);
    kvb_json_write_key(&json, "worker_ids");
    write_worker_ids(&json, ctx->tracker, max_rows);
    kvb_json_write_pair_number(&json, "load_avg", stats.avg);
    kvb_json_write_pair_number(&json, "load_std", stats.std);
    kvb_json_write_key(&json, "stale");
    write_load_list(&json, ctx->tracker, true, max_rows, write_stale);
    if (stats.endpoint_count > max_rows) {
        kvb_json_write_pair_u64(&json, "more", stats.endpoint_count - max_rows);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}
