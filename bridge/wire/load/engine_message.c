#include "wire/load/engine_message.h"

#include "core/own.h"
#include "wire/msgpack/cursor.h"

#include <math.h>
#include <string.h>

/* Whether the message is one whole value.  What it counts is there then, so that a read fails only
 * at a value of another type. */
static kvb_status check_message(kvb_span message)
{
    size_t used = 0;

    if (message.len > kvb_max_load_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_mp_guard(message, kvb_max_depth, &used));
    return used == message.len ? KVB_OK : KVB_BAD_INPUT;
}

/* ---- ForwardPassMetrics ---- */

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

/* Finds the value of a key, of several the first.  False: the map lacks it, or it is nil. */
static bool find_member(struct kvb_mp_cursor map, const char *key, struct kvb_mp_cursor *out_value)
{
    uint32_t pairs = 0;

    (void)kvb_mp_take_map(&map, &pairs);
    for (uint32_t i = 0; i < pairs; i++) {
        kvb_span name = { 0 };
        /* A key may be of any type; one that is no text is no name. */
        if (kvb_mp_take_text(&map, &name) != KVB_OK && kvb_mp_skip(&map) != KVB_OK) {
            return false;
        }
        if (kvb_span_is(name, key)) {
            *out_value = map;
            return kvb_mp_next(&map) != KVB_MP_NIL;
        }
        if (kvb_mp_skip(&map) != KVB_OK) {
            return false;
        }
    }
    return false;
}

/* The same for a value that must be a map. */
static kvb_status find_group(
    struct kvb_mp_cursor map, const char *key, bool *out_is_there, struct kvb_mp_cursor *out_group)
{
    *out_is_there = find_member(map, key, out_group);
    return !*out_is_there || kvb_mp_next(out_group) == KVB_MP_MAP ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_pass_figure(
    enum kvb_load_figure figure, struct kvb_mp_cursor value, struct kvb_load_sample *sample)
{
    uint8_t *at = (uint8_t *)&sample->load + kvb_load_fields[figure].offset;
    uint64_t count = 0;
    double ratio = NAN;

    if (kvb_load_fields[figure].is_ratio) {
        KVB_TRY(kvb_mp_take_number(&value, &ratio));
        if (!(ratio >= 0 && ratio <= 1)) { /* NaN is neither */
            return KVB_BAD_INPUT;
        }
        const float single = (float)ratio;
        memcpy(at, &single, sizeof single);
    } else {
        KVB_TRY(kvb_mp_take_u64(&value, &count));
        memcpy(at, &count, sizeof count);
    }
    sample->stats |= 1U << figure;
    return KVB_OK;
}

/* group NULL: the flat form, to which all values belong. */
static kvb_status
read_stats(struct kvb_mp_cursor map, const char *group, struct kvb_load_sample *sample)
{
    for (enum kvb_load_figure i = 0; i < KVB_FIGURE_COUNT; i++) {
        const struct kvb_load_field *field = &kvb_load_fields[i];
        struct kvb_mp_cursor value;
        if ((!group || strcmp(field->group, group) == 0) && find_member(map, field->name, &value)) {
            KVB_TRY(read_pass_figure(i, value, sample));
        }
    }
    return KVB_OK;
}

static kvb_status
read_pass_rank(struct kvb_mp_cursor map, const char *key, struct kvb_load_sample *sample)
{
    struct kvb_mp_cursor value;

    if (find_member(map, key, &value)) {
        KVB_TRY(kvb_mp_take_u32(&value, &sample->dp_rank));
        sample->has_rank = true;
    }
    return KVB_OK;
}

/* The value is the sum of prefills and decodes.  A missing number counts as 0; if both are missing,
 * the value is absent. */
static kvb_status add_pass_requests(
    struct kvb_mp_cursor group, enum kvb_load_figure figure, struct kvb_load_sample *sample)
{
    uint64_t sum = 0;
    uint64_t count = 0;

