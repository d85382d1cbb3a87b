#pragma once

#include "core/hash.h"
#include "core/status.h"
#include "model/event_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Live batches that wait until a replay has brought the batches before them.
 *
 *     oldest [ seq | hash | batch or "cannot be read" ] ... newest
 *
 * Threads: the caller locks.
 * Memory:  copies, at most max_bytes and kvb_max_reorder_batches. */
struct kvb_reordered_batch {
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    bool is_readable;
    size_t bytes;
    struct kvb_event_batch batch; /* owned */
};

struct kvb_reorder_buffer {
    struct kvb_reordered_batch *items; /* owned */
    size_t first;                      /* oldest */
    size_t end;                        /* one after the newest */
    size_t capacity;
    size_t bytes;
    size_t max_bytes;
};

void kvb_reorder_buffer_done(struct kvb_reorder_buffer *buffer);
void kvb_reorder_buffer_clear(struct kvb_reorder_buffer *buffer);

/* Copies the batch (NULL: it cannot be read) to the end.
 * KVB_TOO_LARGE a limit is reached, KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_reorder_buffer_add(
    struct kvb_reorder_buffer *buffer, uint64_t seq, struct kvb_hash128 fingerprint,
    const struct kvb_event_batch *batch);

size_t kvb_reorder_buffer_count(const struct kvb_reorder_buffer *buffer);

/* True for the numbers from that of the oldest item to that of the newest. */
bool kvb_reorder_buffer_spans(const struct kvb_reorder_buffer *buffer, uint64_t seq);

/* The oldest, borrowed until the next change; NULL when empty. */
const struct kvb_reordered_batch *
kvb_reorder_buffer_oldest(const struct kvb_reorder_buffer *buffer);

/* Moves the batch out of the oldest item; the empty item stays until it is dropped.  Takes nothing
 * when the list is empty: *out_batch is {0}. */
void kvb_reorder_buffer_take_batch(
    struct kvb_reorder_buffer *buffer, struct kvb_event_batch *out_batch);
void kvb_reorder_buffer_drop_oldest(struct kvb_reorder_buffer *buffer);
