#include "stream/fingerprints.h"

void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring)
{
    *ring = (struct kvb_fingerprint_ring){ 0 };
}

void kvb_fingerprints_put(struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash)
{
    ring->slots[seq % kvb_fingerprints] =
        (struct kvb_fingerprint){ .is_set = true, .seq = seq, .hash = hash };
}

bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash)
{
    const struct kvb_fingerprint *slot = &ring->slots[seq % kvb_fingerprints];

    return slot->is_set && slot->seq == seq && slot->hash.low == hash.low &&
           slot->hash.high == hash.high;
}
