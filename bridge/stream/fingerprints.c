#include "stream/fingerprints.h"

#include <stdlib.h>

enum { first_fingerprints = 16 };

void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring)
{
    free(ring->slots);
    *ring = (struct kvb_fingerprint_ring){ 0 };
}

/* The ring must have slots. */
static struct kvb_fingerprint *
fingerprint_slot(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    return &ring->slots[seq & (ring->capacity - 1)];
}

/* Doubles the table.  Batches in different slots are in different slots afterwards.  False: there
 * is no memory, and nothing changed. */
static bool grow_fingerprints(struct kvb_fingerprint_ring *ring)
{
    const size_t capacity = ring->capacity > 0 ? 2 * ring->capacity : first_fingerprints;
    struct kvb_fingerprint_ring bigger = { .slots = calloc(capacity, sizeof *ring->slots),
                                           .capacity = capacity };

    if (!bigger.slots) {
        return false;
    }
    for (size_t i = 0; i < ring->capacity; i++) {
        if (ring->slots[i].is_set) {
            *fingerprint_slot(&bigger, ring->slots[i].seq) = ring->slots[i];
        }
    }
    free(ring->slots);
    *ring = bigger;
    return true;
}

void kvb_fingerprints_put(
    struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash, bool is_live)
{
    const struct kvb_fingerprint item = {
        .is_set = true, .is_live = is_live, .seq = seq, .hash = hash
    };

    if (ring->capacity == 0 && !grow_fingerprints(ring)) {
        return;
    }
    /* Grows while a larger table would keep both this batch and the one in its slot.  Ends, because
     * numbers that differ modulo kvb_fingerprints have different slots in a table of that many. */
    for (const struct kvb_fingerprint *slot = fingerprint_slot(ring, seq);
         slot->is_set && (slot->seq ^ seq) % kvb_fingerprints != 0 && grow_fingerprints(ring);) {
        slot = fingerprint_slot(ring, seq);
    }
    *fingerprint_slot(ring, seq) = item;
}

static const struct kvb_fingerprint *
find_fingerprint(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    const struct kvb_fingerprint *slot = ring->capacity > 0 ? fingerprint_slot(ring, seq) : NULL;

    return slot && slot->is_set && slot->seq == seq ? slot : NULL;
}

bool kvb_fingerprints_has(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    return find_fingerprint(ring, seq) != NULL;
}

const struct kvb_fingerprint *
kvb_fingerprints_at(const struct kvb_fingerprint_ring *ring, size_t slot)
{
    const struct kvb_fingerprint *at = ring->capacity > 0 ? fingerprint_slot(ring, slot) : NULL;

    return at && at->is_set && at->seq % kvb_fingerprints == slot ? at : NULL;
}

void kvb_fingerprints_reconnect(struct kvb_fingerprint_ring *ring)
{
    for (size_t i = 0; i < ring->capacity; i++) {
        ring->slots[i].is_live = false;
    }
}

bool kvb_fingerprints_is_live(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    const struct kvb_fingerprint *slot = find_fingerprint(ring, seq);

    return slot && slot->is_live;
}

bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash)
{
    const struct kvb_fingerprint *slot = find_fingerprint(ring, seq);

    return slot && slot->hash.low == hash.low && slot->hash.high == hash.high;
}
