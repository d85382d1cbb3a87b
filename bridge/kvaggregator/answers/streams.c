#include "core/limits.h"
#include "kvaggregator/answers/answers.h"
#include "wire/json/writer.h"
#include "wire/router/heartbeat.h"

#include <stdio.h>
#include <string.h>

/* ---- /streams ---- */

static void write_stream(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx,
    const struct kvb_follower *follower)
{
    const struct kvb_heartbeat *heartbeat = &follower->heartbeat;
    const struct kvb_load_endpoint *endpoint = kvb_load_tracker_find(ctx->tracker, &follower->id);

    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", follower->id.worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", follower->id.dp_rank);
    kvb_json_write_pair_text(json, "namespace", follower->id.name_space);
    kvb_json_write_pair_text(json, "component", follower->id.component);
    kvb_json_write_pair_text(json, "model", kvb_query_context_model(ctx, follower));
    kvb_json_write_pair_u64(json, "block_size", kvb_query_context_block_size(ctx, follower));
    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(follower->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(follower->reason));
    kvb_json_write_pair_text(json, "format", kvb_format_name(follower->format));
    kvb_json_write_pair_begin(json, "blocks", '{');
    for (int tier = 0; tier < KVB_LIST_COUNT; tier++) {
        const uint64_t blocks = kvb_followers_blocks(ctx->followers, follower, (enum kvb_tier)tier);
        /* Readers may count on the first three; few engines have the others. */
        if (tier <= KVB_TIER_DISK || blocks > 0) {
            kvb_json_write_pair_u64(json, kvb_tier_name((enum kvb_tier)tier), blocks);
        }
    }
    kvb_json_write_end(json, '}');
    kvb_unverified_tiers_json_write(heartbeat, json);
    if (heartbeat->is_store) {
        kvb_json_write_pair_bool(json, "store", true);
    }
    kvb_worker_facts_json_write(&heartbeat->facts, json);
    kvb_served_names_json_write(&heartbeat->names, json);
    kvb_json_write_pair_u64(json, "doubtful", heartbeat->doubtful);
    /* null: not known, which is not the same as none. */
    kvb_json_write_key(json, "missing_at_most");
    if (heartbeat->has_missing_at_most) {
        kvb_json_write_u64(json, heartbeat->missing_at_most);
    } else {
        kvb_json_write_null(json);
    }
    kvb_json_write_pair_u64(json, "last_event_id", follower->last_id);
    kvb_json_write_key(json, "load");
    if (endpoint && !endpoint->is_stale) {
        kvb_json_write_number(json, kvb_load_value(ctx->tracker, endpoint));
    } else {
        kvb_json_write_null(json);
    }
    kvb_answer_write_audit(json, ctx, &follower->id);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_stream(
    const struct kvb_query_context *ctx, const struct kvb_follower *follower, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    write_stream(&json, ctx, follower);
    return json.status;
}

kvb_status kvb_answer_streams(
    struct kvb_query_context *ctx, size_t first, size_t max_rows, struct kvb_buf *out)
{
    size_t count = 0;

