#include "wire/load/forward_pass.h"

#include "core/limits.h"
#include "core/own.h"
#include "wire/msgpack/cursor.h"

#include <math.h>
#include <msgpack.h>
#include <string.h>

static const char *const groups[] = { "worker_stats", "kv_stats" };

/* The groups of the scheduler's struct that count requests, and the load value of each. */
static const struct request_group {
    const char *key;
    enum kvb_load_figure figure; /* a count */
} request_groups[] = {
    { "scheduled_requests", KVB_FIGURE_ACTIVE_SLOTS },
    { "queued_requests", KVB_FIGURE_WAITING },
};

static const char *const request_kinds[] = { "num_prefill_requests", "num_decode_requests" };

static bool is_object_text(const msgpack_object *object, const char *text)
{
    return object->type == MSGPACK_OBJECT_STR && object->via.str.size == strlen(text) &&
           memcmp(object->via.str.ptr, text, object->via.str.size) == 0;
}

/* NULL when the map lacks the key, or its value is nil. */
static const msgpack_object *member(const msgpack_object *map, const char *key)
{
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *pair = &map->via.map.ptr[i];
        if (is_object_text(&pair->key, key)) {
            return pair->val.type == MSGPACK_OBJECT_NIL ? NULL : &pair->val;
        }
    }
    return NULL;
}

static kvb_status read_pass_count(const msgpack_object *value, uint64_t *out_count)
{
    if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
        return KVB_BAD_INPUT;
    }
    *out_count = value->via.u64;
    return KVB_OK;
}

static kvb_status read_ratio(const msgpack_object *value, float *out_ratio)
{
    double ratio = NAN;

    if (value->type == MSGPACK_OBJECT_FLOAT32 || value->type == MSGPACK_OBJECT_FLOAT64) {
        ratio = value->via.f64;
    } else if (value->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
        ratio = (double)value->via.u64;
    }
    if (!(ratio >= 0 && ratio <= 1)) { /* NaN is neither */
        return KVB_BAD_INPUT;
    }
    *out_ratio = (float)ratio;
    return KVB_OK;
}

static kvb_status read_pass_figure(
    enum kvb_load_figure figure, const msgpack_object *value, struct kvb_load_sample *sample)
{
    uint8_t *at = (uint8_t *)&sample->load + kvb_load_fields[figure].offset;
    uint64_t count = 0;
    float ratio = 0;

    if (kvb_load_fields[figure].is_ratio) {
        KVB_TRY(read_ratio(value, &ratio));
        memcpy(at, &ratio, sizeof ratio);
    } else {
        KVB_TRY(read_pass_count(value, &count));
        memcpy(at, &count, sizeof count);
    }
    sample->stats |= 1U << figure;
    return KVB_OK;
}

/* Whether the value belongs to the group; group NULL: the flat form, to
 * which all values belong. */
static bool is_in(const struct kvb_load_field *field, const char *group)
{
    return !group || strcmp(field->group, group) == 0;
}

static kvb_status
read_stats(const msgpack_object *map, const char *group, struct kvb_load_sample *sample)
{
    for (enum kvb_load_figure i = 0; i < KVB_FIGURE_COUNT; i++) {
        const struct kvb_load_field *field = &kvb_load_fields[i];
        const msgpack_object *value = is_in(field, group) ? member(map, field->name) : NULL;
        if (value) {
            KVB_TRY(read_pass_figure(i, value, sample));
        }
    }
    return KVB_OK;
}

static kvb_status
read_pass_rank(const msgpack_object *map, const char *key, struct kvb_load_sample *sample)
{
    const msgpack_object *value = member(map, key);
    uint64_t rank = 0;

    if (!value) {
        return KVB_OK;
    }
    KVB_TRY(read_pass_count(value, &rank));
    if (rank > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    sample->has_rank = true;
    sample->dp_rank = (uint32_t)rank;
    return KVB_OK;
}

/* The value is the sum of prefills and decodes.  A missing number counts as 0; if both are missing,
 * the value is absent. */
static kvb_status add_pass_requests(
    const msgpack_object *group, const struct request_group *as, struct kvb_load_sample *sample)
{
    uint64_t sum = 0;
    uint64_t count = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(request_kinds); i++) {
        const msgpack_object *value = member(group, request_kinds[i]);
        if (value) {
            KVB_TRY(read_pass_count(value, &count));
            if (__builtin_add_overflow(sum, count, &sum)) {
                return KVB_BAD_INPUT;
            }
            sample->stats |= 1U << as->figure;
        }
    }
    memcpy((uint8_t *)&sample->load + kvb_load_fields[as->figure].offset, &sum, sizeof sum);
    return KVB_OK;
}

static kvb_status read_scheduler(const msgpack_object *root, struct kvb_load_sample *sample)
{
    sample->is_of_scheduler = true;
    for (size_t i = 0; i < KVB_COUNT_OF(request_groups); i++) {
        const msgpack_object *group = member(root, request_groups[i].key);
        if (group && group->type != MSGPACK_OBJECT_MAP) {
            return KVB_BAD_INPUT;
        }
        if (group) {
            KVB_TRY(add_pass_requests(group, &request_groups[i], sample));
        }
    }
    return read_pass_rank(root, "dp_rank", sample);
}

static kvb_status read_nested(const msgpack_object *root, struct kvb_load_sample *sample)
{
    KVB_TRY(read_stats(root, NULL, sample));
    KVB_TRY(read_pass_rank(root, "data_parallel_rank", sample));
    for (size_t i = 0; i < KVB_COUNT_OF(groups); i++) {
        const msgpack_object *group = member(root, groups[i]);
        if (group && group->type != MSGPACK_OBJECT_MAP) {
            return KVB_BAD_INPUT;
        }
        if (group) {
            KVB_TRY(read_stats(group, groups[i], sample));
            KVB_TRY(read_pass_rank(group, "data_parallel_rank", sample));
        }
    }
    return KVB_OK;
}

static kvb_status read_sample(const msgpack_object *root, struct kvb_load_sample *out_sample)
{
    struct kvb_load_sample sample = { .has_rank = false };

    if (root->type != MSGPACK_OBJECT_MAP) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(member(root, "version") ? read_scheduler(root, &sample) : read_nested(root, &sample));
    if (sample.stats == 0) {
        return KVB_BAD_INPUT; /* a map without any load value */
    }
    *out_sample = sample;
    return KVB_OK;
}

kvb_status kvb_forward_pass_decode(kvb_span payload, struct kvb_load_sample *out_sample)
{
    msgpack_unpacked unpacked;
    size_t used = 0;

    if (payload.len > kvb_max_load_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_mp_guard(payload, kvb_max_depth, &used));
    if (used != payload.len) {
        return KVB_BAD_INPUT;
    }
    /* the guard accepted the message, so only an allocation can fail now */
    msgpack_unpacked_init(&unpacked);
    used = 0;
    const msgpack_unpack_return got =
        msgpack_unpack_next(&unpacked, (const char *)payload.data, payload.len, &used);
    const kvb_status status =
        got == MSGPACK_UNPACK_SUCCESS ? read_sample(&unpacked.data, out_sample) : KVB_NO_MEMORY;
    msgpack_unpacked_destroy(&unpacked);
    return status;
}
