#include "bus/bus.h"
#include "core/clock.h"
#include "core/own.h"
#include "process.h"

#include "kvb_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { patience_ms = 15000, max_text = 64 };

/* ---- What a test observes ----------------------------------------------------------- */

struct inbox {
    _Atomic unsigned count;
    pthread_mutex_t lock;
    char last[max_text]; /* guarded by lock */
};

static void take_message(void *context, const struct kvb_bus_message *message)
{
    struct inbox *inbox = context;
    const int len = message->payload.len < max_text ? (int)message->payload.len : max_text - 1;

    pthread_mutex_lock(&inbox->lock);
    (void)snprintf(inbox->last, max_text, "%.*s", len, (const char *)message->payload.data);
    pthread_mutex_unlock(&inbox->lock);
    atomic_fetch_add(&inbox->count, 1);
}

/* ---- What a handler keeps ---- */

struct kept_messages {
    _Atomic unsigned count;
    struct kvb_bus_kept kept[200];
};

static void keep_message(void *context, const struct kvb_bus_message *message)
{
    struct kept_messages *messages = context;
    struct kvb_bus_kept *kept = &messages->kept[atomic_load(&messages->count)];

    if (kvb_bus_message_keep(message, kept) == KVB_OK &&
        kept->payload.data == message->payload.data) { /* moved, not copied */
        atomic_fetch_add(&messages->count, 1);
    }
}

static bool has_kept_all(void *context)
{
    struct kept_messages *messages = context;

    return atomic_load(&messages->count) == KVB_COUNT_OF(messages->kept);
}

static bool last_is(struct inbox *inbox, const char *text)
{
    pthread_mutex_lock(&inbox->lock);
    const bool is_same = strcmp(inbox->last, text) == 0;
    pthread_mutex_unlock(&inbox->lock);
    return is_same;
}

static bool is_up(void *context)
{
    return kvb_bus_is_connected(context);
}

static bool is_down(void *context)
{
    return !kvb_bus_is_connected(context);
}

static bool has_one(void *context)
{
    struct inbox *inbox = context;

    return atomic_load(&inbox->count) >= 1;
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

static void start_server(struct nats_server *server)
{
    *server = (struct nats_server){ 0 };
    assert_ok(nats_server_start(server, 0, NULL));
}

/* ---- Tests ---------------------------------------------------------------------------- */

static void refuses_invalid_urls_and_unusable_files(void **state)
{
    static const char *const bad[] = {
        "",           "nats://",         "http://h:1",   "nats://h:0",     "nats://h:65536",
        "nats://h:x", "nats://a b:4222", "nats://h:1,,", "nats://h:1\r\n", "nats://[::1",
    };
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = NULL;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad) - 1; i++) {
        const struct kvb_bus_options options = { .url = bad[i], .name = "test" };
        detail.text[0] = '\0';
        assert_int_equal(kvb_bus_open(&options, &bus, &detail), KVB_BAD_CONFIG);
        assert_non_null(strstr(detail.text, "nats.url"));
    }
    const struct kvb_bus_login nowhere = { .credentials = "/nowhere/a" };
    const struct kvb_bus_options no_creds = { .url = "nats://h:1", .login = &nowhere };
    assert_int_equal(kvb_bus_open(&no_creds, &bus, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "/nowhere/a"));
    const struct kvb_bus_login null_pem = { .ca_file = "/dev/null" };
    const struct kvb_bus_options no_pem = { .url = "nats://h:1", .login = &null_pem };
    assert_int_equal(kvb_bus_open(&no_pem, &bus, &detail), KVB_BAD_CONFIG);
    assert_null(bus);
}

static void opens_without_a_server_and_connects_when_it_starts(void **state)
{
    struct nats_server server = { 0 };
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_bus_subscription *subscription = NULL;
    uint16_t port = 0;
    char url[64];

    (void)state;
    assert_ok(free_port(&port));
    (void)snprintf(url, sizeof url, "nats://127.0.0.1:%u", port);
    struct kvb_bus *bus = open_bus(url);
    assert_ok(kvb_bus_subscribe(bus, "news", take_message, &inbox, &subscription));
    assert_false(kvb_bus_is_connected(bus));
    assert_int_equal(kvb_bus_publish(bus, "news", kvb_span_of("early")), KVB_AGAIN);
    assert_int_equal(kvb_bus_flush(bus, 100), KVB_AGAIN);
    assert_int_equal(kvb_bus_connects(bus), 0);

    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(is_up, bus, patience_ms));
    assert_int_equal(kvb_bus_connects(bus), 1);
    assert_ok(kvb_bus_publish(bus, "news", kvb_span_of("late")));
    assert_true(wait_until(has_one, &inbox, patience_ms));
    assert_true(last_is(&inbox, "late"));

    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

