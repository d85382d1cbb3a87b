#include "wire/router/bridge_status.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/scan.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"
#include "wire/router/heartbeat.h"

#include <stdio.h>
#include <string.h>

const char *kvb_load_source_kind_name(enum kvb_load_source_kind kind)
{
    static const char *const names[KVB_LOAD_SOURCE_KIND_COUNT] = {
        [KVB_LOAD_OF_ZMQ] = "zmq",
        [KVB_LOAD_OF_PROMETHEUS] = "prometheus",
        [KVB_LOAD_OF_COORDINATOR] = "coordinator",
    };

    return kind < KVB_LOAD_SOURCE_KIND_COUNT ? names[kind] : "unknown";
}

static const char *load_source_state_name(enum kvb_load_source_state state)
{
    static const char *const names[KVB_LOAD_SOURCE_STATE_COUNT] = {
        [KVB_LOAD_SOURCE_WAITING] = "waiting",
        [KVB_LOAD_SOURCE_FRESH] = "fresh",
        [KVB_LOAD_SOURCE_STALE] = "stale",
    };

    return state < KVB_LOAD_SOURCE_STATE_COUNT ? names[state] : "unknown";
}

static void write_blocks_by_tier(struct kvb_json_writer *json, const struct kvb_heartbeat *beat)
{
    kvb_json_write_pair_begin(json, "blocks", '{');
    /* The tiers alone: a heartbeat has the window list, too. */
    for (size_t t = 0; t < KVB_TIER_COUNT; t++) {
        kvb_json_write_pair_u64(json, kvb_tier_name((enum kvb_tier)t), beat->tiers[t].blocks);
    }
    kvb_json_write_end(json, '}');
}

static void
write_stream_identity(struct kvb_json_writer *json, const struct kvb_stream_report *stream)
{
    const struct kvb_heartbeat *beat = &stream->beat;

    kvb_json_write_pair_u64(json, "worker_id", beat->worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", beat->dp_rank);
    kvb_json_write_pair_text(json, "endpoint", stream->endpoint);
    kvb_json_write_pair_text(json, "origin", stream->origin);
    kvb_json_write_pair_bool(json, "id_made", stream->is_id_made);
    kvb_json_write_pair_text(json, "model", beat->model);
    if (stream->model_rule && stream->model_rule[0] != '\0') {
        kvb_json_write_pair_text(json, "model_rule", stream->model_rule);
    }
    kvb_json_write_pair_u64(json, "block_size", beat->block_size);
    /* Shown where the events contradict the configuration. */
    if (stream->configured_block_size != beat->block_size) {
        kvb_json_write_pair_u64(json, "block_size_configured", stream->configured_block_size);
    }
    kvb_worker_facts_json_write(&beat->facts, json);
}

static void write_stream_state(struct kvb_json_writer *json, const struct kvb_stream_report *stream)
{
    const struct kvb_heartbeat *beat = &stream->beat;

    kvb_json_write_pair_text(json, "state", kvb_stream_state_name(beat->state));
    kvb_json_write_pair_text(json, "reason", kvb_stream_reason_name(beat->reason));
    if (stream->why[0] != '\0') {
        kvb_json_write_pair_text(json, "why", stream->why);
    }
    write_blocks_by_tier(json, beat);
    kvb_unverified_tiers_json_write(beat, json);
    kvb_json_write_pair_u64(json, "doubtful", beat->doubtful);
    kvb_json_write_pair_u64(json, "unrooted", stream->unrooted);
    /* Absent where no limit is known; 0 would say that nothing is missing. */
    if (beat->has_missing_at_most) {
        kvb_json_write_pair_u64(json, "missing_at_most", beat->missing_at_most);
    }
}

static void
write_republish(struct kvb_json_writer *json, const struct kvb_republish_report *republish)
{
    if (!republish->events) {
        return;
    }
    kvb_json_write_key(json, "republish");
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "events", republish->events);
    if (republish->replay[0] != '\0') {
        kvb_json_write_pair_text(json, "replay", republish->replay);
    }
    kvb_json_write_pair_u64(json, "blocks", republish->blocks);
    kvb_json_write_pair_u64(json, "left_out", republish->left_out);
    kvb_json_write_pair_u64(json, "next_number", republish->next_number);
    kvb_json_write_pair_u64(json, "answers", republish->answers);
    if (republish->why[0] != '\0') {
        kvb_json_write_pair_text(json, "why", republish->why);
    }
    kvb_json_write_end(json, '}');
}

