#include "bus/server_url.h"

#include "core/own.h"

#include "kvb_test.h"

#include <string.h>

enum { servers = 4, seeds = 400 };

static const char *const configured[servers] = {
    "nats://one:4222",
    "nats://user:word@two",
    "three:4333",
    "nats://[::1]:4444",
};

/* The position of a server after ordering. */
static size_t position_of(const char *server, const char *left, uint64_t seed)
{
    const char *list[servers];
    size_t found = servers;

    memcpy(list, configured, sizeof list);
    kvb_server_list_order(list, servers, left, seed);
    for (size_t i = 0; i < servers; i++) {
        found = strcmp(list[i], server) == 0 ? i : found;
    }
    return found;
}

static void each_server_is_first_in_some_orders(void **state)
{
    (void)state;
    for (size_t i = 0; i < servers; i++) {
        unsigned first = 0;
        for (uint64_t seed = 0; seed < seeds; seed++) {
            const size_t at = position_of(configured[i], "", seed);
            assert_true(at < servers);
            first += at == 0;
        }
        assert_in_range(first, seeds / servers / 2, seeds / servers * 2);
    }
}

static void the_server_that_was_left_is_last(void **state)
{
    static const char *const left[servers] = { "nats://one", "nats://two:4222", "nats://Three:4333",
                                               "[::1]:4444" };

    (void)state;
    for (size_t i = 0; i < servers; i++) {
        for (uint64_t seed = 0; seed < seeds; seed++) {
            assert_int_equal(position_of(configured[i], left[i], seed), servers - 1);
        }
    }
}

static void a_server_is_its_host_and_port(void **state)
{
    (void)state;
    assert_true(kvb_server_url_is_same("nats://u:p@host", "tls://HOST:4222"));
    assert_false(kvb_server_url_is_same("host:4222", "host:4223"));
    assert_false(kvb_server_url_is_same("host", "hos"));
    assert_false(kvb_server_url_is_same("[::1]:4222", "[::2]:4222"));
    assert_true(kvb_server_url_is_same("[::1]", "nats://[::1]:4222"));
}

static void a_login_that_cannot_be_sent_is_an_error(void **state)
{
    static const struct {
        const char *url;
        const char *fault; /* NULL: no error */
    } rows[] = {
        { "nats://h", NULL },
        { "nats://u:p@h,nats://t@h", NULL },
        { "nats://u:a\"b\\@h,nats://u:a%22b%5C@h", NULL },
        { "nats://u:a\"@h,nats://u:a@h", NULL },
        { "nats://u:a\"@h,nats://u:b\"@h", "different logins" },
        { "nats://u:a%40@h,nats://a%40@h", "different logins" },
        { "nats://u:a%0A@h", "control character" },
        { "nats://%00@h", "control character" },
        { "nats://u\":a%1f@h", "control character" },
        { "h%0A", NULL },
    };
    char url[300] = "nats://%41";

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        const char *fault = kvb_server_url_login_fault(rows[i].url);
        assert_true(
            fault && rows[i].fault ? strstr(fault, rows[i].fault) != NULL : fault == rows[i].fault);
    }
    memset(url + strlen(url), 'a', 256);
    memcpy(url + 266, "@h", 3);
    assert_non_null(strstr(kvb_server_url_login_fault(url), "longer than 255"));
}

SUITE(server_url)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_server_is_first_in_some_orders),
        cmocka_unit_test(the_server_that_was_left_is_last),
        cmocka_unit_test(a_server_is_its_host_and_port),
        cmocka_unit_test(a_login_that_cannot_be_sent_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