static void kept_messages_outlive_their_handler_and_the_bus(void **state)
{
    const struct nats_server *server = *state;
    static struct kept_messages messages;
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);
    char text[24];

    assert_ok(kvb_bus_subscribe(bus, "kept", keep_message, &messages, &subscription));
    for (size_t i = 0; i < KVB_COUNT_OF(messages.kept); i++) {
        (void)snprintf(text, sizeof text, "message %zu", i);
        assert_ok(kvb_bus_publish(bus, "kept", kvb_span_of(text)));
    }
    assert_true(wait_until(has_kept_all, &messages, patience_ms));
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
    for (size_t i = 0; i < KVB_COUNT_OF(messages.kept); i++) {
        (void)snprintf(text, sizeof text, "message %zu", i);
        assert_true(kvb_span_is(messages.kept[i].payload, text));
        kvb_bus_kept_drop(&messages.kept[i]);
    }
}

static void no_handler_runs_after_unsubscribe(void **state)
{
    const struct nats_server *server = *state;
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);

    assert_ok(kvb_bus_subscribe(bus, "flood", take_message, &inbox, &subscription));
    for (int i = 0; i < 2000; i++) {
        assert_ok(kvb_bus_publish(bus, "flood", kvb_span_of("x")));
    }
    assert_true(wait_until(has_one, &inbox, patience_ms));
    kvb_bus_unsubscribe(subscription);
    const unsigned count = atomic_load(&inbox.count);
    assert_ok(kvb_bus_flush(bus, patience_ms));
    assert_int_equal(atomic_load(&inbox.count), count);
    kvb_bus_close(bus);
}

struct slow {
    _Atomic bool is_inside;
    _Atomic bool may_leave;
    _Atomic bool has_left;
};

static bool is_inside(void *context)
{
    return atomic_load(&((struct slow *)context)->is_inside);
}

static bool may_leave(void *context)
{
    return atomic_load(&((struct slow *)context)->may_leave);
}

static void take_time(void *context, const struct kvb_bus_message *message)
{
    struct slow *slow = context;

    (void)message;
    atomic_store(&slow->is_inside, true);
    assert_true(wait_until(may_leave, slow, patience_ms));
    atomic_store(&slow->has_left, true);
}

static void *let_leave(void *context)
{
    atomic_store(&((struct slow *)context)->may_leave, true);
    return NULL;
}

static void unsubscribe_waits_for_the_handler_that_runs(void **state)
{
    const struct nats_server *server = *state;
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);
    struct slow slow = { 0 };
    pthread_t other;

    assert_ok(kvb_bus_subscribe(bus, "slow", take_time, &slow, &subscription));
    assert_ok(kvb_bus_publish(bus, "slow", kvb_span_of("x")));
    assert_true(wait_until(is_inside, &slow, patience_ms));
    assert_int_equal(pthread_create(&other, NULL, let_leave, &slow), 0);
    kvb_bus_unsubscribe(subscription);
    assert_true(atomic_load(&slow.has_left));
    assert_int_equal(pthread_join(other, NULL), 0);
    kvb_bus_close(bus);
}

enum { max_waiting = 1 << 20, too_many = 1000, subjects = 3, messages_in_order = 3000 };

static bool are_too_many_dropped(void *context)
{
    return kvb_bus_dropped(context) == too_many;
}

static void messages_beyond_those_that_may_wait_are_counted_as_dropped(void **state)
{
    struct nats_server server;
    struct kvb_bus_subscription *subscription = NULL;
    struct slow slow = { 0 };

    (void)state;
    start_server(&server);
    struct kvb_bus *bus = open_connected(server.url);
    const uint16_t port = server.port;
    assert_ok(kvb_bus_subscribe(bus, "slow", take_time, &slow, &subscription));
    assert_ok(kvb_bus_publish(bus, "slow", kvb_span_of("x")));
    assert_true(wait_until(is_inside, &slow, patience_ms));
    for (int i = 0; i < max_waiting + too_many; i++) {
        assert_ok(kvb_bus_publish(bus, "slow", kvb_span_of("x")));
    }
    assert_true(wait_until(are_too_many_dropped, subscription, patience_ms));
    (void)let_leave(&slow);
    /* The count stays when the connection has gone. */
    nats_server_kill(&server);
    assert_true(wait_until(is_down, bus, patience_ms));
    assert_int_equal(kvb_bus_dropped(subscription), too_many);
    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(is_up, bus, patience_ms));
    assert_int_equal(kvb_bus_dropped(subscription), too_many);
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

