#include "kvb_test.h"

#include "core/networks.h"
#include "core/own.h"

#include <stdio.h>
#include <string.h>

static struct kvb_networks list_of(const char *one, const char *other)
{
    struct kvb_networks networks = { .count = 0 };

    assert_ok(kvb_networks_add(&networks, one, NULL));
    if (other) {
        assert_ok(kvb_networks_add(&networks, other, NULL));
    }
    return networks;
}

static void link_local_and_metadata_alone_are_refused(void **state)
{
    static const char *const refused[] = {
        "169.254.169.254",    "169.254.0.0",       "169.254.255.255", "fe80::1",
        "[fe80::1%eth0]",     "febf::1",           "100.100.100.200", "192.0.0.192",
        "168.63.129.16",      "fd00:ec2::254",     "fd00:ec2::23",    "fd20:ce::254",
        "fd00:c1::a9fe:a9fe", "fd00:100::100:200", "fd00:42::42",     "fd00:a9fe:a9fe::1",
    };
    static const char *const allowed[] = {
        "127.0.0.1",    "10.0.0.5",        "169.253.255.255",   "169.255.0.0",
        "::1",          "fec0::1",         "fe7f::1",           "fd00:ec2::253",
        "2001:db8::1",  "100.100.100.199", "192.0.0.191",       "168.63.129.17",
        "fd20:ce::253", "fd00:42::43",     "2002:a9fd:ffff::1", "64:ff9b::8.8.8.8",
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(refused); i++) {
        assert_false(kvb_address_is_allowed(refused[i]));
    }
    for (size_t i = 0; i < KVB_COUNT_OF(allowed); i++) {
        assert_true(kvb_address_is_allowed(allowed[i]));
    }
}

/* Each form of 169.254.169.254, 100.100.100.200, 192.0.0.192 and 168.63.129.16. */
static void metadata_is_refused_in_each_ipv6_form_of_its_ipv4_address(void **state)
{
    static const char *const refused[] = {
        "::ffff:169.254.169.254",   "::169.254.169.254",          "::ffff:0:169.254.169.254",
        "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "64:ff9b:1:ff::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:55a9:fe:a9fe::",   "64:ff9b:1:5555:a9:fea9:fe00:0",
        "2002:a9fe:a9fe::1",        "2002:a9fe:a9fe:1:2:3:4:5",   "::ffff:100.100.100.200",
        "64:ff9b::100.100.100.200", "2002:6464:64c8::",           "::ffff:192.0.0.192",
        "64:ff9b::192.0.0.192",     "2002:c000:00c0::1",          "::192.0.0.192",
        "64:ff9b::168.63.129.16",   "2002:a83f:8110::1",          "[64:ff9b::a9fe:a9fe]",
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(refused); i++) {
        assert_false(kvb_address_is_allowed(refused[i]));
    }
}

static void a_list_allows_its_networks_and_nothing_else(void **state)
{
    const struct kvb_networks networks = list_of("10.1.64.0/18", "fd00::/9");

    (void)state;
    assert_true(kvb_networks_allow(&networks, "10.1.64.0"));
    assert_true(kvb_networks_allow(&networks, "10.1.127.255"));
    assert_true(kvb_networks_allow(&networks, "::ffff:10.1.64.1"));
    assert_true(kvb_networks_allow(&networks, "[fd7f::1]"));
    assert_false(kvb_networks_allow(&networks, "10.1.63.255"));
    assert_false(kvb_networks_allow(&networks, "10.1.128.0"));
    assert_false(kvb_networks_allow(&networks, "fd80::1"));
    assert_false(kvb_networks_allow(&networks, "127.0.0.1"));
}

static void a_text_that_is_no_address_is_not_allowed(void **state)
{
    static const char *const texts[] = { "", "localhost", "10.0.0", "1.2.3.4.5", "*", "0x7f.1" };
    const struct kvb_networks all = list_of("0.0.0.0/0", "::/0");

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        assert_false(kvb_networks_allow(&all, texts[i]));
        assert_false(kvb_address_is_allowed(texts[i]));
    }
}

static void a_text_that_is_no_network_is_refused_with_a_reason(void **state)
{
    static const struct {
        const char *text;
        const char *why;
    } cases[] = {
        { "", "no network" },
        { "10.0.0.0/", "no network" },
        { "10.0.0.0/33", "no network" },
        { "::/129", "no network" },
        { "10.0.0.0/-1", "no network" },
        { "10.0.0.0/8x", "no network" },
        { "h/8", "no network" },
        { "10.0.0.1/8", "bits beyond" },
        { "fd00::1/64", "bits beyond" },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_networks networks = { .count = 0 };
        struct kvb_detail detail = { .text = "" };
        assert_int_equal(kvb_networks_add(&networks, cases[i].text, &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, cases[i].why));
        assert_int_equal(networks.count, 0);
    }
}

static void one_more_than_the_ceiling_is_refused(void **state)
{
    struct kvb_networks networks = { .count = 0 };

    (void)state;
    for (size_t i = 0; i < kvb_max_networks; i++) {
        assert_ok(kvb_networks_add(&networks, "10.0.0.0/8", NULL));
    }
    assert_int_equal(kvb_networks_add(&networks, "10.0.0.0/8", NULL), KVB_TOO_LARGE);
}

static void a_list_that_contains_metadata_allows_none_of_it(void **state)
{
    (void)state;
    const struct kvb_networks none = { .count = 0 };
    const struct kvb_networks all = list_of("0.0.0.0/0", "::/0");

    assert_true(kvb_networks_allow(&all, "10.0.0.5"));
    assert_true(kvb_networks_allow(&all, "[fd00::5]"));
    assert_false(kvb_networks_allow(&all, "169.254.169.254"));
    assert_false(kvb_networks_allow(&all, "fe80::1"));
    assert_false(kvb_networks_allow(&all, "[fd00:ec2::254]"));
    assert_false(kvb_networks_allow(&all, "[64:ff9b::a9fe:a9fe]"));
    assert_false(kvb_networks_allow(&none, "10.0.0.5"));
}

SUITE(networks)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(link_local_and_metadata_alone_are_refused),
        cmocka_unit_test(metadata_is_refused_in_each_ipv6_form_of_its_ipv4_address),
        cmocka_unit_test(a_list_allows_its_networks_and_nothing_else),
        cmocka_unit_test(a_text_that_is_no_address_is_not_allowed),
        cmocka_unit_test(a_text_that_is_no_network_is_refused_with_a_reason),
        cmocka_unit_test(a_list_that_contains_metadata_allows_none_of_it),
        cmocka_unit_test(one_more_than_the_ceiling_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
