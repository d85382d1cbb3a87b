#pragma once

#include "core/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The payload hashes of the last batches applied, by sequence number (a direct-mapped table).  A
 * number that comes again is a duplicate only if the hash is the same.  The table also says which
 * batches came live on this connection: a batch that came both live and by replay shows that the
 * replay belongs to the publisher.
 *
 *     slot = seq % 1024      [ seq | hash | live? ]
 *
 * 1,024 batches are about one second at the rates of engines, and take 32 KiB.
 * Threads: the caller locks. */
enum { kvb_fingerprints = 1024 };

struct kvb_fingerprint {
    bool is_set;
    bool is_live; /* it came live on this connection, and perhaps by replay too */
    uint64_t seq;
    struct kvb_hash128 hash;
};

struct kvb_fingerprint_ring {
    struct kvb_fingerprint slots[kvb_fingerprints];
};

void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring);
void kvb_fingerprints_put(
    struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash, bool is_live);

/* True when seq is still known and has this hash. */
bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash);

/* True when seq is still known. */
bool kvb_fingerprints_has(const struct kvb_fingerprint_ring *ring, uint64_t seq);

/* A new connection: no batch has come live on it yet. */
void kvb_fingerprints_reconnect(struct kvb_fingerprint_ring *ring);

/* True when seq is still known, and came live. */
bool kvb_fingerprints_is_live(const struct kvb_fingerprint_ring *ring, uint64_t seq);