/* What the handlers of several subscriptions were given; on their one thread. */
struct sequence {
    unsigned next;
    _Atomic bool is_broken;
    _Atomic unsigned count;
};

static void take_next(void *context, const struct kvb_bus_message *message)
{
    struct sequence *sequence = context;
    char number[24];

    (void)snprintf(number, sizeof number, "%u", sequence->next++);
    sequence->is_broken = sequence->is_broken || !kvb_span_is(message->payload, number);
    sequence->count++;
}

static bool have_all_come(void *context)
{
    return ((struct sequence *)context)->count == messages_in_order;
}

static void subscriptions_get_their_messages_in_the_order_of_the_connection(void **state)
{
    const struct nats_server *server = *state;
    static const char *const names[subjects] = { "a.*.events", "a.*.heartbeat", "a.*.load" };
    static const char *const published[subjects] = { "a.1.events", "a.1.heartbeat", "a.1.load" };
    struct kvb_bus_subscription *each[subjects] = { NULL };
    struct kvb_bus *bus = open_connected(server->url);
    struct sequence sequence = { 0 };
    char number[24];

    for (size_t i = 0; i < subjects; i++) {
        assert_ok(kvb_bus_subscribe(bus, names[i], take_next, &sequence, &each[i]));
    }
    for (int i = 0; i < messages_in_order; i++) {
        (void)snprintf(number, sizeof number, "%d", i);
        assert_ok(kvb_bus_publish(bus, published[i * i % 7 % subjects], kvb_span_of(number)));
    }
    assert_true(wait_until(have_all_come, &sequence, patience_ms));
    assert_false(sequence.is_broken);
    for (size_t i = 0; i < subjects; i++) {
        kvb_bus_unsubscribe(each[i]);
    }
    kvb_bus_close(bus);
}

static bool have_three_come(void *context)
{
    return ((struct sequence *)context)->count == 3;
}

static void many_are_published_in_order_up_to_one_that_is_refused(void **state)
{
    static const uint8_t big[(1 << 20) + 1]; /* one byte above the server's default max_payload */
    const struct nats_server *server = *state;
    const kvb_span payloads[] = {
        kvb_span_of("0"), kvb_span_of("1"), kvb_span_of("2"), { big, sizeof big }, kvb_span_of("3")
    };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);
    struct sequence sequence = { 0 };
    size_t sent = 77;

    assert_ok(kvb_bus_subscribe(bus, "many", take_next, &sequence, &subscription));
    assert_int_equal(kvb_bus_publish_many(bus, "many", payloads, 5, &sent), KVB_TOO_LARGE);
    assert_int_equal(sent, 3);
    assert_ok(kvb_bus_flush(bus, patience_ms));
    assert_true(wait_until(have_three_come, &sequence, patience_ms));
    assert_false(sequence.is_broken);
    assert_int_equal(kvb_bus_publish_many(bus, "no subject", payloads, 5, &sent), KVB_BAD_INPUT);
    assert_int_equal(sent, 0);
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
}

static void a_flush_writes_at_once_what_was_published(void **state)
{
    const struct nats_server *server = *state;
    struct kvb_bus *bus = open_connected(server->url);
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    for (int i = 0; i < 40; i++) {
        assert_ok(kvb_bus_publish(bus, "flushed", kvb_span_of("x")));
        assert_ok(kvb_bus_flush(bus, patience_ms));
    }
    /* The control thread looks twice a second, for which each flush would wait 250 ms. */
    assert_true(kvb_clock_monotonic_ns() - began_ns < 5 * KVB_NS_PER_S);
    kvb_bus_close(bus);
}

static void refuses_subjects_that_would_inject_protocol_lines(void **state)
{
    const struct nats_server *server = *state;
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);

    assert_int_equal(kvb_bus_publish(bus, "a 0\r\n\r\nPUB b", kvb_span_of("x")), KVB_BAD_INPUT);
    assert_int_equal(kvb_bus_publish(bus, "a.*", kvb_span_of("x")), KVB_BAD_INPUT);
    assert_int_equal(kvb_bus_publish(bus, "", kvb_span_of("x")), KVB_BAD_INPUT);
    assert_int_equal(
        kvb_bus_subscribe(bus, "a b", take_message, NULL, &subscription), KVB_BAD_INPUT);
    assert_int_equal(
        kvb_bus_request(bus, "a b", kvb_span_of(""), 100, take_message, NULL, NULL), KVB_BAD_INPUT);
    assert_null(subscription);
    kvb_bus_close(bus);
}