    KVB_TRY(kvb_query_context_sort(ctx, &count));
    const size_t from = first < count ? first : count;
    const size_t to = count - from > max_rows ? from + max_rows : count;
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_begin(&json, "streams", '[');
    for (size_t i = from; i < to; i++) {
        write_stream(&json, ctx, ctx->sorted[i]);
    }
    kvb_json_write_end(&json, ']');
    if (to < count) {
        kvb_json_write_pair_u64(&json, "next", to);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- /workers ---- */

static bool is_same_worker(
    const struct kvb_query_context *ctx, const struct kvb_follower *a, const struct kvb_follower *b)
{
    return a->id.worker_id == b->id.worker_id && strcmp(a->id.component, b->id.component) == 0 &&
           strcmp(a->id.name_space, b->id.name_space) == 0 &&
           strcmp(kvb_query_context_model(ctx, a), kvb_query_context_model(ctx, b)) == 0;
}

static const char *status_of(const struct kvb_follower *follower)
{
    return follower->state == KVB_STREAM_DOWN ? "down" : "active";
}

static void write_subject(struct kvb_json_writer *json, const struct kvb_follower *follower)
{
    char text[(2 * kvb_name_bytes) + 64];

    /* A bridge may publish both formats: the one that is followed. */
    (void)snprintf(
        text, sizeof text, "namespace.%s.component.%s.%s", follower->id.name_space,
        follower->id.component,
        follower->format == KVB_FORMAT_PROTOBUF ? "kv_events_pb" : "kv_events");
    kvb_json_write_text(json, text);
}

/* The ranks from .. to - 1 of one worker. */
static void write_stream_worker(
    struct kvb_json_writer *json, const struct kvb_query_context *ctx, size_t from, size_t to)
{
    const struct kvb_follower *first = ctx->sorted[from];
    const struct kvb_follower *up = first;
    struct kvb_worker_facts facts = first->heartbeat.facts;

    /* The worker is up while any of its ranks is, and draining only if all its ranks are.  All
     * else is told of its first rank. */
    for (size_t i = from + 1; i < to; i++) {
        up = up->state == KVB_STREAM_DOWN ? ctx->sorted[i] : up;
        facts.is_draining &= ctx->sorted[i]->heartbeat.facts.is_draining;
    }
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "instance_id", first->id.worker_id);
    kvb_json_write_pair_text(json, "source", "nats");
    kvb_json_write_pair_text(json, "status", status_of(up));
    kvb_json_write_pair_text(json, "model_name", kvb_query_context_model(ctx, first));
    kvb_json_write_pair_text(json, "routing_group", "default");
    kvb_json_write_pair_u64(json, "block_size", kvb_query_context_block_size(ctx, first));
    kvb_json_write_pair_begin(json, "endpoints", '{');
    for (size_t i = from; i < to; i++) {
        kvb_json_write_key_u64(json, ctx->sorted[i]->id.dp_rank);
        write_subject(json, ctx->sorted[i]);
    }
    kvb_json_write_end(json, '}');
    kvb_json_write_pair_begin(json, "listeners", '{');
    for (size_t i = from; i < to; i++) {
        kvb_json_write_key_u64(json, ctx->sorted[i]->id.dp_rank);
        kvb_json_write_begin(json, '{');
        kvb_json_write_key(json, "endpoint");
        write_subject(json, ctx->sorted[i]);
        kvb_json_write_pair_text(json, "status", status_of(ctx->sorted[i]));
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, '}');
    kvb_worker_facts_json_write(&facts, json);
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_workers(struct kvb_query_context *ctx, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    size_t count = 0;

    KVB_TRY(kvb_query_context_sort(ctx, &count));
    kvb_json_write_begin(&json, '[');
    for (size_t from = 0; from < count;) {
        size_t to = from + 1;
        while (to < count && is_same_worker(ctx, ctx->sorted[from], ctx->sorted[to])) {
            to++;
        }
        write_stream_worker(&json, ctx, from, to);
        from = to;
    }
    kvb_json_write_end(&json, ']');
    return json.status;
}

/* ---- load_stats, /load ---- */

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

    /* Average and deviation are of all endpoints, also where not all of them fit. */
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

/* ---- state ---- */

static void write_stream_states(struct kvb_json_writer *json, const struct kvb_query_context *ctx)
{
    uint64_t counts[KVB_STREAM_STATE_COUNT] = { 0 };

    for (size_t i = 0; i < kvb_followers_limit(ctx->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(ctx->followers, i);
        if (follower) {
            counts[follower->state]++;
        }
    }
    kvb_json_write_pair_begin(json, "streams", '{');
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_pair_u64(
            json, kvb_stream_state_name((enum kvb_stream_state)state), counts[state]);
    }
    kvb_json_write_end(json, '}');
}

kvb_status kvb_answer_state(struct kvb_query_context *ctx, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);
    struct kvb_index_counters index;
    struct kvb_follower_counters followed;
    struct kvb_load_stats stats;

    kvb_prefix_index_count(ctx->index, &index);
    kvb_followers_counters(ctx->followers, &followed);
    kvb_load_tracker_stats(ctx->tracker, &stats);
    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "version", KVB_VERSION);
    write_stream_states(&json, ctx);

    kvb_json_write_pair_begin(&json, "index", '{');
    kvb_json_write_pair_u64(&json, "nodes", index.nodes);
    kvb_json_write_pair_u64(&json, "ghosts", index.ghosts);
    kvb_json_write_pair_u64(&json, "orphans", index.orphans);
    kvb_json_write_pair_u64(&json, "memberships", index.memberships);
    kvb_json_write_pair_u64(&json, "aliases", index.aliases);
    kvb_json_write_pair_u64(&json, "unknown_parents", index.unknown_parents);
    kvb_json_write_pair_u64(&json, "refused", index.refused);
    kvb_json_write_end(&json, '}');

    kvb_json_write_pair_begin(&json, "followed", '{');
    kvb_json_write_pair_u64(&json, "events_applied", followed.events_applied);
    kvb_json_write_pair_u64(&json, "events_unused", followed.events_unused);
    kvb_json_write_pair_u64(&json, "events_old", followed.events_old);
    kvb_json_write_pair_u64(&json, "holes", followed.holes);
    kvb_json_write_pair_u64(&json, "heartbeats", followed.heartbeats);
    kvb_json_write_pair_u64(&json, "heartbeats_late", followed.heartbeats_late);
    kvb_json_write_pair_u64(&json, "differs", followed.differs);
    kvb_json_write_pair_u64(&json, "epochs_missed", followed.epochs_missed);
    kvb_json_write_pair_u64(&json, "streams_refused", followed.streams_refused);
    kvb_json_write_end(&json, '}');

    kvb_json_write_pair_u64(&json, "endpoints", stats.endpoint_count);
    kvb_json_write_pair_number(&json, "load_avg", stats.avg);
    kvb_json_write_pair_number(&json, "load_std", stats.std);
    kvb_json_write_pair_u64(&json, "routed", ctx->decisions);
    if (ctx->peers) {
        kvb_json_write_pair_begin(&json, "aggregators", '{');
        kvb_json_write_pair_text(&json, "id", ctx->peers->self.id);
        kvb_json_write_pair_bool(&json, "leads", ctx->leads);
        kvb_json_write_pair_u64(&json, "others", ctx->peers->count);
        kvb_json_write_pair_bool(&json, "same_id", kvb_peers_has_same_id(ctx->peers, ctx->now_ns));
        kvb_json_write_end(&json, '}');
    }
    /* Where sgl-router asks; left out where it is off. */
    if (ctx->grpc_listen && ctx->grpc_listen[0] != '\0') {
        kvb_json_write_pair_begin(&json, "grpc", '{');
        kvb_json_write_pair_text(&json, "listen", ctx->grpc_listen);
        kvb_json_write_pair_u64(&json, "port", ctx->grpc_port);
        kvb_json_write_pair_text(&json, "model", ctx->grpc_model);
        kvb_json_write_end(&json, '}');
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}
