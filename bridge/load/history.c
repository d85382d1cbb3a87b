#include "load/history.h"

#include "core/clock.h"
#include "core/limits.h"

#include <stdlib.h>

struct kvb_history {
    struct kvb_history_sample *samples; /* owned; a ring */
    size_t capacity;
    size_t count;
    size_t next; /* the place of the next sample */
    uint64_t began_ns;
    uint64_t newest; /* second of the newest sample */
    uint64_t newest_ns;
    struct kvb_history_reading last; /* of the newest sample */
};

kvb_status kvb_history_new(size_t capacity, uint64_t now_ns, struct kvb_history **out_history)
{
    if (capacity == 0 || capacity > kvb_max_history_samples) {
        return KVB_TOO_LARGE;
    }
    struct kvb_history *history = calloc(1, sizeof *history);
    if (!history) {
        return KVB_NO_MEMORY;
    }
    history->samples = calloc(capacity, sizeof *history->samples);
    if (!history->samples) {
        free(history);
        return KVB_NO_MEMORY;
    }
    history->capacity = capacity;
    history->began_ns = now_ns;
    history->newest_ns = now_ns;
    *out_history = history;
    return KVB_OK;
}

void kvb_history_free(struct kvb_history *history)
{
    if (history) {
        free(history->samples);
        free(history);
    }
}

static uint64_t second_of(const struct kvb_history *history, uint64_t now_ns)
{
    return (now_ns - history->began_ns) / KVB_NS_PER_S;
}

bool kvb_history_is_due(const struct kvb_history *history, uint64_t now_ns)
{
    return second_of(history, now_ns) > history->newest;
}

/* Divides by the time that has passed: a late sample covers more than a second. */
static double per_second(uint64_t more, uint64_t ns)
{
    return (double)more * (double)KVB_NS_PER_S / (double)ns;
}

void kvb_history_add(
    struct kvb_history *history, const struct kvb_history_reading *reading, uint64_t now_ns)
{
    const struct kvb_history_reading *last = &history->last;

    if (!kvb_history_is_due(history, now_ns)) {
        return;
    }
    struct kvb_history_sample *sample = &history->samples[history->next];
    *sample = (struct kvb_history_sample){
        .second = second_of(history, now_ns),
        .events_per_s =
            per_second(reading->events_applied - last->events_applied, now_ns - history->newest_ns),
        .asked_blocks = reading->asked_blocks - last->asked_blocks,
        .hit_blocks = reading->hit_blocks - last->hit_blocks,
        .promised_tokens = reading->promised_tokens - last->promised_tokens,
        .delivered_tokens = reading->delivered_tokens - last->delivered_tokens,
        .held_blocks = reading->held_blocks,
        .load_avg = reading->load_avg,
        .load_std = reading->load_std,
    };
    for (size_t i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        sample->streams[i] = reading->streams[i];
    }
    history->newest = sample->second;
    history->newest_ns = now_ns;
    history->last = *reading;
    history->next = (history->next + 1) % history->capacity;
    history->count += history->count < history->capacity;
}

size_t
kvb_history_copy(const struct kvb_history *history, uint64_t after, struct kvb_history_sample *out)
{
    const size_t oldest = history->next + history->capacity - history->count;
    const uint64_t from = after > history->newest ? 0 : after;
    size_t copied = 0;

    for (size_t i = 0; i < history->count; i++) {
        const struct kvb_history_sample *sample =
            &history->samples[(oldest + i) % history->capacity];
        if (sample->second > from) {
            out[copied++] = *sample;
        }
    }
    return copied;
}