static void refuses_messages_above_the_servers_max_payload(void **state)
{
    static const uint8_t big[(1 << 20) + 1];
    const struct nats_server *server = *state;
    struct kvb_bus *bus = open_connected(server->url);

    assert_int_equal(kvb_bus_publish(bus, "big", (kvb_span){ big, sizeof big }), KVB_TOO_LARGE);
    assert_ok(kvb_bus_publish(bus, "big", (kvb_span){ big, sizeof big - 1 }));
    assert_ok(kvb_bus_flush(bus, patience_ms));
    assert_int_equal(kvb_bus_connects(bus), 1);
    kvb_bus_close(bus);
}

static void keep_silent(void *context, const struct kvb_bus_message *message)
{
    (void)context;
    (void)message;
}

static void a_request_without_an_answer_says_why(void **state)
{
    const struct nats_server *server = *state;
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = open_connected(server->url);

    assert_int_equal(
        kvb_bus_request(bus, "nobody", kvb_span_of(""), patience_ms, take_message, &inbox, &detail),
        KVB_NOT_FOUND);
    assert_string_equal(detail.text, "nobody answers nobody");
    assert_ok(kvb_bus_subscribe(bus, "mute", keep_silent, NULL, &subscription));
    assert_int_equal(
        kvb_bus_request(bus, "mute", kvb_span_of(""), 50, take_message, &inbox, &detail), KVB_IO);
    assert_string_equal(detail.text, "no answer to mute within 50 ms");
    assert_int_equal(atomic_load(&inbox.count), 0);
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
}

static void answer_twice(void *context, const struct kvb_bus_message *message)
{
    static uint8_t large[1 << 18]; /* copied between the look-up of its inbox and the lock of it */

    for (int i = 0; i < 4; i++) {
        (void)kvb_bus_publish(
            context, message->reply, i == 0 ? kvb_span_of("1") : (kvb_span){ large, sizeof large });
    }
    kvb_bus_write(context);
}

/* nats.c before 3.6.0 looks an inbox up, and then locks it: see kvb_link_bury(). */
static void a_second_answer_meets_no_inbox_that_was_freed(void **state)
{
    const struct nats_server *server = *state;
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *responder = open_connected(server->url);
    struct kvb_bus *bus = open_connected(server->url);

    assert_ok(kvb_bus_subscribe(responder, "twice", answer_twice, responder, &subscription));
    assert_ok(kvb_bus_flush(responder, patience_ms));
    for (int i = 0; i < 200; i++) {
        assert_ok(kvb_bus_request(
            bus, "twice", kvb_span_of(""), patience_ms, take_message, &inbox, NULL));
    }
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
    kvb_bus_close(responder);
}

/* ---- Logins --------------------------------------------------------------------------------- */

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

/* ---- Queue groups ------------------------------------------------------------------------ */

static unsigned sum_of(const struct inbox *inboxes)
{
    return atomic_load(&inboxes[0].count) + atomic_load(&inboxes[1].count);
}

static bool has_hundred(void *context)
{
    return sum_of(context) >= 100;
}

static void send_hundred(struct kvb_bus *bus)
{
    for (int i = 0; i < 100; i++) {
        assert_ok(kvb_bus_publish(bus, "work", kvb_span_of("x")));
    }
    assert_ok(kvb_bus_flush(bus, patience_ms));
}

static bool are_both_up(void *context)
{
    struct kvb_bus **buses = context;

    return kvb_bus_is_connected(buses[0]) && kvb_bus_is_connected(buses[1]);
}

static bool are_both_down(void *context)
{
    struct kvb_bus **buses = context;

    return !kvb_bus_is_connected(buses[0]) && !kvb_bus_is_connected(buses[1]);
}

/* Each message goes to exactly one of two members, and does so again on the next connection. */
static void one_of_a_queue_group_gets_a_message_before_and_after_a_restart(void **state)
{
    struct nats_server server;
    struct inbox inboxes[2] = { { .lock = PTHREAD_MUTEX_INITIALIZER },
                                { .lock = PTHREAD_MUTEX_INITIALIZER } };
    struct kvb_bus_subscription *subscriptions[2] = { NULL, NULL };
    struct kvb_bus *buses[2];

    (void)state;
    start_server(&server);
    for (size_t i = 0; i < 2; i++) {
        buses[i] = open_connected(server.url);
        assert_ok(kvb_bus_subscribe_queue(
            buses[i], "work", "q", take_message, &inboxes[i], &subscriptions[i]));
        assert_ok(kvb_bus_flush(buses[i], patience_ms));
    }
    send_hundred(buses[0]);
    assert_true(wait_until(has_hundred, inboxes, patience_ms));
    const uint16_t port = server.port;
    nats_server_kill(&server);
    assert_true(wait_until(are_both_down, buses, patience_ms));
    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(are_both_up, buses, patience_ms));
    assert_ok(kvb_bus_flush(buses[0], patience_ms));
    assert_ok(kvb_bus_flush(buses[1], patience_ms));
    assert_int_equal(sum_of(inboxes), 100);
    atomic_store(&inboxes[0].count, 0);
    atomic_store(&inboxes[1].count, 0);
    send_hundred(buses[1]);
    assert_true(wait_until(has_hundred, inboxes, patience_ms));
    for (size_t i = 0; i < 2; i++) {
        assert_ok(kvb_bus_drain(subscriptions[i], patience_ms));
        assert_true(atomic_load(&inboxes[i].count) > 0);
        kvb_bus_unsubscribe(subscriptions[i]);
        kvb_bus_close(buses[i]);
    }
    assert_int_equal(sum_of(inboxes), 100);
    nats_server_kill(&server);
}

