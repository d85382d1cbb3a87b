#include "core/clock.h"
#include "daemon/bridge_inside.h"
#include "wire/bridge_status.h"
#include "wire/heartbeat.h"
#include "wire/load_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sample older than this is not repeated: silence must be seen as silence. */
static const uint64_t load_life_ns = 3 * KVB_NS_PER_S;

/* ---- Heartbeats ---- */

void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    beat.is_bye = is_bye;
    kvb_buf_reset(&bridge->buf);
    if (kvb_heartbeat_encode(&beat, &bridge->buf) != KVB_OK ||
        kvb_bus_publish(bridge->bus, bridge->heartbeat_subject, kvb_buf_span(&bridge->buf)) !=
            KVB_OK) {
        bridge->events.failures++;
        return;
    }
    rank->is_beat_due = false;
    bridge->events.messages++;
}

/* ---- Load ---- */

static void publish_load(struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    struct kvb_load_report report = { .worker_id = rank->worker_id,
                                      .dp_rank = rank->dp_rank,
                                      .load = rank->load };

    (void)snprintf(
        report.endpoint_name, sizeof report.endpoint_name, "%s",
        bridge->config->publish.endpoint_name);
    kvb_buf_reset(&bridge->buf);
    if (kvb_load_json_encode(&report, &bridge->buf) != KVB_OK ||
        kvb_bus_publish(bridge->bus, bridge->load_subject, kvb_buf_span(&bridge->buf)) != KVB_OK) {
        bridge->events.failures++;
        return;
    }
    bridge->events.messages++;
}

void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns)
{
    for (size_t i = 0; i < bridge->rank_count; i++) {
        const struct bridge_rank *rank = &bridge->ranks[i];
        if (rank->has_load && now_ns < rank->load_ns + load_life_ns) {
            publish_load(bridge, rank);
        }
    }
}

/* ---- Status ---- */

static void
fill_stream(const struct bridge_rank *rank, uint64_t now_ns, struct kvb_stream_report *out)
{
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->stream);

    *out = (struct kvb_stream_report){
        .lag_ms = rank->applied_ns ? (now_ns - rank->applied_ns) / KVB_NS_PER_MS : 0,
        .batches = counters->batches_applied,
        .gaps = counters->gaps,
        .replays = counters->replays_requested,
        .restarts = counters->restarts,
        .unrooted = kvb_stream_mirror_count(rank->stream)->unrooted,
        .endpoint = rank->endpoint,
    };
    kvb_stream_heartbeat(rank->stream, &out->beat);
    out->has_last_seq = kvb_stream_last_seq(rank->stream, &out->last_seq);
}

static kvb_status make_status(struct kvb_bridge *bridge, uint64_t now_ns, bool is_publishing)
{
    struct kvb_bridge_report report = {
        .version = KVB_VERSION,
        .name_space = bridge->config->publish.name_space,
        .component = bridge->config->publish.component,
        .profile = bridge->config->publish.profile,
        .is_publishing = is_publishing,
        .uptime_s = (now_ns - bridge->started_ns) / KVB_NS_PER_S,
        .events_published = bridge->events.events,
        .batches_received = kvb_metric_get(&bridge->metrics, kvb_bridge_batches_received),
        .streams = calloc(bridge->rank_count ? bridge->rank_count : 1, sizeof *report.streams),
        .stream_count = bridge->rank_count,
    };

    if (!report.streams) {
        return KVB_NO_MEMORY;
    }
    memcpy(report.bridge_id, bridge->bridge_id, sizeof report.bridge_id);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        fill_stream(&bridge->ranks[i], now_ns, &report.streams[i]);
    }
    kvb_buf_reset(&bridge->buf);
    kvb_status status = kvb_bridge_status_encode(&report, &bridge->buf);
    if (status == KVB_TOO_LARGE) { /* who and which profile must be said in any case */
        report.stream_count = 0;
        kvb_buf_reset(&bridge->buf);
        status = kvb_bridge_status_encode(&report, &bridge->buf);
    }
    free(report.streams);
    return status;
}

/* HTTP threads read the newest status and the reason why we are not ready. */
static void show_status(struct kvb_bridge *bridge, const struct kvb_detail *not_ready)
{
    const kvb_span text = kvb_buf_span(&bridge->buf);

    (void)pthread_mutex_lock(&bridge->text_lock);
    kvb_buf_reset(&bridge->state_text);
    (void)kvb_buf_append(&bridge->state_text, text.data, text.len); /* else: an empty page */
    bridge->not_ready = *not_ready;
    (void)pthread_mutex_unlock(&bridge->text_lock);
}

void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_detail not_ready = { .text = "" };
    const bool is_connected = kvb_bus_is_connected(bridge->bus);
    bool is_publishing = false;

    if (!is_connected) {
        kvb_detail_set(
            &not_ready, "not connected to NATS at %s: is nats-server running?",
            bridge->config->nats.url);
    } else {
        is_publishing = kvb_profile_guard_allows(&bridge->guard, now_ns, &not_ready);
    }
    if (make_status(bridge, now_ns, is_publishing) != KVB_OK) {
        return; /* memory is out: the last status stands */
    }
    show_status(bridge, &not_ready);
    if (is_connected) {
        (void)kvb_bus_publish(
            bridge->bus, bridge->status_subject, kvb_buf_span(&bridge->buf)); /* again in 1 s */
    }
}

