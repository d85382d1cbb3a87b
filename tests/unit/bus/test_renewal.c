#include "bus/bus.h"
#include "core/clock.h"
#include "nats_stub.h"
#include "process.h"

#include "kvb_test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { patience_ms = 15000 };

/* ---- A bus connected to the stub server, with a token in a file ---- */

struct renewing {
    struct nats_stub stub;
    struct kvb_bus_login login;
    struct kvb_bus *bus;
    struct kvb_bus_subscription *subscription;
    atomic_uint messages;
};

static void count_message(void *context, const struct kvb_bus_message *message)
{
    struct renewing *one = context;

    (void)message;
    atomic_fetch_add(&one->messages, 1);
}

static bool is_up(void *context)
{
    return kvb_bus_is_connected(((struct renewing *)context)->bus);
}

static bool is_subscribed(void *context)
{
    return nats_stub_received(&((struct renewing *)context)->stub, 0, "SUB a") == 1;
}

static bool is_renewed(void *context)
{
    struct renewing *one = context;

    return kvb_bus_connects(one->bus) == 2 && nats_stub_received(&one->stub, 1, "SUB a") == 1;
}

static bool is_dialed(void *context)
{
    return nats_stub_received(&((struct renewing *)context)->stub, 1, "PING") > 0;
}

static bool has_message(void *context)
{
    return atomic_load(&((struct renewing *)context)->messages) > 0;
}

static void write_token(const struct renewing *one, const char *token)
{
    FILE *file = fopen(one->login.token_file, "we");

    assert_non_null(file);
    assert_true(fputs(token, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void start_renewing(struct renewing *one)
{
    const struct kvb_bus_options options = { .url = one->stub.url,
                                             .name = "test",
                                             .login = &one->login };

    *one = (struct renewing){ .login = { .token_file = "/tmp/kvb-renewal-XXXXXX" } };
    nats_stub_start(&one->stub);
    close(mkstemp(one->login.token_file));
    write_token(one, "first");
    assert_ok(kvb_bus_open(&options, &one->bus, NULL));
    assert_true(wait_until(is_up, one, patience_ms));
    assert_ok(kvb_bus_subscribe(one->bus, "a", count_message, one, &one->subscription));
    assert_ok(kvb_bus_flush(one->bus, patience_ms));
    assert_true(wait_until(is_subscribed, one, patience_ms));
}

static void renew(struct renewing *one)
{
    write_token(one, "second one");
    assert_ok(kvb_bus_renew(one->bus, NULL, NULL));
}

static void end_renewing(struct renewing *one)
{
    kvb_bus_unsubscribe(one->subscription);
    kvb_bus_close(one->bus);
    nats_stub_stop(&one->stub);
    unlink(one->login.token_file);
}

/* ---- Tests ---- */

static void a_changed_file_makes_a_new_connection_with_the_subscriptions(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    renew(&one);
    assert_true(wait_until(is_renewed, &one, patience_ms));
    assert_int_equal(nats_stub_received(&one.stub, 1, "second one"), 1);
    nats_stub_send(&one.stub, 1, "MSG a 1 1\r\n1\r\n");
    assert_true(wait_until(has_message, &one, patience_ms));
    end_renewing(&one);
}

static void the_same_files_make_none(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    assert_ok(kvb_bus_renew(one.bus, &one.login, NULL));
    assert_ok(kvb_bus_flush(one.bus, patience_ms));
    renew(&one); /* the next change is the first */
    assert_true(wait_until(is_renewed, &one, patience_ms));
    end_renewing(&one);
}

/* The server refuses the new login: it demands a signature, which a token cannot give. */
static void a_login_that_is_refused_leaves_the_connection(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    nats_stub_demand_signature(&one.stub, 1, "nonce");
    renew(&one);
    assert_true(wait_until(is_dialed, &one, patience_ms));
    assert_int_equal(kvb_bus_connects(one.bus), 1);
    assert_true(kvb_bus_is_connected(one.bus));
    nats_stub_send(&one.stub, 0, "MSG a 1 1\r\n1\r\n");
    assert_true(wait_until(has_message, &one, patience_ms));
    end_renewing(&one);
}

static void closing_does_not_wait_for_a_server_that_does_not_answer(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    nats_stub_answer(&one.stub, 1, 1); /* the PING of CONNECT, and none after it */
    renew(&one);
    assert_true(wait_until(is_dialed, &one, patience_ms));
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    end_renewing(&one);
    assert_true(kvb_clock_monotonic_ns() - began_ns < 2 * KVB_NS_PER_S);
}

SUITE(renewal)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_changed_file_makes_a_new_connection_with_the_subscriptions),
        cmocka_unit_test(the_same_files_make_none),
        cmocka_unit_test(a_login_that_is_refused_leaves_the_connection),
        cmocka_unit_test(closing_does_not_wait_for_a_server_that_does_not_answer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
