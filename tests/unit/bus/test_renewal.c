#include "bus/bus.h"
#include "core/clock.h"
#include "core/own.h"
#include "nats_stub.h"
#include "process.h"

#include "kvb_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { patience_ms = 15000, max_read_text = 64 };

/* ---- A bus connected to the stub server, with a token in a file ------------------------------ */

struct renewing {
    struct nats_stub stub;
    struct kvb_bus_login login;
    struct kvb_bus *bus;
    struct kvb_bus_subscription *subscription;
    pthread_mutex_t lock;
    char read[max_read_text]; /* the payloads, concatenated; guarded by lock */
};

static void take_payload(void *context, const struct kvb_bus_message *message)
{
    struct renewing *one = context;

    pthread_mutex_lock(&one->lock);
    const size_t len = strlen(one->read);
    (void)snprintf(
        one->read + len, max_read_text - len, "%.*s", (int)message->payload.len,
        (const char *)message->payload.data);
    pthread_mutex_unlock(&one->lock);
}

static bool is_up(void *context)
{
    return kvb_bus_is_connected(((struct renewing *)context)->bus);
}

static bool is_subscribed(void *context)
{
    return nats_stub_received(&((struct renewing *)context)->stub, 0, "SUB a") == 1;
}

/* Waits for a renewal, with or without a loss. */
static bool is_replaced(void *context)
{
    const struct kvb_bus *bus = ((struct renewing *)context)->bus;

    return kvb_bus_renewals(bus) + kvb_bus_connects(bus) == 2;
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

    *one = (struct renewing){ .login = { .token_file = "/tmp/kvb-renewal-XXXXXX" },
                              .lock = PTHREAD_MUTEX_INITIALIZER };
    nats_stub_start(&one->stub);
    close(mkstemp(one->login.token_file));
    write_token(one, "first");
    assert_ok(kvb_bus_open(&options, &one->bus, NULL));
    assert_true(wait_until(is_up, one, patience_ms));
    assert_ok(kvb_bus_subscribe(one->bus, "a", take_payload, one, &one->subscription));
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
    kvb_bus_end_renewal(one->bus);
    kvb_bus_unsubscribe(one->subscription);
    kvb_bus_close(one->bus);
    nats_stub_stop(&one->stub);
    unlink(one->login.token_file);
}

/* ---- Tests
 * --------------------------------------------------------------------------------------- */

/* The renewal sends the second PING; the first belongs to CONNECT. */
static bool is_new_one_waited_for(void *context)
{
    return nats_stub_received(&((struct renewing *)context)->stub, 1, "PING") >= 2;
}

static bool is_old_one_drained(void *context)
{
    return nats_stub_received(&((struct renewing *)context)->stub, 0, "UNSUB") >= 1;
}

static const struct {
    unsigned pongs[2]; /* on the old and the new connection, since the renewal */
    condition is_waiting;
} standstills[] = {
    { { nats_stub_unlimited, 1 }, is_new_one_waited_for },
    { { 0, nats_stub_unlimited }, is_old_one_drained },
};

static void closing_does_not_wait_for_a_renewal(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(standstills); i++) {
        struct renewing one;
        start_renewing(&one);
        for (unsigned k = 0; k < 2; k++) {
            nats_stub_answer(&one.stub, k, standstills[i].pongs[k]);
        }
        renew(&one);
        assert_true(wait_until(standstills[i].is_waiting, &one, patience_ms));
        const uint64_t began_ns = kvb_clock_monotonic_ns();
        end_renewing(&one);
        assert_true(kvb_clock_monotonic_ns() - began_ns < 2 * KVB_NS_PER_S);
    }
}

static bool has_read_all(void *context)
{
    struct renewing *one = context;

    pthread_mutex_lock(&one->lock);
    const bool has_all = strcmp(one->read, "123456") == 0;
    pthread_mutex_unlock(&one->lock);
    return has_all;
}

/* Messages 2, 3 and 4 are in flight when the subscription on the old connection ends. 4 also
 * arrives on the new one. */
static void messages_in_flight_on_the_old_connection_are_handled_first(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    nats_stub_send(&one.stub, 0, "MSG a 1 1\r\n1\r\n");
    nats_stub_answer(&one.stub, 1, 1);
    nats_stub_send_at_unsub(&one.stub, "MSG a 1 1\r\n2\r\nMSG a 1 1\r\n3\r\nMSG a 1 1\r\n4\r\n");
    renew(&one);
    assert_true(wait_until(is_new_one_waited_for, &one, patience_ms));
    nats_stub_send(&one.stub, 1, "MSG a 1 1\r\n4\r\nMSG a 1 1\r\n5\r\n");
    nats_stub_answer(&one.stub, 1, nats_stub_unlimited);
    assert_true(wait_until(is_replaced, &one, patience_ms));
    assert_int_equal(kvb_bus_renewals(one.bus), 1);
    nats_stub_send(&one.stub, 1, "MSG a 1 1\r\n6\r\n");
    assert_true(wait_until(has_read_all, &one, patience_ms));
    end_renewing(&one);
}

/* The old server answers no PING after the publish until the subscription has ended. */
static void an_unconfirmed_publish_on_the_old_connection_counts_as_a_loss(void **state)
{
    struct renewing one;

    (void)state;
    start_renewing(&one);
    nats_stub_answer(&one.stub, 0, 0);
    assert_ok(kvb_bus_publish(one.bus, "b", kvb_span_of("x")));
    renew(&one);
    assert_true(wait_until(is_old_one_drained, &one, patience_ms));
    nats_stub_answer(&one.stub, 0, nats_stub_unlimited);
    assert_true(wait_until(is_replaced, &one, patience_ms));
    assert_int_equal(kvb_bus_renewals(one.bus), 0);
    end_renewing(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closing_does_not_wait_for_a_renewal),
        cmocka_unit_test(messages_in_flight_on_the_old_connection_are_handled_first),
        cmocka_unit_test(an_unconfirmed_publish_on_the_old_connection_counts_as_a_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
