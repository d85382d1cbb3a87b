#include "kvb_test.h"

#include "core/clock.h"
#include "core/own.h"
#include "ingest/dns/entry.h"

#include <string.h>

static struct kvb_addresses addresses_of(const char *first, const char *second, const char *third)
{
    const char *const texts[] = { first, second, third };
    struct kvb_addresses addresses = { .count = 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(texts) && texts[i]; i++) {
        kvb_addresses_add(&addresses, texts[i]);
    }
    return addresses;
}

static uint64_t seconds(uint64_t count)
{
    return count * KVB_NS_PER_S;
}

/* ---- When a name is looked up ---- */

static void a_name_is_queried_once_until_the_answer(void **state)
{
    (void)state;
    struct kvb_dns_entry entry = { .is_queried = false };

    assert_true(kvb_dns_entry_query(&entry, seconds(5)));
    assert_false(kvb_dns_entry_query(&entry, seconds(5)));
    assert_false(kvb_dns_entry_query(&entry, seconds(500)));
}

static void an_answer_is_valid_for_5_s(void **state)
{
    (void)state;
    const struct kvb_addresses one = addresses_of("10.0.0.1", NULL, NULL);
    struct kvb_dns_entry entry = { .is_queried = true };

    kvb_dns_entry_answered(&entry, &one, seconds(7));
    assert_int_equal(entry.result, KVB_DNS_OK);
    assert_int_equal(entry.addresses.count, 1);
    assert_false(kvb_dns_entry_query(&entry, seconds(12) - 1));
    assert_true(kvb_dns_entry_query(&entry, seconds(12)));
    assert_int_equal(entry.addresses.count, 1); /* during the next lookup */
}

static void failed_lookups_are_repeated_after_growing_pauses(void **state)
{
    (void)state;
    const uint64_t pauses_s[] = { 1, 2, 4, 8, 16, 30, 30 };
    const struct kvb_addresses one = addresses_of("10.0.0.1", NULL, NULL);
    struct kvb_dns_entry entry = { .is_queried = false };
    uint64_t now_ns = seconds(100);

    for (size_t i = 0; i < KVB_COUNT_OF(pauses_s); i++) {
        assert_true(kvb_dns_entry_query(&entry, now_ns));
        kvb_dns_entry_failed(&entry, KVB_DNS_FAILURE, now_ns);
        assert_int_equal(entry.result, KVB_DNS_FAILURE);
        assert_false(kvb_dns_entry_query(&entry, now_ns + seconds(pauses_s[i]) - 1));
        now_ns += seconds(pauses_s[i]);
    }
    assert_true(kvb_dns_entry_query(&entry, now_ns));
    kvb_dns_entry_answered(&entry, &one, now_ns); /* a success ends the series of failures */
    kvb_dns_entry_failed(&entry, KVB_DNS_FAILURE, now_ns);
    assert_true(kvb_dns_entry_query(&entry, now_ns + seconds(1)));
}

static void addresses_stay_through_failures_and_go_when_the_name_is_removed(void **state)
{
    (void)state;
    const struct kvb_addresses one = addresses_of("10.0.0.1", NULL, NULL);
    struct kvb_dns_entry entry = { .is_queried = false };

    kvb_dns_entry_answered(&entry, &one, seconds(1));
    kvb_dns_entry_failed(&entry, KVB_DNS_FAILURE, seconds(5));
    assert_int_equal(entry.addresses.count, 1);
    kvb_dns_entry_failed(&entry, KVB_DNS_NO_NAME, seconds(9));
    assert_int_equal(entry.addresses.count, 0);
    assert_int_equal(entry.result, KVB_DNS_NO_NAME);
}

/* ---- Addresses ---- */

static void more_addresses_than_there_is_room_for_are_left_out(void **state)
{
    (void)state;
    struct kvb_addresses addresses = { .count = 0 };

    for (size_t i = 0; i < kvb_max_addresses + 2; i++) {
        kvb_addresses_add(&addresses, "10.0.0.1");
    }
    assert_int_equal(addresses.count, kvb_max_addresses);
}