static void
write_speculation(struct kvb_json_writer *json, const struct kvb_speculation_report *speculation)
{
    if (!speculation->is_shown) {
        return;
    }
    kvb_json_write_pair_begin(json, "speculative_drop", '{');
    /* A 0 would say that there is no drop. */
    if (!speculation->is_undecided) {
        kvb_json_write_pair_u64(json, "blocks", speculation->drop);
    }
    kvb_json_write_pair_text(json, "source", speculation->source);
    kvb_json_write_pair_text(json, "why", speculation->why);
    kvb_json_write_end(json, '}');
}

static void
write_stream_report(struct kvb_json_writer *json, const struct kvb_stream_report *stream)
{
    kvb_json_write_begin(json, '{');
    write_stream_identity(json, stream);
    write_stream_state(json, stream);
    if (stream->has_last_seq) {
        kvb_json_write_pair_u64(json, "last_seq", stream->last_seq);
    }
    kvb_json_write_pair_u64(json, "event_id", stream->beat.last_id);
    kvb_json_write_pair_u64(json, "lag_ms", stream->lag_ms);
    kvb_json_write_pair_u64(json, "batches", stream->batches);
    kvb_json_write_pair_u64(json, "events", stream->events);
    kvb_json_write_pair_u64(json, "gaps", stream->gaps);
    kvb_json_write_pair_u64(json, "replays", stream->replays);
    kvb_json_write_pair_u64(json, "restarts", stream->restarts);
    kvb_json_write_pair_u64(json, "reconnects", stream->reconnects);
    write_speculation(json, &stream->speculation);
    write_republish(json, &stream->republish);
    kvb_json_write_end(json, '}');
}

static void
write_load_source(struct kvb_json_writer *json, const struct kvb_load_source_report *source)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_u64(json, "worker_id", source->worker_id);
    kvb_json_write_pair_text(json, "kind", kvb_load_source_kind_name(source->kind));
    kvb_json_write_pair_text(json, "address", source->address);
    kvb_json_write_pair_text(json, "state", load_source_state_name(source->state));
    /* What has sent nothing has neither an age nor ranks. */
    if (source->was_received) {
        kvb_json_write_pair_u64(json, "age_ms", source->age_ms);
    }
    if (source->was_received && source->kind == KVB_LOAD_OF_COORDINATOR) {
        kvb_json_write_pair_u64(json, "ranks", source->ranks);
    }
    kvb_json_write_pair_u64(json, "refused", source->refused);
    kvb_json_write_pair_text(json, "why", source->why);
    kvb_json_write_end(json, '}');
}

static void write_counts(
    struct kvb_json_writer *json, const char *key, const struct kvb_named_count *counts,
    size_t count)
{
    kvb_json_write_pair_begin(json, key, '{');
    for (size_t i = 0; i < count; i++) {
        kvb_json_write_pair_u64(json, counts[i].name, counts[i].count);
    }
    kvb_json_write_end(json, '}');
}

static void
write_kubernetes(struct kvb_json_writer *json, const struct kvb_kubernetes_report *report)
{
    kvb_json_write_pair_begin(json, "kubernetes", '{');
    kvb_json_write_pair_text(json, "state", report->state);
    kvb_json_write_pair_u64(json, "away_s", report->away_s);
    kvb_json_write_pair_text(json, "why", report->why);
    write_counts(json, "pods", report->pods, report->pod_count);
    write_counts(json, "refused", report->refused, report->refused_count);
    kvb_json_write_pair_text(json, "refused_why", report->refused_why);
    kvb_json_write_pair_begin(json, "not_taken", '[');
    for (size_t i = 0; i < report->not_taken_count; i++) {
        const struct kvb_pod_report *pod = &report->not_taken[i];
        kvb_json_write_begin(json, '{');
        kvb_json_write_pair_text(json, "pod", pod->pod);
        kvb_json_write_pair_text(json, "namespace_k8s", pod->name_space);
        kvb_json_write_pair_text(json, "reason", pod->reason);
        kvb_json_write_pair_text(json, "remedy", pod->remedy);
        kvb_json_write_end(json, '}');
    }
    kvb_json_write_end(json, ']');
    kvb_json_write_end(json, '}');
}

