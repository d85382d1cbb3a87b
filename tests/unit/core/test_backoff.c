#include "kvb_test.h"

#include "core/backoff.h"

#include <stdint.h>

static const struct kvb_backoff_range range = { .first_ns = 100, .longest_ns = 1000 };

static void pauses_double_up_to_the_longest(void **state)
{
    static const uint64_t pauses[] = { 100, 200, 400, 800, 1000, 1000 };
    struct kvb_backoff backoff = { 0 };
    uint64_t now_ns = 5;

    (void)state;
    for (size_t i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
        assert_int_equal(kvb_backoff_fail(&backoff, &range, now_ns), pauses[i]);
        assert_false(kvb_backoff_is_due(&backoff, now_ns + pauses[i] - 1));
        assert_true(kvb_backoff_is_due(&backoff, now_ns + pauses[i]));
        now_ns += pauses[i];
    }
}

static void what_comes_and_goes_is_limited(void **state)
{
    struct kvb_backoff backoff = { 0 };

    (void)state;
    kvb_backoff_end(&backoff, &range); /* it did not fail */
    assert_true(kvb_backoff_is_due(&backoff, 0));
    for (int i = 0; i < 3; i++) {
        (void)kvb_backoff_fail(&backoff, &range, 1000); /* the newest pause is 400 */
    }
    kvb_backoff_end(&backoff, &range);
    kvb_backoff_end(&backoff, &range); /* once more changes nothing */
    assert_false(kvb_backoff_is_due(&backoff, 1099));
    assert_true(kvb_backoff_is_due(&backoff, 1100));
    assert_int_equal(kvb_backoff_fail(&backoff, &range, 1100), range.first_ns);
}

static void no_range_makes_a_pause_too_long(void **state)
{
    static const struct kvb_backoff_range narrow = { .first_ns = 7, .longest_ns = 3 };
    static const struct kvb_backoff_range endless = { .first_ns = UINT64_MAX / 2 + 9,
                                                      .longest_ns = UINT64_MAX };
    struct kvb_backoff backoff = { 0 };

    (void)state;
    assert_int_equal(kvb_backoff_fail(&backoff, &narrow, 0), 3);
    backoff = (struct kvb_backoff){ 0 };
    assert_int_equal(kvb_backoff_fail(&backoff, &endless, 0), endless.first_ns);
    assert_int_equal(kvb_backoff_fail(&backoff, &endless, 0), UINT64_MAX);
}

SUITE(backoff)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_double_up_to_the_longest),
        cmocka_unit_test(what_comes_and_goes_is_limited),
        cmocka_unit_test(no_range_makes_a_pause_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
