#pragma once

#include "core/span.h"

#include <stdint.h>

/* XXH3 (64 and 128 bits) for hashes that leave the process, and a keyed hash of numbers for the
 * tables inside it.  Source: xxHash 0.8, stable since that version.  Threads: any thread. */

struct kvb_hash128 {
    uint64_t low;
    uint64_t high;
};

uint64_t kvb_hash64(kvb_span bytes, uint64_t seed);
/* The hash of the concatenated parts. */
uint64_t kvb_hash64_parts(const kvb_span *parts, size_t count, uint64_t seed);

struct kvb_hash128 kvb_hash128(kvb_span bytes, uint64_t seed);

/* ---- Of tables ----
 *
 * Against hash flooding.  Engines and NATS clients choose the keys of our tables.  Whoever can
 * compute a table's hash can choose keys that collide, and each look-up then walks past all of
 * them.  So each table's hash is keyed with a random number that never leaves the process.
 *
 *     fold(a, b)  = high half ^ low half of the 128-bit product a * b
 *     hash(a, b)  = fold(fold(a ^ key0, b ^ key1), odd constant)
 *
 * This is the folded multiplication of wyhash and foldhash.  A finaliser such as splitmix64's is
 * a bijection that anybody can invert, also after an XOR with a key: an attacker can compute
 * numbers that collide whatever the key is.  Here the key is part of a factor, so which products
 * collide depends on both words of the key.  The second multiplication spreads inputs that
 * differ in few bits over the low bits, which select the table's cell.  Two multiplications are
 * as fast as that finaliser.  It is not a cryptographic hash: it is safe as long as nobody sees
 * hashes or an order that depends on them.  Neither may reach an answer, an event or a file. */
struct kvb_hash_key {
    uint64_t words[2];
};

/* secret: random where untrusted peers choose what is hashed; a constant in tests. */
struct kvb_hash_key kvb_hash_key_of(uint64_t secret);

__extension__ typedef unsigned __int128 kvb_product;

static inline uint64_t kvb_hash_fold(uint64_t a, uint64_t b)
{
    const kvb_product product = (kvb_product)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* The hash of a pair: `of` is the owner that `value` is a number of. */
static inline uint64_t kvb_hash_keyed(const struct kvb_hash_key *key, uint64_t value, uint64_t of)
{
    const uint64_t mixed = kvb_hash_fold(value ^ key->words[0], of ^ key->words[1]);
    return kvb_hash_fold(mixed, UINT64_C(0x9e3779b97f4a7c15));
}
