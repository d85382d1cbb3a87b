#include "bus/denials.h"
#include "bus/permissions.h"
#include "core/clock.h"
#include "kvbridge/bridge.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/kubernetes.h"
#include "kvbridge/loads.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/rank.h"
#include "kvbridge/republish.h"
#include "kvbridge/shown.h"
#include "pods/pod.h"
#include "stream/advertiser.h"
#include "stream/share.h"
#include "stream/stream.h"
#include "wire/json/writer.h"
#include "wire/load/json.h"
#include "wire/router/bridge_status.h"
#include "wire/router/heartbeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Heartbeats ---- */

/* The JSON form of heartbeats is for people, who need it once a second and on a change;
 * aggregators read the binary form, which may be sent more often. */
static const uint64_t beat_json_ns = KVB_NS_PER_S;

static kvb_status publish_buf(struct bridge_publisher *publisher, const char *subject)
{
    KVB_TRY(kvb_bus_publish(publisher->bus, subject, kvb_buf_span(&publisher->buf)));
    publisher->events.messages++;
    return KVB_OK;
}

static bool is_json_due(const struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    const struct rank_beat_json *last = &rank->beat_json;

    return last->sent_ns == 0 || rank->served.advertiser.beat_ns - last->sent_ns >= beat_json_ns ||
           beat->is_bye || beat->state != last->state || beat->reason != last->reason ||
           !kvb_epoch_is_same(&beat->epoch, &last->epoch);
}

static kvb_status publish_beat_json(
    struct bridge_publisher *publisher, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    struct kvb_json_writer json = kvb_json_writer_of(&publisher->buf);

    kvb_buf_reset(&publisher->buf);
    kvb_heartbeat_json_write(beat, &json);
    KVB_TRY(json.status);
    KVB_TRY(publish_buf(publisher, publisher->heartbeat_json_subject));
    rank->beat_json = (struct rank_beat_json){ .sent_ns = rank->served.advertiser.beat_ns,
                                               .epoch = beat->epoch,
                                               .state = beat->state,
                                               .reason = beat->reason };
    return KVB_OK;
}

static kvb_status publish_beat(
    struct bridge_publisher *publisher, struct bridge_rank *rank, const struct kvb_heartbeat *beat)
{
    kvb_buf_reset(&publisher->buf);
    KVB_TRY(kvb_heartbeat_encode(beat, &publisher->buf));
    KVB_TRY(publish_buf(publisher, publisher->heartbeat_subject));
    /* It has been sent to those who count on it; the form for people can wait. */
    if (is_json_due(rank, beat) && publish_beat_json(publisher, rank, beat) != KVB_OK) {
        publisher->events.failures++; /* the next heartbeat is due as JSON too */
    }
    return KVB_OK;
}

/* The engine's own list says what it serves now; where it is not known or was cut, the adapters
 * that events have named count too. */
static void put_names(const struct bridge_rank *rank, struct kvb_served_names *names)
{
    const struct kvb_served_names of_events = *names;
    struct kvb_served_name one;

    *names = rank->names;
    if (kvb_served_names_are_all(names)) {
        return;
    }
    names->left_out += of_events.left_out;
    for (size_t at = 0; kvb_served_names_next(&of_events, &at, &one);) {
        /* It counts those that it has no room for. */
        (void)kvb_served_names_add(names, one.kind, kvb_span_of(one.name));
    }
}

kvb_status kvb_bridge_beat(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_bye)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->served.stream, &beat);
    beat.is_bye = is_bye;
    /* What the stream does not know: who serves it, and who publishes it. */
    put_names(rank, &beat.names);
    beat.facts = rank->facts;
    beat.facts.is_draining |= rank->is_draining;
    beat.period_ms = bridge->config->publish.heartbeat_ms;
    beat.publisher = bridge->publisher->id;
    /* A checkpoint of another epoch must be gone before readers hear of this one. */
    kvb_bridge_telling_epoch(bridge, rank, &beat.epoch);
    const kvb_status status = publish_beat(bridge->publisher, rank, &beat);
    bridge->publisher->events.failures += status != KVB_OK;
    return status;
}

/* ---- Load ---- */