/* ---- Metrics ---- */

struct stream_metric {
    enum kvb_bridge_metric metric;
    size_t offset; /* of a uint64_t in struct kvb_stream_counters */
};

/* clang-format off */
static const struct stream_metric stream_metrics[] = {
    { kvb_bridge_batches_applied, offsetof(struct kvb_stream_counters, batches_applied) },
    { kvb_bridge_events_applied, offsetof(struct kvb_stream_counters, events_applied) },
    { kvb_bridge_duplicates, offsetof(struct kvb_stream_counters, duplicates) },
    { kvb_bridge_gaps, offsetof(struct kvb_stream_counters, gaps) },
    { kvb_bridge_batches_missed, offsetof(struct kvb_stream_counters, batches_missed) },
    { kvb_bridge_replays_requested, offsetof(struct kvb_stream_counters, replays_requested) },
    { kvb_bridge_replays_completed, offsetof(struct kvb_stream_counters, replays_completed) },
    { kvb_bridge_replays_failed, offsetof(struct kvb_stream_counters, replays_failed) },
    { kvb_bridge_batches_replayed, offsetof(struct kvb_stream_counters, batches_replayed) },
    { kvb_bridge_restarts, offsetof(struct kvb_stream_counters, restarts) },
    { kvb_bridge_clears, offsetof(struct kvb_stream_counters, clears) },
    { kvb_bridge_skipped_bad_stored, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_BAD_STORED]) },
    { kvb_bridge_skipped_bad_removed, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_BAD_REMOVED]) },
    { kvb_bridge_skipped_unknown_event, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_UNKNOWN_EVENT]) },
    { kvb_bridge_skipped_not_prefix, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_NOT_PREFIX]) },
    { kvb_bridge_skipped_remote, offsetof(struct kvb_stream_counters, skipped[KVB_SKIP_REMOTE]) },
};
/* clang-format on */

static uint64_t sum_over_streams(const struct kvb_bridge *bridge, size_t offset)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        const uint8_t *counters = (const uint8_t *)kvb_stream_count(bridge->ranks[i].stream);
        uint64_t value = 0;
        memcpy(&value, counters + offset, sizeof value);
        sum += value;
    }
    return sum;
}

static void update_gauges(struct kvb_bridge *bridge)
{
    uint64_t exact = 0;
    uint64_t held = 0;
    uint64_t doubtful = 0;
    uint64_t unrooted = 0;
    uint64_t no_tokens = 0;
    uint64_t self_parents = 0;

    for (size_t i = 0; i < bridge->rank_count; i++) {
        const struct kvb_stream *stream = bridge->ranks[i].stream;
        const struct kvb_mirror_counts *counts = kvb_stream_mirror_count(stream);
        struct kvb_heartbeat beat;
        kvb_stream_heartbeat(stream, &beat);
        exact += beat.state == KVB_STREAM_EXACT;
        doubtful += counts->doubtful;
        unrooted += counts->unrooted;
        no_tokens += counts->no_tokens;
        self_parents += counts->self_parents;
        for (size_t tier = 0; tier < KVB_TIER_COUNT; tier++) {
            held += counts->held[tier];
        }
    }
    kvb_metric_set(&bridge->metrics, kvb_bridge_streams, bridge->rank_count);
    kvb_metric_set(&bridge->metrics, kvb_bridge_streams_exact, exact);
    kvb_metric_set(&bridge->metrics, kvb_bridge_blocks_held, held);
    kvb_metric_set(&bridge->metrics, kvb_bridge_blocks_doubtful, doubtful);
    kvb_metric_set(&bridge->metrics, kvb_bridge_blocks_unrooted, unrooted);
    kvb_metric_set(&bridge->metrics, kvb_bridge_skipped_no_tokens, no_tokens);
    kvb_metric_set(&bridge->metrics, kvb_bridge_skipped_self_parent, self_parents);
}

void kvb_bridge_update_metrics(struct kvb_bridge *bridge)
{
    for (size_t i = 0; i < KVB_COUNT_OF(stream_metrics); i++) {
        kvb_metric_set(
            &bridge->metrics, stream_metrics[i].metric,
            sum_over_streams(bridge, stream_metrics[i].offset));
    }
    update_gauges(bridge);
    kvb_metric_set(&bridge->metrics, kvb_bridge_events_published, bridge->events.events);
    kvb_metric_set(&bridge->metrics, kvb_bridge_messages_published, bridge->events.messages);
    kvb_metric_set(&bridge->metrics, kvb_bridge_publish_failures, bridge->events.failures);
    kvb_metric_set(&bridge->metrics, kvb_bridge_nats_connects, kvb_bus_connects(bridge->bus));
    kvb_metric_set(
        &bridge->metrics, kvb_bridge_nats_connected, kvb_bus_is_connected(bridge->bus) ? 1 : 0);
}
