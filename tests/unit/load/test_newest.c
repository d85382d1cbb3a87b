#include "kvb_test.h"

#include "core/own.h"
#include "load/newest.h"

#include <string.h>

enum { zmq, page, coordinator };
static const uint64_t life = 3000;

static const struct kvb_load_fallback nothing = { 0 };

/* The figures of a data-parallel coordinator. */
static struct kvb_load_sample counts_of(uint64_t waiting, uint64_t active, float usage)
{
    return (struct kvb_load_sample){
        .load = { .num_requests_waiting = waiting,
                  .request_active_slots = active,
                  .gpu_cache_usage_perc = usage },
        .stats = 1U << KVB_FIGURE_WAITING | 1U << KVB_FIGURE_ACTIVE_SLOTS | 1U << KVB_FIGURE_USAGE,
    };
}

/* The figures of a metrics page: all but the total number of slots. */
static struct kvb_load_sample page_of(uint64_t waiting, uint64_t used, uint64_t total)
{
    return (struct kvb_load_sample){
        .load = { .num_requests_waiting = waiting,
                  .request_active_slots = 9,
                  .kv_active_blocks = used,
                  .kv_total_blocks = total,
                  .gpu_cache_usage_perc = 0.5F,
                  .gpu_prefix_cache_hit_rate = 0.25F },
        .stats = ~(1U << KVB_FIGURE_TOTAL_SLOTS),
    };
}

static void nothing_is_known_at_first(void **state)
{
    (void)state;
    const struct kvb_newest_load newest = { 0 };
    const struct kvb_load_fallback known = { .total_slots = 5, .total_blocks = 7 };
    struct kvb_load load = { .kv_total_blocks = 77 };

    assert_false(kvb_newest_load_at(&newest, &known, 0, &load));
    assert_false(kvb_newest_load_at(&newest, &known, 100, &load));
    assert_int_equal(load.kv_total_blocks, 77);
}

static void the_newest_of_each_figure_wins(void **state)
{
    (void)state;
    struct kvb_newest_load newest = { 0 };
    struct kvb_load_sample sample = page_of(4, 50, 101);
    struct kvb_load load;

    kvb_newest_load_take(&newest, &sample, page, 1000, life);
    sample = counts_of(7, 3, 0.25F);
    kvb_newest_load_take(&newest, &sample, coordinator, 1100, life);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1200, &load));
    assert_int_equal(load.num_requests_waiting, 7);
    assert_int_equal(load.request_active_slots, 3);
    assert_int_equal(load.kv_total_blocks, 101); /* only the metrics page has this figure */
    assert_int_equal(load.kv_active_blocks, 25); /* a quarter of 100, newer than the 50 */
    assert_true(load.gpu_prefix_cache_hit_rate == 0.25F);

    sample = page_of(5, 60, 101);
    kvb_newest_load_take(&newest, &sample, page, 1300, life);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1300, &load));
    assert_int_equal(load.num_requests_waiting, 5);
    assert_int_equal(load.kv_active_blocks, 60);

    sample = page_of(99, 99, 99); /* a value that was measured earlier but arrives later */
    kvb_newest_load_take(&newest, &sample, page, 1250, life);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1300, &load));
    assert_int_equal(load.num_requests_waiting, 5);
    assert_int_equal(load.kv_total_blocks, 101);
}

static void each_figure_expires_by_itself(void **state)
{
    (void)state;
    struct kvb_newest_load newest = { 0 };
    struct kvb_load_sample sample = page_of(4, 50, 101);
    struct kvb_load load;

    kvb_newest_load_take(&newest, &sample, page, 1000, life);
    sample = counts_of(7, 3, 0.25F);
    kvb_newest_load_take(&newest, &sample, coordinator, 1000, 3 * life);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1000 + life - 1, &load));
    assert_int_equal(load.kv_total_blocks, 101);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1000 + life, &load));
    assert_int_equal(load.kv_total_blocks, 0);
    assert_int_equal(load.kv_active_blocks, 0);
    assert_int_equal(load.num_requests_waiting, 7);
    assert_false(kvb_newest_load_at(&newest, &nothing, 1000 + 3 * life, &load));
}

static void a_forgotten_source_takes_its_figures_along(void **state)
{
    (void)state;
    struct kvb_newest_load newest = { 0 };
    struct kvb_load_sample sample = page_of(4, 50, 101);
    struct kvb_load load;

    kvb_newest_load_take(&newest, &sample, page, 1000, life);
    sample = counts_of(7, 3, 0.25F);
    kvb_newest_load_take(&newest, &sample, coordinator, 1100, life);
    kvb_newest_load_forget(&newest, coordinator);
    kvb_newest_load_forget(&newest, zmq);
    assert_true(kvb_newest_load_at(&newest, &nothing, 1200, &load));
    assert_int_equal(load.num_requests_waiting, 0);
    assert_int_equal(load.kv_active_blocks, 50);
    kvb_newest_load_forget(&newest, page);
    assert_false(kvb_newest_load_at(&newest, &nothing, 1200, &load));
}

static void configured_values_fill_in_missing_figures(void **state)
{
    (void)state;
    const struct kvb_load_fallback known = { .total_slots = 256, .total_blocks = 201 };
    struct kvb_newest_load newest = { 0 };
    struct kvb_load_sample sample = counts_of(0, 3, 0.5F);
    struct kvb_load load;

    kvb_newest_load_take(&newest, &sample, coordinator, 1000, life);
    assert_true(kvb_newest_load_at(&newest, &known, 1000, &load));
    assert_int_equal(load.request_total_slots, 256);
    assert_int_equal(load.kv_total_blocks, 201);
    assert_int_equal(load.kv_active_blocks, 100);
    sample = (struct kvb_load_sample){ .load = { .request_total_slots = 8, .kv_total_blocks = 9 },
                                       .stats = 1U << KVB_FIGURE_TOTAL_SLOTS |
                                                1U << KVB_FIGURE_TOTAL_BLOCKS };
    kvb_newest_load_take(&newest, &sample, zmq, 1001, life);
    assert_true(kvb_newest_load_at(&newest, &known, 1001, &load));
    assert_int_equal(load.request_total_slots, 8);
    assert_int_equal(load.kv_total_blocks, 9);
    assert_int_equal(load.kv_active_blocks, 4);
}

static void shares_of_any_count_stay_in_it(void **state)
{
    (void)state;
    assert_int_equal(kvb_load_active_blocks(0, 63), 0);
    assert_int_equal(kvb_load_active_blocks(0.4285714285714286, 63), 27);
    assert_int_equal(kvb_load_active_blocks(1, 63), 63);
    assert_int_equal(kvb_load_active_blocks(1, 0), 0);
    assert_true(kvb_load_active_blocks(1, UINT64_MAX) == UINT64_MAX);
    assert_true(kvb_load_active_blocks(0.5, UINT64_MAX) == UINT64_C(1) << 63);
}

SUITE(newest)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(the_newest_of_each_figure_wins),
        cmocka_unit_test(each_figure_expires_by_itself),
        cmocka_unit_test(a_forgotten_source_takes_its_figures_along),
        cmocka_unit_test(configured_values_fill_in_missing_figures),
        cmocka_unit_test(shares_of_any_count_stay_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
