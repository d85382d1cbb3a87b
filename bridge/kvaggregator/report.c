#include "kvaggregator/report.h"

#include "bus/bus.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/ring.h"
#include "daemon/metrics.h"
#include "index/index.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/dashboard.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/config.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/service.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/tracker.h"
#include "replica/follower.h"

static const uint64_t process_every_ns = KVB_NS_PER_S;

void kvb_aggregator_publish(
    struct kvb_aggregator *aggregator, const char *subject, kvb_span payload)
{
    const kvb_status status = kvb_bus_publish(aggregator->bus, subject, payload);

    if (status != KVB_OK) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_publish_failures, 1);
    }
}

/* As many endpoints as a message takes. */
static kvb_status make_load(struct kvb_aggregator *aggregator)
{
    const size_t max_bytes = kvb_bus_max_payload(aggregator->bus);
    size_t rows = max_bytes / kvb_query_row_bytes;
    kvb_status status = KVB_OK;

    /* With long names, rows are larger than usual: then it is made again with fewer. */
    do {
        kvb_buf_reset(aggregator->buf);
        status = kvb_answer_load(aggregator->ctx, rows, aggregator->buf);
        rows /= 2;
    } while (status == KVB_OK && aggregator->buf->len > max_bytes && rows > 0);
    return status;
}

void kvb_aggregator_publish_load(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    /* One of all aggregators publishes it, and says the same as the others would. */
    if (!aggregator->ctx->leads) {
        aggregator->report->has_load_changed = false; /* another aggregator says so */
        return;
    }
    /* Every load.publish_ms, and with the next tick after a change. */
    const uint64_t period_ns = aggregator->config->load.publish_ms * KVB_NS_PER_MS;
    const bool is_due = aggregator->report->has_load_changed ||
                        now_ns - aggregator->report->load_published_ns >= period_ns;
    if (!is_due || !kvb_bus_is_connected(aggregator->bus)) {
        return;
    }
    if (make_load(aggregator) == KVB_OK) {
        kvb_aggregator_publish(
            aggregator, aggregator->report->load_subject, kvb_buf_span(aggregator->buf));
        kvb_metric_add(aggregator->metrics, kvb_aggregator_load_published, 1);
    }
    aggregator->report->has_load_changed = false;
    aggregator->report->load_published_ns = now_ns;
}

void kvb_aggregator_publish_decision(
    struct kvb_aggregator *aggregator, const struct kvb_route_decision *decision)
{
    struct kvb_metrics *metrics = aggregator->metrics;

    kvb_metric_add(metrics, kvb_aggregator_routed, 1);
    kvb_metric_add(metrics, kvb_aggregator_routed_blocks, decision->isl_blocks);
    kvb_metric_add(metrics, kvb_aggregator_routed_overlap, decision->overlap_blocks);
    kvb_buf_reset(aggregator->buf);
    if (kvb_answer_hit_rate(decision, aggregator->buf) != KVB_OK) {
        return;
    }
    const kvb_span event = kvb_buf_span(aggregator->buf);
    kvb_aggregator_publish(aggregator, aggregator->report->hit_rate_subject, event);
    if (aggregator->report->alias_subject[0]) {
        kvb_aggregator_publish(aggregator, aggregator->report->alias_subject, event);
    }
}

/* ---- Metrics ---- */

const struct kvb_metric_row kvb_aggregator_metric_rows[kvb_aggregator_metric_count] = {
#define KVB_AGGREGATOR_METRIC_ROW(id, kind, title, label, text)                                    \
    [kvb_aggregator_##                                                                             \
        id] = { .name = (title), .labels = (label), .help = (text), .type = KVB_METRIC_##kind },
    KVB_AGGREGATOR_METRICS(KVB_AGGREGATOR_METRIC_ROW)
#undef KVB_AGGREGATOR_METRIC_ROW
};

/* One stream stands for all: a worker in two configurations is there with all its ranks. */
static void log_rivals(struct kvb_aggregator *aggregator)
{
    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower && follower->reason == KVB_REASON_TWO_BRIDGES) {
            kvb_log_write(
                aggregator->log, KVB_LOG_WARNING, "aggregator", "two bridges for one worker",
                "namespace", follower->id.name_space, "component", follower->id.component,
                "worker_id", KVB_LOG_U64(follower->id.worker_id), "dp_rank",
                KVB_LOG_U64(follower->id.dp_rank), NULL);
            return;
        }
    }
}