/* ---- Which address is tried ---- */

static void each_failed_attempt_takes_the_next_address(void **state)
{
    (void)state;
    const struct kvb_addresses three = addresses_of("10.0.0.1", "10.0.0.2", "fd00::1");
    struct kvb_address_choice choice = { .moves = 0 };

    assert_true(kvb_address_choice_pick(&choice, &three, false, 1));
    assert_string_equal(choice.text, "10.0.0.1");
    /* the connection is up */
    assert_false(kvb_address_choice_pick(&choice, &three, false, seconds(60)));
    assert_true(kvb_address_choice_pick(&choice, &three, true, seconds(60)));
    assert_string_equal(choice.text, "10.0.0.2");
    assert_true(kvb_address_choice_pick(&choice, &three, true, seconds(60)));
    assert_string_equal(choice.text, "fd00::1");

    /* All addresses have been tried: from then on one attempt a second. */
    assert_false(kvb_address_choice_pick(&choice, &three, true, seconds(61) - 1));
    assert_true(kvb_address_choice_pick(&choice, &three, true, seconds(61)));
    assert_string_equal(choice.text, "10.0.0.1");
}

static void a_good_address_is_the_first_to_be_tried_again(void **state)
{
    (void)state;
    const struct kvb_addresses two = addresses_of("10.0.0.1", "10.0.0.2", NULL);
    struct kvb_address_choice choice = { .moves = 0 };

    (void)kvb_address_choice_pick(&choice, &two, false, 1);
    (void)kvb_address_choice_pick(&choice, &two, true, 2);
    kvb_address_choice_connected(&choice);
    /* the connection was lost, it did not fail */
    assert_false(kvb_address_choice_pick(&choice, &two, false, 3));
    assert_string_equal(choice.text, "10.0.0.2");
    assert_true(kvb_address_choice_pick(&choice, &two, true, 4)); /* a new series of attempts */
    assert_string_equal(choice.text, "10.0.0.1");
}

static void an_address_that_the_name_no_longer_has_is_left_at_once(void **state)
{
    (void)state;
    const struct kvb_addresses before = addresses_of("10.0.0.1", NULL, NULL);
    const struct kvb_addresses after = addresses_of("10.0.0.7", NULL, NULL);
    const struct kvb_addresses none = { .count = 0 };
    struct kvb_address_choice choice = { .moves = 0 };

    (void)kvb_address_choice_pick(&choice, &before, false, 1);
    /* the only address */
    assert_false(kvb_address_choice_pick(&choice, &before, true, seconds(9)));
    assert_false(kvb_address_choice_pick(&choice, &none, true, seconds(9)));
    assert_string_equal(choice.text, "10.0.0.1");
    assert_true(kvb_address_choice_pick(&choice, &after, false, seconds(9)));
    assert_string_equal(choice.text, "10.0.0.7");
}

static void each_result_has_a_text(void **state)
{
    (void)state;
    for (unsigned result = 0; result < KVB_DNS_RESULT_COUNT; result++) {
        assert_true(strlen(kvb_dns_result_text((enum kvb_dns_result)result)) > 0);
    }
}

SUITE(dns_entry)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_queried_once_until_the_answer),
        cmocka_unit_test(an_answer_is_valid_for_5_s),
        cmocka_unit_test(failed_lookups_are_repeated_after_growing_pauses),
        cmocka_unit_test(addresses_stay_through_failures_and_go_when_the_name_is_removed),
        cmocka_unit_test(more_addresses_than_there_is_room_for_are_left_out),
        cmocka_unit_test(each_failed_attempt_takes_the_next_address),
        cmocka_unit_test(a_good_address_is_the_first_to_be_tried_again),
        cmocka_unit_test(an_address_that_the_name_no_longer_has_is_left_at_once),
        cmocka_unit_test(each_result_has_a_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
