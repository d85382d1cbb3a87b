#include "model/replay_buffer.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    uint64_t seq;
    uint8_t *data; /* owned */
    size_t len;
};

struct kvb_replay_buffer {
    struct entry *entries; /* owned; a ring */
    size_t capacity;
    size_t first;
    size_t count;
    size_t bytes;
    size_t max_bytes;
};

enum { max_kept_batches = 1 << 20 };

kvb_status
kvb_replay_buffer_new(size_t max_batches, size_t max_bytes, struct kvb_replay_buffer **out_buffer)
{
    if (max_batches == 0 || max_batches > max_kept_batches) {
        return KVB_TOO_LARGE;
    }
    struct kvb_replay_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
        return KVB_NO_MEMORY;
    }
    buffer->entries = calloc(max_batches, sizeof *buffer->entries);
    if (!buffer->entries) {
        free(buffer);
        return KVB_NO_MEMORY;
    }
    buffer->capacity = max_batches;
    buffer->max_bytes = max_bytes;
    *out_buffer = buffer;
    return KVB_OK;
}

void kvb_replay_buffer_free(struct kvb_replay_buffer *buffer)
{
    if (!buffer) {
        return;
    }
    kvb_replay_buffer_clear(buffer);
    free(buffer->entries);
    free(buffer);
}

static struct entry *buffer_entry_at(const struct kvb_replay_buffer *buffer, size_t at)
{
    return &buffer->entries[(buffer->first + at) % buffer->capacity];
}

static void drop_oldest(struct kvb_replay_buffer *buffer)
{
    struct entry *oldest = buffer_entry_at(buffer, 0);

    buffer->bytes -= oldest->len;
    free(oldest->data);
    oldest->data = NULL;
    buffer->first = (buffer->first + 1) % buffer->capacity;
    buffer->count--;
}

kvb_status kvb_replay_buffer_put(struct kvb_replay_buffer *buffer, uint64_t seq, kvb_span payload)
{
    if (payload.len > buffer->max_bytes) {
        return KVB_TOO_LARGE;
    }
    /* The subtraction cannot wrap: a payload above max_bytes was refused. */
    while (buffer->count == buffer->capacity || buffer->bytes > buffer->max_bytes - payload.len) {
        drop_oldest(buffer);
    }

    uint8_t *copy = malloc(payload.len + 1); /* + 1: malloc(0) may return NULL */
    if (!copy) {
        return KVB_NO_MEMORY;
    }
    if (payload.len > 0) {
        memcpy(copy, payload.data, payload.len);
    }
    *buffer_entry_at(buffer, buffer->count++) =
        (struct entry){ .seq = seq, .data = copy, .len = payload.len };
    buffer->bytes += payload.len;
    return KVB_OK;
}

void kvb_replay_buffer_clear(struct kvb_replay_buffer *buffer)
{
    while (buffer->count > 0) {
        drop_oldest(buffer);
    }
}

size_t kvb_replay_buffer_count(const struct kvb_replay_buffer *buffer)
{
    return buffer->count;
}

size_t kvb_replay_buffer_find(const struct kvb_replay_buffer *buffer, uint64_t start)
{
    size_t low = 0;
    size_t high = buffer->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (buffer_entry_at(buffer, middle)->seq < start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

kvb_span kvb_replay_buffer_at(const struct kvb_replay_buffer *buffer, size_t at, uint64_t *out_seq)
{
    const struct entry *entry = buffer_entry_at(buffer, at);

    *out_seq = entry->seq;
    return (kvb_span){ .data = entry->data, .len = entry->len };
}
