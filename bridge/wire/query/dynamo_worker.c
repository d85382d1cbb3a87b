#include "wire/query/dynamo_worker.h"

#include "core/own.h"
#include "core/utf8.h"
#include "wire/json/tree.h"
#include "wire/json/writer.h"

#include <stdlib.h>
#include <string.h>

enum { max_depth = 16, max_containers = 1 << 18, max_values = 1 << 20 };

const char *kvb_dynamo_api_name(enum kvb_dynamo_api api)
{
    static const char *const names[KVB_DYNAMO_API_COUNT] = { "unknown", "select_service",
                                                             "indexer" };

    return api < KVB_DYNAMO_API_COUNT ? names[api] : "unknown";
}

/* ---- Writing ---- */

static void write_optional_text(struct kvb_json_writer *json, const char *key, const char *text)
{
    if (text[0] != '\0') {
        kvb_json_write_pair_text(json, key, text);
    }
}

static void write_optional_number(struct kvb_json_writer *json, const char *key, uint64_t number)
{
    if (number > 0) {
        kvb_json_write_pair_u64(json, key, number);
    }
}

static void
write_select_worker(struct kvb_json_writer *json, const struct kvb_dynamo_worker *worker)
{
    kvb_json_write_pair_u64(json, "worker_id", worker->rank_id);
    kvb_json_write_pair_text(json, "model_name", worker->model);
    write_optional_text(json, "endpoint", worker->address);
    kvb_json_write_pair_text(json, "kv_events_endpoint", worker->events);
    write_optional_text(json, "replay_endpoint", worker->replay);
    kvb_json_write_pair_u64(json, "block_size", worker->block_size);
    kvb_json_write_pair_u64(json, "data_parallel_start_rank", worker->dp_rank);
    kvb_json_write_pair_u64(json, "data_parallel_size", 1);
    write_optional_number(json, "max_num_batched_tokens", worker->max_batched_tokens);
}

static void
write_indexer_worker(struct kvb_json_writer *json, const struct kvb_dynamo_worker *worker)
{
    kvb_json_write_pair_u64(json, "instance_id", worker->worker_id);
    kvb_json_write_pair_text(json, "endpoint", worker->events);
    write_optional_text(json, "replay_endpoint", worker->replay);
    kvb_json_write_pair_text(json, "model_name", worker->model);
    kvb_json_write_pair_u64(json, "block_size", worker->block_size);
    kvb_json_write_pair_u64(json, "dp_rank", worker->dp_rank);
}

kvb_status kvb_dynamo_add_encode(
    enum kvb_dynamo_api api, const struct kvb_dynamo_worker *worker, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    if (api == KVB_DYNAMO_INDEXER) {
        write_indexer_worker(&json, worker);
    } else {
        write_select_worker(&json, worker);
    }
    kvb_json_write_end(&json, '}');
    return json.status;
}

kvb_status kvb_dynamo_remove_encode(const struct kvb_dynamo_worker *worker, struct kvb_buf *out)
{
    struct kvb_json_writer json = kvb_json_writer_of(out);

    kvb_json_write_begin(&json, '{');
    kvb_json_write_pair_u64(&json, "instance_id", worker->worker_id);
    kvb_json_write_pair_text(&json, "model_name", worker->model);
    kvb_json_write_pair_u64(&json, "dp_rank", worker->dp_rank);
    kvb_json_write_end(&json, '}');
    return json.status;
}

/* ---- Reading ---- */

/* 0 without it. */
static uint64_t number_of(struct json_object *object, const char *name, uint64_t max)
{
    uint64_t number = 0;

    return kvb_json_number(kvb_json_member(object, name), max, &number) == KVB_OK ? number : 0;
}

/* The first of "not_schedulable_reasons"; "" without one. */
static const char *unused_reason_of(struct json_object *object)
{
    struct json_object *reasons = kvb_json_member(object, "not_schedulable_reasons");
    struct json_object *first = json_object_is_type(reasons, json_type_array)
                                    ? json_object_array_get_idx(reasons, 0)
                                    : NULL;

    return json_object_is_type(first, json_type_string) ? json_object_get_string(first) : "";
}

