#include "wire/load/json.h"

#include "core/own.h"
#include "wire/json/tree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    max_message_bytes = 4096, /* ours have at most 500 */
    max_depth = 16,
    max_containers = 64,
    max_values = 256,
    longest_float = 32
};

/* The seven values in the order of the contract.  `group` is their object in Dynamo 0.3 and
 * later; kvbridge and Dynamo 0.2 use the flat form. */
/* clang-format off */
static const struct figure {
    const char *name;
    const char *group;
    size_t at; /* offset in struct kvb_load */
    bool is_float;
} stats[] = {
    { "request_active_slots",      "worker_stats", offsetof(struct kvb_load, request_active_slots),      false },
    { "request_total_slots",       "worker_stats", offsetof(struct kvb_load, request_total_slots),       false },
    { "kv_active_blocks",          "kv_stats",     offsetof(struct kvb_load, kv_active_blocks),          false },
    { "kv_total_blocks",           "kv_stats",     offsetof(struct kvb_load, kv_total_blocks),           false },
    { "gpu_cache_usage_perc",      "kv_stats",     offsetof(struct kvb_load, gpu_cache_usage_perc),      true },
    { "gpu_prefix_cache_hit_rate", "kv_stats",     offsetof(struct kvb_load, gpu_prefix_cache_hit_rate), true },
    { "num_requests_waiting",      "worker_stats", offsetof(struct kvb_load, num_requests_waiting),      false },
};
/* clang-format on */

/* ---- encode ------------------------------------------------------------------ */

/* Writes the fewest digits that read back as the same float, always with a point or an exponent,
 * so that a typed reader does not take it for an integer. */
static kvb_status put_float(struct kvb_buf *out, float value)
{
    char text[longest_float] = "0.0"; /* for NaN and infinity, which JSON does not have */

    for (int digits = 1; isfinite(value) && digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    KVB_TRY(kvb_buf_append_text(out, text));
    return strpbrk(text, ".e") ? KVB_OK : kvb_buf_append_text(out, ".0");
}

/* A valid name needs no escapes, but a bad one from a configuration file must not break the
 * message for every reader. */
static kvb_status put_string(struct kvb_buf *out, const char *text)
{
    KVB_TRY(kvb_buf_append_text(out, "\""));
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            KVB_TRY(kvb_buf_append_format(out, "\\u%04x", c));
            continue;
        }
        if (c == '"' || c == '\\') {
            KVB_TRY(kvb_buf_append_text(out, "\\"));
        }
        KVB_TRY(kvb_buf_append(out, &c, 1));
    }
    return kvb_buf_append_text(out, "\"");
}

static kvb_status
put_figure(struct kvb_buf *out, const struct figure *figure, const struct kvb_load *load)
{
    const char *at = (const char *)load + figure->at;
    uint64_t count = 0;
    float share = 0;

    KVB_TRY(kvb_buf_append_format(out, "\"%s\":", figure->name));
    if (figure->is_float) {
        memcpy(&share, at, sizeof share);
        return put_float(out, share);
    }
    memcpy(&count, at, sizeof count);
    return kvb_buf_append_u64(out, count);
}

/* group NULL: all values. */
static kvb_status
put_values(struct kvb_buf *out, const struct kvb_load *load, const char *group, bool is_first)
{
    for (size_t i = 0; i < KVB_COUNT_OF(stats); i++) {
        if (group && strcmp(stats[i].group, group) != 0) {
            continue;
        }
        KVB_TRY(kvb_buf_append_text(out, is_first ? "" : ","));
        KVB_TRY(put_figure(out, &stats[i], load));
        is_first = false;
    }
    return KVB_OK;
}

static kvb_status put_report(const struct kvb_load_report *report, struct kvb_buf *out)
{
    KVB_TRY(kvb_buf_append_text(out, "{\"worker_id\":"));
    KVB_TRY(kvb_buf_append_u64(out, report->worker_id));
    KVB_TRY(kvb_buf_append_text(out, ",\"dp_rank\":"));
    KVB_TRY(kvb_buf_append_u64(out, report->dp_rank));
    KVB_TRY(kvb_buf_append_text(out, ",\"endpoint_name\":"));
    KVB_TRY(put_string(out, report->endpoint_name));
    KVB_TRY(kvb_buf_append_text(out, ",\"metrics\":{"));
    KVB_TRY(put_values(out, &report->load, NULL, true));
    return kvb_buf_append_text(out, "}}");
}

kvb_status kvb_load_json_encode(const struct kvb_load_report *report, struct kvb_buf *out)
{
    const size_t before = out->len;
    const kvb_status status = put_report(report, out);

    if (status != KVB_OK) {
        out->len = before;
    }
    return status;
}

