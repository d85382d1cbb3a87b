#include "kvb_test.h"

#include "control/control.h"
#include "fail_alloc.h"
#include "ingest/zmq/event_server.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

/* Tests the server with libzmq sockets used as its readers use them. They connect over ipc:// in a
 * folder of the test, so no port is used. */

enum { owner = 3, max_bytes = 64, wait_ms = 10000 };

static struct kvb_control *control;
static struct kvb_zmq *zmq;
static struct kvb_poller *poller;
static struct kvb_event_server *server;
static void *context;
static char events[128];
static char replay[128];
static char folder[64];

static void open_server(void)
{
    const struct kvb_event_server_options options = { .events = events,
                                                      .replay = replay,
                                                      .topic = "kv@here@model",
                                                      .poller = poller,
                                                      .owner = owner };
    struct kvb_detail detail = { .text = "" };

    assert_ok(kvb_event_server_open(zmq, &options, &server, &detail));
}

static int begin_server(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/kvb-event-server-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(events, sizeof events, "ipc://%s/events", folder);
    (void)snprintf(replay, sizeof replay, "ipc://%s/replay", folder);
    assert_ok(kvb_control_new(&control));
    assert_ok(kvb_control_start(control));
    assert_ok(kvb_zmq_new(control, &zmq));
    assert_ok(kvb_poller_new(8, &poller));
    context = zmq_ctx_new();
    assert_non_null(context);
    return 0;
}

static int end_server(void **state)
{
    (void)state;
    kvb_event_server_close(server, 0);
    server = NULL;
    kvb_poller_free(poller);
    kvb_zmq_free(zmq);
    kvb_control_free(control);
    (void)zmq_ctx_term(context);
    (void)remove(events + strlen("ipc://"));
    (void)remove(replay + strlen("ipc://"));
    (void)remove(folder);
    return 0;
}

static void *connect_reader(int type, const char *address)
{
    const int limit = wait_ms;
    const int linger = 0;
    void *socket = zmq_socket(context, type);

    assert_non_null(socket);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &limit, sizeof limit), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(zmq_connect(socket, address), 0);
    return socket;
}

/* The next message from a reader. */
static struct kvb_event_server_received receive(void)
{
    struct kvb_event_server_received received = { .kind = KVB_EVENT_IGNORED };

    for (int i = 0; i < wait_ms && !kvb_event_server_receive(server, &received); i++) {
        assert_ok(kvb_poller_wait(poller, 1));
    }
    return received;
}

static void assert_frame(void *socket, const void *bytes, size_t len, bool is_last)
{
    uint8_t frame[max_bytes];
    int more = 0;
    size_t more_bytes = sizeof more;

    assert_int_equal(zmq_recv(socket, frame, sizeof frame, 0), len);
    assert_memory_equal(frame, bytes, len);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_bytes), 0);
    assert_int_equal(more, !is_last);
}

static const uint8_t seq_7[8] = { [7] = 7 };
static const kvb_span payload = { (const uint8_t *)"payload", 7 };

static void subscribers_are_reported_each_time_and_get_batches(void **state)
{
    (void)state;
    static const char *const prefixes[] = { "kv@", "", "kv@here@model" };
    void *readers[3];

    open_server();
    for (size_t i = 0; i < 3; i++) {
        readers[i] = connect_reader(ZMQ_SUB, events);
        assert_int_equal(
            zmq_setsockopt(readers[i], ZMQ_SUBSCRIBE, prefixes[i], strlen(prefixes[i])), 0);
        assert_int_equal(receive().kind, KVB_EVENT_SUBSCRIBED);
    }
    void *same = connect_reader(ZMQ_SUB, events);
    assert_int_equal(zmq_setsockopt(same, ZMQ_SUBSCRIBE, "", 0), 0);
    assert_int_equal(receive().kind, KVB_EVENT_SUBSCRIBED);
    void *other = connect_reader(ZMQ_SUB, events);
    assert_int_equal(zmq_setsockopt(other, ZMQ_SUBSCRIBE, "load", 4), 0);
    assert_int_equal(receive().kind, KVB_EVENT_IGNORED);
    assert_ok(kvb_event_server_publish(server, 7, payload));
    for (size_t i = 0; i < 3; i++) {
        assert_frame(readers[i], "kv@here@model", 13, false);
        assert_frame(readers[i], seq_7, 8, false);
        assert_frame(readers[i], payload.data, payload.len, true);
        (void)zmq_close(readers[i]);
    }
    (void)zmq_close(same);
    (void)zmq_close(other);
}

