#include "stream/fingerprints.h"

void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring)
{
    *ring = (struct kvb_fingerprint_ring){ 0 };
}

void kvb_fingerprints_put(
    struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash, bool is_live)
{
    ring->slots[seq % kvb_fingerprints] =
        (struct kvb_fingerprint){ .is_set = true, .is_live = is_live, .seq = seq, .hash = hash };
}

bool kvb_fingerprints_has(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    const struct kvb_fingerprint *slot = &ring->slots[seq % kvb_fingerprints];

    return slot->is_set && slot->seq == seq;
}

void kvb_fingerprints_reconnect(struct kvb_fingerprint_ring *ring)
{
    for (size_t i = 0; i < kvb_fingerprints; i++) {
        ring->slots[i].is_live = false;
    }
}

bool kvb_fingerprints_is_live(const struct kvb_fingerprint_ring *ring, uint64_t seq)
{
    return kvb_fingerprints_has(ring, seq) && ring->slots[seq % kvb_fingerprints].is_live;
}

bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash)
{
    const struct kvb_fingerprint *slot = &ring->slots[seq % kvb_fingerprints];

    return kvb_fingerprints_has(ring, seq) && slot->hash.low == hash.low &&
           slot->hash.high == hash.high;
}