static kvb_status
put_stats(struct kvb_buf *out, const struct kvb_load *load, const uint32_t *dp_rank)
{
    KVB_TRY(kvb_buf_append_text(out, "{"));
    KVB_TRY(put_values(out, load, NULL, true));
    KVB_TRY(kvb_buf_append_text(out, ",\"worker_stats\":{\"data_parallel_rank\":"));
    if (dp_rank) {
        KVB_TRY(kvb_buf_append_u64(out, *dp_rank));
    } else {
        KVB_TRY(kvb_buf_append_text(out, "null"));
    }
    KVB_TRY(put_values(out, load, "worker_stats", false));
    KVB_TRY(kvb_buf_append_text(out, "},\"kv_stats\":{"));
    KVB_TRY(put_values(out, load, "kv_stats", true));
    return kvb_buf_append_text(out, "},\"spec_decode_stats\":null}");
}

kvb_status kvb_load_json_encode_stats(
    const struct kvb_load *load, const uint32_t *dp_rank, struct kvb_buf *out)
{
    const size_t before = out->len;
    const kvb_status status = put_stats(out, load, dp_rank);

    if (status != KVB_OK) {
        out->len = before;
    }
    return status;
}

/* ---- decode ------------------------------------------------------------------ */

static kvb_status read_load_count(struct json_object *value, uint64_t max, uint64_t *out_count)
{
    /* get_int64 of a u64 above i64 gives the largest i64, not a negative. */
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0) {
        return KVB_BAD_INPUT;
    }
    const uint64_t count = json_object_get_uint64(value);
    if (count > max) {
        return KVB_BAD_INPUT;
    }
    *out_count = count;
    return KVB_OK;
}

static kvb_status read_share(struct json_object *value, float *out_share)
{
    if (!json_object_is_type(value, json_type_double) &&
        !json_object_is_type(value, json_type_int)) {
        return KVB_BAD_INPUT;
    }
    const float share = (float)json_object_get_double(value);
    if (!isfinite(share) || share < 0) {
        return KVB_BAD_INPUT;
    }
    *out_share = share;
    return KVB_OK;
}

static kvb_status
read_load_figure(struct json_object *metrics, const struct figure *figure, struct kvb_load *load)
{
    char *at = (char *)load + figure->at;
    uint64_t count = 0;
    float share = 0;

    struct json_object *value = kvb_json_member(metrics, figure->name);
    if (!value) {
        value = kvb_json_member(kvb_json_member(metrics, figure->group), figure->name);
    }
    if (figure->is_float) {
        KVB_TRY(read_share(value, &share));
        memcpy(at, &share, sizeof share);
        return KVB_OK;
    }
    KVB_TRY(read_load_count(value, UINT64_MAX, &count));
    memcpy(at, &count, sizeof count);
    return KVB_OK;
}

/* kvbridge writes the rank outside `metrics`, Dynamo's nested form has it inside; a missing rank
 * is 0. */
static kvb_status
read_load_rank(struct json_object *root, struct json_object *metrics, uint32_t *out_rank)
{
    uint64_t rank = 0;

    struct json_object *value = kvb_json_member(root, "dp_rank");
    if (!value) {
        value = kvb_json_member(kvb_json_member(metrics, "worker_stats"), "data_parallel_rank");
    }
    if (value) {
        KVB_TRY(read_load_count(value, UINT32_MAX, &rank));
    }
    *out_rank = (uint32_t)rank;
    return KVB_OK;
}

static kvb_status read_report(struct json_object *root, struct kvb_load_report *report)
{
    struct json_object *metrics = kvb_json_member(root, "metrics");

    KVB_TRY(read_load_count(kvb_json_member(root, "worker_id"), INT64_MAX, &report->worker_id));
    KVB_TRY(kvb_json_text(
        kvb_json_member(root, "endpoint_name"), report->endpoint_name,
        sizeof report->endpoint_name));
    KVB_TRY(read_load_rank(root, metrics, &report->dp_rank));
    for (size_t i = 0; i < KVB_COUNT_OF(stats); i++) {
        KVB_TRY(read_load_figure(metrics, &stats[i], &report->load));
    }
    return KVB_OK;
}

kvb_status kvb_load_json_decode(kvb_span json, struct kvb_load_report *out_report)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };
    struct kvb_load_report report = { 0 };

    if (json.len > max_message_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_json_parse(json, &budget, &root));
    if (budget.has_wide_integer) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_report(root, &report));
    *out_report = report;
    return KVB_OK;
}
