#include "kvb_test.h"

#include "core/own.h"
#include "ingest/dns/named_endpoint.h"
#include "ingest/dns/resolver.h"

#include <string.h>

static void only_names_are_looked_up(void **state)
{
    (void)state;
    const struct {
        const char *text;
        bool is_bound;
        const char *host;
    } cases[] = {
        { "tcp://engine-2.fleet:5557", false, "engine-2.fleet" },
        { "tcp://engine-2.fleet:5557", true, "engine-2.fleet" },
        { "tcp://10.0.0.9;engine-2:5557", false, "engine-2" },
        { "tcp://10.0.0.5:5557", false, "" },
        { "tcp://[fd00::5]:5557", false, "" },
        { "tcp://[fe80::1%lo]:5557", false, "" },
        { "tcp://*:5557", true, "" },
        { "tcp://lo:5557", true, "" }, /* the name of an interface */
        { "tcp://lo:5557", false, "lo" },
        { "tcp://engine", false, "" }, /* libzmq refuses it */
        { "ipc:///run/engine", false, "" },
        { "inproc://engine:1", false, "" },
        { "", false, "" },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct kvb_named_endpoint endpoint;
        assert_ok(kvb_named_endpoint_set(&endpoint, cases[i].text, cases[i].is_bound));
        assert_string_equal(endpoint.host, cases[i].host);
    }
}

static void what_needs_no_lookup_stays_as_it_is(void **state)
{
    (void)state;
    struct kvb_named_endpoint endpoint;
    char address[kvb_zmq_address_bytes];
    bool has_moved = true;

    assert_ok(kvb_named_endpoint_set(&endpoint, "tcp://[::1]:5557", false));
    assert_ok(kvb_named_endpoint_look(&endpoint, NULL, true, 1, &has_moved));
    assert_false(has_moved);
    assert_true(kvb_named_endpoint_is_ipv6(&endpoint));
    kvb_named_endpoint_write(&endpoint, address);
    assert_string_equal(address, "tcp://[::1]:5557");
}

/* "localhost" has two addresses in /etc/hosts; no name server is queried. */
static void addresses_take_the_place_of_the_name_in_turn(void **state)
{
    (void)state;
    struct kvb_named_endpoint endpoint;
    char address[kvb_zmq_address_bytes];
    bool has_moved = false;

    assert_ok(kvb_named_endpoint_set(&endpoint, "tcp://10.0.0.9;localhost:5557", false));
    assert_ok(kvb_named_endpoint_look(&endpoint, NULL, false, 1, &has_moved));
    assert_true(has_moved);
    kvb_named_endpoint_write(&endpoint, address);
    assert_string_equal(address, "tcp://10.0.0.9;127.0.0.1:5557");
    assert_false(kvb_named_endpoint_is_ipv6(&endpoint));

    assert_ok(kvb_named_endpoint_look(&endpoint, NULL, true, 2, &has_moved));
    assert_true(has_moved);
    kvb_named_endpoint_write(&endpoint, address);
    assert_string_equal(address, "tcp://10.0.0.9;[::1]:5557");
    assert_true(kvb_named_endpoint_is_ipv6(&endpoint));
}

static void a_name_that_cannot_be_resolved_says_why(void **state)
{
    (void)state;
    struct kvb_named_endpoint endpoint;
    bool has_moved = true;

    assert_ok(kvb_named_endpoint_set(&endpoint, "tcp://engine-2:5557", false));
    assert_int_equal(kvb_named_endpoint_look(&endpoint, NULL, false, 1, &has_moved), KVB_NOT_FOUND);
    assert_false(has_moved);
    assert_non_null(strstr(endpoint.why.text, "the name engine-2 cannot be resolved: "));
}

static void a_text_that_is_too_long_is_refused(void **state)
{
    (void)state;
    struct kvb_named_endpoint endpoint;
    char text[kvb_named_endpoint_bytes + 1];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(kvb_named_endpoint_set(&endpoint, text, false), KVB_TOO_LARGE);
}

SUITE(named_endpoint)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_names_are_looked_up),
        cmocka_unit_test(what_needs_no_lookup_stays_as_it_is),
        cmocka_unit_test(addresses_take_the_place_of_the_name_in_turn),
        cmocka_unit_test(a_name_that_cannot_be_resolved_says_why),
        cmocka_unit_test(a_text_that_is_too_long_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
