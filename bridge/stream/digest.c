#include "stream/digest.h"

#include <stdbool.h>

enum { item_bytes = 24 };

static void put_le(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static struct kvb_hash128
item_of(const struct kvb_digest_key *key, enum kvb_tier tier, kvb_block_hash block)
{
    uint8_t bytes[item_bytes];

    put_le(bytes, key->worker_id, 8);
    put_le(bytes + 8, key->dp_rank, 4);
    put_le(bytes + 12, (uint64_t)tier, 4);
    put_le(bytes + 16, block.value, 8);
    return kvb_hash128((kvb_span){ .data = bytes, .len = sizeof bytes }, key->seed);
}

static void add(struct kvb_hash128 *sum, struct kvb_hash128 item)
{
    sum->low += item.low;
    sum->high += item.high + (sum->low < item.low);
}

static void subtract(struct kvb_hash128 *sum, struct kvb_hash128 item)
{
    const bool borrows = sum->low < item.low;

    sum->low -= item.low;
    sum->high -= item.high + borrows;
}

void kvb_digest_add(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block)
{
    const struct kvb_hash128 item = item_of(key, tier, block);

    add(&digest->total, item);
    add(&digest->buckets[item.low % kvb_digest_buckets], item);
}

void kvb_digest_subtract(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block)
{
    const struct kvb_hash128 item = item_of(key, tier, block);

    subtract(&digest->total, item);
    subtract(&digest->buckets[item.low % kvb_digest_buckets], item);
}

size_t kvb_digest_bucket(const struct kvb_digest_key *key, enum kvb_tier tier, kvb_block_hash block)
{
    return item_of(key, tier, block).low % kvb_digest_buckets;
}