/* The drain handles all messages that the server has sent to this subscription, and lets no later
 * ones arrive. */
static void a_drain_loses_nothing_and_ends_the_delivery(void **state)
{
    const struct nats_server *server = *state;
    struct inbox inboxes[2] = { { .lock = PTHREAD_MUTEX_INITIALIZER },
                                { .lock = PTHREAD_MUTEX_INITIALIZER } };
    struct kvb_bus_subscription *subscription = NULL;
    struct kvb_bus *bus = open_connected(server->url);
    struct kvb_bus *sender = open_connected(server->url);

    assert_ok(kvb_bus_subscribe_queue(bus, "work", "q", take_message, inboxes, &subscription));
    assert_ok(kvb_bus_flush(bus, patience_ms));
    for (int i = 0; i < 200; i++) {
        send_hundred(sender);
    }
    assert_ok(kvb_bus_drain(subscription, patience_ms));
    assert_int_equal(atomic_load(&inboxes[0].count), 20000);
    send_hundred(sender);
    assert_ok(kvb_bus_flush(bus, patience_ms));
    kvb_bus_unsubscribe(subscription);
    assert_int_equal(atomic_load(&inboxes[0].count), 20000);
    kvb_bus_close(sender);
    kvb_bus_close(bus);
}

struct draining {
    struct kvb_bus_subscription *subscription;
    struct kvb_bus *sender;
    kvb_status status;
};

static void *drain(void *context)
{
    struct draining *draining = context;

    draining->status = kvb_bus_drain(draining->subscription, patience_ms);
    return NULL;
}

static bool nobody_subscribes(void *context)
{
    struct draining *draining = context;
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };

    return kvb_bus_request(
               draining->sender, "slow", kvb_span_of("x"), 50, take_message, &inbox, NULL) ==
           KVB_NOT_FOUND;
}

/* The messages behind the one that is being handled are lost with the connection. */
static void a_drain_says_that_the_connection_was_lost_meanwhile(void **state)
{
    struct nats_server server;
    struct draining draining = { .status = KVB_OK };
    struct slow slow = { 0 };
    pthread_t other;

    (void)state;
    start_server(&server);
    struct kvb_bus *bus = open_connected(server.url);
    draining.sender = open_connected(server.url);
    assert_ok(kvb_bus_subscribe(bus, "slow", take_time, &slow, &draining.subscription));
    assert_ok(kvb_bus_flush(bus, patience_ms));
    assert_ok(kvb_bus_publish(draining.sender, "slow", kvb_span_of("x")));
    assert_ok(kvb_bus_publish(draining.sender, "slow", kvb_span_of("x")));
    assert_ok(kvb_bus_flush(draining.sender, patience_ms));
    assert_true(wait_until(is_inside, &slow, patience_ms));
    assert_int_equal(pthread_create(&other, NULL, drain, &draining), 0);
    assert_true(wait_until(nobody_subscribes, &draining, patience_ms)); /* the drain has begun */
    nats_server_kill(&server);
    assert_true(wait_until(is_down, bus, patience_ms));
    (void)let_leave(&slow);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(draining.status, KVB_AGAIN);
    kvb_bus_unsubscribe(draining.subscription);
    kvb_bus_close(bus);
    kvb_bus_close(draining.sender);
}

static void a_drained_subscription_is_not_restored_after_a_reconnect(void **state)
{
    struct nats_server server;
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_bus_subscription *subscription = NULL;

    (void)state;
    start_server(&server);
    struct kvb_bus *bus = open_connected(server.url);
    assert_ok(kvb_bus_subscribe_queue(bus, "work", "q", take_message, &inbox, &subscription));
    const uint16_t port = server.port;
    nats_server_kill(&server);
    assert_true(wait_until(is_down, bus, patience_ms));
    /* KVB_AGAIN, or KVB_IO while the lost connection is not noticed yet */
    (void)kvb_bus_drain(subscription, 0);
    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(is_up, bus, patience_ms));
    assert_ok(kvb_bus_publish(bus, "work", kvb_span_of("x")));
    assert_ok(kvb_bus_flush(bus, patience_ms));
    kvb_bus_unsubscribe(subscription);
    assert_int_equal(atomic_load(&inbox.count), 0);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

