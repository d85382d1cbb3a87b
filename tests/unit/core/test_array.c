#include "kvb_test.h"

#include "core/array.h"
#include "fail_alloc.h"

#include <stdlib.h>
#include <string.h>

static void grows_by_doubling_and_keeps_what_was_written(void **state)
{
    (void)state;
    uint32_t *items = NULL;
    size_t capacity = 0;
    size_t moves = 0;

    for (uint32_t i = 0; i < 10000; i++) {
        const size_t before = capacity;
        assert_ok(kvb_array_reserve(&items, &capacity, i + 1, sizeof *items, 1 << 20));
        moves += capacity != before;
        items[i] = i;
    }
    assert_true(moves <= 11); /* capacities 16, 32, ... 16384 */
    for (uint32_t i = 0; i < 10000; i++) {
        assert_int_equal(items[i], i);
    }
    free(items);
}

static void stops_at_the_ceiling_and_changes_nothing(void **state)
{
    (void)state;
    uint8_t *items = NULL;
    size_t capacity = 0;

    assert_ok(kvb_array_reserve(&items, &capacity, 90, 1, 100));
    assert_int_equal(capacity, 100);
    const uint8_t *const before = items;
    assert_int_equal(kvb_array_reserve(&items, &capacity, 101, 1, 100), KVB_TOO_LARGE);
    assert_ptr_equal(items, before);
    assert_int_equal(capacity, 100);
    free(items);
}

static void refuses_a_ceiling_whose_bytes_wrap_around(void **state)
{
    (void)state;
    uint64_t *items = NULL;
    size_t capacity = 0;

    assert_int_equal(
        kvb_array_reserve(&items, &capacity, 1, sizeof *items, SIZE_MAX / 8), KVB_TOO_LARGE);
    assert_null(items);
}

static void keeps_the_old_items_when_an_allocation_fails(void **state)
{
    (void)state;
    uint8_t *items = NULL;
    size_t capacity = 0;

    assert_ok(kvb_array_reserve(&items, &capacity, 16, 1, 100));
    memset(items, 7, 16);
    fail_alloc_after(0);
    assert_int_equal(kvb_array_reserve(&items, &capacity, 17, 1, 100), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_int_equal(capacity, 16);
    assert_int_equal(items[15], 7);
    free(items);
}

SUITE(array)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_by_doubling_and_keeps_what_was_written),
        cmocka_unit_test(stops_at_the_ceiling_and_changes_nothing),
        cmocka_unit_test(refuses_a_ceiling_whose_bytes_wrap_around),
        cmocka_unit_test(keeps_the_old_items_when_an_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
