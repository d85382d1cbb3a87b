#include "wire/router/bridge_status.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"

#include <string.h>

/* json-c fails only without memory, so each value is checked once, when it is added. */
static kvb_status add_json_value(struct json_object *to, const char *key, struct json_object *value)
{
    if (value && json_object_object_add(to, key, value) == 0) {
        return KVB_OK;
    }
    json_object_put(value); /* NULL is fine */
    return KVB_NO_MEMORY;
}

static kvb_status add_json_text(struct json_object *to, const char *key, const char *text)
{
    return add_json_value(to, key, json_object_new_string(text));
}

static kvb_status add_number(struct json_object *to, const char *key, uint64_t value)
{
    return add_json_value(to, key, json_object_new_uint64(value));
}

static kvb_status add_true_or_false(struct json_object *to, const char *key, bool value)
{
    return add_json_value(to, key, json_object_new_boolean(value));
}

static kvb_status add_tiers(struct json_object *to, const struct kvb_heartbeat *beat)
{
    struct json_object *blocks = json_object_new_object();
    kvb_status status = blocks ? KVB_OK : KVB_NO_MEMORY;

    for (size_t t = 0; t < KVB_TIER_COUNT && status == KVB_OK; t++) {
        status = add_number(blocks, kvb_tier_name((enum kvb_tier)t), beat->tiers[t].blocks);
    }
    if (status != KVB_OK) {
        json_object_put(blocks);
        return status;
    }
    return add_json_value(to, "blocks", blocks);
}

static kvb_status fill_stream_status(struct json_object *to, const struct kvb_stream_report *stream)
{
    const struct kvb_heartbeat *beat = &stream->beat;

    KVB_TRY(add_number(to, "worker_id", beat->worker_id));
    KVB_TRY(add_number(to, "dp_rank", beat->dp_rank));
    KVB_TRY(add_json_text(to, "endpoint", stream->endpoint));
    KVB_TRY(add_json_text(to, "origin", stream->origin));
    KVB_TRY(add_true_or_false(to, "id_made", stream->is_id_made));
    KVB_TRY(add_json_text(to, "model", beat->model));
    KVB_TRY(add_number(to, "block_size", beat->block_size));
    if (stream->configured_block_size != beat->block_size) {
        KVB_TRY(add_number(to, "block_size_configured", stream->configured_block_size));
    }
    KVB_TRY(add_json_text(to, "state", kvb_stream_state_name(beat->state)));
    KVB_TRY(add_json_text(to, "reason", kvb_stream_reason_name(beat->reason)));
    if (stream->why[0] != '\0') {
        KVB_TRY(add_json_text(to, "why", stream->why));
    }
    KVB_TRY(add_tiers(to, beat));
    KVB_TRY(add_number(to, "doubtful", beat->doubtful));
    KVB_TRY(add_number(to, "unrooted", stream->unrooted));
    if (beat->has_missing_at_most) {
        KVB_TRY(add_number(to, "missing_at_most", beat->missing_at_most));
    }
    if (stream->has_last_seq) {
        KVB_TRY(add_number(to, "last_seq", stream->last_seq));
    }
    KVB_TRY(add_number(to, "event_id", beat->last_id));
    KVB_TRY(add_number(to, "lag_ms", stream->lag_ms));
    KVB_TRY(add_number(to, "batches", stream->batches));
    KVB_TRY(add_number(to, "events", stream->events));
    KVB_TRY(add_number(to, "gaps", stream->gaps));
    KVB_TRY(add_number(to, "replays", stream->replays));
    KVB_TRY(add_number(to, "restarts", stream->restarts));
    return add_number(to, "reconnects", stream->reconnects);
}

/* Adds an object to the list, which owns it. */
static kvb_status add_entry(struct json_object *list, struct json_object **out_entry)
{
    struct json_object *entry = json_object_new_object();

    if (!entry) {
        return KVB_NO_MEMORY;
    }
    if (json_object_array_add(list, entry) != 0) {
        json_object_put(entry);
        return KVB_NO_MEMORY;
    }
    *out_entry = entry;
    return KVB_OK;
}

static kvb_status add_stream(struct json_object *list, const struct kvb_stream_report *stream)
{
    struct json_object *entry = NULL;

    KVB_TRY(add_entry(list, &entry));
    return fill_stream_status(entry, stream);
}

