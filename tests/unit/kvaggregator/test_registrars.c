#include "core/clock.h"
#include "kvaggregator/registrars.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>

static void offer(
    struct kvb_registrars *registrars, unsigned bridge, uint64_t ranks, uint64_t held, uint64_t ms)
{
    struct kvb_forward_offer one = { .ranks = ranks, .held = held };

    (void)snprintf(one.bridge, sizeof one.bridge, "%016x", bridge);
    kvb_registrars_add(registrars, &one, ms * KVB_NS_PER_MS);
}

static unsigned chosen(const struct kvb_registrars *registrars)
{
    const struct kvb_forward_offer *one = kvb_registrars_choose(registrars);

    return one ? (unsigned)strtoul(one->bridge, NULL, 16) : 0;
}

static void the_bridge_with_the_fewest_ranks_is_chosen(void **state)
{
    struct kvb_registrars registrars = { .count = 0 };

    (void)state;
    assert_int_equal(chosen(&registrars), 0);
    offer(&registrars, 3, 7, 0, 1);
    offer(&registrars, 1, 9, 0, 1);
    offer(&registrars, 2, 5, 0, 1);
    assert_int_equal(chosen(&registrars), 2);
}

static void a_bridge_that_already_reads_the_worker_is_preferred(void **state)
{
    struct kvb_registrars registrars = { .count = 0 };

    (void)state;
    offer(&registrars, 1, 0, 0, 1);
    offer(&registrars, 2, 90, 1, 1);
    offer(&registrars, 3, 91, 2, 1);
    assert_int_equal(chosen(&registrars), 3);
}

/* In whatever order the offers arrive. */
static void of_equal_bridges_all_aggregators_choose_the_same(void **state)
{
    struct kvb_registrars one = { .count = 0 };
    struct kvb_registrars other = { .count = 0 };

    (void)state;
    offer(&one, 5, 4, 0, 1);
    offer(&one, 6, 4, 0, 2);
    offer(&other, 6, 4, 0, 1);
    offer(&other, 5, 4, 0, 2);
    assert_int_equal(chosen(&one), 5);
    assert_int_equal(chosen(&other), 5);
}

static void each_bridge_that_reads_the_worker_is_a_holder_once(void **state)
{
    struct kvb_registrars registrars = { .count = 0 };
    size_t at = 0;

    (void)state;
    offer(&registrars, 1, 4, 0, 1);
    offer(&registrars, 2, 4, 1, 1);
    offer(&registrars, 2, 4, 1, 1); /* the message arrived twice */
    offer(&registrars, 3, 4, 0, 1);
    offer(&registrars, 4, 4, 2, 1);
    assert_string_equal(kvb_registrars_next_holder(&registrars, &at)->bridge, "0000000000000002");
    assert_string_equal(kvb_registrars_next_holder(&registrars, &at)->bridge, "0000000000000004");
    assert_null(kvb_registrars_next_holder(&registrars, &at));
}

static void offers_are_awaited_for_a_while_after_the_newest(void **state)
{
    struct kvb_registrars registrars = { .asked_ns = 1000 * KVB_NS_PER_MS };

    (void)state;
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1500 * KVB_NS_PER_MS);
    offer(&registrars, 4, 4, 0, 1010); /* the bridge that reads the worker may be busy */
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1500 * KVB_NS_PER_MS);
    offer(&registrars, 1, 4, 1, 1020);
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1120 * KVB_NS_PER_MS);
    offer(&registrars, 2, 4, 0, 1100);
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1200 * KVB_NS_PER_MS);
    offer(&registrars, 2, 4, 0, 1190); /* a repeated offer */
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1200 * KVB_NS_PER_MS);
    offer(&registrars, 3, 4, 0, 1450);
    assert_int_equal(kvb_registrars_until_ns(&registrars), 1500 * KVB_NS_PER_MS);
}

static void without_subscribers_no_offers_are_awaited(void **state)
{
    const struct kvb_registrars registrars = { .asked_ns = 7, .has_nobody = true };

    (void)state;
    assert_int_equal(kvb_registrars_until_ns(&registrars), 7);
}

static void offers_above_the_ceiling_are_counted(void **state)
{
    struct kvb_registrars registrars = { .count = 0 };

    (void)state;
    for (unsigned i = 1; i <= kvb_max_registrars + 3; i++) {
        offer(&registrars, i, 4, 0, 1);
    }
    assert_int_equal(registrars.count, kvb_max_registrars);
    assert_int_equal(registrars.left_out, 3);
}

/* Else a second bridge would read the worker, and the first would not be asked to leave it. */
static void beyond_the_ceiling_those_that_would_be_chosen_last_are_left_out(void **state)
{
    struct kvb_registrars registrars = { .count = 0 };
    size_t at = 0;

    (void)state;
    for (unsigned i = 1; i <= kvb_max_registrars; i++) {
        offer(&registrars, i, 4, 0, 1);
    }
    offer(&registrars, 100, 5, 0, 1);
    offer(&registrars, 101, 9, 1, 1); /* it reads the worker */
    offer(&registrars, 102, 3, 0, 1);
    assert_int_equal(registrars.count, kvb_max_registrars);
    assert_int_equal(registrars.left_out, 3);
    assert_true(registrars.has_holder);
    assert_int_equal(chosen(&registrars), 101);
    assert_non_null(kvb_registrars_next_holder(&registrars, &at));
    assert_null(kvb_registrars_next_holder(&registrars, &at));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bridge_with_the_fewest_ranks_is_chosen),
        cmocka_unit_test(a_bridge_that_already_reads_the_worker_is_preferred),
        cmocka_unit_test(of_equal_bridges_all_aggregators_choose_the_same),
        cmocka_unit_test(each_bridge_that_reads_the_worker_is_a_holder_once),
        cmocka_unit_test(offers_are_awaited_for_a_while_after_the_newest),
        cmocka_unit_test(without_subscribers_no_offers_are_awaited),
        cmocka_unit_test(offers_above_the_ceiling_are_counted),
        cmocka_unit_test(beyond_the_ceiling_those_that_would_be_chosen_last_are_left_out),
    };

    return cmocka_run_group_tests_name("kvaggregator/registrars", tests, NULL, NULL);
}