/* ---- Losses -------------------------------------------------------------------------- */

struct second_connect {
    struct kvb_bus *bus;
    uint64_t before;
};

static bool connected_again(void *context)
{
    const struct second_connect *wanted = context;

    return kvb_bus_is_connected(wanted->bus) && kvb_bus_connects(wanted->bus) > wanted->before;
}

struct echo {
    struct kvb_bus *bus;
    struct inbox inbox;
};

/* Publishes until a message comes back: messages sent just before or after a loss may be lost. */
static bool comes_back(void *context)
{
    struct echo *echo = context;

    /* a failed publish is repeated at the next poll */
    (void)kvb_bus_publish(echo->bus, "again", kvb_span_of("hello"));
    return has_one(&echo->inbox);
}

static void assert_works_again(struct kvb_bus *bus)
{
    struct echo echo = { .bus = bus, .inbox = { .lock = PTHREAD_MUTEX_INITIALIZER } };
    struct kvb_bus_subscription *subscription = NULL;

    assert_ok(kvb_bus_subscribe(bus, "again", take_message, &echo.inbox, &subscription));
    assert_true(wait_until(comes_back, &echo, patience_ms));
    kvb_bus_unsubscribe(subscription);
}

struct changes {
    _Atomic unsigned ups;
    _Atomic unsigned downs;
};

static void count_change(void *context, bool is_connected)
{
    struct changes *changes = context;

    atomic_fetch_add(is_connected ? &changes->ups : &changes->downs, 1);
}

static bool came_and_went(void *context)
{
    struct changes *changes = context;

    return atomic_load(&changes->ups) == 2 && atomic_load(&changes->downs) == 1;
}

static void a_restarted_server_is_found_again_with_its_subscriptions(void **state)
{
    struct nats_server server;
    struct changes changes = { 0 };
    struct echo echo = { .inbox = { .lock = PTHREAD_MUTEX_INITIALIZER } };
    struct kvb_bus_subscription *subscription = NULL;

    (void)state;
    start_server(&server);
    const struct kvb_bus_options options = {
        .url = server.url, .name = "test", .on_change = count_change, .context = &changes
    };
    assert_ok(kvb_bus_open(&options, &echo.bus, NULL));
    assert_ok(kvb_bus_subscribe(echo.bus, "again", take_message, &echo.inbox, &subscription));
    assert_true(wait_until(is_up, echo.bus, patience_ms));

    const uint16_t port = server.port;
    nats_server_kill(&server);
    assert_true(wait_until(is_down, echo.bus, patience_ms));
    assert_int_equal(kvb_bus_publish(echo.bus, "again", kvb_span_of("void")), KVB_AGAIN);

    assert_ok(nats_server_start(&server, port, NULL));
    assert_true(wait_until(comes_back, &echo, patience_ms));
    assert_int_equal(kvb_bus_connects(echo.bus), 2);
    assert_true(last_is(&echo.inbox, "hello"));
    assert_true(wait_until(came_and_went, &changes, patience_ms));
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(echo.bus);
    nats_server_kill(&server);
}

/* nats.c closes a connection for good at an error from the server that it does not know. A
 * subscription above the limit causes such an error. */
