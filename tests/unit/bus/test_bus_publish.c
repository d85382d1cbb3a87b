#include "bus/bus.h"
#include "core/clock.h"
#include "process.h"

#include "kvb_test.h"

#include <stdatomic.h>
#include <string.h>

enum { patience_ms = 15000, max_bytes = 64 };

/* The payloads that arrived, concatenated. */
struct inbox {
    char text[max_bytes];
    size_t len;
    _Atomic unsigned count; /* set after all other fields */
};

static void take_message(void *context, const struct kvb_bus_message *message)
{
    struct inbox *inbox = context;

    if (message->payload.len <= max_bytes - inbox->len) {
        memcpy(inbox->text + inbox->len, message->payload.data, message->payload.len);
        inbox->len += message->payload.len;
    }
    atomic_fetch_add(&inbox->count, 1);
}

static bool has_three(void *context)
{
    struct inbox *inbox = context;
    return atomic_load(&inbox->count) >= 3;
}

static bool is_up(void *context)
{
    return kvb_bus_is_connected(context);
}

static struct kvb_bus *open_connected(const struct nats_server *server)
{
    const struct kvb_bus_options options = { .url = server->url };
    struct kvb_detail detail = { .text = "" };
    struct kvb_bus *bus = NULL;

    assert_ok(kvb_bus_open(&options, &bus, &detail));
    assert_true(wait_until(is_up, bus, patience_ms));
    return bus;
}

static void many_are_published_in_order_up_to_one_that_is_refused(void **state)
{
    static uint8_t big[(1 << 20) + 1]; /* one byte above the server's default max_payload */
    const struct nats_server *server = *state;
    const kvb_span payloads[] = { kvb_span_of("one"),
                                  kvb_span_of("two"),
                                  kvb_span_of("three"),
                                  { big, sizeof big },
                                  kvb_span_of("five") };
    struct inbox inbox = { .len = 0 };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server);
    size_t sent = 77;

    assert_ok(kvb_bus_subscribe(bus, "many", take_message, &inbox, &subscription));
    assert_int_equal(kvb_bus_publish_many(bus, "many", payloads, 5, &sent), KVB_TOO_LARGE);
    assert_int_equal(sent, 3);
    assert_ok(kvb_bus_flush(bus, patience_ms));
    assert_true(wait_until(has_three, &inbox, patience_ms));
    assert_int_equal(inbox.len, strlen("onetwothree"));
    assert_memory_equal(inbox.text, "onetwothree", inbox.len);
    assert_int_equal(kvb_bus_publish_many(bus, "no subject", payloads, 5, &sent), KVB_BAD_INPUT);
    assert_int_equal(sent, 0);
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
}

/* Only that each message arrives. Its latency is measured by the bench (relay.latency). */
static void a_single_message_arrives_when_it_is_flushed(void **state)
{
    enum { messages = 200 };
    const struct nats_server *server = *state;
    struct inbox inbox = { .len = 0 };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server);

    assert_ok(kvb_bus_subscribe(bus, "lone", take_message, &inbox, &subscription));
    assert_ok(kvb_bus_flush(bus, patience_ms));
    kvb_bus_write(bus); /* an empty batch publishes nothing */
    for (unsigned i = 0; i < messages; i++) {
        const uint64_t until_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
        assert_ok(kvb_bus_publish(bus, "lone", kvb_span_of("x")));
        kvb_bus_write(bus);
        while (atomic_load(&inbox.count) <= i) {
            assert_true(kvb_clock_monotonic_ns() < until_ns);
        }
    }
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
}

SUITE(bus_publish)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_are_published_in_order_up_to_one_that_is_refused),
        cmocka_unit_test(a_single_message_arrives_when_it_is_flushed),
    };

    return cmocka_run_group_tests(tests, nats_server_for_group, nats_server_after_group);
}
