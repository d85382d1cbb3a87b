#include "core/clock.h"
#include "core/url_show.h"
#include "daemon/bridge_inside.h"
#include "wire/bridge_status.h"
#include "wire/heartbeat.h"
#include "wire/load_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Heartbeats ---- */

/* People read the JSON form: once a second and on a change are enough for them, however
 * often aggregators are sent the other. */
static const uint64_t beat_json_ns = KVB_NS_PER_S;

static kvb_status publish_buf(struct kvb_bridge *bridge, const char *subject)
{
    KVB_TRY(kvb_bus_publish(bridge->bus, subject, kvb_buf_span(&bridge->buf)));
    bridge->events.messages++;
    return KVB_OK;
}

static bool is_json_due(const struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    const struct rank_beat_json *last = &rank->beat_json;

    return last->sent_ns == 0 || rank->beat_ns - last->sent_ns >= beat_json_ns || beat->is_bye ||
           beat->state != last->state || beat->reason != last->reason ||
           memcmp(&beat->epoch, &last->epoch, sizeof beat->epoch) != 0;
}

static kvb_status publish_beat_json(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    struct kvb_json_writer json = kvb_json_writer_of(&bridge->buf);

    kvb_buf_reset(&bridge->buf);
    kvb_heartbeat_json_write(beat, &json);
    KVB_TRY(json.status);
    KVB_TRY(publish_buf(bridge, bridge->heartbeat_json_subject));
    rank->beat_json = (struct rank_beat_json){
        .sent_ns = rank->beat_ns, .epoch = beat->epoch, .state = beat->state, .reason = beat->reason
    };
    return KVB_OK;
}

static kvb_status
publish_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    kvb_buf_reset(&bridge->buf);
    KVB_TRY(kvb_heartbeat_encode(beat, &bridge->buf));
    KVB_TRY(publish_buf(bridge, bridge->heartbeat_subject));
    if (is_json_due(rank, beat) && publish_beat_json(bridge, rank, beat) != KVB_OK) {
        bridge->events.failures++; /* the next heartbeat is due as JSON too */
    }
    return KVB_OK;
}

void kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    beat.is_bye = is_bye;
    kvb_bridge_telling_epoch(bridge, rank, &beat.epoch);
    if (publish_beat(bridge, rank, &beat) != KVB_OK) {
        bridge->events.failures++;
        return;
    }
    rank->is_beat_due = false;
    rank->is_beat_wanted = false;
}

void kvb_bridge_beat_opening(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    beat.state = KVB_STREAM_SYNCING;
    beat.reason = KVB_REASON_REPLAYING;
    memset(beat.tiers, 0, sizeof beat.tiers);
    kvb_bridge_telling_epoch(bridge, rank, &beat.epoch);
    if (publish_beat(bridge, rank, &beat) != KVB_OK) {
        bridge->events.failures++; /* aggregators then miss the epoch, and say so */
    }
}

/* ---- Load ---- */

static void
publish_load(struct kvb_bridge *bridge, const struct bridge_rank *rank, const struct kvb_load *load)
{
    struct kvb_load_report report = { .worker_id = rank->worker_id,
                                      .dp_rank = rank->dp_rank,
                                      .load = *load };

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
        const struct bridge_rank *rank = bridge->ranks[i];
        struct kvb_load load;
        if (kvb_newest_load_at(&rank->load, &rank->known, now_ns, &load)) {
            publish_load(bridge, rank, &load);
        }
    }
}

/* ---- Status ---- */

static uint64_t reconnects(uint64_t connects)
{
    return connects > 1 ? connects - 1 : 0;
}

static const char *origin_of(const struct bridge_rank *rank)
{
    static const char *const names[] = { [KVB_BRIDGE_OF_FILE] = "file",
                                         [KVB_BRIDGE_OF_REGISTERED] = "registered",
                                         [KVB_BRIDGE_OF_DISCOVERED] = "discovered" };

    return names[rank->origin < KVB_BRIDGE_OF_DISCOVERED ? rank->origin : KVB_BRIDGE_OF_DISCOVERED];
}

static void
fill_stream(const struct bridge_rank *rank, uint64_t now_ns, struct kvb_stream_report *out)
{
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->stream);

    *out = (struct kvb_stream_report){
        .lag_ms = rank->applied_ns ? (now_ns - rank->applied_ns) / KVB_NS_PER_MS : 0,
        .batches = counters->batches_applied,
        .events = counters->events_applied,
        .gaps = counters->gaps,
        .replays = counters->replays_requested,
        .restarts = counters->restarts,
        .reconnects = reconnects(kvb_source_count(rank->source)->connects),
        .unrooted = kvb_stream_mirror_count(rank->stream)->unrooted,
        .endpoint = rank->settings.events,
        .origin = origin_of(rank),
        .is_id_made = rank->settings.is_id_made,
        .configured_block_size = rank->settings.block_size,
        .why = rank->trouble.why.text,
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
        .nats_reconnects = reconnects(kvb_bus_connects(bridge->bus)),
        .streams = calloc(bridge->rank_count ? bridge->rank_count : 1, sizeof *report.streams),
        .stream_count = bridge->rank_count,
        .loads = calloc(KVB_LOAD_SOURCE_KIND_COUNT * bridge->load_count + 1, sizeof *report.loads),
    };

    if (!report.streams || !report.loads) {
        free(report.streams);
        free(report.loads);
        return KVB_NO_MEMORY;
    }
    memcpy(report.bridge_id, bridge->bridge_id, sizeof report.bridge_id);
    for (size_t i = 0; i < bridge->rank_count; i++) {
        fill_stream(bridge->ranks[i], now_ns, &report.streams[i]);
    }
    report.load_count = kvb_bridge_report_loads(bridge, now_ns, report.loads);
    kvb_buf_reset(&bridge->buf);
    kvb_status status = kvb_bridge_status_encode(&report, &bridge->buf);
    if (status == KVB_TOO_LARGE) { /* who and which profile must be said in any case */
        report.stream_count = 0;
        report.load_count = 0;
        kvb_buf_reset(&bridge->buf);
        status = kvb_bridge_status_encode(&report, &bridge->buf);
    }
    free(report.streams);
    free(report.loads);
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
    char shown[kvb_url_shown_bytes];

    if (!is_connected) {
        kvb_detail_set(
            &not_ready, "not connected to NATS at %s: is nats-server running?",
            kvb_urls_show(bridge->config->nats.url, shown, sizeof shown));
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