static void dials_again_after_nats_c_gave_up(void **state)
{
    struct nats_server server = { 0 };
    struct kvb_bus_subscription *subscriptions[3] = { NULL };

    (void)state;
    assert_ok(nats_server_start(&server, 0, "max_subscriptions: 2\n"));
    struct kvb_bus *bus = open_connected(server.url);
    struct second_connect again = { .bus = bus, .before = kvb_bus_connects(bus) };
    for (size_t i = 0; i < KVB_COUNT_OF(subscriptions); i++) {
        assert_ok(kvb_bus_subscribe(bus, "a", keep_silent, NULL, &subscriptions[i]));
    }
    assert_true(wait_until(is_down, bus, patience_ms));
    kvb_bus_unsubscribe(subscriptions[0]);
    kvb_bus_unsubscribe(subscriptions[1]);
    assert_true(wait_until(connected_again, &again, patience_ms));
    assert_works_again(bus);
    kvb_bus_unsubscribe(subscriptions[2]);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

static bool connected_ten_times(void *context)
{
    return kvb_bus_connects(context) >= 10;
}

/* The server ends each connection at its second subscription. */
static void connections_that_end_at_once_are_made_less_and_less_often(void **state)
{
    struct nats_server server = { 0 };
    struct kvb_bus_subscription *subscriptions[2] = { NULL };

    (void)state;
    assert_ok(nats_server_start(&server, 0, "max_subscriptions: 1\n"));
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct kvb_bus *bus = open_connected(server.url);
    for (size_t i = 0; i < KVB_COUNT_OF(subscriptions); i++) {
        assert_ok(kvb_bus_subscribe(bus, "a", keep_silent, NULL, &subscriptions[i]));
    }
    assert_true(wait_until(connected_ten_times, bus, patience_ms));
    /* At least half of 0.1, 0.2, 0.4, 0.8 and five times 1 s. */
    assert_true(kvb_clock_monotonic_ns() - began_ns > 3 * KVB_NS_PER_S);
    kvb_bus_unsubscribe(subscriptions[0]);
    kvb_bus_unsubscribe(subscriptions[1]);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

struct stuck {
    struct kvb_bus *bus;
    unsigned failures;
};

static bool refuses_to_publish(void *context)
{
    static const uint8_t big[1 << 19];
    struct stuck *stuck = context;
    const kvb_status status = kvb_bus_publish(stuck->bus, "big", (kvb_span){ big, sizeof big });

    stuck->failures += status == KVB_IO;
    return status == KVB_AGAIN;
}

static void a_frozen_server_blocks_no_caller_and_is_reconnected_to(void **state)
{
    struct nats_server server;

    (void)state;
    start_server(&server);
    struct kvb_bus *bus = open_connected(server.url);
    struct stuck stuck = { .bus = bus };
    struct second_connect again = { .bus = bus, .before = kvb_bus_connects(bus) };
    assert_int_equal(kill(server.pid, SIGSTOP), 0);
    /* The kernel's buffers take some messages; after that a write exceeds its deadline. */
    assert_true(wait_until(refuses_to_publish, &stuck, patience_ms));
    assert_int_equal(stuck.failures, 1);
    assert_int_equal(kill(server.pid, SIGCONT), 0);
    assert_true(wait_until(connected_again, &again, patience_ms));
    assert_works_again(bus);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

/* Nothing may follow half a request. */
static void a_request_that_was_half_written_ends_the_connection(void **state)
{
    static const uint8_t big[1 << 24]; /* more than the kernel's buffers take */
    struct nats_server server = { 0 };
    struct inbox inbox = { .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvb_detail detail = { 0 };
    struct kvb_bus *bus = NULL;

    (void)state;
    assert_ok(nats_server_start(&server, 0, "max_payload: 16777216\n"));
    const struct kvb_bus_options options = { .url = server.url,
                                             .name = "test",
                                             .sends_at_once = true };
    assert_ok(kvb_bus_open(&options, &bus, NULL));
    assert_true(wait_until(is_up, bus, patience_ms));
    struct second_connect again = { .bus = bus, .before = kvb_bus_connects(bus) };
    assert_int_equal(kill(server.pid, SIGSTOP), 0);
    assert_int_equal(
        kvb_bus_request(
            bus, "big", (kvb_span){ big, sizeof big }, patience_ms, take_message, &inbox, &detail),
        KVB_IO);
    assert_string_equal(detail.text, "big: IO Error");
    assert_false(kvb_bus_is_connected(bus));
    assert_int_equal(kill(server.pid, SIGCONT), 0);
    assert_true(wait_until(connected_again, &again, patience_ms));
    assert_works_again(bus);
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

/* ---- Lame duck mode ---- */

/* Two servers of one cluster, or one alone. Clients that do not leave are disconnected soon. */
static void start_clustered(struct nats_server *server, uint16_t own, uint16_t other)
{
    char config[512];

    (void)snprintf(
        config, sizeof config,
        "lame_duck_grace_period: \"%ds\"\nlame_duck_duration: \"30s\"\n"
        "cluster { name: c, listen: \"127.0.0.1:%u\", routes: [ \"nats://127.0.0.1:%u\" ] }\n",
        other ? 20 : 1, own, other ? other : own);
    *server = (struct nats_server){ 0 };
    assert_ok(nats_server_start(server, 0, config));
}

static bool has_met_a_lame_duck(void *context)
{
    return kvb_bus_lame_ducks(context) == 1;
}

struct across {
    struct kvb_bus *from;
    struct inbox inbox; /* of a subscription on another server */
};

static bool comes_across(void *context)
{
    struct across *across = context;

    (void)kvb_bus_publish(across->from, "news", kvb_span_of("here"));
    (void)kvb_bus_flush(across->from, 100);
    return atomic_load(&across->inbox.count) >= 1;
}

static void a_lame_duck_is_left_for_a_server_that_it_announced(void **state)
{
    struct nats_server lame = { 0 };
    struct nats_server other = { 0 };
    uint16_t routes[2] = { 0, 0 };

    (void)state;
    assert_ok(free_port(&routes[0]));
    assert_ok(free_port(&routes[1]));
    start_clustered(&lame, routes[0], routes[1]);
    start_clustered(&other, routes[1], routes[0]);
    struct kvb_bus *bus = open_connected(lame.url);
    struct kvb_bus *witness = open_connected(other.url);
    struct across across = { .from = witness, .inbox = { .lock = PTHREAD_MUTEX_INITIALIZER } };
    struct kvb_bus_subscription *subscription = NULL;
    assert_ok(kvb_bus_subscribe(bus, "news", take_message, &across.inbox, &subscription));
    assert_true(wait_until(comes_across, &across, patience_ms)); /* the cluster has formed */
    struct second_connect again = { .bus = bus, .before = kvb_bus_connects(bus) };
    assert_int_equal(kill(lame.pid, SIGUSR2), 0);
    assert_true(wait_until(connected_again, &again, 5000)); /* the grace period is 20 s */
    assert_int_equal(kvb_bus_lame_ducks(bus), 1);
    atomic_store(&across.inbox.count, 0);
    assert_true(wait_until(comes_across, &across, patience_ms));
    assert_int_equal(kvb_bus_lame_ducks(witness), 0);
    kvb_bus_unsubscribe(subscription);
    kvb_bus_close(bus);
    kvb_bus_close(witness);
    nats_server_kill(&lame);
    nats_server_kill(&other);
}

static void a_lame_duck_without_another_is_used_until_it_stops(void **state)
{
    struct nats_server server = { 0 };
    uint16_t route = 0;

    (void)state;
    assert_ok(free_port(&route));
    start_clustered(&server, route, 0);
    struct kvb_bus *bus = open_connected(server.url);
    assert_int_equal(kill(server.pid, SIGUSR2), 0);
    assert_true(wait_until(has_met_a_lame_duck, bus, patience_ms));
    assert_ok(kvb_bus_flush(bus, 500)); /* still served */
    assert_int_equal(kvb_bus_connects(bus), 1);
    assert_true(wait_until(is_down, bus, patience_ms));
    kvb_bus_close(bus);
    nats_server_kill(&server);
}

SUITE(bus)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_invalid_urls_and_unusable_files),
        cmocka_unit_test(opens_without_a_server_and_connects_when_it_starts),
        cmocka_unit_test(kept_messages_outlive_their_handler_and_the_bus),
        cmocka_unit_test(no_handler_runs_after_unsubscribe),
        cmocka_unit_test(unsubscribe_waits_for_the_handler_that_runs),
        cmocka_unit_test(messages_beyond_those_that_may_wait_are_counted_as_dropped),
        cmocka_unit_test(subscriptions_get_their_messages_in_the_order_of_the_connection),
        cmocka_unit_test(many_are_published_in_order_up_to_one_that_is_refused),
        cmocka_unit_test(a_flush_writes_at_once_what_was_published),
        cmocka_unit_test(refuses_subjects_that_would_inject_protocol_lines),
        cmocka_unit_test(refuses_messages_above_the_servers_max_payload),
        cmocka_unit_test(a_request_without_an_answer_says_why),
        cmocka_unit_test(a_second_answer_meets_no_inbox_that_was_freed),
        cmocka_unit_test(wrong_credentials_do_not_stop_reconnecting),
        cmocka_unit_test(a_password_may_be_any_text_and_percent_encoded),
        cmocka_unit_test(one_of_a_queue_group_gets_a_message_before_and_after_a_restart),
        cmocka_unit_test(a_drain_loses_nothing_and_ends_the_delivery),
        cmocka_unit_test(a_drain_says_that_the_connection_was_lost_meanwhile),
        cmocka_unit_test(a_drained_subscription_is_not_restored_after_a_reconnect),
        cmocka_unit_test(a_restarted_server_is_found_again_with_its_subscriptions),
        cmocka_unit_test(dials_again_after_nats_c_gave_up),
        cmocka_unit_test(connections_that_end_at_once_are_made_less_and_less_often),
        cmocka_unit_test(a_frozen_server_blocks_no_caller_and_is_reconnected_to),
        cmocka_unit_test(a_request_that_was_half_written_ends_the_connection),
        cmocka_unit_test(a_lame_duck_is_left_for_a_server_that_it_announced),
        cmocka_unit_test(a_lame_duck_without_another_is_used_until_it_stops),
    };

    return cmocka_run_group_tests(tests, nats_server_for_group, nats_server_after_group);
}
