#include "kvb_test.h"

#include "index/compare.h"

#include <stdlib.h>

/* The vector instructions of this machine must give the results of the plain code, for every
 * length, every position of a difference, and sets that mostly repeat. */

enum { nodes = 16, rounds = 2000, ways = 2 };

static void both_count_the_same_common_nodes(void **state)
{
    (void)state;
    const struct kvb_prefix_compare *best = kvb_prefix_compare_best();
    uint64_t left[nodes];
    uint64_t right[nodes];

    for (uint32_t i = 0; i < nodes; i++) {
        left[i] = right[i] = UINT64_C(0x100000001) * i;
    }
    for (uint32_t count = 0; count <= nodes; count++) {
        assert_int_equal(best->common(left, right, count), count);
        for (uint32_t at = 0; at < nodes; at++) {
            for (int bit = 0; bit < 64; bit++) {
                right[at] ^= UINT64_C(1) << bit;
                assert_int_equal(best->common(left, right, count), at < count ? at : count);
                assert_int_equal(
                    kvb_prefix_compare_scalar.common(left, right, count), at < count ? at : count);
                right[at] ^= UINT64_C(1) << bit;
            }
        }
    }
}

static void both_see_the_same_changes(void **state)
{
    (void)state;
    const struct kvb_prefix_compare *best = kvb_prefix_compare_best();
    unsigned seed = 5;

    for (int round = 0; round < rounds; round++) {
        kvb_set_id sets[nodes];
        const kvb_set_id last = (kvb_set_id)rand_r(&seed) % 3;
        for (uint32_t i = 0; i < nodes; i++) {
            sets[i] = (kvb_set_id)rand_r(&seed) % 3;
        }
        for (uint32_t count = 0; count <= nodes; count++) {
            uint32_t expected = 0;
            for (uint32_t i = 0; i < count; i++) {
                expected |= (uint32_t)(sets[i] != (i > 0 ? sets[i - 1] : last)) << i;
            }
            assert_int_equal(best->changes(sets, count, last), expected);
            assert_int_equal(kvb_prefix_compare_scalar.changes(sets, count, last), expected);
        }
    }
}

static void both_find_the_words_of_a_leaf_that_lose_a_holder(void **state)
{
    (void)state;
    const struct kvb_prefix_compare *best = kvb_prefix_compare_best();
    unsigned seed = 5;

    for (int i = 0; i < 20000; i++) {
        struct kvb_set_leaf leaf = { 0 };
        struct kvb_set_leaf other = { 0 };
        uint32_t expected = 0;
        for (uint32_t w = 0; w < kvb_leaf_words; w++) {
            leaf.words[w] = rand_r(&seed) % 4 == 0 ? 0 : UINT64_C(1) << (rand_r(&seed) % 64);
            other.words[w] = rand_r(&seed) % 2 == 0 ? leaf.words[w] : ~leaf.words[w];
            expected |= (uint32_t)(leaf.words[w] != 0 && other.words[w] != leaf.words[w]) << w;
        }
        struct kvb_set_leaf kept = leaf;
        struct kvb_set_leaf gone;
        assert_int_equal(kvb_prefix_compare_scalar.narrow(&kept, &other, &gone), expected);
        for (uint32_t w = 0; w < kvb_leaf_words; w++) {
            assert_int_equal(kept.words[w], leaf.words[w] & other.words[w]);
            assert_int_equal(gone.words[w], leaf.words[w] & ~other.words[w]);
        }
        struct kvb_set_leaf also_gone;
        assert_int_equal(best->narrow(&leaf, &other, &also_gone), expected);
        assert_memory_equal(&leaf, &kept, sizeof leaf);
        assert_memory_equal(&also_gone, &gone, sizeof gone);
    }
}

/* ---- Whole extents ---- */

enum { chain = 6, blocks = chain * nodes, lives = 20000, set_of_all = 7 };

/* Extent e leads to e + 1, and its blocks equal the query's. */
static void make_chain(struct prefix_extent *extents, uint64_t *query)
{
    for (uint32_t i = 0; i < blocks; i++) {
        query[i] = UINT64_C(0x100000001) * i;
        extents[i / nodes].tokens[i % nodes] = query[i];
        extents[i / nodes].sets[i % nodes] = set_of_all;
    }
    for (uint32_t e = 0; e < chain; e++) {
        extents[e].len = nodes;
        extents[e].next = e + 1 < chain ? e + 1 : 0;
        extents[e].parent = e * nodes - 1;
    }
}

/* Makes one difference somewhere. Returns through how many extents the query leads before it, if
 * nothing else differs. */
static uint32_t spoil(struct prefix_extent *extents, unsigned *seed)
{
    const uint32_t e = (uint32_t)rand_r(seed) % chain;
    const uint32_t at = (uint32_t)rand_r(seed) % nodes;

    switch (rand_r(seed) % 5) {
    case 0:
        extents[e].tokens[at] ^= UINT64_C(1) << rand_r(seed) % 64;
        return at == 0 && e > 0 ? e - 1 : e;
    case 1:
        extents[e].sets[at] ^= 1U << rand_r(seed) % 32;
        return e;
    case 2:
        extents[e].len = (uint8_t)at;
        return e;
    case 3:
        extents[e].next = 0;
        return e;
    default:
        extents[e].parent ^= 1U << rand_r(seed) % 32;
        return e > 0 ? e - 1 : chain;
    }
}

static void both_pass_through_the_same_whole_extents(void **state)
{
    (void)state;
    const struct kvb_prefix_compare *both[ways] = { &kvb_prefix_compare_scalar,
                                                    kvb_prefix_compare_best() };
    unsigned seed = 9;

    for (int life = 0; life < lives; life++) {
        struct prefix_extent extents[chain] = { 0 };
        uint64_t query[blocks];
        make_chain(extents, query);
        const uint32_t cause = life % 10 == 0 ? chain : spoil(extents, &seed);
        const size_t count = (size_t)rand_r(&seed) % (blocks + 1);
        const uint32_t asked = count == 0 ? 0 : (uint32_t)(count - 1) / nodes;
        const uint32_t expected = asked < cause ? asked : cause;
        for (size_t b = 0; b < ways; b++) {
            uint32_t extent = 0;
            assert_int_equal(both[b]->whole(extents, &extent, query, count, set_of_all), expected);
            assert_int_equal(extent, expected);
        }
    }
}

SUITE(prefix_compare)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_count_the_same_common_nodes),
        cmocka_unit_test(both_see_the_same_changes),
        cmocka_unit_test(both_find_the_words_of_a_leaf_that_lose_a_holder),
        cmocka_unit_test(both_pass_through_the_same_whole_extents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
