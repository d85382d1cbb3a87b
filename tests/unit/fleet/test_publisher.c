#include "fleet/publisher.h"

#include "core/clock.h"
#include "kvb_test.h"

#include <stdio.h>
#include <string.h>
#include <zmq.h>

/* A fleet of one publisher, a reader, and a port that nobody else uses. */
struct fixture {
    void *context;
    struct kvb_publisher *publisher;
    uint16_t port; /* the port of events; replay uses the next one */
    kvb_span topic;
    void *sub;
};

enum { first_port = 32100, last_port = 32700, patience_ms = 5000 };

static kvb_status start_at(struct fixture *fixture, uint16_t port, enum kvb_replay_layout layout)
{
    const struct kvb_publisher_options options = {
        .zmq_context = fixture->context,
        .address = "127.0.0.1",
        .topic = fixture->topic,
        .events_port = port,
        .replay_port = (uint16_t)(port + 1),
        .layout = layout,
        .queue_batches = 8,
        .replay_batches = 4,
        .replay_bytes = 1000,
    };
    fixture->port = port;
    return kvb_publisher_start(&options, NULL, &fixture->publisher);
}

static void set_time_limit(void *socket)
{
    const int patience = patience_ms;

    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience, sizeof patience), 0);
}

static void *connect_to(struct fixture *fixture, int type, uint16_t port)
{
    char endpoint[64];
    const int linger = 0;
    void *socket = zmq_socket(fixture->context, type);

    (void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    set_time_limit(socket);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    if (type == ZMQ_SUB) {
        assert_int_equal(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0), 0);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void send_batch(struct fixture *fixture, uint64_t seq, bool is_live)
{
    char text[32];
    const int len = snprintf(text, sizeof text, "batch %u", (unsigned)seq);

    assert_ok(kvb_publisher_send(
        fixture->publisher, seq, (kvb_span){ (const uint8_t *)text, (size_t)len }, is_live));
}

/* A message as text: frames separated by |, bytes below 32 and above 126 in hexadecimal. */
static void receive(void *socket, char *out, size_t size)
{
    size_t len = 0;
    int has_more = 1;

    for (bool is_first = true; has_more; is_first = false) {
        uint8_t frame[256];
        size_t option_size = sizeof has_more;
        const int got = zmq_recv(socket, frame, sizeof frame, 0);
        assert_true(got >= 0);
        len += (size_t)snprintf(out + len, size - len, "%s", is_first ? "" : "|");
        for (int i = 0; i < got; i++) {
            const bool is_plain = frame[i] >= 32 && frame[i] < 127;
            len += (size_t)snprintf(out + len, size - len, is_plain ? "%c" : "%02x", frame[i]);
        }
        assert_int_equal(zmq_getsockopt(socket, ZMQ_RCVMORE, &has_more, &option_size), 0);
    }
}

static void assert_received(void *socket, const char *expected)
{
    char text[512];

    receive(socket, text, sizeof text);
    assert_string_equal(text, expected);
}

/* A SUB receives nothing before its subscription has reached the publisher, so publish until it
 * answers. Returns the first sequence number after those messages. */
static uint64_t subscribe(struct fixture *fixture)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    uint64_t seq = 0;
    zmq_pollitem_t item = { .socket = fixture->sub, .events = ZMQ_POLLIN };

    do {
        send_batch(fixture, seq++, true);
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
    } while (zmq_poll(&item, 1, 20) == 0);
    char text[512];
    char newest[32];
    (void)snprintf(newest, sizeof newest, "batch %u", (unsigned)(seq - 1));
    do {
        receive(fixture->sub, text, sizeof text);
    } while (!strstr(text, newest));
    return seq;
}

static void set_up_with(struct fixture *fixture, enum kvb_replay_layout layout, kvb_span topic)
{
    kvb_status status = KVB_AGAIN;

    *fixture = (struct fixture){ .context = zmq_ctx_new(), .topic = topic };
    for (uint16_t port = first_port; status == KVB_AGAIN && port < last_port; port += 2) {
        status = start_at(fixture, port, layout);
    }
    assert_ok(status);
    fixture->sub = connect_to(fixture, ZMQ_SUB, fixture->port);
}

static void set_up(struct fixture *fixture, enum kvb_replay_layout layout)
{
    set_up_with(fixture, layout, (kvb_span){ (const uint8_t *)"kv-events", 9 });
}

static void tear_down(struct fixture *fixture)
{
    kvb_publisher_stop(fixture->publisher);
    assert_int_equal(zmq_close(fixture->sub), 0);
    assert_int_equal(zmq_ctx_term(fixture->context), 0);
}

static void wait_until_drained(const struct fixture *fixture)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;

    while (!kvb_publisher_is_drained(fixture->publisher)) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        (void)zmq_poll(NULL, 0, 1);
    }
}

static void publishes_topic_sequence_and_payload(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, KVB_REPLAY_WITHOUT_TOPIC);
    const uint64_t seq = subscribe(&fixture);
    send_batch(&fixture, 0x6162, true); /* "ab" */
    assert_received(fixture.sub, "kv-events|000000000000ab|batch 24930");
    wait_until_drained(&fixture);
    struct kvb_publisher_counts counts = { 0 };
    kvb_publisher_counts(fixture.publisher, &counts);
    assert_int_equal(counts.published, seq + 1);
    assert_int_equal(counts.failures, 0);
    tear_down(&fixture);
}

