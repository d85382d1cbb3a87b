#include "wire/event_sources.h"

#include "core/own.h"
#include "wire/json_tree.h"

#include <stdlib.h>
#include <string.h>

enum { most_depth = 8, most_values = 32 * kvb_max_ranks };

static kvb_status refuse(struct kvb_detail *detail, size_t at, const char *why)
{
    kvb_detail_set(detail, "source %zu: %s", at, why);
    return KVB_BAD_INPUT;
}

/* Missing and null are "". */
static bool read_text(struct json_object *source, const char *name, char *out, size_t size)
{
    struct json_object *value = kvb_json_member(source, name);

    return !value || kvb_json_text(value, out, size) == KVB_OK;
}

static bool
read_number(struct json_object *source, const char *name, uint64_t most, uint64_t *out_number)
{
    struct json_object *value = kvb_json_member(source, name);

    if (!value) {
        return true;
    }
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0) {
        return false;
    }
    *out_number = json_object_get_uint64(value);
    return *out_number <= most;
}

static kvb_status read_source(
    struct json_object *source, size_t at, struct kvb_event_source *out, struct kvb_detail *detail)
{
    uint64_t dp_rank = 0;

    if (!json_object_is_type(source, json_type_object)) {
        return refuse(detail, at, "expected an object");
    }
    if (!read_number(source, "data_parallel_rank", kvb_max_ranks - 1, &dp_rank) ||
        !read_number(source, "buffer_steps", UINT64_MAX, &out->buffer_steps)) {
        return refuse(detail, at, "data_parallel_rank or buffer_steps is no number that can be");
    }
    out->dp_rank = (uint32_t)dp_rank;
    if (!read_text(source, "endpoint", out->endpoint, sizeof out->endpoint) ||
        !read_text(source, "replay_endpoint", out->replay_endpoint, sizeof out->replay_endpoint) ||
        !read_text(source, "topic", out->topic, sizeof out->topic) || out->endpoint[0] == '\0') {
        return refuse(detail, at, "endpoint, replay_endpoint or topic is no text that can be");
    }
    return KVB_OK;
}

static int compare_ranks(const void *one, const void *other)
{
    const struct kvb_event_source *a = one;
    const struct kvb_event_source *b = other;

    return (a->dp_rank > b->dp_rank) - (a->dp_rank < b->dp_rank);
}

static kvb_status sort(struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    qsort(sources->sources, sources->count, sizeof sources->sources[0], compare_ranks);
    for (size_t i = 1; i < sources->count; i++) {
        if (sources->sources[i].dp_rank == sources->sources[i - 1].dp_rank) {
            return refuse(detail, i, "its rank stands twice");
        }
    }
    return KVB_OK;
}

static kvb_status
read_list(struct json_object *root, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    struct json_object *list =
        json_object_is_type(root, json_type_array) ? root : kvb_json_member(root, "sources");

    if (!json_object_is_type(list, json_type_array)) {
        kvb_detail_set(detail, "expected an array of sources");
        return KVB_BAD_INPUT;
    }
    const size_t count = json_object_array_length(list);
    if (count > kvb_max_ranks) {
        kvb_detail_set(detail, "%zu sources: at most %d", count, kvb_max_ranks);
        return KVB_TOO_LARGE;
    }
    for (size_t i = 0; i < count; i++) {
        KVB_TRY(read_source(json_object_array_get_idx(list, i), i, &sources->sources[i], detail));
    }
    sources->count = count;
    return sort(sources, detail);
}

static kvb_status
read_all(kvb_span json, struct kvb_event_sources *sources, struct kvb_detail *detail)
{
    KVB_OWN(kvb_json_drop) struct json_object *root = NULL;
    struct kvb_json_budget budget = { .depth = most_depth,
                                      .containers = (size_t)4 * kvb_max_ranks,
                                      .values = most_values };
    kvb_status status = KVB_TOO_LARGE;

    if (json.len <= kvb_max_event_sources_bytes) {
        status = kvb_json_parse(json, &budget, &root);
    }
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, status == KVB_TOO_LARGE ? "larger than any list of sources" : "no JSON");
        return status;
    }
    return read_list(root, sources, detail);
}

kvb_status kvb_event_sources_decode(
    kvb_span json, struct kvb_event_sources *out_sources, struct kvb_detail *detail)
{
    struct kvb_event_sources *sources = calloc(1, sizeof *sources);

    if (!sources) {
        kvb_detail_set(detail, "no memory");
        return KVB_NO_MEMORY;
    }
    const kvb_status status = read_all(json, sources, detail);
    if (status == KVB_OK) {
        *out_sources = *sources;
    }
    free(sources);
    return status;
}
