#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/region.h"

enum { max = 8 << 20, largest_page = 64 << 10 };

/* mprotect() works on whole pages, and some arm64 kernels have pages of 64 KiB. */
static void every_growth_is_whole_pages_of_any_kernel(void **state)
{
    (void)state;
    struct kvb_region region = { 0 };
    size_t steps = 0;

    assert_ok(kvb_region_open(&region, max));
    for (size_t reached = 0; reached < max; reached = region.bytes, steps++) {
        assert_ok(kvb_region_reach(&region, reached + 1));
        assert_true(region.bytes > reached);
        assert_int_equal(region.bytes % largest_page, 0);
        assert_int_equal(region.base[reached], 0);
        assert_int_equal(region.base[region.bytes - 1], 0);
    }
    assert_true(steps > 5);
    assert_int_equal(region.bytes, max);
    assert_int_equal(kvb_region_reach(&region, max + 1), KVB_TOO_LARGE);
    kvb_region_close(&region);
    assert_null(region.base);
}

static void growing_moves_nothing(void **state)
{
    (void)state;
    struct kvb_region region = { 0 };

    assert_ok(kvb_region_open(&region, max));
    assert_ok(kvb_region_reach(&region, 1));
    const uint8_t *base = region.base;
    const size_t reached = region.bytes;
    region.base[0] = 7;
    fail_alloc_after(0);
    assert_int_equal(kvb_region_reach(&region, max), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    assert_int_equal(region.bytes, reached);
    assert_ok(kvb_region_reach(&region, max));
    assert_ptr_equal(region.base, base);
    assert_int_equal(region.base[0], 7);
    kvb_region_close(&region);
}

static void an_endless_address_space_is_refused(void **state)
{
    (void)state;
    struct kvb_region region = { 0 };

    assert_int_equal(kvb_region_open(&region, SIZE_MAX), KVB_NO_MEMORY);
    assert_int_equal(kvb_region_open(&region, SIZE_MAX / 2), KVB_NO_MEMORY);
    assert_null(region.base);
    kvb_region_close(&region);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_growth_is_whole_pages_of_any_kernel),
        cmocka_unit_test(growing_moves_nothing),
        cmocka_unit_test(an_endless_address_space_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
