#pragma once

#include "index/line_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Sets of holders (small numbers), each kept once.
 *
 * The holders of a block are mostly those of the block before it, so a node of the index
 * names its set by a number of 4 bytes, whatever the fleet's size, and what a run of
 * blocks does to a set is computed once.
 *
 *     id 0                  the empty set
 *     id 2^31 | h           {h}: no memory at all
 *     any other id          header | hash | mask of leaves | references |
 *                                        |
 *                       leaves of 512 bits, only those that are not empty, in order:
 *                       | leaf 0 | leaf 7 | leaf 19 |
 *
 * A set's hash is the XOR of its holders' hashes: one holder more or less is one XOR, and
 * tells where an equal set would be found.  Equal hashes are compared bit by bit.
 * A set with one reference is edited in place; other sets do not change.
 *
 * Threads: the caller locks.
 * Memory: 40 bytes and 64 for each leaf, some 12 in the table. */
enum {
    kvb_leaf_bits = 512,
    kvb_leaf_words = kvb_leaf_bits / 64,
    kvb_most_leaves = 128,
    kvb_most_holders = kvb_leaf_bits * kvb_most_leaves
};

typedef uint32_t kvb_set_id;

#define KVB_SET_ONE (UINT32_C(1) << 31)

struct kvb_set_leaf {
    uint64_t words[kvb_leaf_words];
};

struct kvb_holder_set {
    uint64_t hash;
    uint64_t mask[2]; /* bit l: leaf l is there */
    uint32_t leaves;  /* number of the first; next free header while it is free */
    uint32_t references;
    uint32_t count; /* holders, 2 or more; 0: free */
};

struct kvb_holder_sets {
    struct kvb_region headers;
    struct kvb_region leaves;
    struct kvb_line_table interned;
    uint32_t header_end, header_free;
    uint32_t leaf_end;
    uint32_t leaf_free[kvb_most_leaves + 1]; /* groups of n, through their first word */
};

/* {0} before; at most `most` sets are made.  The sets do not move.  KVB_NO_MEMORY. */
kvb_status kvb_holder_sets_open(struct kvb_holder_sets *sets, size_t most);

/* {0} is fine. */
void kvb_holder_sets_close(struct kvb_holder_sets *sets);

/* The caller's reference to `id` becomes one to the set with, or without, the holder, who
 * was not, or was, in it.
 * KVB_TOO_LARGE, KVB_NO_MEMORY  no room for another set: the reference stays as it was */
kvb_status kvb_holder_sets_with(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);
kvb_status kvb_holder_sets_without(
    struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder, kvb_set_id *out_id);

size_t kvb_holder_sets_bytes(const struct kvb_holder_sets *sets);

/* Sets in being, one-holder sets aside. */
size_t kvb_holder_sets_count(const struct kvb_holder_sets *sets);

/* ---- Reading, on the hot path ---- */

static inline kvb_set_id kvb_set_of_one(uint32_t holder)
{
    return KVB_SET_ONE | holder;
}

static inline bool kvb_set_is_one(kvb_set_id id)
{
    return (id & KVB_SET_ONE) != 0;
}

static inline struct kvb_holder_set *
kvb_holder_set_at(const struct kvb_holder_sets *sets, kvb_set_id id)
{
    return (struct kvb_holder_set *)(void *)sets->headers.base + id;
}

static inline struct kvb_set_leaf *
kvb_holder_set_leaves(const struct kvb_holder_sets *sets, const struct kvb_holder_set *set)
{
    return (struct kvb_set_leaf *)(void *)sets->leaves.base + set->leaves;
}

static inline bool kvb_set_has_leaf(const uint64_t mask[2], uint32_t leaf)
{
    return mask[leaf / 64] >> (leaf % 64) & 1;
}

/* How many leaves stand before this one. */
static inline uint32_t kvb_set_rank(const uint64_t mask[2], uint32_t leaf)
{
    const uint64_t below = mask[leaf / 64] & ((UINT64_C(1) << (leaf % 64)) - 1);
    return (uint32_t)__builtin_popcountll(below) +
           (leaf >= 64 ? (uint32_t)__builtin_popcountll(mask[0]) : 0);
}

static inline bool kvb_set_has(const struct kvb_holder_sets *sets, kvb_set_id id, uint32_t holder)
{
    if (id == 0 || kvb_set_is_one(id)) {
        return id == kvb_set_of_one(holder);
    }
    const struct kvb_holder_set *set = kvb_holder_set_at(sets, id);
    const uint32_t leaf = holder / kvb_leaf_bits;
    const uint32_t bit = holder % kvb_leaf_bits;

    return kvb_set_has_leaf(set->mask, leaf) &&
           kvb_holder_set_leaves(sets, set)[kvb_set_rank(set->mask, leaf)].words[bit / 64] >>
                   (bit % 64) &
               1;
}

/* Bit w: word w of the leaf has somebody whom `other` has not. */
static inline uint32_t
kvb_leaf_lost(const struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other)
{
    uint32_t lost = 0;

    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        lost |= (uint32_t)((leaf->words[w] & ~other->words[w]) != 0) << w;
    }
    return lost;
}

#if defined(__x86_64__)
/* The same, where the machine has AVX2. */
__attribute__((target("avx2"))) static inline uint32_t
kvb_leaf_lost_avx2(const struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other)
{
    const __m256i *mine = (const __m256i *)(const void *)leaf->words;
    const __m256i *theirs = (const __m256i *)(const void *)other->words;
    const __m256i low = _mm256_andnot_si256(_mm256_loadu_si256(theirs), _mm256_loadu_si256(mine));
    const __m256i high =
        _mm256_andnot_si256(_mm256_loadu_si256(theirs + 1), _mm256_loadu_si256(mine + 1));
    const __m256i none = _mm256_setzero_si256();
    const int kept = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(low, none))) |
                     _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(high, none))) << 4;

    return (uint32_t)kept ^ 0xff;
}
#endif

/* One reference more: another node has the set. */
static inline void kvb_set_keep(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id)) {
        kvb_holder_set_at(sets, id)->references++;
    }
}

/* One reference less; the set goes with the last. */
void kvb_set_forget(struct kvb_holder_sets *sets, kvb_set_id id);

static inline void kvb_set_drop(struct kvb_holder_sets *sets, kvb_set_id id)
{
    if (id != 0 && !kvb_set_is_one(id) && --kvb_holder_set_at(sets, id)->references == 0) {
        kvb_set_forget(sets, id);
    }
}
