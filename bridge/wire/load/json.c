#include "wire/load/json.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <math.h>
#include <string.h>

enum {
    max_message_bytes = 4096, /* ours have at most 600 */
    max_depth = 16,
    max_containers = 64,
    max_values = 256
};

/* The order of the values in a message.  Dynamo 0.3 and later put them into groups: see
 * kvb_load_fields.  kvbridge and Dynamo 0.2 write them without groups. */
static const enum kvb_load_figure order[KVB_FIGURE_COUNT] = {
    KVB_FIGURE_ACTIVE_SLOTS, KVB_FIGURE_TOTAL_SLOTS, KVB_FIGURE_ACTIVE_BLOCKS,
    KVB_FIGURE_TOTAL_BLOCKS, KVB_FIGURE_USAGE,       KVB_FIGURE_HIT_RATE,
    KVB_FIGURE_WAITING,
};

static void write_load_value(
    struct kvb_json_writer *json, const struct kvb_load_field *field, const struct kvb_load *load)
{
    const char *at = (const char *)load + field->offset;
    uint64_t count = 0;
    float share = 0;

    kvb_json_write_key(json, field->name);
    if (field->is_ratio) {
        memcpy(&share, at, sizeof share);
        kvb_json_write_float(json, share);
    } else {
        memcpy(&count, at, sizeof count);
        kvb_json_write_u64(json, count);
    }
}

/* Writes the values of a group; group NULL: all values. */
static void
write_load_values(struct kvb_json_writer *json, const struct kvb_load *load, const char *group)
{
    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        const struct kvb_load_field *field = &kvb_load_fields[order[i]];
        if (!group || strcmp(field->group, group) == 0) {
            write_load_value(json, field, load);
        }
    }
}

/* On failure removes what was written. */
static kvb_status finish_load_json(const struct kvb_json_writer *json, size_t before)
{
    if (json->status != KVB_OK) {
        json->out->len = before;
    }
    return json->status;
}

kvb_status kvb_load_json_encode(const struct kvb_load_report *report, struct kvb_buf *out)
{
    const size_t before = out->len;
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "worker_id", report->worker_id);
    kvb_json_write_pair_u64(&json, "dp_rank", report->dp_rank);
    kvb_json_write_pair_text(&json, "endpoint_name", report->endpoint_name);
    kvb_json_write_pair_begin(&json, "metrics", '{');
    write_load_values(&json, &report->load, NULL);
    kvb_json_write_end(&json, '}');
    if (report->block_size > 0) {
        kvb_json_write_pair_u64(&json, "kv_block_size", report->block_size);
    }
    kvb_json_write_end(&json, '}');
    return finish_load_json(&json, before);
}

kvb_status kvb_load_json_encode_stats(
    const struct kvb_load *load, const uint32_t *dp_rank, struct kvb_buf *out)
{
    const size_t before = out->len;
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    /* Each value twice: flat for readers of 0.2, and in its group for those since 0.3. */
    write_load_values(&json, load, NULL);
    kvb_json_write_pair_begin(&json, "worker_stats", '{');
    kvb_json_write_key(&json, "data_parallel_rank");
    if (dp_rank) {
        kvb_json_write_u64(&json, *dp_rank);
    } else {
        kvb_json_write_null(&json);
    }
    write_load_values(&json, load, "worker_stats");
    kvb_json_write_end(&json, '}');
    kvb_json_write_pair_begin(&json, "kv_stats", '{');
    write_load_values(&json, load, "kv_stats");
    kvb_json_write_end(&json, '}');
    kvb_json_write_key(&json, "spec_decode_stats");
    kvb_json_write_null(&json);
    kvb_json_write_end(&json, '}');
    return finish_load_json(&json, before);
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

static kvb_status read_load_figure(
    struct json_object *metrics, const struct kvb_load_field *field, struct kvb_load *load)
{
    char *at = (char *)load + field->offset;
    uint64_t count = 0;
    float share = 0;

    struct json_object *value = kvb_json_member(metrics, field->name);
    /* Dynamo's nested form has it in its group. */
    if (!value) {
        value = kvb_json_member(kvb_json_member(metrics, field->group), field->name);
    }
    if (field->is_ratio) {
        KVB_TRY(read_share(value, &share));
        memcpy(at, &share, sizeof share);
        return KVB_OK;
    }
    KVB_TRY(kvb_json_number(value, UINT64_MAX, &count));
    memcpy(at, &count, sizeof count);
    return KVB_OK;
}

/* A missing rank is 0. */
static kvb_status
read_load_rank(struct json_object *root, struct json_object *metrics, uint32_t *out_rank)
{
    uint64_t rank = 0;

    struct json_object *value = kvb_json_member(root, "dp_rank");
    /* kvbridge writes it outside `metrics`, Dynamo's nested form inside. */
    if (!value) {
        value = kvb_json_member(kvb_json_member(metrics, "worker_stats"), "data_parallel_rank");
    }
    if (value) {
        KVB_TRY(kvb_json_number(value, UINT32_MAX, &rank));
    }
    *out_rank = (uint32_t)rank;
    return KVB_OK;
}

static kvb_status read_report(struct json_object *root, struct kvb_load_report *report)
{
    struct json_object *metrics = kvb_json_member(root, "metrics");

    KVB_TRY(kvb_json_number(kvb_json_member(root, "worker_id"), INT64_MAX, &report->worker_id));
    KVB_TRY(kvb_json_text(
        kvb_json_member(root, "endpoint_name"), report->endpoint_name,
        sizeof report->endpoint_name));
    KVB_TRY(read_load_rank(root, metrics, &report->dp_rank));
    /* All seven are required, so that a message without `metrics` fails at the first. */
    for (size_t i = 0; i < KVB_FIGURE_COUNT; i++) {
        KVB_TRY(read_load_figure(metrics, &kvb_load_fields[i], &report->load));
    }
    struct json_object *size = kvb_json_member(root, "kv_block_size");
    uint64_t block_size = 0;
    if (size) {
        KVB_TRY(kvb_json_number(size, kvb_max_block_tokens, &block_size));
    }
    report->block_size = (uint32_t)block_size;
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
    /* json-c has replaced it by the nearest 64-bit number: that may be another worker. */
    if (budget.has_wide_integer) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(read_report(root, &report));
    *out_report = report;
    return KVB_OK;
}
