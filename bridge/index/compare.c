#include "index/compare.h"

#include <stdbool.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t common_scalar(const uint64_t *left, const uint64_t *right, uint32_t count)
{
    uint32_t at = 0;

    while (at < count && left[at] == right[at]) {
        at++;
    }
    return at;
}

static uint32_t changes_scalar(const kvb_set_id sets[16], uint32_t count, kvb_set_id last)
{
    uint32_t changes = 0;

    for (uint32_t i = 0; i < count; i++) {
        changes |= (uint32_t)(sets[i] != last) << i;
        last = sets[i];
    }
    return changes;
}

/* Whether the query continues in the extent in the hint `next`, if it passes through this whole
 * extent. `count` blocks of the query are left. */
static inline bool
goes_on(const struct prefix_extent *extents, uint32_t extent, const uint64_t *query, size_t count)
{
    const struct prefix_extent *here = extents + extent;
    const struct prefix_extent *next = extents + here->next;

    /* The hint may be of another node's child, or of a child with another content. */
    return count > kvb_extent_nodes && here->len == kvb_extent_nodes && here->next != 0 &&
           next->parent == extent * kvb_extent_nodes + kvb_extent_nodes - 1 &&
           next->tokens[0] == query[kvb_extent_nodes];
}

/* Prefetches the extent that is three places later in memory.  In most cases the query needs it
 * soon, because the extents of a prompt are adjacent (index/extent.c). */
[[gnu::always_inline]] static inline void fetch_later(const struct prefix_extent *here)
{
    enum { later = 3 };

    __builtin_prefetch(here + later);
    __builtin_prefetch((here + later)->tokens);
    __builtin_prefetch((here + later)->tokens + 8);
    __builtin_prefetch((here + later)->sets);
}

static size_t whole_scalar(
    const struct prefix_extent *extents, uint32_t *extent, const uint64_t *query, size_t count,
    kvb_set_id last)
{
    size_t whole = 0;

    while (goes_on(extents, *extent, query, count)) { /* terminates: count shrinks */
        const struct prefix_extent *here = extents + *extent;
        fetch_later(here);
        if (common_scalar(here->tokens, query, kvb_extent_nodes) != kvb_extent_nodes ||
            changes_scalar(here->sets, kvb_extent_nodes, last) != 0) {
            break;
        }
        *extent = here->next;
        query += kvb_extent_nodes;
        count -= kvb_extent_nodes;
        whole++;
    }
    return whole;
}

static uint32_t narrow_scalar(
    struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other, struct kvb_set_leaf *out_gone)
{
    uint32_t lost = 0;

    for (uint32_t w = 0; w < kvb_leaf_words; w++) {
        out_gone->words[w] = leaf->words[w] & ~other->words[w];
        leaf->words[w] &= other->words[w];
        lost |= (uint32_t)(out_gone->words[w] != 0) << w;
    }
    return lost;
}

const struct kvb_prefix_compare kvb_prefix_compare_scalar = { common_scalar, changes_scalar,
                                                              whole_scalar, narrow_scalar };

#if defined(__x86_64__)

/* Compares four hashes at a time, then the rest one by one. */
[[gnu::target("avx2")]] static uint32_t
common_avx2(const uint64_t *left, const uint64_t *right, uint32_t count)
{
    uint32_t at = 0;

    for (; at + 4 <= count; at += 4) {
        const __m256i l = _mm256_loadu_si256((const __m256i *)(const void *)(left + at));
        const __m256i r = _mm256_loadu_si256((const __m256i *)(const void *)(right + at));
        const __m256d equal = _mm256_castsi256_pd(_mm256_cmpeq_epi64(l, r));
        /* One bit a hash, from the first one on: the lowest 0 is the first that differs. */
        const uint32_t mask = (uint32_t)_mm256_movemask_pd(equal);
        if (mask != 0xf) {
            return at + (uint32_t)__builtin_ctz(~mask);
        }
    }
    return at + common_scalar(left + at, right + at, count - at);
}

