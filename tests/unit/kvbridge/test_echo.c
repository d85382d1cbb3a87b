#include "core/clock.h"
#include "kvbridge/echo.h"

#include "kvb_test.h"

static const uint64_t start_ns = 5 * KVB_NS_PER_S;
static const uint64_t ms = KVB_NS_PER_MS;

static void echoes_are_missing_three_seconds_after_the_first_lost_one(void **state)
{
    struct kvb_echo echo = { 0 };

    (void)state;
    assert_false(kvb_echo_is_missing(&echo, start_ns));
    kvb_echo_sent(&echo, start_ns);
    kvb_echo_sent(&echo, start_ns + 2000 * ms);
    assert_false(kvb_echo_is_missing(&echo, start_ns + 2999 * ms));
    assert_true(kvb_echo_is_missing(&echo, start_ns + 3000 * ms));
}

static void one_received_echo_is_enough(void **state)
{
    struct kvb_echo echo = { 0 };

    (void)state;
    kvb_echo_sent(&echo, start_ns);
    kvb_echo_received(&echo);
    assert_false(kvb_echo_is_missing(&echo, start_ns + 9000 * ms));
    kvb_echo_sent(&echo, start_ns + 9000 * ms);
    assert_false(kvb_echo_is_missing(&echo, start_ns + 11000 * ms));
    assert_true(kvb_echo_is_missing(&echo, start_ns + 12000 * ms));
}

static void no_echo_of_a_lost_connection_is_awaited(void **state)
{
    struct kvb_echo echo = { 0 };

    (void)state;
    kvb_echo_sent(&echo, start_ns);
    kvb_echo_reset(&echo);
    assert_false(kvb_echo_is_missing(&echo, start_ns + 9000 * ms));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echoes_are_missing_three_seconds_after_the_first_lost_one),
        cmocka_unit_test(one_received_echo_is_enough),
        cmocka_unit_test(no_echo_of_a_lost_connection_is_awaited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