static void send_request(void *reader)
{
    assert_int_equal(zmq_send(reader, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(reader, seq_7, 8, 0), 8);
}

/* A reader that reads nothing holds up only its own replies. */
static void a_slow_reader_is_full_and_one_that_never_was_is_not_found(void **state)
{
    (void)state;
    static const uint8_t large[64 << 10] = { 0 };
    const kvb_span bytes = { large, sizeof large };
    kvb_status status = KVB_OK;
    size_t sent = 0;

    open_server();
    void *reader = connect_reader(ZMQ_DEALER, replay);
    send_request(reader);
    const struct kvb_event_server_received request = receive();
    while (status == KVB_OK && sent < 100000) {
        status = kvb_event_server_reply(server, request.identity, 1, bytes);
        sent += status == KVB_OK;
    }
    assert_int_equal(status, KVB_AGAIN);
    assert_true(sent < 10000);
    const kvb_span nobody = { (const uint8_t *)"nobody", 6 };
    assert_int_equal(kvb_event_server_end(server, nobody), KVB_NOT_FOUND);
    (void)zmq_close(reader);
}

static void make_tcp_address(char *out, size_t size)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof address;
    const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(file, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(file, (struct sockaddr *)&address, &len), 0);
    (void)close(file);
    (void)snprintf(out, size, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
}

/* A reader that hung reads again, until it has reconnected and subscribed. */
static bool reads_on(void *reader)
{
    static uint8_t frame[64 << 10];
    struct kvb_event_server_received received = { .kind = KVB_EVENT_IGNORED };

    for (int i = 0; i < wait_ms && received.kind != KVB_EVENT_SUBSCRIBED; i++) {
        while (zmq_recv(reader, frame, sizeof frame, ZMQ_DONTWAIT) >= 0) {
        }
        assert_ok(kvb_poller_wait(poller, 1));
        (void)kvb_event_server_receive(server, &received);
    }
    return received.kind == KVB_EVENT_SUBSCRIBED;
}

/* Its connection is closed, and the messages queued for it are dropped. libzmq reconnects when the
 * reader reads. */
static void a_subscriber_that_reads_nothing_is_disconnected(void **state)
{
    (void)state;
    static const uint8_t large[64 << 10] = { 0 };
    enum { more_than_the_kernel_buffers = 400 };
    const int one = 1;
    char address[64];

    make_tcp_address(address, sizeof address);
    const struct kvb_event_server_options options = {
        .events = address, .replay = "", .topic = "t", .stalled_ms = 200, .poller = poller
    };
    assert_ok(kvb_event_server_open(zmq, &options, &server, NULL));
    void *reader = zmq_socket(context, ZMQ_SUB);
    assert_int_equal(zmq_setsockopt(reader, ZMQ_RCVHWM, &one, sizeof one), 0);
    assert_int_equal(zmq_setsockopt(reader, ZMQ_SUBSCRIBE, "", 0), 0);
    assert_int_equal(zmq_connect(reader, address), 0);
    assert_int_equal(receive().kind, KVB_EVENT_SUBSCRIBED);
    for (uint64_t i = 0; i < more_than_the_kernel_buffers; i++) {
        assert_ok(kvb_event_server_publish(server, i, (kvb_span){ large, sizeof large }));
    }
    struct kvb_event_server_received received = { .kind = KVB_EVENT_SUBSCRIBED };
    for (int i = 0; i < wait_ms && received.kind != KVB_EVENT_IGNORED; i++) {
        assert_ok(kvb_poller_wait(poller, 1));
        /* libzmq unsubscribes on the reader's behalf */
        (void)kvb_event_server_receive(server, &received);
    }
    assert_int_equal(received.kind, KVB_EVENT_IGNORED);
    assert_true(reads_on(reader));
    (void)zmq_close(reader);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    const struct kvb_event_server_options options = {
        .events = events, .replay = replay, .topic = "t", .poller = poller, .owner = owner
    };

    fail_alloc_after(0);
    assert_int_equal(kvb_event_server_open(zmq, &options, &server, NULL), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    kvb_event_server_close(NULL, 0);
}

SUITE(event_server)
{
#define SERVED(test) cmocka_unit_test_setup_teardown(test, begin_server, end_server)
    const struct CMUnitTest tests[] = {
        SERVED(subscribers_are_reported_each_time_and_get_batches),
        SERVED(a_slow_reader_is_full_and_one_that_never_was_is_not_found),
        SERVED(a_subscriber_that_reads_nothing_is_disconnected),
        SERVED(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