/* Compares each set with the one before it: s0 s1 .. s15 with last s0 .. s14. */
[[gnu::target("avx2")]] static uint32_t
changes_avx2(const kvb_set_id sets[16], uint32_t count, kvb_set_id last)
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)sets);
    const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(sets + 8));
    const __m256i before_high = _mm256_loadu_si256((const __m256i *)(const void *)(sets + 7));
    const __m256i rotate = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
    const __m256i before_low = _mm256_blend_epi32(
        _mm256_permutevar8x32_epi32(low, rotate), _mm256_set1_epi32((int)last), 1);
    const __m256 equal_low = _mm256_castsi256_ps(_mm256_cmpeq_epi32(low, before_low));
    const __m256 equal_high = _mm256_castsi256_ps(_mm256_cmpeq_epi32(high, before_high));
    const uint32_t equal =
        (uint32_t)_mm256_movemask_ps(equal_low) | (uint32_t)_mm256_movemask_ps(equal_high) << 8;

    return ~equal & ((1U << count) - 1);
}

[[gnu::target("avx2")]] static inline __m256i
equal_four(const uint64_t *left, const uint64_t *right)
{
    return _mm256_cmpeq_epi64(
        _mm256_loadu_si256((const __m256i *)(const void *)left),
        _mm256_loadu_si256((const __m256i *)(const void *)right));
}

/* Compares all 16 tokens and all 16 sets. */
[[gnu::target("avx2")]] static inline bool
is_whole_avx2(const struct prefix_extent *here, const uint64_t *query, kvb_set_id last)
{
    const __m256i *sets = (const __m256i *)(const void *)here->sets;
    const __m256i set = _mm256_set1_epi32((int)last);
    const __m256i tokens = _mm256_and_si256(
        _mm256_and_si256(equal_four(here->tokens, query), equal_four(here->tokens + 4, query + 4)),
        _mm256_and_si256(
            equal_four(here->tokens + 8, query + 8), equal_four(here->tokens + 12, query + 12)));
    const __m256i all = _mm256_and_si256(
        tokens, _mm256_and_si256(
                    _mm256_cmpeq_epi32(_mm256_loadu_si256(sets), set),
                    _mm256_cmpeq_epi32(_mm256_loadu_si256(sets + 1), set)));

    return _mm256_movemask_epi8(all) == -1;
}

[[gnu::target("avx2")]] static size_t whole_avx2(
    const struct prefix_extent *extents, uint32_t *extent, const uint64_t *query, size_t count,
    kvb_set_id last)
{
    uint32_t at = *extent;
    size_t whole = 0;

    for (; goes_on(extents, at, query, count); whole++) {
        const struct prefix_extent *here = extents + at;
        fetch_later(here);
        if (!is_whole_avx2(here, query, last)) {
            break;
        }
        at = here->next;
        query += kvb_extent_nodes;
        count -= kvb_extent_nodes;
    }
    *extent = at;
    return whole;
}

/* Reads and writes with the same width, so that the next call's loads get store forwarding. */
[[gnu::target("avx2")]] static uint32_t narrow_avx2(
    struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other, struct kvb_set_leaf *out_gone)
{
    __m256i *mine = (__m256i *)(void *)leaf->words;
    const __m256i *theirs = (const __m256i *)(const void *)other->words;
    __m256i *gone = (__m256i *)(void *)out_gone->words;
    uint32_t kept = 0;

    for (int half = 0; half < 2; half++) {
        const __m256i old = _mm256_loadu_si256(mine + half);
        const __m256i next = _mm256_loadu_si256(theirs + half);
        const __m256i out = _mm256_andnot_si256(next, old);
        const __m256i none = _mm256_cmpeq_epi64(out, _mm256_setzero_si256());
        _mm256_storeu_si256(mine + half, _mm256_and_si256(old, next));
        _mm256_storeu_si256(gone + half, out);
        kept |= (uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(none)) << (4 * half);
    }
    /* A bit of `kept` says that its word has lost nobody. */
    return kept ^ 0xff;
}
static const struct kvb_prefix_compare by_avx2 = { common_avx2, changes_avx2, whole_avx2,
                                                   narrow_avx2 };

const struct kvb_prefix_compare *kvb_prefix_compare_best(void)
{
    return __builtin_cpu_supports("avx2") ? &by_avx2 : &kvb_prefix_compare_scalar;
}

#else

const struct kvb_prefix_compare *kvb_prefix_compare_best(void)
{
    return &kvb_prefix_compare_scalar;
}

#endif
