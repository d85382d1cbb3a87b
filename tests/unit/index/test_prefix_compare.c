#include "kvb_test.h"

#include "index/prefix_compare.h"

#include <stdlib.h>

/* What this machine compares with gives the plain answers, for every length, every place of
 * a difference, and sets that mostly repeat. */

enum { nodes = 16, rounds = 2000 };

static void both_count_the_same_common_nodes(void **state)
{
    (void)state;
    const struct kvb_prefix_compare *best = kvb_prefix_compare_best();
    uint64_t left[nodes], right[nodes];

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
                    kvb_prefix_compare_plain.common(left, right, count), at < count ? at : count);
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
            assert_int_equal(kvb_prefix_compare_plain.changes(sets, count, last), expected);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_count_the_same_common_nodes),
        cmocka_unit_test(both_see_the_same_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
