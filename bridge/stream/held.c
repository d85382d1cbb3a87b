#include "stream/held.h"

#include "core/array.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

void kvb_held_clear(struct kvb_held *held)
{
    for (size_t i = held->first; i < held->end; i++) {
        kvb_event_batch_done(&held->items[i].batch);
    }
    held->first = 0;
    held->end = 0;
    held->bytes = 0;
}

void kvb_held_done(struct kvb_held *held)
{
    kvb_held_clear(held);
    free(held->items);
    *held = (struct kvb_held){ 0 };
}

/* Moves the items to the front when the dropped ones take half of the room:
 * each item is moved once per halving at most. */
static void close_up(struct kvb_held *held)
{
    if (held->first > 0 && held->first >= held->end - held->first) {
        memmove(
            held->items, held->items + held->first,
            (held->end - held->first) * sizeof *held->items);
        held->end -= held->first;
        held->first = 0;
    }
}

kvb_status kvb_held_add(
    struct kvb_held *held, uint64_t seq, struct kvb_hash128 fingerprint,
    const struct kvb_event_batch *batch)
{
    struct kvb_held_batch item = { .seq = seq,
                                   .fingerprint = fingerprint,
                                   .is_readable = batch != NULL };

    item.bytes = sizeof item + (batch ? kvb_event_batch_bytes(batch) : 0);
    if (held->bytes + item.bytes > held->max_bytes) {
        return KVB_TOO_LARGE;
    }
    close_up(held);
    KVB_TRY(kvb_array_reserve(
        &held->items, &held->capacity, held->end + 1, sizeof *held->items, kvb_max_held_batches));
    if (batch) {
        KVB_TRY(kvb_event_batch_copy(batch, &item.batch));
    }
    held->items[held->end++] = item;
    held->bytes += item.bytes;
    return KVB_OK;
}

size_t kvb_held_count(const struct kvb_held *held)
{
    return held->end - held->first;
}

const struct kvb_held_batch *kvb_held_oldest(const struct kvb_held *held)
{
    return held->first < held->end ? &held->items[held->first] : NULL;
}

void kvb_held_drop_oldest(struct kvb_held *held)
{
    struct kvb_held_batch *oldest = &held->items[held->first];

    held->bytes -= oldest->bytes;
    kvb_event_batch_done(&oldest->batch);
    held->first++;
}
