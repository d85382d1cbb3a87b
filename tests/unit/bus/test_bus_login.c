#include "bus/bus.h"
#include "core/own.h"
#include "process.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { patience_ms = 15000 };

static bool is_up(void *context)
{
    return kvb_bus_is_connected(context);
}

static struct kvb_bus *open_bus(const char *url)
{
    const struct kvb_bus_options options = { .url = url, .name = "test" };
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = NULL;

    assert_ok(kvb_bus_open(&options, &bus, &detail));
    return bus;
}

static struct kvb_bus *open_connected(const char *url)
{
    struct kvb_bus *bus = open_bus(url);

    assert_true(wait_until(is_up, bus, patience_ms));
    return bus;
}

static void wrong_credentials_do_not_stop_reconnecting(void **state)
{
    struct nats_server server = { 0 };
    char right[96];

    (void)state;
    assert_ok(nats_server_start(&server, 0, "authorization: { user: u, password: p }\n"));
    const uint16_t port = server.port;
    struct kvb_bus *bus = open_bus(server.url);
    (void)snprintf(right, sizeof right, "nats://u:p@127.0.0.1:%u", port);
    struct kvb_bus *allowed = open_connected(right);
    assert_false(kvb_bus_is_connected(bus));
    nats_server_kill(&server);
    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(is_up, bus, patience_ms));
    kvb_bus_close(bus);
    kvb_bus_close(allowed);
    nats_server_kill(&server);
}

static bool says_why(void *context)
{
    const struct kvb_log *log = context;
    char text[4096] = "";

    return pread(log->fd, text, sizeof text - 1, 0) > 0 &&
           strstr(text, "reason=\"Authorization Violation\"");
}

static void the_log_says_why_the_server_refuses_the_login(void **state)
{
    struct nats_server server = { 0 };
    struct kvb_log log = { .level = KVB_LOG_INFO, .fd = memfd_create("log", MFD_CLOEXEC) };
    struct kvb_bus *bus = NULL;
    char wrong[96];

    (void)state;
    assert_ok(nats_server_start(&server, 0, "authorization: { user: u, password: p }\n"));
    (void)snprintf(wrong, sizeof wrong, "nats://u:x@127.0.0.1:%u", server.port);
    const struct kvb_bus_options options = { .url = wrong, .name = "test", .log = &log };
    assert_ok(kvb_bus_open(&options, &bus, NULL));
    assert_true(wait_until(says_why, &log, patience_ms));
    kvb_bus_close(bus);
    close(log.fd);
    nats_server_kill(&server);
}

static void a_password_may_be_any_text_and_percent_encoded(void **state)
{
    static const char *const logins[] = { "u:p%40%3A%2f%22%5C%25", "%75:p@%3A%2f%22%5C%",
                                          "u:p@:/\"\\%" };
    struct nats_server server = { 0 };

    (void)state;
    assert_ok(
        nats_server_start(&server, 0, "authorization: { user: u, password: \"p@:/\\\"\\\\%\" }\n"));
    for (size_t i = 0; i < KVB_COUNT_OF(logins); i++) {
        char url[128];
        (void)snprintf(url, sizeof url, "nats://%s@127.0.0.1:%u", logins[i], server.port);
        kvb_bus_close(open_connected(url));
    }
    nats_server_kill(&server);
}

static void a_token_may_be_percent_encoded(void **state)
{
    struct nats_server server = { 0 };
    char url[96];

    (void)state;
    assert_ok(nats_server_start(&server, 0, "authorization: { token: \"t/@\" }\n"));
    (void)snprintf(url, sizeof url, "nats://t%%2f%%40@127.0.0.1:%u", server.port);
    kvb_bus_close(open_connected(url));
    nats_server_kill(&server);
}

static void a_decoded_login_applies_to_all_servers(void **state)
{
    struct kvb_bus *bus = NULL;
    struct kvb_detail detail = { .text = "" };
    struct kvb_bus_options options = { .url = "nats://u:a%40@h:1,nats://u:b%40@h:2" };

    (void)state;
    assert_int_equal(kvb_bus_open(&options, &bus, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "nats.url: different logins"));
    assert_null(strstr(detail.text, "a%40"));
    options.url = "nats://u:a%40@127.0.0.1:1,nats://u:a%40@127.0.0.1:2,nats://x:y@127.0.0.1:3";
    kvb_bus_close(open_bus(options.url));
}

SUITE(bus_login)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_credentials_do_not_stop_reconnecting),
        cmocka_unit_test(the_log_says_why_the_server_refuses_the_login),
        cmocka_unit_test(a_password_may_be_any_text_and_percent_encoded),
        cmocka_unit_test(a_token_may_be_percent_encoded),
        cmocka_unit_test(a_decoded_login_applies_to_all_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
