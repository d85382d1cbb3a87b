#include "kvb_test.h"

#include "parts/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How tests/bench compares, and what it says beside a figure: how its rounds differ, the kernel's
 * share. */

/* What say() prints; the caller frees it. */
static char *printed(void (*say)(void))
{
    FILE *kept = stdout;
    char *text = NULL;
    size_t len = 0;
    FILE *memory = open_memstream(&text, &len);

    assert_non_null(memory);
    stdout = memory;
    say();
    stdout = kept;
    (void)fclose(memory);
    return text;
}

static void assert_near(double value, double wanted)
{
    assert_true(fabs(value - wanted) < 1e-9);
}

static void a_spread_is_the_interquartile_range_over_the_median(void **state)
{
    double nine[] = { 9, 1, 8, 2, 7, 3, 6, 4, 5 };
    double four[] = { 10, 40, 20, 30 };

    (void)state;
    assert_near(bench_spread(nine, 9), (7.0 - 3.0) / 5.0);
    assert_near(bench_spread(four, 4), (32.5 - 17.5) / 25.0);
}

static void one_round_of_many_that_is_far_off_changes_no_spread(void **state)
{
    double values[] = { 100, 100, 100, 100, 100, 100, 100, 100, 900 };

    (void)state;
    assert_near(bench_spread(values, 9), 0);
}

static void two_rounds_have_no_spread(void **state)
{
    double values[] = { 1, 2 };

    (void)state;
    assert_true(isnan(bench_spread(values, 2)));
    assert_true(isnan(bench_spread(values, 0)));
}

static void a_median_of_zero_has_a_spread_of_all_or_nothing(void **state)
{
    double none[] = { 0, 0, 0 };
    double some[] = { 0, 0, 0, 1, 1 };

    (void)state;
    assert_near(bench_spread(none, 3), 0);
    assert_near(bench_spread(some, 5), 1);
}

/* The machine was half as fast in the last rounds, for both: the ratio does not change. */
static const double ours[] = { 30, 32, 28, 15, 15 };
static const double theirs[] = { 15, 16, 14, 7.5, 7.5 };

static void say_versus(void)
{
    bench_figure_versus("rate", ours, "them", theirs, 5, "M/s");
}

static void a_ratio_is_the_median_of_the_rounds_ratios(void **state)
{
    char *text = printed(say_versus);

    (void)state;
    assert_non_null(strstr(
        text, "{\"name\":\"rate\",\"value\":28,\"unit\":\"M/"
              "s\",\"against\":\"them\",\"against_value\":14,"
              "\"ratio\":2,\"rounds\":5,\"spread\":0.5357,\"ratio_spread\":0.0000"));
    free(text);
}

static void a_percentile_has_the_spread_of_its_ninths(void **state)
{
    static uint32_t samples[9000];

    (void)state;
    for (size_t i = 0; i < 9000; i++) {
        samples[i] = (uint32_t)(1000 + i / 1000 * 100 + i % 100); /* slower from part to part */
    }
    assert_near(bench_percentile_spread(samples, 9000, 500), 400.0 / 1450);
    assert_true(isnan(bench_percentile_spread(samples, 80, 500)));
    assert_int_equal(bench_percentile(samples, 9000, 500), 1450);
}

/* 50 ms of processor time, then none. */
static void say_kernel(void)
{
    const clock_t began = clock();

    bench_measure();
    while (clock() - began < CLOCKS_PER_SEC / 20) {
    }
    bench_figure("one", 1, "s");
    bench_measure();
    bench_pause();
    bench_figure("none", 1, "s");
}

static void a_figure_says_the_kernels_share_where_there_is_enough_to_tell(void **state)
{
    char *text = printed(say_kernel);
    const char *none = strchr(text, '\n');

    (void)state;
    assert_non_null(none);
    assert_true(strstr(text, "\"kernel_percent\":") && strstr(text, "\"kernel_percent\":") < none);
    assert_null(strstr(none, "kernel"));
    free(text);
}

SUITE(rounds)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spread_is_the_interquartile_range_over_the_median),
        cmocka_unit_test(one_round_of_many_that_is_far_off_changes_no_spread),
        cmocka_unit_test(two_rounds_have_no_spread),
        cmocka_unit_test(a_median_of_zero_has_a_spread_of_all_or_nothing),
        cmocka_unit_test(a_ratio_is_the_median_of_the_rounds_ratios),
        cmocka_unit_test(a_percentile_has_the_spread_of_its_ninths),
        cmocka_unit_test(a_figure_says_the_kernels_share_where_there_is_enough_to_tell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
