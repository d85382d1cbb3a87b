#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/region.h"

#include <sys/mman.h>
#include <unistd.h>

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

/* Pages of [0, bytes) that are resident. */
static size_t resident_pages(const struct kvb_region *region, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char is_there[max / 4096];
    size_t count = 0;

    assert_int_equal(mincore(region->base, bytes, is_there), 0);
    for (size_t i = 0; i < bytes / page; i++) {
        count += is_there[i] & 1;
    }
    return count;
}

/* In steps; what lies in it stays, and it may be written. */
static void what_is_populated_takes_no_fault(void **state)
{
    (void)state;
    const size_t huge = 2 << 20;
    const size_t pages = huge / (size_t)sysconf(_SC_PAGESIZE);
    struct kvb_region region = { 0 };

    assert_ok(kvb_region_open(&region, max));
    assert_ok(kvb_region_reach(&region, 1));
    region.base[0] = 7;
    assert_true(kvb_region_populate(&region, 1, 2 * huge, 1));
    assert_int_equal(resident_pages(&region, huge), pages);
    assert_false(kvb_region_populate(&region, 1, 2 * huge, 1));
    assert_int_equal(resident_pages(&region, 2 * huge), 2 * pages);
    assert_int_equal(region.base[0], 7);
    assert_int_equal(region.base[2 * huge - 1], 0);
    region.base[2 * huge - 1] = 1;
    assert_false(kvb_region_populate(&region, 1, SIZE_MAX, SIZE_MAX / 2));
    assert_int_equal(region.populated, max);
    kvb_region_close(&region);
}

/* The fault of a huge page is taken by its first access, so a part is populated as the whole.  A
 * region of which less is in use than would be added is left as it is. */
static void a_part_of_a_huge_page_is_populated_as_the_whole_unless_little_is_in_use(void **state)
{
    (void)state;
    const size_t huge = 2 << 20;
    const size_t pages = huge / (size_t)sysconf(_SC_PAGESIZE);
    struct kvb_region region = { 0 };

    assert_ok(kvb_region_open(&region, max));
    assert_false(kvb_region_populate(&region, 0, huge - 1, huge));
    assert_false(kvb_region_populate(&region, huge / 2 - 1, huge / 2, huge));
    assert_int_equal(region.bytes, 0);
    assert_false(kvb_region_populate(&region, huge / 2, 1, huge));
    assert_int_equal(resident_pages(&region, huge), pages);
    /* The next one before the first byte of it is needed. */
    assert_false(kvb_region_populate(&region, huge, 0, huge));
    assert_int_equal(region.bytes, huge);
    assert_false(kvb_region_populate(&region, huge, 1, huge));
    assert_int_equal(resident_pages(&region, 2 * huge), 2 * pages);
    assert_false(kvb_region_populate(&region, max, 1, max));
    assert_int_equal(region.populated, max);
    kvb_region_close(&region);
}

SUITE(region)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_growth_is_whole_pages_of_any_kernel),
        cmocka_unit_test(growing_moves_nothing),
        cmocka_unit_test(an_endless_address_space_is_refused),
        cmocka_unit_test(what_is_populated_takes_no_fault),
        cmocka_unit_test(a_part_of_a_huge_page_is_populated_as_the_whole_unless_little_is_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
