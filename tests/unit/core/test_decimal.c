#include "kvb_test.h"

#include "core/decimal.h"
#include "core/own.h"

#include <inttypes.h>
#include <stdio.h>

static void assert_written(uint64_t value)
{
    char want[32];
    char got[kvb_decimal_bytes];
    const int len = snprintf(want, sizeof want, "%" PRIu64, value);

    assert_int_equal(kvb_decimal_write(got, value), len);
    assert_memory_equal(got, want, (size_t)len);
}

static void powers_of_ten_and_their_neighbours_are_written(void **state)
{
    uint64_t power = 1;

    (void)state;
    assert_written(0);
    for (int digits = 1; digits <= 20; digits++, power *= 10) {
        assert_written(power - 1);
        assert_written(power);
        assert_written(power + 1);
    }
    assert_written(UINT64_MAX);
}

static void random_numbers_of_any_length_are_written(void **state)
{
    uint64_t rng = 1;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
        assert_written(rng >> (i % 64));
    }
}

static void reads_digits_and_nothing_else(void **state)
{
    const char *const bad[] = { "", " 1", "1 ", "-1", "+1", "0x1", "1.0", "18446744073709551616" };
    uint64_t value = 0;

    (void)state;
    assert_true(kvb_decimal_read("18446744073709551615", &value));
    assert_int_equal(value, UINT64_MAX);
    assert_true(kvb_decimal_read("007", &value));
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_false(kvb_decimal_read(bad[i], &value));
        assert_int_equal(value, 7);
    }
}

SUITE(decimal)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_of_ten_and_their_neighbours_are_written),
        cmocka_unit_test(random_numbers_of_any_length_are_written),
        cmocka_unit_test(reads_digits_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
