#include "kvaggregator/audit.h"

#include "core/clock.h"
#include "core/metric.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/config.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "load/audit.h"
#include "load/requests.h"
#include "replica/follower.h"

/* Carries the verdicts of load/audit.h over to the streams, and tells the audit what the streams
 * themselves have taken back. */

static const uint64_t mark_every_ns = KVB_NS_PER_S;

void kvb_aggregator_audit_events(
    struct kvb_aggregator *aggregator, const struct kvb_router_batch *slice)
{
    const struct kvb_stream_id *id = &aggregator->intake->batch_id;

    for (size_t i = 0; i < slice->event_count; i++) {
        const struct kvb_router_event *event = &slice->events[i];
        /* Only what a promise may rest on: other tiers are not promised. */
        if (event->kind == KVB_ROUTER_CLEARED) {
            kvb_audit_cleared(aggregator->audit, id);
        } else if (
            event->kind == KVB_ROUTER_REMOVED && event->block_count > 0 &&
            (event->tier == KVB_TIER_DEVICE || event->tier == KVB_LIST_WINDOW)) {
            kvb_requests_blocks_removed(
                aggregator->requests, id, slice->blocks + event->block_at, event->block_count);
        }
    }
}

/* An epoch begins with an empty list; its `cleared` may have been lost. */
void kvb_aggregator_audit_heartbeat(
    struct kvb_aggregator *aggregator, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat)
{
    const struct kvb_follower *follower = kvb_followers_find(aggregator->followers, id);

    if (!follower || !follower->has_heartbeat ||
        !kvb_epoch_is_same(&follower->heartbeat.epoch, &heartbeat->epoch)) {
        kvb_audit_cleared(aggregator->audit, id);
    }
}

/* ---- Verdicts ---- */

static void say_blocks_short(struct kvb_aggregator *aggregator)
{
    struct kvb_audit_stats stats;
    enum kvb_audit_verdict verdict = KVB_AUDIT_KEPT;

    for (size_t i = 0; i < kvb_audit_limit(aggregator->audit); i++) {
        const struct kvb_stream_id *id = kvb_audit_at(aggregator->audit, i, &verdict);
        /* Once a stream: taking it also marks it as said. */
        if (id && kvb_audit_take_block_short(aggregator->audit, i) &&
            kvb_audit_find(aggregator->audit, id, &stats)) {
            kvb_log_write(
                aggregator->log, KVB_LOG_WARNING, "aggregator",
                "an engine delivers one block less than its events promise, again and again", "why",
                kvb_audit_why(&stats), "namespace", id->name_space, "component", id->component,
                "worker_id", KVB_LOG_U64(id->worker_id), "dp_rank", KVB_LOG_U64(id->dp_rank), NULL);
        }
    }
}

static void
mark_stream(struct kvb_aggregator *aggregator, const struct kvb_follower *follower, uint64_t now_ns)
{
    struct kvb_audit_stats stats = { .verdict = KVB_AUDIT_KEPT };
    const struct kvb_stream_id id = follower->id;

    (void)kvb_audit_find(aggregator->audit, &id, &stats); /* not audited: kept */
    const bool is_doubted = stats.verdict != KVB_AUDIT_KEPT;
    if (is_doubted == follower->is_doubted) {
        return;
    }
    kvb_followers_set_doubted(aggregator->followers, &id, is_doubted, now_ns);
    kvb_log_write(
        aggregator->log, is_doubted ? KVB_LOG_WARNING : KVB_LOG_INFO, "aggregator",
        is_doubted ? "the engine delivers fewer cached tokens than its events promise; the stream "
                     "is UNVERIFIED(audit) until its list is cleared"
                   : "the list that the audit contradicted was cleared",
        "namespace", id.name_space, "component", id.component, "worker_id",
        KVB_LOG_U64(id.worker_id), "dp_rank", KVB_LOG_U64(id.dp_rank), "promised_tokens",
        KVB_LOG_U64(stats.promised_tokens), "delivered_tokens", KVB_LOG_U64(stats.delivered_tokens),
        NULL);
}

/* All streams are compared when a verdict has changed, and once a second while there are doubted
 * ones, because a stream may have been forgotten and be back. */
static void mark_streams(
    struct kvb_aggregator *aggregator, const struct kvb_audit_counters *counters, uint64_t now_ns)
{
    const uint64_t changes = counters->alarms + counters->returns;
    const bool is_due = counters->broken > 0 && now_ns >= aggregator->marks->next_mark_ns;

    if (!aggregator->config->audit.marks || (changes == aggregator->marks->marked && !is_due)) {
        return;
    }
    /* A stream that is no longer followed has no list that could be wrong. */
    for (size_t i = 0; i < kvb_audit_limit(aggregator->audit); i++) {
        enum kvb_audit_verdict verdict = KVB_AUDIT_KEPT;
        const struct kvb_stream_id *id = kvb_audit_at(aggregator->audit, i, &verdict);
        if (id && verdict == KVB_AUDIT_BROKEN && !kvb_followers_find(aggregator->followers, id)) {
            kvb_audit_cleared(aggregator->audit, id);
        }
    }
    aggregator->marks->marked = changes;
    aggregator->marks->next_mark_ns = now_ns + mark_every_ns;
    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower) {
            mark_stream(aggregator, follower, now_ns);
        }
    }
}

/* ---- Metrics ---- */

/* clang-format off */
static const enum kvb_aggregator_metric left_out[KVB_LEFT_OUT_COUNT] = {
    [KVB_LEFT_OUT_NO_PROMISE] = kvb_aggregator_audit_no_promise,
    [KVB_LEFT_OUT_EVICTED] = kvb_aggregator_audit_evicted,
    [KVB_LEFT_OUT_LIST_CHANGED] = kvb_aggregator_audit_list_changed,
    [KVB_LEFT_OUT_NO_ROOM] = kvb_aggregator_audit_no_room,
};
/* clang-format on */

static void
count_audit(struct kvb_aggregator *aggregator, const struct kvb_audit_counters *counters)
{
    struct kvb_metrics *metrics = aggregator->metrics;

    kvb_metric_set(metrics, kvb_aggregator_audit_requests, counters->requests);
    kvb_metric_set(metrics, kvb_aggregator_audit_short, counters->short_requests);
    kvb_metric_set(metrics, kvb_aggregator_audit_promised, counters->promised_tokens);
    kvb_metric_set(metrics, kvb_aggregator_audit_delivered, counters->delivered_tokens);
    kvb_metric_set(metrics, kvb_aggregator_audit_extra, counters->extra_tokens);
    kvb_metric_set(metrics, kvb_aggregator_audit_alarms, counters->alarms);
    kvb_metric_set(metrics, kvb_aggregator_audit_returns, counters->returns);
    kvb_metric_set(metrics, kvb_aggregator_audit_streams, counters->streams);
    kvb_metric_set(metrics, kvb_aggregator_audit_doubted, counters->broken);
    for (size_t i = 0; i < KVB_LEFT_OUT_COUNT; i++) {
        kvb_metric_set(metrics, left_out[i], aggregator->ctx->audit_left_out[i]);
    }
}

void kvb_aggregator_update_audit(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_audit_counters counters;

    kvb_audit_expire(aggregator->audit, now_ns);
    kvb_audit_count(aggregator->audit, &counters);
    if (counters.block_short != aggregator->marks->said_short) {
        aggregator->marks->said_short = counters.block_short;
        say_blocks_short(aggregator);
    }
    mark_streams(aggregator, &counters, now_ns);
    count_audit(aggregator, &counters);
}