static kvb_status
fill_load_source(struct json_object *to, const struct kvb_load_source_report *source)
{
    KVB_TRY(add_number(to, "worker_id", source->worker_id));
    KVB_TRY(add_json_text(to, "kind", kvb_load_source_kind_name(source->kind)));
    KVB_TRY(add_json_text(to, "address", source->address));
    KVB_TRY(add_json_text(to, "state", kvb_load_source_state_name(source->state)));
    if (source->was_received) {
        KVB_TRY(add_number(to, "age_ms", source->age_ms));
    }
    if (source->was_received && source->kind == KVB_LOAD_OF_COORDINATOR) {
        KVB_TRY(add_number(to, "ranks", source->ranks));
    }
    KVB_TRY(add_number(to, "refused", source->refused));
    return add_json_text(to, "why", source->why);
}

static kvb_status
add_load_source(struct json_object *list, const struct kvb_load_source_report *source)
{
    struct json_object *entry = NULL;

    KVB_TRY(add_entry(list, &entry));
    return fill_load_source(entry, source);
}

static kvb_status fill_bridge_status(struct json_object *to, const struct kvb_bridge_report *report)
{
    struct json_object *list = json_object_new_array();

    KVB_TRY(add_json_value(to, "streams", list));
    struct json_object *loads = json_object_new_array();
    KVB_TRY(add_json_value(to, "load_sources", loads));
    KVB_TRY(add_json_text(to, "bridge_id", report->bridge_id));
    KVB_TRY(add_json_text(to, "version", report->version));
    KVB_TRY(add_json_text(to, "namespace", report->name_space));
    KVB_TRY(add_json_text(to, "component", report->component));
    KVB_TRY(add_json_text(to, "profile", kvb_profile_name(report->profile)));
    KVB_TRY(add_true_or_false(to, "publishing", report->is_publishing));
    KVB_TRY(add_number(to, "uptime_s", report->uptime_s));
    KVB_TRY(add_number(to, "events_published", report->events_published));
    KVB_TRY(add_number(to, "batches_received", report->batches_received));
    KVB_TRY(add_number(to, "nats_reconnects", report->nats_reconnects));
    for (size_t i = 0; i < report->stream_count; i++) {
        KVB_TRY(add_stream(list, &report->streams[i]));
    }
    for (size_t i = 0; i < report->load_count; i++) {
        KVB_TRY(add_load_source(loads, &report->loads[i]));
    }
    return KVB_OK;
}

kvb_status kvb_bridge_status_encode(const struct kvb_bridge_report *report, struct kvb_buf *out)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = json_object_new_object();

    if (!root) {
        return KVB_NO_MEMORY;
    }
    KVB_TRY(fill_bridge_status(root, report));
    const char *text = json_object_to_json_string_ext(
        root, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    return text ? kvb_buf_append_text(out, text) : KVB_NO_MEMORY;
}

kvb_status kvb_bridge_status_decode(kvb_span json, struct kvb_bridge_identity *out_identity)
{
    struct kvb_json_budget budget = { .depth = 8,
                                      .containers = (size_t)4 * kvb_max_streams,
                                      .values = (size_t)64 * kvb_max_streams };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_bridge_identity identity = { .has_profile = false };

    KVB_TRY(kvb_json_parse(json, &budget, &root));
    KVB_TRY(kvb_json_text(
        kvb_json_member(root, "bridge_id"), identity.bridge_id, sizeof identity.bridge_id));
    KVB_TRY(kvb_json_text(
        kvb_json_member(root, "profile"), identity.profile_name, sizeof identity.profile_name));
    /* without "publishing":false the bridge may be publishing */
    struct json_object *publishing = kvb_json_member(root, "publishing");
    identity.is_publishing =
        !json_object_is_type(publishing, json_type_boolean) || json_object_get_boolean(publishing);
    for (int profile = 0; profile < KVB_PROFILE_COUNT; profile++) {
        if (strcmp(identity.profile_name, kvb_profile_name((enum kvb_profile)profile)) == 0) {
            identity.has_profile = true;
            identity.profile = (enum kvb_profile)profile;
        }
    }
    *out_identity = identity;
    return KVB_OK;
}
