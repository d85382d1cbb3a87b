#include "kvb_test.h"

#include "core/sort_first.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { max_items = 64, trials = 20000 };

/* Larger than a machine word, so that a swap of only a part shows. */
struct item {
    uint32_t key;
    uint32_t check; /* of the sort key */
    uint64_t number;
};

static int by_key(const void *left, const void *right, void *context)
{
    const uint32_t a = ((const struct item *)left)->key;
    const uint32_t b = ((const struct item *)right)->key;

    (void)context;
    return (a > b) - (a < b);
}

static int by_number(const void *left, const void *right)
{
    const uint64_t a = ((const struct item *)left)->number;
    const uint64_t b = ((const struct item *)right)->number;

    return (a > b) - (a < b);
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (uint32_t)(*state >> 33U);
}

/* Few different keys, so that many are equal. */
static size_t fill(struct item items[max_items], uint64_t *random)
{
    const size_t count = draw(random) % (max_items + 1);
    const uint32_t keys = (draw(random) % 100) + 1;

    for (size_t i = 0; i < count; i++) {
        const uint32_t key = draw(random) % keys;
        items[i] = (struct item){ .key = key, .check = ~key, .number = i };
    }
    return count;
}

static void assert_same_items(struct item items[max_items], size_t count)
{
    qsort(items, count, sizeof *items, by_number);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(items[i].number, i);
        assert_int_equal(items[i].check, ~items[i].key);
    }
}

static void the_first_items_are_those_of_a_full_sort(void **state)
{
    uint64_t random = 1;

    (void)state;
    for (int trial = 0; trial < trials; trial++) {
        struct item items[max_items];
        struct item sorted[max_items];
        const size_t count = fill(items, &random);
        const size_t first = draw(&random) % (max_items + 4);
        memcpy(sorted, items, count * sizeof *items);
        qsort_r(sorted, count, sizeof *sorted, by_key, NULL);

        kvb_sort_first(items, count, sizeof *items, first, by_key, NULL);

        for (size_t i = 0; i < count && i < first; i++) {
            assert_int_equal(items[i].key, sorted[i].key);
        }
        assert_same_items(items, count);
    }
}

static int count_and_compare(const void *left, const void *right, void *context)
{
    ++*(size_t *)context;
    return by_key(left, right, NULL);
}

static void a_few_of_many_cost_little_more_than_one_comparison_each(void **state)
{
    enum { count = 10000, first = 10 };
    struct item *items = calloc(count, sizeof *items);
    uint64_t random = 1;
    size_t compared = 0;

    (void)state;
    assert_non_null(items);
    for (size_t i = 0; i < count; i++) {
        items[i].key = draw(&random);
    }
    kvb_sort_first(items, count, sizeof *items, first, count_and_compare, &compared);
    assert_in_range(compared, count - first, 2 * count);
    free(items);
}

SUITE(sort_first)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_items_are_those_of_a_full_sort),
        cmocka_unit_test(a_few_of_many_cost_little_more_than_one_comparison_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
