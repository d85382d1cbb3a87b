#include "kvb_test.h"

#include "core/status.h"

#include <string.h>

static kvb_status try_it(kvb_status status, int *reached)
{
    KVB_TRY(status);
    *reached = 1;
    return KVB_OK;
}

static void every_status_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KVB_STATUS_COUNT; i++) {
        assert_non_null(kvb_status_name((kvb_status)i));
        for (unsigned j = 0; j < i; j++) {
            assert_string_not_equal(kvb_status_name((kvb_status)i), kvb_status_name((kvb_status)j));
        }
    }
    assert_string_equal(kvb_status_name(KVB_BAD_INPUT), "bad_input");
    assert_string_equal(kvb_status_name((kvb_status)KVB_STATUS_COUNT), "unknown");
    assert_string_equal(kvb_status_name((kvb_status)-1), "unknown");
}

static void try_returns_at_once_on_failure_and_goes_on_otherwise(void **state)
{
    (void)state;
    int reached = 0;

    assert_int_equal(try_it(KVB_IO, &reached), KVB_IO);
    assert_int_equal(reached, 0);
    assert_ok(try_it(KVB_OK, &reached));
    assert_int_equal(reached, 1);
}

SUITE(status)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_of_its_own),
        cmocka_unit_test(try_returns_at_once_on_failure_and_goes_on_otherwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
