#pragma once

#include "core/hash.h"
#include "core/status.h"
#include "model/event_batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Live batches that wait until a replay has filled what lies before them.
 *
 *     oldest [ seq | hash | batch or "cannot be read" ] ... newest
 *
 * Threads: the caller locks.
 * Memory:  copies, at most max_bytes and kvb_max_held_batches. */
struct kvb_held_batch {
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    bool is_readable;
    size_t bytes;
    struct kvb_event_batch batch; /* owned */
};

struct kvb_held {
    struct kvb_held_batch *items; /* owned */
    size_t first;                 /* oldest */
    size_t end;                   /* behind the newest */
    size_t capacity;
    size_t bytes;
    size_t max_bytes;
};

void kvb_held_done(struct kvb_held *held);
void kvb_held_clear(struct kvb_held *held);

/* Copies the batch (NULL: it cannot be read) to the end.
 * KVB_TOO_LARGE a ceiling, KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_held_add(
    struct kvb_held *held, uint64_t seq, struct kvb_hash128 fingerprint,
    const struct kvb_event_batch *batch);

size_t kvb_held_count(const struct kvb_held *held);

/* The oldest, borrowed until the next change; NULL when empty. */
const struct kvb_held_batch *kvb_held_oldest(const struct kvb_held *held);
void kvb_held_drop_oldest(struct kvb_held *held);
