#include "model/digest.h"

#include <stdbool.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "items are hashed as LE integers");

/* The fields are written as whole words, without padding: 8 + 4 + 4 + 8 bytes. */
static struct kvb_hash128
item_of(const struct kvb_digest_key *key, enum kvb_tier tier, kvb_block_hash block)
{
    const uint64_t words[] = { key->worker_id, key->dp_rank | (uint64_t)tier << 32, block.value };

    return kvb_hash128_triple(words, key->seed);
}

static void add_hash_sum(struct kvb_hash128 *sum, struct kvb_hash128 item)
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

[[gnu::hot]] void kvb_digest_add(
    struct kvb_digest *digest, const struct kvb_digest_key *key, enum kvb_tier tier,
    kvb_block_hash block)
{
    const struct kvb_hash128 item = item_of(key, tier, block);

    add_hash_sum(&digest->total, item);
    /* The bucket is chosen by the item itself, so both sides agree without a word. */
    add_hash_sum(&digest->buckets[item.low % kvb_digest_buckets], item);
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
