#include "bus/bus.h"
#include "process.h"

#include "kvb_test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { patience_ms = 60000, a_while_ms = 300 };

/* ---- A bus connected to nats-server, with a token in a file ---- */

struct renewing {
    struct nats_server server;
    struct kvb_bus_login login;
    struct kvb_log log;
    struct kvb_bus *bus;
    struct kvb_bus_subscription *subscription;
    atomic_uint messages;
};

static const char allows_right[] = "authorization: { token: right }\n";

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

static bool is_renewed(void *context)
{
    return kvb_bus_connects(((struct renewing *)context)->bus) == 2;
}

static bool is_renewed_again(void *context)
{
    return kvb_bus_connects(((struct renewing *)context)->bus) > 2;
}

static bool has_logged(const struct renewing *one, const char *words)
{
    char text[4096] = "";

    return pread(one->log.fd, text, sizeof text - 1, 0) > 0 && strstr(text, words);
}

static bool is_refused(void *context)
{
    return has_logged(context, "Authorization Violation");
}

static bool has_warned_of_an_end(void *context)
{
    return has_logged(context, "connection ended");
}

static bool has_message(void *context)
{
    return atomic_load(&((struct renewing *)context)->messages) > 0;
}

/* Puts another file in the place of the token's. */
static void write_token(const struct renewing *one, const char *token)
{
    char path[96];

    (void)snprintf(path, sizeof path, "%s/next", one->server.folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(token, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(rename(path, one->login.token_file), 0);
}

/* next_port: of a second server in nats.url; 0: none. */
static void start_renewing(struct renewing *one, uint16_t next_port)
{
    *one = (struct renewing){ .log = { .level = KVB_LOG_WARNING,
                                       .fd = memfd_create("log", MFD_CLOEXEC) } };
    char urls[128];
    const struct kvb_bus_options options = {
        .url = urls, .name = "test", .login = &one->login, .log = &one->log
    };

    assert_ok(nats_server_start(&one->server, 0, allows_right));
    const int len = snprintf(urls, sizeof urls, "%s", one->server.url);
    if (next_port > 0) {
        (void)snprintf(urls + len, sizeof urls - (size_t)len, ",nats://127.0.0.1:%u", next_port);
    }
    (void)snprintf(
        one->login.token_file, sizeof one->login.token_file, "%s/token", one->server.folder);
    write_token(one, "right");
    assert_ok(kvb_bus_open(&options, &one->bus, NULL));
    assert_true(wait_until(is_up, one, patience_ms));
    assert_ok(kvb_bus_subscribe(one->bus, "a", count_message, one, &one->subscription));
    assert_ok(kvb_bus_flush(one->bus, patience_ms));
}

/* A subscription gets what the same bus publishes. */
static void expect_message(struct renewing *one)
{
    assert_ok(kvb_bus_publish(one->bus, "a", (kvb_span){ (const uint8_t *)"1", 1 }));
    assert_true(wait_until(has_message, one, patience_ms));
}

static void end_renewing(struct renewing *one)
{
    kvb_bus_unsubscribe(one->subscription);
    kvb_bus_close(one->bus);
    nats_server_kill(&one->server);
    close(one->log.fd);
}

/* ---- Tests ---- */

static void a_changed_file_makes_a_new_connection_with_the_subscriptions(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one, 0);
    write_token(&one, "right");
    assert_ok(kvb_bus_renew(one.bus, NULL, NULL));
    assert_true(wait_until(is_renewed, &one, patience_ms));
    expect_message(&one);
    /* The old connection was left on purpose.  It is closed on a thread of its own. */
    assert_false(wait_until(has_warned_of_an_end, &one, a_while_ms));
    end_renewing(&one);
}

static void a_login_that_is_refused_leaves_the_connection(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one, 0);
    write_token(&one, "wrong");
    assert_ok(kvb_bus_renew(one.bus, NULL, NULL));
    assert_true(wait_until(is_refused, &one, patience_ms));
    assert_int_equal(kvb_bus_connects(one.bus), 1);
    expect_message(&one);
    end_renewing(&one);
}

/* The connection to the other server was made with the new file. */
static void a_file_that_changed_before_lame_duck_mode_makes_one_new_connection(void **state)
{
    struct nats_server next = { 0 };
    struct renewing one;
    uint16_t port = 0;

    (void)state;
    assert_ok(free_port(&port));
    start_renewing(&one, port);
    assert_ok(nats_server_start(&next, port, allows_right));
    write_token(&one, "right");
    assert_int_equal(kill(one.server.pid, SIGUSR2), 0);
    assert_true(wait_until(is_renewed, &one, patience_ms));
    assert_ok(kvb_bus_renew(one.bus, NULL, NULL)); /* checks now, not in ten seconds */
    assert_false(wait_until(is_renewed_again, &one, a_while_ms));
    expect_message(&one);
    end_renewing(&one);
    nats_server_kill(&next);
}

SUITE(renewal)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_changed_file_makes_a_new_connection_with_the_subscriptions),
        cmocka_unit_test(a_login_that_is_refused_leaves_the_connection),
        cmocka_unit_test(a_file_that_changed_before_lame_duck_mode_makes_one_new_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