static void count_followers(struct kvb_aggregator *aggregator)
{
    struct kvb_metrics *metrics = aggregator->metrics;
    struct kvb_follower_counters counters;

    kvb_followers_counters(aggregator->followers, &counters);
    kvb_metric_set(metrics, kvb_aggregator_events_applied, counters.events_applied);
    kvb_metric_set(metrics, kvb_aggregator_events_unused, counters.events_unused);
    kvb_metric_set(metrics, kvb_aggregator_events_old, counters.events_old);
    kvb_metric_set(metrics, kvb_aggregator_events_ahead, counters.events_ahead);
    kvb_metric_set(metrics, kvb_aggregator_event_holes, counters.holes);
    kvb_metric_set(metrics, kvb_aggregator_events_missed, counters.events_missed);
    kvb_metric_set(metrics, kvb_aggregator_heartbeats_late, counters.heartbeats_late);
    kvb_metric_set(metrics, kvb_aggregator_streams_differ, counters.differs);
    kvb_metric_set(metrics, kvb_aggregator_streams_contradicted, counters.contradicted);
    kvb_metric_set(metrics, kvb_aggregator_epochs_missed, counters.epochs_missed);
    /* The metric has the number as it was said last. */
    if (counters.rivals > kvb_metric_get(metrics, kvb_aggregator_rivals)) {
        log_rivals(aggregator);
    }
    kvb_metric_set(metrics, kvb_aggregator_rivals, counters.rivals);
    kvb_metric_set(metrics, kvb_aggregator_ranges_requested, counters.ranges_requested);
    kvb_metric_set(metrics, kvb_aggregator_snapshots_requested, counters.snapshots_requested);
    kvb_metric_set(metrics, kvb_aggregator_ranges_filled, counters.ranges_filled);
    kvb_metric_set(metrics, kvb_aggregator_snapshots_taken, counters.snapshots_taken);
    kvb_metric_set(metrics, kvb_aggregator_digests_requested, counters.digests_requested);
    kvb_metric_set(metrics, kvb_aggregator_digests_repaired, counters.digests_repaired);
    kvb_metric_set(metrics, kvb_aggregator_buckets_differ, counters.buckets_differ);
    kvb_metric_set(metrics, kvb_aggregator_requests_failed, counters.requests_failed);
    kvb_metric_set(metrics, kvb_aggregator_streams_silent, counters.silent);
    kvb_metric_set(metrics, kvb_aggregator_streams_forgotten, counters.forgotten);
    kvb_metric_set(metrics, kvb_aggregator_stored_refused, counters.blocks_refused);
}

static void count_books(struct kvb_aggregator *aggregator)
{
    struct kvb_metrics *metrics = aggregator->metrics;
    struct kvb_request_counters requests;
    struct kvb_prediction_counters predictions;

    kvb_requests_count(aggregator->requests, &requests);
    kvb_metric_set(metrics, kvb_aggregator_requests_in_flight, requests.in_flight);
    kvb_metric_set(metrics, kvb_aggregator_requests_repeated, requests.repeated);
    kvb_metric_set(metrics, kvb_aggregator_requests_finished, requests.finished);
    kvb_metric_set(metrics, kvb_aggregator_requests_expired, requests.expired);
    kvb_metric_set(metrics, kvb_aggregator_requests_evicted, requests.evicted);
    kvb_metric_set(metrics, kvb_aggregator_first_tokens, requests.first_tokens);
    kvb_metric_set(metrics, kvb_aggregator_decisions_late, requests.finished_early);
    kvb_metric_set(metrics, kvb_aggregator_finished_unknown, requests.finished_unknown);
    kvb_metric_set(metrics, kvb_aggregator_first_tokens_unknown, requests.first_tokens_unknown);
    kvb_predictions_count(aggregator->predictions, &predictions);
    kvb_metric_set(metrics, kvb_aggregator_predicted_now, predictions.blocks);
    kvb_metric_set(metrics, kvb_aggregator_predicted, predictions.predicted);
    kvb_metric_set(metrics, kvb_aggregator_predictions_confirmed, predictions.confirmed);
    kvb_metric_set(metrics, kvb_aggregator_predictions_expired, predictions.expired);
    kvb_metric_set(metrics, kvb_aggregator_predictions_retired, predictions.retired);
    kvb_metric_set(metrics, kvb_aggregator_predictions_evicted, predictions.evicted);
}

/* The number of events that the newest heartbeat counts and that were not applied yet; unknown
 * for a stream in another epoch. */
static uint64_t behind(const struct kvb_follower *follower)
{
    const struct kvb_heartbeat *beat = &follower->heartbeat;
    const bool is_known = follower->has_heartbeat && follower->has_last_id &&
                          follower->last_id >= beat->epoch_first_id;

    return is_known && beat->last_id > follower->last_id ? beat->last_id - follower->last_id : 0;
}

/* clang-format off */
static const enum kvb_aggregator_metric state_gauges[KVB_STREAM_STATE_COUNT] = {
    [KVB_STREAM_SYNCING] = kvb_aggregator_streams_syncing,
    [KVB_STREAM_EXACT] = kvb_aggregator_streams_exact,
    [KVB_STREAM_PARTIAL] = kvb_aggregator_streams_partial,
    [KVB_STREAM_UNVERIFIED] = kvb_aggregator_streams_unverified,
    [KVB_STREAM_STALE] = kvb_aggregator_streams_stale,
    [KVB_STREAM_DOWN] = kvb_aggregator_streams_down,
};
/* clang-format on */

