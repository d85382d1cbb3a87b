#pragma once

#include "core/hash.h"
#include "core/ref.h"
#include "model/sync.h"
#include "model/tier.h"

#include <stddef.h>
#include <stdint.h>

/* AdHash, an incremental multiset hash, of the blocks that a stream holds in one tier.  Bridge and
 * aggregator each compute it: equal digests mean equal sets.
 *
 *     item    = XXH3-128 of worker_id, dp_rank, tier, block_hash, with the seed
 *     bucket  = low byte of item:  buckets[256]  sums mod 2^128 of their items
 *     total   = sum of the buckets
 *
 * It adds in place of XOR, so that a block that is counted twice changes the digest.  Every epoch
 * has a new seed, so that two sets that collide do so in one epoch only.  When digests differ, a
 * reader fetches only the buckets that differ.
 *
 * Threads: the caller locks.  Memory: 4 KiB and 16 bytes.  Cost: a hash of 24 bytes. */
enum { kvb_digest_buckets = kvb_sync_buckets };

struct kvb_digest {
    struct kvb_hash128 total;
    struct kvb_hash128 buckets[kvb_digest_buckets];
};

struct kvb_digest_key {
    uint64_t worker_id;
    uint32_t dp_rank;
    uint64_t seed;
};

void kvb_digest_add(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block);
void kvb_digest_subtract(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block);

/* The bucket in which the block is counted, 0 .. 255. */
size_t
kvb_digest_bucket(const struct kvb_digest_key *key, enum kvb_tier tier, kvb_block_hash block);
