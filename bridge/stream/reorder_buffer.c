#include "stream/reorder_buffer.h"

#include "core/array.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

void kvb_reorder_buffer_clear(struct kvb_reorder_buffer *buffer)
{
    for (size_t i = buffer->first; i < buffer->end; i++) {
        kvb_event_batch_done(&buffer->items[i].batch);
    }
    buffer->first = 0;
    buffer->end = 0;
    buffer->bytes = 0;
}

void kvb_reorder_buffer_done(struct kvb_reorder_buffer *buffer)
{
    kvb_reorder_buffer_clear(buffer);
    free(buffer->items);
    *buffer = (struct kvb_reorder_buffer){ 0 };
}

kvb_status kvb_reorder_buffer_add(
    struct kvb_reorder_buffer *buffer, uint64_t seq, struct kvb_hash128 fingerprint,
    const struct kvb_event_batch *batch)
{
    struct kvb_reordered_batch item = { .seq = seq,
                                        .fingerprint = fingerprint,
                                        .is_readable = batch != NULL };

    item.bytes = sizeof item + (batch ? kvb_event_batch_bytes(batch) : 0);
    if (buffer->bytes + item.bytes > buffer->max_bytes) {
        return KVB_TOO_LARGE;
    }
    /* The items move to the front when the dropped ones take half of the room: each item is moved
     * once per halving at most. */
    if (buffer->first > 0 && buffer->first >= buffer->end - buffer->first) {
        memmove(
            buffer->items, buffer->items + buffer->first,
            (buffer->end - buffer->first) * sizeof *buffer->items);
        buffer->end -= buffer->first;
        buffer->first = 0;
    }
    KVB_TRY(kvb_array_reserve(
        &buffer->items, &buffer->capacity, buffer->end + 1, sizeof *buffer->items,
        kvb_max_reorder_batches));
    if (batch) {
        KVB_TRY(kvb_event_batch_copy(batch, &item.batch));
    }
    buffer->items[buffer->end++] = item;
    buffer->bytes += item.bytes;
    return KVB_OK;
}

size_t kvb_reorder_buffer_count(const struct kvb_reorder_buffer *buffer)
{
    return buffer->end - buffer->first;
}

bool kvb_reorder_buffer_spans(const struct kvb_reorder_buffer *buffer, uint64_t seq)
{
    return buffer->first < buffer->end && seq >= buffer->items[buffer->first].seq &&
           seq <= buffer->items[buffer->end - 1].seq;
}

const struct kvb_reordered_batch *kvb_reorder_buffer_oldest(const struct kvb_reorder_buffer *buffer)
{
    return buffer->first < buffer->end ? &buffer->items[buffer->first] : NULL;
}

void kvb_reorder_buffer_take_batch(
    struct kvb_reorder_buffer *buffer, struct kvb_event_batch *out_batch)
{
    *out_batch = (struct kvb_event_batch){ 0 };
    if (buffer->first < buffer->end) {
        *out_batch = buffer->items[buffer->first].batch;
        buffer->items[buffer->first].batch = (struct kvb_event_batch){ 0 };
    }
}

void kvb_reorder_buffer_drop_oldest(struct kvb_reorder_buffer *buffer)
{
    struct kvb_reordered_batch *oldest = &buffer->items[buffer->first];

    buffer->bytes -= oldest->bytes;
    kvb_event_batch_done(&oldest->batch);
    buffer->first++;
}