static void count_states(struct kvb_aggregator *aggregator)
{
    uint64_t counts[KVB_STREAM_STATE_COUNT] = { 0 };
    uint64_t max_behind = 0;

    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower) {
            counts[follower->state]++;
            max_behind = behind(follower) > max_behind ? behind(follower) : max_behind;
        }
    }
    for (size_t i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        kvb_metric_set(aggregator->metrics, state_gauges[i], counts[i]);
    }
    kvb_metric_set(aggregator->metrics, kvb_aggregator_events_behind, max_behind);
}

static void count_index(struct kvb_aggregator *aggregator)
{
    struct kvb_metrics *metrics = aggregator->metrics;
    struct kvb_index_counters counters;
    struct kvb_load_stats stats;

    kvb_prefix_index_count(aggregator->index, &counters);
    kvb_load_tracker_stats(aggregator->tracker, &stats);
    kvb_metric_set(metrics, kvb_aggregator_index_nodes, counters.nodes);
    kvb_metric_set(metrics, kvb_aggregator_index_bytes, kvb_prefix_index_bytes(aggregator->index));
    kvb_metric_set(metrics, kvb_aggregator_index_memberships, counters.memberships);
    kvb_metric_set(metrics, kvb_aggregator_index_orphans, counters.orphans);
    kvb_metric_set(
        metrics, kvb_aggregator_window_blocks, kvb_followers_window_blocks(aggregator->followers));
    kvb_metric_set(metrics, kvb_aggregator_endpoints, stats.endpoint_count);
    kvb_metric_set(metrics, kvb_aggregator_endpoints_stale, stats.stale_count);
    kvb_metric_set_real(metrics, kvb_aggregator_load_avg, stats.avg);
    kvb_metric_set_real(metrics, kvb_aggregator_load_std, stats.std);
}

void kvb_aggregator_set_constants(struct kvb_aggregator *aggregator)
{
    struct kvb_metrics *metrics = aggregator->metrics;
    const struct kvb_aggregator_config *config = aggregator->config;

    kvb_daemon_metrics_begin(metrics, kvb_aggregator_build);
    kvb_metric_set(metrics, kvb_aggregator_index_limit, config->limits.max_index_blocks);
    kvb_metric_set(metrics, kvb_aggregator_event_ring_limit, config->limits.event_ring);
}

void kvb_aggregator_update_metrics(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_metrics *metrics = aggregator->metrics;

    kvb_daemon_metrics_update(metrics, kvb_aggregator_build, aggregator->log, aggregator->bus);
    /* /proc is read less often than all others, which are in memory. */
    if (now_ns >= aggregator->report->next_process_ns) {
        aggregator->report->next_process_ns = now_ns + process_every_ns;
        kvb_daemon_metrics_measure(metrics, kvb_aggregator_build);
    }
    count_followers(aggregator);
    count_books(aggregator);
    count_states(aggregator);
    count_index(aggregator);
    kvb_metric_set(metrics, kvb_aggregator_event_ring, kvb_ring_count(aggregator->intake->events));
}

/* ---- The status page ---- */

static void
read_figures(const struct kvb_aggregator *aggregator, struct kvb_dashboard_reading *out_reading)
{
    const struct kvb_metrics *metrics = aggregator->metrics;
    struct kvb_load_stats stats;

    kvb_load_tracker_stats(aggregator->tracker, &stats);
    *out_reading = (struct kvb_dashboard_reading){
        .events_applied = kvb_metric_get(metrics, kvb_aggregator_events_applied),
        .asked_blocks = kvb_metric_get(metrics, kvb_aggregator_routed_blocks),
        .hit_blocks = kvb_metric_get(metrics, kvb_aggregator_routed_overlap),
        .promised_tokens = kvb_metric_get(metrics, kvb_aggregator_audit_promised),
        .delivered_tokens = kvb_metric_get(metrics, kvb_aggregator_audit_delivered),
        .held_blocks = kvb_metric_get(metrics, kvb_aggregator_index_memberships),
        .load_avg = stats.avg,
        .load_std = stats.std,
    };
    for (size_t i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        out_reading->streams[i] = kvb_metric_get(metrics, state_gauges[i]);
    }
}

void kvb_aggregator_update_dashboard(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_dashboard_reading reading;

    read_figures(aggregator, &reading);
    kvb_dashboard_add_sample(aggregator->dashboard, &reading, now_ns);
    kvb_dashboard_renew(aggregator->dashboard, aggregator->ctx, now_ns);
}