static void ask(void *dealer, uint8_t start)
{
    const uint8_t seq[8] = { 0, 0, 0, 0, 0, 0, 0, start };

    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, seq, sizeof seq, 0), 8);
}

static void replays_in_the_old_layout(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, KVB_REPLAY_WITHOUT_TOPIC);
    for (uint64_t seq = 0; seq < 6; seq++) { /* batches 2 to 5 are kept */
        send_batch(&fixture, seq, true);
    }
    wait_until_drained(&fixture);
    void *dealer = connect_to(&fixture, ZMQ_DEALER, (uint16_t)(fixture.port + 1));
    ask(dealer, 4);
    assert_received(
        dealer, "|00000000000000"
                "04|batch 4");
    assert_received(
        dealer, "|00000000000000"
                "05|batch 5");
    assert_received(dealer, "|ffffffffffffffff|");
    ask(dealer, 0);
    assert_received(
        dealer, "|00000000000000"
                "02|batch 2");
    for (int i = 3; i < 6; i++) {
        char text[512];
        receive(dealer, text, sizeof text);
    }
    assert_received(dealer, "|ffffffffffffffff|");
    ask(dealer, 6);
    assert_received(dealer, "|ffffffffffffffff|");

    struct kvb_publisher_counts counts = { 0 };
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + patience_ms * KVB_NS_PER_MS;
    while (counts.replays < 3 && kvb_clock_monotonic_ns() < deadline_ns) {
        kvb_publisher_counts(fixture.publisher, &counts); /* counted after END is sent */
    }
    assert_int_equal(counts.replays, 3);
    assert_int_equal(counts.full_replays, 1);
    assert_int_equal(counts.replayed, 6);
    assert_int_equal(zmq_close(dealer), 0);
    tear_down(&fixture);
}

static void replays_in_the_new_layout(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, KVB_REPLAY_WITH_TOPIC);
    send_batch(&fixture, 0, true);
    wait_until_drained(&fixture);
    void *dealer = connect_to(&fixture, ZMQ_DEALER, (uint16_t)(fixture.port + 1));
    ask(dealer, 0);
    assert_received(dealer, "|kv-events|0000000000000000|batch 0");
    assert_received(dealer, "||ffffffffffffffff|");
    assert_int_equal(zmq_close(dealer), 0);
    tear_down(&fixture);
}

/* Its guide sends a name of the requester before the empty frame. */
static void mooncake_answers_both_forms_of_request_with_its_own_end(void **state)
{
    (void)state;
    struct fixture fixture;
    const uint8_t seq[8] = { 0 };

    set_up(&fixture, KVB_REPLAY_MOONCAKE);
    send_batch(&fixture, 0, true);
    wait_until_drained(&fixture);
    void *dealer = connect_to(&fixture, ZMQ_DEALER, (uint16_t)(fixture.port + 1));
    for (int with_name = 0; with_name < 2; with_name++) {
        if (with_name) {
            assert_int_equal(zmq_send(dealer, "me", 2, ZMQ_SNDMORE), 2);
            assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
            assert_int_equal(zmq_send(dealer, seq, sizeof seq, 0), 8);
        } else {
            ask(dealer, 0);
        }
        assert_received(dealer, "|0000000000000000|batch 0");
        assert_received(dealer, "||ffffffffffffffff");
    }
    assert_int_equal(zmq_close(dealer), 0);
    tear_down(&fixture);
}

/* Requests that vLLM's ROUTER does not answer: the first answer to arrive is that to the good
 * request behind them. */
static void ignores_requests_of_another_shape(void **state)
{
    (void)state;
    struct fixture fixture;
    const uint8_t seq[8] = { 0 };

    set_up(&fixture, KVB_REPLAY_WITHOUT_TOPIC);
    void *dealer = connect_to(&fixture, ZMQ_DEALER, (uint16_t)(fixture.port + 1));
    assert_int_equal(zmq_send(dealer, seq, 8, 0), 8); /* no empty frame */
    assert_int_equal(zmq_send(dealer, "id", 2, ZMQ_SNDMORE), 2);
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, seq, 8, 0), 8); /* one frame too many */
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, seq, 3, 0), 3); /* 3 bytes are no sequence number */
    ask(dealer, 0);
    assert_received(dealer, "|ffffffffffffffff|");
    struct kvb_publisher_counts counts = { 0 };
    kvb_publisher_counts(fixture.publisher, &counts);
    assert_int_equal(counts.ignored, 3);
    assert_int_equal(zmq_close(dealer), 0);
    tear_down(&fixture);
}

SUITE(publisher)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(publishes_topic_sequence_and_payload),
        cmocka_unit_test(replays_in_the_old_layout),
        cmocka_unit_test(replays_in_the_new_layout),
        cmocka_unit_test(mooncake_answers_both_forms_of_request_with_its_own_end),
        cmocka_unit_test(ignores_requests_of_another_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
