#pragma once

#include "core/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The payload hashes of the last batches applied, by sequence number: an older
 * number that comes again is a duplicate only with its old hash.
 *
 *     slot = seq % 1024      [ seq | hash ]
 *
 * 1,024 is a second's worth at the rates that engines reach, and 32 KiB.
 * Threads: the caller locks. */
enum { kvb_fingerprints = 1024 };

struct kvb_fingerprint {
    bool is_set;
    uint64_t seq;
    struct kvb_hash128 hash;
};

struct kvb_fingerprint_ring {
    struct kvb_fingerprint slots[kvb_fingerprints];
};

void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring);
void kvb_fingerprints_put(struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash);

/* True when seq is still known, and with this hash. */
bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash);
