#include "kvb_test.h"

#include "core/clock.h"
#include "model/liveness.h"

static void a_thread_without_an_iteration_for_ten_seconds_hangs(void **state)
{
    (void)state;
    const uint64_t turned_ns = 5 * KVB_NS_PER_S;

    assert_null(kvb_liveness_cause(turned_ns, turned_ns));
    assert_null(kvb_liveness_cause(turned_ns, turned_ns + 10 * KVB_NS_PER_S));
    assert_non_null(kvb_liveness_cause(turned_ns, turned_ns + 10 * KVB_NS_PER_S + 1));
    /* an iteration began after the last check */
    assert_null(kvb_liveness_cause(turned_ns, turned_ns - 1));
}

SUITE(liveness)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_without_an_iteration_for_ten_seconds_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
