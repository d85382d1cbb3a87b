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
/* Returns the hash of the concatenated parts. */
uint64_t kvb_hash64_parts(const kvb_span *parts, size_t count, uint64_t seed);

struct kvb_hash128 kvb_hash128(kvb_span bytes, uint64_t seed);

/* The same of two and of three words, which takes half the time: XXH3 has a way of its own for each
 * range of lengths, and here it is known. */
uint64_t kvb_hash64_pair(const uint64_t words[2], uint64_t seed);
struct kvb_hash128 kvb_hash128_triple(const uint64_t words[3], uint64_t seed);

/* ---- For tables ----
 *
 * A keyed hash against hash flooding.  Engines and NATS clients choose the keys of our tables.  A
 * peer that can compute a table's hash can choose keys that collide.  Each look-up then walks past
 * all of them.  So each table's hash has a random key that never leaves the process.
 *
 *     fold(a, b)  = high half ^ low half of the 128-bit product a * b
 *     hash(a, b)  = fold(fold(a ^ key0, b ^ key1), odd constant)
 *
 * This is the folded multiplication of wyhash and foldhash.  A finaliser such as splitmix64's would
 * not do: it is a bijection that anybody can invert, also after an XOR with a key, so an attacker
 * can compute numbers that collide whatever the key is.  Here the key is part of each factor, so
 * both words of the key decide which products collide.  The second multiplication spreads inputs
 * that differ in few bits over the low bits, which select the table's cell.  Two multiplications
 * are as fast as that finaliser.
 *
 * It is not a cryptographic hash.  It is safe as long as peers see neither hashes nor an order that
 * depends on them.  Neither may reach an answer, an event or a file. */
struct kvb_hash_key {
    uint64_t words[2];
};

/* Makes a key.  The secret is random where untrusted peers choose what is hashed, and a constant in
 * tests. */
struct kvb_hash_key kvb_hash_key_of(uint64_t secret);

__extension__ typedef unsigned __int128 kvb_product;

static inline uint64_t kvb_hash_fold(uint64_t a, uint64_t b)
{
    const kvb_product product = (kvb_product)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Returns the hash of the pair: `value` and `of`, the owner of `value`. */
static inline uint64_t kvb_hash_keyed(const struct kvb_hash_key *key, uint64_t value, uint64_t of)
{
    const uint64_t mixed = kvb_hash_fold(value ^ key->words[0], of ^ key->words[1]);
    return kvb_hash_fold(mixed, UINT64_C(0x9e3779b97f4a7c15));
}