    for (size_t i = 0; i < KVB_COUNT_OF(request_kinds); i++) {
        struct kvb_mp_cursor value;
        if (find_member(group, request_kinds[i], &value)) {
            KVB_TRY(kvb_mp_take_u64(&value, &count));
            if (__builtin_add_overflow(sum, count, &sum)) {
                return KVB_BAD_INPUT;
            }
            sample->stats |= 1U << figure;
        }
    }
    memcpy((uint8_t *)&sample->load + kvb_load_fields[figure].offset, &sum, sizeof sum);
    return KVB_OK;
}

static kvb_status read_scheduler(struct kvb_mp_cursor root, struct kvb_load_sample *sample)
{
    struct kvb_mp_cursor group;
    bool is_there = false;

    sample->is_of_scheduler = true;
    for (size_t i = 0; i < KVB_COUNT_OF(request_groups); i++) {
        KVB_TRY(find_group(root, request_groups[i].key, &is_there, &group));
        if (is_there) {
            KVB_TRY(add_pass_requests(group, request_groups[i].figure, sample));
        }
    }
    return read_pass_rank(root, "dp_rank", sample);
}

static kvb_status read_flat_or_nested(struct kvb_mp_cursor root, struct kvb_load_sample *sample)
{
    struct kvb_mp_cursor group;
    bool is_there = false;

    /* One message may have both forms; the nested one is read last, and counts. */
    KVB_TRY(read_stats(root, NULL, sample));
    KVB_TRY(read_pass_rank(root, "data_parallel_rank", sample));
    for (size_t i = 0; i < KVB_COUNT_OF(groups); i++) {
        KVB_TRY(find_group(root, groups[i], &is_there, &group));
        if (is_there) {
            KVB_TRY(read_stats(group, groups[i], sample));
            KVB_TRY(read_pass_rank(group, "data_parallel_rank", sample));
        }
    }
    return KVB_OK;
}

kvb_status kvb_forward_pass_decode(kvb_span payload, struct kvb_load_sample *out_sample)
{
    const struct kvb_mp_cursor root = kvb_mp_cursor_of(payload);
    struct kvb_load_sample sample = { .has_rank = false };
    struct kvb_mp_cursor version;

    KVB_TRY(check_message(payload));
    if (kvb_mp_next(&root) != KVB_MP_MAP) {
        return KVB_BAD_INPUT;
    }
    /* All forms have the same name; only the scheduler's struct has a version. */
    KVB_TRY(
        find_member(root, "version", &version) ? read_scheduler(root, &sample)
                                               : read_flat_or_nested(root, &sample));
    if (sample.stats == 0) {
        return KVB_BAD_INPUT; /* a map without any load value */
    }
    *out_sample = sample;
    return KVB_OK;
}

/* ---- vLLM's coordinator ---- */

/* The values of an entry, in order. */
static const enum kvb_load_figure stats[] = { KVB_FIGURE_WAITING, KVB_FIGURE_ACTIVE_SLOTS,
                                              KVB_FIGURE_USAGE };

static kvb_status
read_entry(struct kvb_mp_cursor *cursor, struct kvb_load_sample *sample, size_t *refused)
{
    uint32_t count = 0;
    double value = NAN;

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    for (uint32_t i = 0; i < count; i++) {
        /* Further values are of a later version. */
        if (i >= KVB_COUNT_OF(stats)) {
            KVB_TRY(kvb_mp_skip(cursor));
        } else if (!kvb_mp_take_nil(cursor)) {
            KVB_TRY(kvb_mp_take_number(cursor, &value));
            /* A value out of range costs itself, not the entry. */
            if (kvb_load_can_be(kvb_load_fields[stats[i]].is_ratio, value)) {
                kvb_load_sample_set(sample, stats[i], value);
            } else {
                (*refused)++;
            }
        }
    }
    return KVB_OK;
}

static kvb_status
read_engine_entries(struct kvb_mp_cursor *cursor, struct kvb_coordinator_update *update)
{
    uint32_t count = 0;

    /* A message about waves alone says nothing of the ranks. */
    if (kvb_mp_take_nil(cursor)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_mp_take_array(cursor, &count));
    if (count > kvb_max_ranks) {
        return KVB_TOO_LARGE;
    }
    for (uint32_t rank = 0; rank < count; rank++) {
        struct kvb_load_sample sample = { .has_rank = true, .dp_rank = rank };
        if (!kvb_mp_take_nil(cursor)) {
            KVB_TRY(read_entry(cursor, &sample, &update->refused));
        }
        /* A rank of which nothing is known is counted, and has no sample. */
        if (sample.stats != 0) {
            update->samples[update->count++] = sample;
        }
    }
    update->has_ranks = true;
    update->rank_count = count;
    return KVB_OK;
}

/* Wave and is_running are not load values; their types are checked to recognise the message. */
static kvb_status read_wave(struct kvb_mp_cursor *cursor, uint32_t count)
{
    uint64_t wave = 0;

    KVB_TRY(kvb_mp_take_u64(cursor, &wave));
    if (kvb_mp_next(cursor) != KVB_MP_BOOL) {
        return KVB_BAD_INPUT;
    }
    for (uint32_t i = 2; i < count; i++) {
        KVB_TRY(kvb_mp_skip(cursor));
    }
    return KVB_OK;
}

kvb_status kvb_coordinator_decode(kvb_span frame, struct kvb_coordinator_update *out_update)
{
    struct kvb_mp_cursor cursor = kvb_mp_cursor_of(frame);
    uint32_t count = 0;

    KVB_TRY(check_message(frame));
    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    if (count < 3) {
        return KVB_BAD_INPUT;
    }
    /* Set one by one: clearing all samples would cost more than reading the message. */
    out_update->count = 0;
    out_update->has_ranks = false;
    out_update->rank_count = 0;
    out_update->refused = 0;
    KVB_TRY(read_engine_entries(&cursor, out_update));
    return read_wave(&cursor, count);
}
