#include "daemon/exact_share.h"
#include "kvb_test.h"

#include <string.h>

static unsigned
ask(struct kvb_exact_share *share, uint32_t exact, uint32_t streams, const char *query,
    const char *sentence)
{
    struct kvb_http_answer answer = { .status = 200 };

    kvb_buf_init(&answer.body, 1024);
    kvb_exact_share_set(share, exact, streams);
    const bool refuses = kvb_exact_share_refuses(share, query, &answer);
    assert_int_equal(refuses, answer.status != 200);
    assert_ok(kvb_buf_append(&answer.body, "", 1));
    assert_string_equal((const char *)answer.body.data, sentence);
    kvb_buf_done(&answer.body);
    return answer.status;
}

static unsigned status_of(uint32_t exact, uint32_t streams, const char *query, const char *sentence)
{
    struct kvb_exact_share share = { 0 };

    return ask(&share, exact, streams, query, sentence);
}

static void a_request_without_a_share_is_never_refused(void **state)
{
    (void)state;
    assert_int_equal(status_of(0, 9, "", ""), 200);
    assert_int_equal(status_of(0, 9, "verbose=1", ""), 200);
    assert_int_equal(status_of(0, 9, "inexact=1", ""), 200);
}

static void a_share_that_is_not_reached_is_reported(void **state)
{
    (void)state;
    assert_int_equal(status_of(19, 20, "exact=0.95", ""), 200);
    assert_int_equal(status_of(20, 20, "verbose&exact=1", ""), 200);
    assert_int_equal(status_of(0, 20, "exact=0", ""), 200);
    assert_int_equal(status_of(0, 0, "exact=1", ""), 200);
    assert_int_equal(
        status_of(
            18, 20, "exact=0.95",
            "18 of 20 streams are EXACT, a share of 0.900; 0.95 is asked for\n"),
        503);
    assert_int_equal(
        status_of(
            65534, 65535, "exact=1",
            "65534 of 65535 streams are EXACT, a share of 1.000; 1 is asked for\n"),
        503);
}

static void a_share_that_was_reached_stays_reached_where_it_is_kept(void **state)
{
    struct kvb_exact_share kept = { .keeps = true };
    struct kvb_exact_share present = { .keeps = false };
    static const char sentence[] =
        "0 of 20 streams are EXACT, a share of 0.000; 0.95 is asked for\n";

    (void)state;
    assert_int_equal(ask(&kept, 0, 20, "exact=0.95", sentence), 503);
    assert_int_equal(ask(&kept, 20, 20, "", ""), 200); /* nothing was asked for */
    assert_int_equal(ask(&kept, 0, 20, "exact=0.95", sentence), 503);
    assert_int_equal(ask(&kept, 19, 20, "exact=0.95", ""), 200);
    assert_int_equal(ask(&kept, 0, 20, "exact=0.95", ""), 200);
    assert_int_equal(ask(&kept, 0, 20, "exact=0.5", ""), 200);
    assert_int_equal(
        ask(&kept, 19, 20, "exact=1",
            "19 of 20 streams are EXACT, a share of 0.950; 1 is asked for\n"),
        503); /* a larger share was not reached */
    assert_int_equal(ask(&present, 20, 20, "exact=0.95", ""), 200);
    assert_int_equal(ask(&present, 0, 20, "exact=0.95", sentence), 503);
}

static void a_value_that_is_no_share_is_refused(void **state)
{
    (void)state;
    static const char *const queries[] = {
        "exact=",     "exact",      "a=1&exact",  "exact=1.01",
        "exact=-0.1", "exact=nan",  "exact=inf",  "exact=0x1",
        "exact=0.5x", "exact=+0.5", "exact=1e-1", "exact=0.99999999999999999999999999999999999999",
    };

    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        assert_int_equal(
            status_of(9, 9, queries[i], "exact: expected a share from 0 to 1, such as 0.95\n"),
            400);
    }
}

SUITE(exact_share)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_without_a_share_is_never_refused),
        cmocka_unit_test(a_share_that_is_not_reached_is_reported),
        cmocka_unit_test(a_share_that_was_reached_stays_reached_where_it_is_kept),
        cmocka_unit_test(a_value_that_is_no_share_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