static void write_lists(struct kvb_json_writer *json, const struct kvb_bridge_report *report)
{
    kvb_json_write_pair_begin(json, "streams", '[');
    for (size_t i = 0; i < report->stream_count; i++) {
        struct kvb_stream_report stream;
        /* Written before the next is filled: the texts are borrowed until then. */
        report->fill_stream(report->context, report->first_stream + i, &stream);
        write_stream_report(json, &stream);
    }
    kvb_json_write_end(json, ']');
    if (report->streams_left_out > 0) {
        kvb_json_write_pair_u64(json, "streams_left_out", report->streams_left_out);
    }
    kvb_json_write_pair_begin(json, "load_sources", '[');
    for (size_t i = 0; i < report->load_count; i++) {
        write_load_source(json, &report->loads[i]);
    }
    kvb_json_write_end(json, ']');
}

kvb_status kvb_bridge_status_encode(const struct kvb_bridge_report *report, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    write_lists(&json, report);
    if (report->kubernetes) {
        write_kubernetes(&json, report->kubernetes);
    }
    kvb_json_write_pair_text(&json, "bridge_id", report->bridge_id);
    kvb_json_write_pair_text(&json, "version", report->version);
    kvb_json_write_pair_text(&json, "namespace", report->name_space);
    kvb_json_write_pair_text(&json, "component", report->component);
    kvb_formats_json_write(report->formats, &json);
    kvb_json_write_pair_bool(&json, "publishing", report->is_publishing);
    kvb_json_write_pair_u64(&json, "uptime_s", report->uptime_s);
    kvb_json_write_pair_u64(&json, "events_published", report->events_published);
    kvb_json_write_pair_u64(&json, "batches_received", report->batches_received);
    kvb_json_write_pair_u64(&json, "nats_reconnects", report->nats_reconnects);
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- The streams of a bridge ---- */

kvb_status kvb_bridge_streams_encode(
    const char *bridge_id, const struct kvb_bridge_stream *streams, size_t count,
    struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_text(&json, "bridge_id", bridge_id);
    kvb_json_write_pair_begin(&json, "streams", '[');
    for (size_t i = 0; i < count; i++) {
        kvb_json_write_begin(&json, '[');
        kvb_json_write_u64(&json, streams[i].worker_id);
        kvb_json_write_u64(&json, streams[i].dp_rank);
        kvb_json_write_end(&json, ']');
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status;
}

static kvb_status read_bridge_id(struct kvb_json_scan *scan, void *context)
{
    struct kvb_bridge_streams *out = context;
    kvb_span raw = { 0 };

    KVB_TRY(kvb_json_string(scan, &raw));
    /* Raw bytes serve as the id, because no bridge has one with an escape in it. */
    if (raw.len == 0 || raw.len > kvb_bridge_id_bytes || memchr(raw.data, '\\', raw.len)) {
        return KVB_BAD_INPUT;
    }
    memcpy(out->bridge_id, raw.data, raw.len);
    out->bridge_id[raw.len] = '\0';
    return KVB_OK;
}

static kvb_status read_stream(struct kvb_json_scan *scan, void *context)
{
    struct kvb_bridge_streams *out = context;

    if (out->count == kvb_bridge_streams_most) {
        return KVB_TOO_LARGE;
    }
    /* Counted before it is read: whoever sees a failure does not look at *out. */
    struct kvb_bridge_stream *stream = &out->streams[out->count++];
    KVB_TRY(kvb_json_expect(scan, '['));
    KVB_TRY(kvb_json_u64(scan, &stream->worker_id));
    KVB_TRY(kvb_json_expect(scan, ','));
    KVB_TRY(kvb_json_u32(scan, &stream->dp_rank));
    return kvb_json_expect(scan, ']');
}

static kvb_status read_streams(struct kvb_json_scan *scan, void *context)
{
    return kvb_json_array(scan, read_stream, context);
}

kvb_status kvb_bridge_streams_decode(kvb_span json, struct kvb_bridge_streams *out)
{
    static const struct kvb_json_field fields[] = {
        { .name = "bridge_id", .is_required = true, .read = read_bridge_id },
        { .name = "streams", .is_required = true, .read = read_streams },
    };
    struct kvb_json_scan scan = kvb_json_scan_of(json);

    /* 16 KiB of streams stay as they are: the count says how many were read. */
    out->count = 0;
    KVB_TRY(kvb_json_object(&scan, fields, KVB_COUNT_OF(fields), out));
    return kvb_json_finish(&scan);
}
