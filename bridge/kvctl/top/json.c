#include "kvctl/top/json.h"

#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <math.h>
#include <stdio.h>

enum { answer_depth = 16, answer_values = 1 << 23 };

kvb_status kvctl_top_parse(kvb_span text, struct json_object **out_root)
{
    struct kvb_json_budget budget = { .depth = answer_depth,
                                      .containers = answer_values,
                                      .values = answer_values };
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(kvb_json_parse(text, &budget, &root));
    if (!json_object_is_type(root, json_type_object)) {
        return KVB_BAD_INPUT;
    }
    *out_root = root;
    root = NULL;
    return KVB_OK;
}

size_t kvctl_top_list(struct json_object *object, const char *name, struct json_object **out_list)
{
    struct json_object *list = kvb_json_member(object, name);

    *out_list = list;
    return kvb_json_list_len(list);
}

bool kvctl_top_u64(struct json_object *object, const char *name, uint64_t *out_value)
{
    struct json_object *value = kvb_json_member(object, name);

    *out_value = 0;
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0) {
        return false;
    }
    *out_value = json_object_get_uint64(value);
    return true;
}

struct kvctl_top_figure kvctl_top_number(struct json_object *object, const char *name)
{
    struct json_object *value = kvb_json_member(object, name);
    const bool is_number =
        json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    const double number = is_number ? json_object_get_double(value) : NAN;

    return (struct kvctl_top_figure){ .is_known = isfinite(number),
                                      .value = isfinite(number) ? number : 0 };
}

void kvctl_top_word(struct json_object *object, const char *name, char *out, size_t size)
{
    struct json_object *value = kvb_json_member(object, name);
    const bool is_text = json_object_is_type(value, json_type_string);

    (void)snprintf(out, size, "%s", is_text ? json_object_get_string(value) : ""); /* cut */
}

static void
write_figure(struct kvb_json_writer *json, const char *key, const struct kvctl_top_figure *figure)
{
    kvb_json_write_key(json, key);
    if (figure->is_known) {
        kvb_json_write_number(json, figure->value);
    } else {
        kvb_json_write_null(json);
    }
}

static void write_link(struct kvb_json_writer *json, const struct kvctl_top_link *link)
{
    kvb_json_write_pair_bool(json, "nats_connected", link->is_connected);
    kvb_json_write_pair_bool(json, "aggregator_answers", link->is_answering);
    kvb_json_write_pair_text(json, "aggregator_version", link->version);
    kvb_json_write_pair_text(json, "trouble", link->trouble);
}

static void write_states(struct kvb_json_writer *json, const struct kvctl_top_totals *totals)
{
    kvb_json_write_pair_begin(json, "states", '{');
    for (int state = 0; state < KVB_STREAM_STATE_COUNT; state++) {
        kvb_json_write_pair_u64(
            json, kvb_stream_state_name((enum kvb_stream_state)state), totals->states[state]);
    }
    kvb_json_write_end(json, '}');
}

static void write_totals(struct kvb_json_writer *json, const struct kvctl_top_totals *totals)
{
    kvb_json_write_pair_begin(json, "totals", '{');
    kvb_json_write_pair_u64(json, "bridges", totals->bridges);
    write_states(json, totals);
    write_figure(json, "events_per_s", &totals->events_per_s);
    write_figure(json, "blocks", &totals->blocks);
    write_figure(json, "requests_active", &totals->active);
    write_figure(json, "requests_waiting", &totals->waiting);
    write_figure(json, "load_avg", &totals->load_avg);
    write_figure(json, "load_std", &totals->load_std);
    write_figure(json, "hit_rate", &totals->hit_rate);
    kvb_json_write_pair_u64(json, "routed", totals->routed);
    write_figure(json, "engine_hit_rate", &totals->engine_hit_rate);
    kvb_json_write_pair_u64(json, "engine_reconnects", totals->engine_reconnects);
    kvb_json_write_pair_u64(json, "nats_reconnects", totals->nats_reconnects);
    kvb_json_write_end(json, '}');
}

static void write_tier_reasons(struct kvb_json_writer *json, const struct kvctl_top_row *row)
{
    kvb_json_write_pair_begin(json, "unverified_tiers", '{');
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (row->tier_reasons[tier][0]) {
            kvb_json_write_pair_text(
                json, kvb_tier_name((enum kvb_tier)tier), row->tier_reasons[tier]);
        }
    }
    kvb_json_write_end(json, '}');
}

static void write_row(struct kvb_json_writer *json, const struct kvctl_top_row *row)
{
    kvb_json_write_begin(json, '{');
    kvb_json_write_pair_text(json, "namespace", row->id.name_space);
    kvb_json_write_pair_text(json, "component", row->id.component);
    kvb_json_write_pair_u64(json, "worker_id", row->id.worker_id);
    kvb_json_write_pair_u64(json, "dp_rank", row->id.dp_rank);
    kvb_json_write_pair_text(json, "state", row->state);
    kvb_json_write_pair_text(json, "reason", row->reason);
    write_figure(json, "events_per_s", &row->events_per_s);
    write_figure(json, "lag_s", &row->lag_s);
    write_figure(json, "blocks", &row->blocks);
    write_figure(json, "load", &row->load);
    write_figure(json, "requests_active", &row->active);
    write_figure(json, "requests_waiting", &row->waiting);
    write_figure(json, "reconnects", &row->reconnects);
    write_figure(json, "kept", &row->kept);
    write_tier_reasons(json, row);
    kvb_json_write_end(json, '}');
}

kvb_status kvctl_top_json(const struct kvctl_top_model *model, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    write_link(&json, &model->link);
    write_totals(&json, &model->totals);
    kvb_json_write_pair_begin(&json, "streams", '[');
    for (size_t i = 0; i < model->shown_count; i++) {
        write_row(&json, model->shown[i]);
    }
    kvb_json_write_end(&json, ']');
    kvb_json_write_end(&json, '}');
    return json.status == KVB_OK ? kvb_buf_append_text(out, "\n") : json.status;
}
