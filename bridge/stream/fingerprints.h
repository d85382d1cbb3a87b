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
 *     slot = seq % capacity      [ seq | hash | live? ]
 *
 * The capacity begins with 16 and doubles whenever two batches meet in a slot, up to 1,024: an idle
 * stream needs little memory, and what is remembered does not depend on the capacity.  1,024
 * batches are about one second at the rates of engines, and take 32 KiB.
 *
 * Threads: the caller locks.
 * Memory:  owns its slots; {0} is an empty table.  Without memory to grow, the newer of two batches
 *          in a slot stays, as at the full capacity. */
enum { kvb_fingerprints = 1024 };

struct kvb_fingerprint {
    bool is_set;
    bool is_live; /* it came live on this connection, and perhaps by replay too */
    uint64_t seq;
    struct kvb_hash128 hash;
};

struct kvb_fingerprint_ring {
    struct kvb_fingerprint *slots; /* owned; NULL: none yet */
    size_t capacity;               /* 0, or a power of two up to kvb_fingerprints */
};

/* Forgets all batches, and returns the memory. */
void kvb_fingerprints_clear(struct kvb_fingerprint_ring *ring);

void kvb_fingerprints_put(
    struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash, bool is_live);

/* True when seq is still known and has this hash. */
bool kvb_fingerprints_match(
    const struct kvb_fingerprint_ring *ring, uint64_t seq, struct kvb_hash128 hash);

/* True when seq is still known. */
bool kvb_fingerprints_has(const struct kvb_fingerprint_ring *ring, uint64_t seq);

/* The batch in this slot, 0 .. kvb_fingerprints - 1, of a table of full capacity; NULL: none. */
const struct kvb_fingerprint *
kvb_fingerprints_at(const struct kvb_fingerprint_ring *ring, size_t slot);

/* A new connection: no batch has come live on it yet. */
void kvb_fingerprints_reconnect(struct kvb_fingerprint_ring *ring);

/* True when seq is still known, and came live. */
bool kvb_fingerprints_is_live(const struct kvb_fingerprint_ring *ring, uint64_t seq);