static void visit_select_worker(struct json_object *entry, kvb_dynamo_visitor visit, void *context)
{
    struct kvb_dynamo_listed listed = {
        .api = KVB_DYNAMO_SELECT_SERVICE,
        .dp_rank = (uint32_t)number_of(entry, "data_parallel_start_rank", UINT32_MAX),
        .events = kvb_json_member_text(entry, "kv_events_endpoint"),
        .model = kvb_json_member_text(entry, "model_name"),
        .block_size = number_of(entry, "block_size", UINT64_MAX),
        .why = unused_reason_of(entry),
        .replay = kvb_json_member_text(entry, "replay_endpoint"),
        .address = kvb_json_member_text(entry, "endpoint"),
        .max_batched_tokens = number_of(entry, "max_num_batched_tokens", UINT64_MAX),
    };

    if (kvb_json_number(kvb_json_member(entry, "worker_id"), UINT64_MAX, &listed.id) == KVB_OK) {
        visit(context, &listed);
    }
}

/* "endpoints":{"0":"tcp://...","1":"tcp://..."} */
static void visit_indexer_worker(struct json_object *entry, kvb_dynamo_visitor visit, void *context)
{
    struct json_object *endpoints = kvb_json_member(entry, "endpoints");
    struct kvb_dynamo_listed listed = { .api = KVB_DYNAMO_INDEXER,
                                        .model = kvb_json_member_text(entry, "model_name"),
                                        .block_size = number_of(entry, "block_size", UINT64_MAX),
                                        .why = "" };

    if (!json_object_is_type(endpoints, json_type_object) ||
        kvb_json_number(kvb_json_member(entry, "instance_id"), UINT64_MAX, &listed.id) != KVB_OK) {
        return;
    }
    json_object_object_foreach(endpoints, rank, value)
    {
        char *end = NULL;
        const unsigned long long number = strtoull(rank, &end, 10);
        if (end != rank && *end == '\0' && number <= UINT32_MAX) {
            listed.dp_rank = (uint32_t)number;
            listed.events =
                json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
            visit(context, &listed);
        }
    }
}

static void visit_worker(struct json_object *entry, kvb_dynamo_visitor visit, void *context)
{
    if (kvb_json_member(entry, "worker_id")) {
        visit_select_worker(entry, visit, context);
    } else {
        visit_indexer_worker(entry, visit, context);
    }
}

static kvb_status parse_dynamo(kvb_span json, struct json_object **out_root)
{
    struct kvb_json_budget budget = { .depth = max_depth,
                                      .containers = max_containers,
                                      .values = max_values };

    return kvb_json_parse(json, &budget, out_root);
}

kvb_status kvb_dynamo_list_decode(kvb_span json, kvb_dynamo_visitor visit, void *context)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    KVB_TRY(parse_dynamo(json, &root));
    if (!json_object_is_type(root, json_type_array)) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < json_object_array_length(root); i++) {
        if (!json_object_is_type(json_object_array_get_idx(root, i), json_type_object)) {
            return KVB_BAD_INPUT;
        }
    }
    for (size_t i = 0; i < json_object_array_length(root); i++) {
        visit_worker(json_object_array_get_idx(root, i), visit, context);
    }
    return KVB_OK;
}

/* The text comes from another program and goes into a log. */
static void take_reason(const char *text, size_t len, struct kvb_detail *out_reason)
{
    struct kvb_detail reason;

    kvb_detail_set(&reason, "%.*s", len < 200 ? (int)len : 200, text);
    kvb_detail_set(
        out_reason, "%s", kvb_utf8_is_plain(reason.text) ? reason.text : "a text of strange bytes");
}

void kvb_dynamo_reason_decode(kvb_span answer, struct kvb_detail *out_reason)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;

    out_reason->text[0] = '\0';
    if (answer.len > 0 && parse_dynamo(answer, &root) != KVB_OK) {
        take_reason((const char *)answer.data, answer.len, out_reason);
        return;
    }
    if (json_object_is_type(root, json_type_object)) {
        const char *reason = unused_reason_of(root);
        const char *text = reason[0] != '\0' ? reason : kvb_json_member_text(root, "error");
        take_reason(text, strlen(text), out_reason);
    }
}
