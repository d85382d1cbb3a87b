#include "wire/coordinator.h"

#include "wire/mp_cursor.h"
#include "wire/mp_guard.h"

#include <math.h>

/* The figures of an entry, in their order. */
static const enum kvb_load_figure figures[] = {
    KVB_FIGURE_WAITING,
    KVB_FIGURE_ACTIVE_SLOTS,
    KVB_FIGURE_USAGE,
};

enum { figure_count = sizeof figures / sizeof figures[0] };

/* Values after the ones we know are those of a later version. */
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
            if (kvb_load_can_be(kvb_load_fields[figures[i]].is_ratio, value)) {
                kvb_load_sample_set(sample, figures[i], value);
            } else {
                (*refused)++;
            }
        }
    }
    return KVB_OK;
}

static kvb_status read_entries(struct kvb_mp_cursor *cursor, struct kvb_coordinator_news *news)
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
            KVB_TRY(read_entry(cursor, &sample, &news->refused));
        }
        if (sample.figures != 0) {
            news->samples[news->count++] = sample;
        }
    }
    news->has_ranks = true;
    news->rank_count = count;
    return KVB_OK;
}

/* The wave and whether it runs tell nothing of load, but show that it is the message. */
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

kvb_status kvb_coordinator_decode(kvb_span frame, struct kvb_coordinator_news *out_news)
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
    out_news->count = 0;
    out_news->has_ranks = false;
    out_news->rank_count = 0;
    out_news->refused = 0;
    KVB_TRY(read_entries(&cursor, out_news));
    return read_wave(&cursor, count);
}
