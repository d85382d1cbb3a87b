#include "wire/load/coordinator.h"

#include "wire/msgpack/cursor.h"

#include <math.h>

/* The values of an entry, in order. */
static const enum kvb_load_figure stats[] = {
    KVB_FIGURE_WAITING,
    KVB_FIGURE_ACTIVE_SLOTS,
    KVB_FIGURE_USAGE,
};

enum { figure_count = sizeof stats / sizeof stats[0] };

/* Further values, of a later version, are skipped. */
static kvb_status
read_entry(struct kvb_mp_cursor *cursor, struct kvb_load_sample *sample, size_t *refused)
{
    uint32_t count = 0;
    double value = NAN;

    KVB_TRY(kvb_mp_take_array(cursor, &count));
    for (uint32_t i = 0; i < count; i++) {
        if (i >= figure_count) {
            KVB_TRY(kvb_mp_skip(cursor));
        } else if (!kvb_mp_take_nil(cursor)) {
            KVB_TRY(kvb_mp_take_number(cursor, &value));
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
    size_t used = 0;

    if (frame.len > kvb_max_load_payload_bytes) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(kvb_mp_guard(frame, kvb_max_depth, &used));
    if (used != frame.len) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_mp_take_array(&cursor, &count));
    if (count < 3) {
        return KVB_BAD_INPUT;
    }
    out_update->count = 0;
    out_update->has_ranks = false;
    out_update->rank_count = 0;
    out_update->refused = 0;
    KVB_TRY(read_engine_entries(&cursor, out_update));
    return read_wave(&cursor, count);
}