static void
publish_load(struct kvb_bridge *bridge, const struct bridge_rank *rank, const struct kvb_load *load)
{
    struct kvb_load_report report = { .worker_id = rank->worker_id,
                                      .dp_rank = rank->dp_rank,
                                      .endpoint_name = "generate", /* Dynamo's usual one */
                                      .load = *load,
                                      .block_size = rank->page_block_size };

    kvb_buf_reset(&bridge->publisher->buf);
    if (kvb_load_json_encode(&report, &bridge->publisher->buf) != KVB_OK ||
        kvb_bus_publish(
            bridge->publisher->bus, bridge->publisher->load_subject,
            kvb_buf_span(&bridge->publisher->buf)) != KVB_OK) {
        bridge->publisher->events.failures++;
        return;
    }
    bridge->publisher->events.messages++;
}

void kvb_bridge_publish_loads(struct kvb_bridge *bridge, uint64_t now_ns)
{
    if (now_ns >= bridge->publisher->load_until_ns) {
        return; /* an idle bridge does not look at each rank */
    }
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        const struct bridge_rank *rank = bridge->membership->ranks[i];
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

static void fill_speculation(const struct kvb_stream *stream, struct kvb_speculation_report *out)
{
    const struct kvb_speculation_finding finding = kvb_stream_speculation(stream);

    *out = (struct kvb_speculation_report){
        .is_shown = finding.source != KVB_SPECULATION_OF_NOTHING,
        .is_undecided = finding.speculation == KVB_SPECULATION_UNDECIDED,
        .drop = finding.drop,
        .source = kvb_speculation_source_name(finding.source),
        .why = finding.why,
    };
}

static const char *origin_name(const struct bridge_rank *rank)
{
    static const char *const names[KVB_SOURCE_COUNT] = { [KVB_SOURCE_FILE] = "file",
                                                         [KVB_SOURCE_REGISTERED] = "registered",
                                                         [KVB_SOURCE_KUBERNETES] = "kubernetes",
                                                         [KVB_SOURCE_DNS] = "dns" };

    return rank->part->worker->discover[0] != '\0' ? "discovered" : names[rank->source_number];
}

static void
fill_rank_report(const struct bridge_rank *rank, uint64_t now_ns, struct kvb_stream_report *out)
{
    const struct kvb_stream_counters *counters = kvb_stream_count(rank->served.stream);

    *out = (struct kvb_stream_report){
        .lag_ms = rank->applied_ns ? (now_ns - rank->applied_ns) / KVB_NS_PER_MS : 0,
        .batches = counters->batches_applied,
        .events = counters->events_applied,
        .gaps = counters->gaps,
        .replays = counters->replays_requested,
        .restarts = counters->restarts,
        .reconnects = reconnects(kvb_source_count(rank->source)->connects),
        .unrooted = kvb_stream_mirror_count(rank->served.stream)->unrooted,
        .endpoint = rank->part->events,
        .origin = origin_name(rank),
        .model_rule = rank->part->worker->model_rule,
        .is_id_made = rank->part->worker->is_id_made,
        .configured_block_size = rank->part->worker->block_size,
        .why = kvb_share_is_quarantined(&rank->served.share)
                   ? "quarantined: its events took more than half of the bridge's thread"
                   : rank->trouble.why.text,
    };
    if (rank->republish) {
        kvb_bridge_report_republish(rank, &out->republish);
    }
    kvb_stream_heartbeat(rank->served.stream, &out->beat);
    /* One sentence is shown, the first that is found. */
    const char *why = kvb_stream_why(rank->served.stream, out->beat.reason);
    if (why && out->why[0] == '\0') {
        out->why = why;
    }
    /* An exact list needs no explanation, even if its engine has fallen silent. */
    if (out->why[0] == '\0' && out->beat.state != KVB_STREAM_EXACT) {
        out->why = rank->trouble.silence_why.text;
    }
    const char *of_store = kvb_bridge_store_trouble(rank, &out->beat);
    if (of_store && out->why[0] == '\0') {
        out->why = of_store;
    }
    out->beat.facts = rank->facts;
    /* Its source or an operator has it drained. */
    out->beat.facts.is_draining |= rank->is_draining;
    fill_speculation(rank->served.stream, &out->speculation);
    out->has_last_seq = kvb_stream_last_seq(rank->served.stream, &out->last_seq);
}

/* What else is done once a second for each rank, while the status has its memory in the cache. */
struct ranks_reported {
    struct kvb_bridge *bridge;
    uint64_t now_ns;
    bool updates; /* its values on /metrics */
    struct bridge_totals totals;
    uint32_t exact;
    uint32_t counted; /* kvb_stream_is_counted() */
};

static void fill_next_report(void *context, size_t at, struct kvb_stream_report *out)
{
    struct ranks_reported *reported = context;
    struct bridge_rank *rank = reported->bridge->membership->ranks[at];

    fill_rank_report(rank, reported->now_ns, out);
    reported->exact += out->beat.state == KVB_STREAM_EXACT;
    reported->counted += kvb_stream_is_counted(out->beat.state, out->beat.reason);
    kvb_bridge_look_for_checkpoint(reported->bridge, rank, reported->now_ns);
    if (reported->updates) {
        kvb_bridge_update_rank(
            reported->bridge, rank, &out->beat, reported->now_ns, &reported->totals);
    }
}

/* The status of the Kubernetes watch, as a report borrows it. */
struct pods_reported {
    struct kvb_kubernetes_status status;
    struct kvb_named_count pods[KVB_POD_STATE_COUNT];
    struct kvb_named_count refused[KVB_POD_REFUSAL_COUNT];
    struct kvb_pod_report not_taken[kvb_max_pods_shown];
    struct kvb_kubernetes_report report;
};

static void
report_pods(struct kvb_kubernetes *kubernetes, uint64_t now_ns, struct pods_reported *out)
{
    struct kvb_kubernetes_status *status = &out->status;

    kvb_kubernetes_read_status(kubernetes, status);
    for (size_t i = 0; i < KVB_POD_STATE_COUNT; i++) {
        out->pods[i] = (struct kvb_named_count){ kvb_pod_state_name((enum kvb_pod_state)i),
                                                 status->counts[i] };
    }
    for (size_t i = 0; i < KVB_POD_REFUSAL_COUNT; i++) {
        out->refused[i] = (struct kvb_named_count){ kvb_pod_refusal_name((enum kvb_pod_refusal)i),
                                                    status->refused[i] };
    }
    for (size_t i = 0; i < status->shown_count; i++) {
        const struct kvb_pod_shown *pod = &status->shown[i];
        out->not_taken[i] = (struct kvb_pod_report){ .pod = pod->name,
                                                     .name_space = pod->name_space,
                                                     .reason = kvb_pod_state_name(pod->state),
                                                     .remedy = kvb_pod_state_remedy(pod->state) };
    }
    const bool is_away = status->away_ns != 0 && status->away_ns < now_ns;
    out->report = (struct kvb_kubernetes_report){
        .state = kvb_kubernetes_state_name(status->state),
        .away_s = is_away ? (now_ns - status->away_ns) / KVB_NS_PER_S : 0,
        .why = status->why.text,
        .pods = out->pods,
        .pod_count = KVB_POD_STATE_COUNT,
        .refused = out->refused,
        .refused_count = KVB_POD_REFUSAL_COUNT,
        .refused_why = status->refused_why.text,
        .not_taken = out->not_taken,
        .not_taken_count = status->shown_count,
    };
}

/* Which streams a status lists.  Load sources are listed only together with all streams. */
struct status_page {
    size_t first;
    size_t count;
};

static kvb_status
make_status(struct kvb_bridge *bridge, uint64_t now_ns, const struct status_page *page)
{
    const size_t ranks = bridge->membership->rank_count;
    const bool is_whole = page->count == ranks;
    struct ranks_reported reported = { .bridge = bridge,
                                       .now_ns = now_ns,
                                       .updates =
                                           is_whole && kvb_bridge_updates_with_status(bridge) };
    struct kvb_bridge_report report = {
        .version = KVB_VERSION,
        .name_space = bridge->config->publish.name_space,
        .component = bridge->config->publish.component,
        .formats = bridge->config->publish.formats,
        .is_publishing = kvb_bus_is_connected(bridge->publisher->bus),
        .uptime_s = (now_ns - bridge->started_ns) / KVB_NS_PER_S,
        .events_published = bridge->publisher->events.events,
        .batches_received = kvb_metric_get(&bridge->shown->metrics, kvb_bridge_batches_received),
        .nats_reconnects = reconnects(kvb_bus_connects(bridge->publisher->bus)),
        .fill_stream = fill_next_report,
        .context = &reported,
        .first_stream = page->first,
        .stream_count = page->count,
        .streams_left_out = ranks - page->count,
        .loads = calloc(
            KVB_LOAD_SOURCE_KIND_COUNT * bridge->membership->load_count + 1, sizeof *report.loads),
    };

    if (!report.loads) {
        return KVB_NO_MEMORY;
    }
    memcpy(report.bridge_id, bridge->bridge_id, sizeof report.bridge_id);
    report.load_count =
        is_whole ? kvb_bridge_report_loads(bridge->membership, now_ns, report.loads) : 0;
    struct pods_reported pods;
    if (bridge->membership->kubernetes) {
        report_pods(bridge->membership->kubernetes, now_ns, &pods);
        report.kubernetes = &pods.report;
    }
    kvb_buf_reset(&bridge->publisher->status);
    const kvb_status status = kvb_bridge_status_encode(&report, &bridge->publisher->status);
    free(report.loads);
    if (is_whole) { /* all ranks were reported */
        kvb_exact_share_set(&bridge->shown->share, reported.exact, reported.counted);
        if (reported.updates) {
            kvb_bridge_show_totals(bridge, &reported.totals);
        }
    }
    return status;
}

/* Copies the status, and why the bridge is not ready, to where HTTP threads read them. */
static void show_status(struct kvb_bridge *bridge, const struct kvb_detail *not_ready)
{
    const kvb_span text = kvb_buf_span(&bridge->publisher->status);

    (void)pthread_mutex_lock(&bridge->shown->text_lock);
    kvb_buf_reset(&bridge->shown->state_text);
    /* Without memory it is empty, and HTTP answers 503. */
    (void)kvb_buf_append(&bridge->shown->state_text, text.data, text.len);
    bridge->shown->not_ready = *not_ready;
    (void)pthread_mutex_unlock(&bridge->shown->text_lock);
}

/* True: the bridge cannot work without this permission.  Denials of answer subjects do not count,
 * because requesters choose these subjects. */
static bool is_vital_denial(const void *context, const struct kvb_denial *denial)
{
    const struct kvb_bridge *bridge = context;

    return kvb_permissions_is_vital(&bridge->publisher->permissions, denial);
}

/* The next streams after those of the previous page; after the last stream it begins again with the
 * first. */
static struct status_page next_page(struct kvb_bridge *bridge, size_t max_bytes)
{
    const size_t ranks = bridge->membership->rank_count;
    const size_t rank_bytes = bridge->publisher->status.len / (ranks + 1) + 1;
    /* With a reserve, because some rows are longer than the mean. */
    const size_t room = max_bytes / 4 * 3 / rank_bytes;
    const size_t first = bridge->publisher->page_end < ranks ? bridge->publisher->page_end : 0;
    const size_t count = room < ranks - first ? room : ranks - first;

    bridge->publisher->page_end = first + count;
    return (struct status_page){ .first = first, .count = count };
}

/* Shortens a status that exceeds the server's max_payload: to a page of streams, or to no streams
 * if that page is still too large. */
static kvb_status fit_status(struct kvb_bridge *bridge, uint64_t now_ns)
{
    static const struct status_page none = { 0 };
    const size_t max_bytes = kvb_bus_max_payload(bridge->publisher->bus);

    if (bridge->publisher->status.len <= max_bytes) {
        return KVB_OK;
    }
    const struct status_page page = next_page(bridge, max_bytes);
    KVB_TRY(make_status(bridge, now_ns, &page));
    return bridge->publisher->status.len <= max_bytes ? KVB_OK : make_status(bridge, now_ns, &none);
}

void kvb_bridge_publish_status(struct kvb_bridge *bridge, uint64_t now_ns)
{
    struct kvb_detail not_ready = { .text = "" };
    const bool is_connected = kvb_bus_is_connected(bridge->publisher->bus);

    if (!is_connected) {
        kvb_bus_explain_absence(bridge->publisher->bus, &not_ready);
    } else {
        /* A bridge may be connected, and lack a permission without which it cannot work. */
        (void)kvb_bus_is_denied(bridge->publisher->bus, is_vital_denial, bridge, &not_ready);
    }
    const struct status_page whole = { .count = bridge->membership->rank_count };
    if (make_status(bridge, now_ns, &whole) != KVB_OK) {
        return; /* out of memory: keep the previous status */
    }
    /* Before it is shortened for NATS: HTTP has no such limit. */
    show_status(bridge, &not_ready);
    if (is_connected && fit_status(bridge, now_ns) == KVB_OK) {
        /* On failure it is sent again in 1 s. */
        (void)kvb_bus_publish(
            bridge->publisher->bus, bridge->publisher->status_subject,
            kvb_buf_span(&bridge->publisher->status));
    }
}
