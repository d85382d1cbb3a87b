#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "ingest/zmq/context.h"
#include "ingest/zmq/frames.h"
#include "ingest/zmq/poller.h"
#include "ingest/zmq/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

/* The two sockets of an engine on free ports, and a source that connects to them. */
struct world {
    void *context;
    void *pub;
    void *router;
    char events[128];
    char replay[128];
    struct kvb_zmq *zmq;
    struct kvb_poller *poller;
    struct kvb_source *source;
    uint64_t deadline_ns; /* of the whole test */
};

enum { test_s = 50, send_ms = 10000 };

/* LINGER is set before anybody connects: libzmq 4.3.4 hangs in zmq_ctx_term when it is set while
 * a peer leaves (zeromq/libzmq#3252). */
static void *open_socket(void *context, int type)
{
    const int none = 0;
    void *socket = zmq_socket(context, type);

    assert_non_null(socket);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none), 0);
    return socket;
}

/* An XPUB that reports each subscription, also a repeated one of the same prefix.  A send that a
 * full queue blocks fails. */
static void *open_publisher(void *context)
{
    const int yes = 1;
    const int wait_ms = send_ms;
    void *socket = open_socket(context, ZMQ_XPUB);

    assert_int_equal(zmq_setsockopt(socket, ZMQ_XPUB_VERBOSE, &yes, sizeof yes), 0);
    assert_int_equal(zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait_ms, sizeof wait_ms), 0);
    return socket;
}

static void bind_anywhere(void *socket, char address[128])
{
    size_t size = 128;

    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size), 0);
}

static void
begin_requests(struct world *world, size_t max_replay_bytes, enum kvb_replay_request replay_request)
{
    struct kvb_detail detail = { .text = "" };

    *world = (struct world){ .context = zmq_ctx_new(),
                             .deadline_ns = kvb_clock_monotonic_ns() + test_s * KVB_NS_PER_S };
    world->pub = open_publisher(world->context);
    world->router = open_socket(world->context, ZMQ_ROUTER);
    bind_anywhere(world->pub, world->events);
    bind_anywhere(world->router, world->replay);
    assert_ok(kvb_zmq_new(NULL, &world->zmq));
    assert_ok(kvb_poller_new(1, &world->poller));
    const struct kvb_source_options options = { .events = world->events,
                                                .replay = world->replay,
                                                .topic = "kv",
                                                .replay_request = replay_request,
                                                .max_replay_bytes = max_replay_bytes,
                                                .poller = world->poller };
    assert_ok(kvb_source_open(world->zmq, &options, &world->source, &detail));
}

static void begin_taking(struct world *world, size_t max_replay_bytes)
{
    begin_requests(world, max_replay_bytes, KVB_REQUEST_PLAIN);
}

static void begin(struct world *world)
{
    begin_taking(world, 1 << 20);
}

static void end(struct world *world)
{
    kvb_source_close(world->source);
    kvb_poller_free(world->poller);
    kvb_zmq_free(world->zmq);
    if (world->pub) {
        (void)zmq_close(world->pub);
    }
    (void)zmq_close(world->router);
    (void)zmq_ctx_term(world->context);
}

static void set_deadline(void *socket)
{
    const int ms = 10000;

    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof ms), 0);
}

/* The source subscribes when it handles its sockets. */
static void wait_for_subscription(struct world *world)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;
    char bytes[16] = { 0 };

    while (bytes[0] != 1) { /* 1 'k' 'v' subscribes; 0 'k' 'v' ends an earlier subscription */
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        assert_ok(kvb_poller_wait(world->poller, 1));
        if (zmq_recv(world->pub, bytes, sizeof bytes, ZMQ_DONTWAIT) < 0) {
            bytes[0] = 0;
        }
    }
}

static void publish(struct world *world, const char *topic, uint64_t seq, const char *payload)
{
    uint8_t bytes[8];

    kvb_frames_write_seq(seq, bytes);
    assert_true(zmq_send(world->pub, topic, strlen(topic), ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(world->pub, bytes, 8, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(world->pub, payload, strlen(payload), 0) >= 0);
}

/* Waits until the source has an item of this kind; fails after 10 s, and when the time of the test
 * is over: a connection that breaks again and again always has one. */
static void wait_ready(struct world *world, unsigned kind)
{
    const uint64_t wait_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;
    const uint64_t deadline_ns = wait_ns < world->deadline_ns ? wait_ns : world->deadline_ns;
    unsigned ready = 0;

    while (!(ready & kind)) {
        size_t owner = 0;
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        assert_ok(kvb_poller_wait(world->poller, 100));
        ready = 0;
        (void)kvb_poller_next(world->poller, &owner, &ready);
    }
}

static void wait_until_link(struct world *world, bool is_up)
{
    while (kvb_source_read_monitor(world->source).is_up != is_up) {
        wait_ready(world, kvb_ready_live);
    }
}

static void
next_reply(struct world *world, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    kvb_status status = kvb_source_replay_receive(world->source, out_kind, out_batch);

    while (status == KVB_AGAIN) {
        wait_ready(world, kvb_ready_reply);
        kvb_source_replay_drain(world->source);
        status = kvb_source_replay_receive(world->source, out_kind, out_batch);
    }
    assert_ok(status);
}

/* libzmq would retry the connection for ever, and nobody would know why nothing arrives. */
static void a_replay_without_open_files_is_refused(void **state)
{
    struct world world;
    struct rlimit before;

    (void)state;
    begin(&world);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int lowest = dup(0); /* the descriptor that would be opened next */
    assert_true(lowest >= 0);
    (void)close(lowest);
    const struct rlimit few = { .rlim_cur = (rlim_t)lowest + 1, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(kvb_source_replay_start(world.source, 0), KVB_TOO_LARGE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(kvb_source_replay_start(world.source, 0));
    end(&world);
}

/* ---- Bounds ---- */

static void receive_request(struct world *world, uint8_t id[64], size_t *out_len, uint8_t seq[8])
{
    set_deadline(world->router);
    const int len = zmq_recv(world->router, id, 64, 0);
    assert_true(len > 0);
    assert_int_equal(zmq_recv(world->router, seq, 8, 0), 0);
    assert_int_equal(zmq_recv(world->router, seq, 8, 0), 8);
    *out_len = (size_t)len;
}

enum { large_reply = 64 << 10, replies_sent = 64 };

static void send_replies(struct world *world, const uint8_t *id, size_t id_len)
{
    static const uint8_t payload[large_reply];
    const int any = 0;

    assert_int_equal(zmq_setsockopt(world->router, ZMQ_SNDHWM, &any, sizeof any), 0);
    for (uint64_t i = 0; i < replies_sent; i++) {
        uint8_t seq[8];
        kvb_frames_write_seq(i, seq);
        assert_true(zmq_send(world->router, id, id_len, ZMQ_SNDMORE) >= 0);
        assert_true(zmq_send(world->router, "", 0, ZMQ_SNDMORE) >= 0);
        assert_true(zmq_send(world->router, seq, 8, ZMQ_SNDMORE) >= 0);
        assert_true(zmq_send(world->router, payload, sizeof payload, 0) >= 0);
    }
}

/* Waiting replies make the source ready at once, so a loop without a deadline would never end if a
 * loaded machine lost the connection. */
static void drain_until_cut(struct world *world)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;

    while (kvb_source_count(world->source)->cuts == 0) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        wait_ready(world, kvb_ready_reply);
        kvb_source_replay_drain(world->source);
    }
}

/* 4 MiB of replies arrive and nobody takes them: 256 KiB are queued, the rest is dropped, and the
 * cut is reported after the queued replies. */
static void a_replay_larger_than_its_bound_is_cut(void **state)
{
    (void)state;
    struct world world;
    uint8_t id[64];
    uint8_t seq[8];
    size_t id_len = 0;
    uint64_t replies = 0;
    enum kvb_source_reply kind = KVB_REPLY_BATCH;
    struct kvb_source_batch batch = { 0 };

    begin_taking(&world, (size_t)4 * large_reply);
    assert_ok(kvb_source_replay_start(world.source, 0));
    receive_request(&world, id, &id_len, seq);
    send_replies(&world, id, id_len);
    drain_until_cut(&world);
    wait_ready(&world, kvb_ready_reply); /* although the socket is closed */
    for (next_reply(&world, &kind, &batch); kind == KVB_REPLY_BATCH; replies++) {
        assert_int_equal(batch.seq, replies);
        assert_int_equal(batch.payload.len, large_reply);
        next_reply(&world, &kind, &batch);
    }
    assert_int_equal(kind, KVB_REPLY_CUT);
    assert_int_equal(replies, 3); /* 4 would not fit with what is stored beside each */
    kvb_source_replay_stop(world.source);
    assert_int_equal(kvb_source_replay_receive(world.source, &kind, &batch), KVB_AGAIN);
    end(&world);
}

static void two_replies_are_queued_however_large_they_are(void **state)
{
    (void)state;
    struct world world;
    uint8_t id[64];
    uint8_t seq[8];
    size_t id_len = 0;
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { 0 };

    begin_taking(&world, 1);
    assert_ok(kvb_source_replay_start(world.source, 0));
    receive_request(&world, id, &id_len, seq);
    send_replies(&world, id, id_len);
    drain_until_cut(&world);
    for (uint64_t i = 0; i < 2; i++) {
        next_reply(&world, &kind, &batch);
        assert_int_equal(kind, KVB_REPLY_BATCH);
        assert_int_equal(batch.seq, i);
    }
    next_reply(&world, &kind, &batch);
    assert_int_equal(kind, KVB_REPLY_CUT);
    end(&world);
}

static void receive_one(struct world *world, uint64_t seq)
{
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;
    size_t got = 0;

    wait_for_subscription(world);
    publish(world, "kv", seq, "one");
    while (got == 0) {
        wait_ready(world, kvb_ready_live);
        (void)kvb_source_read_monitor(world->source);
        got = kvb_source_receive(world->source, batches, &refused);
    }
    assert_int_equal(batches[0].seq, seq);
}

static void bind_again(struct world *world, void *socket)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;

    (void)zmq_close(world->pub);
    world->pub = socket;
    while (zmq_bind(socket, world->events) != 0) { /* until the old socket is closed */
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        (void)zmq_poll(NULL, 0, 1);
    }
}

/* Reconnects as the daemon does, until the source is up or has been opened this many times. */
static const char *look_until(struct world *world, bool is_up, uint64_t renewals)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 20 * KVB_NS_PER_S;
    const char *reason = "";
    size_t owner = 0;
    unsigned ready = 0;

    while (kvb_source_read_monitor(world->source).is_up != is_up ||
           kvb_source_count(world->source)->renewals < renewals) {
        const uint64_t now_ns = kvb_clock_monotonic_ns();
        assert_true(now_ns < deadline_ns);
        (void)kvb_source_renew(world->source, now_ns, &reason);
        assert_ok(kvb_poller_wait(world->poller, 20));
        (void)kvb_poller_next(world->poller, &owner, &ready);
    }
    return reason;
}

/* ---- No peer may end the process ---- */

/* Reads the monitor until the connection is lost, and nothing else of the SUB: libzmq then finds
 * the loss while a message is being received. */
static void wait_until_lost(struct world *world)
{
    while (kvb_source_count(world->source)->retries == 0) {
        assert_true(kvb_clock_monotonic_ns() < world->deadline_ns);
        (void)kvb_source_read_monitor(world->source);
    }
}

/* What it has left is dropped, and taking it out of libzmq does no harm. */
static void an_engine_that_publishes_a_burst_and_ends_is_no_harm(void **state)
{
    (void)state;
    struct world world;
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;

    begin(&world);
    wait_until_link(&world, true);
    wait_for_subscription(&world);
    /* libzmq looks for commands at each 100th frame.  With this one it is the last of a batch. */
    assert_true(zmq_send(world.pub, "kv", 2, 0) >= 0);
    for (uint64_t seq = 0; seq < 300; seq++) {
        publish(&world, "kv", seq, "one");
    }
    (void)zmq_poll(NULL, 0, 100); /* what is not sent by then is lost, and the test is weaker */
    (void)zmq_close(world.pub);
    world.pub = NULL;
    wait_until_lost(&world);
    assert_int_equal(kvb_source_receive(world.source, batches, &refused), 0);
    end(&world);
}

/* Sends until the source has ended the connection; returns how many bytes that took. */
static uint64_t flood(struct world *world)
{
    static char payload[64 << 10] = "kv";
    uint64_t sent = 0;

    while (kvb_source_count(world->source)->floods == 0) {
        assert_true(kvb_clock_monotonic_ns() < world->deadline_ns);
        if (zmq_send(world->pub, payload, sizeof payload, ZMQ_DONTWAIT) >= 0) {
            sent += sizeof payload;
        }
        kvb_source_end_floods(world->source, kvb_clock_monotonic_ns());
    }
    return sent;
}

static void a_connection_that_brings_more_than_is_received_is_ended(void **state)
{
    (void)state;
    struct world world;
    const int few = 16;
    const int yes = 1;

    begin(&world);
    wait_until_link(&world, true);
    wait_for_subscription(&world);
    assert_int_equal(zmq_setsockopt(world.pub, ZMQ_SNDHWM, &few, sizeof few), 0);
    assert_int_equal(zmq_setsockopt(world.pub, ZMQ_XPUB_NODROP, &yes, sizeof yes), 0);
    assert_true(flood(&world) >= kvb_max_engine_backlog_bytes);
    (void)look_until(&world, false, 0);
    (void)look_until(&world, true, 0);
    receive_one(&world, 8);
    assert_int_equal(kvb_source_count(world.source)->floods, 1);
    end(&world);
}

/* Twice as much as may wait, of which little waits at any time. */
static void a_connection_that_is_received_from_is_not_ended(void **state)
{
    (void)state;
    struct world world;
    static char payload[1 << 20] = "kv";
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;

    begin(&world);
    wait_until_link(&world, true);
    wait_for_subscription(&world);
    for (size_t sent = 0; sent < 2 * (size_t)kvb_max_engine_backlog_bytes; sent += sizeof payload) {
        assert_true(zmq_send(world.pub, payload, sizeof payload, 0) >= 0);
        for (refused = 0; refused == 0;) {
            wait_ready(&world, kvb_ready_live);
            (void)kvb_source_receive(world.source, batches, &refused);
            (void)kvb_source_read_monitor(world.source);
        }
        kvb_source_end_floods(world.source, kvb_clock_monotonic_ns());
    }
    assert_int_equal(kvb_source_count(world.source)->floods, 0);
    assert_int_equal(kvb_source_count(world.source)->disconnects, 0);
    end(&world);
}

static void what_a_lost_connection_brought_is_not_received_after_it(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    wait_until_link(&world, true);
    wait_for_subscription(&world);
    publish(&world, "kv", 3, "of the old engine");
    wait_ready(&world, kvb_ready_live);
    bind_again(&world, open_publisher(world.context));
    wait_until_lost(&world);
    (void)look_until(&world, true, 0);
    receive_one(&world, 8);
    end(&world);
}

/* ---- Renewal ---- */

/* Sends it, and waits until it has cost the connection. */
static void send_too_large(struct world *world)
{
    const uint64_t lost = kvb_source_count(world->source)->disconnects;
    const size_t size = (16 << 20) + 1;
    char *payload = calloc(1, size);

    assert_true(zmq_send(world->pub, "kv", 2, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(world->pub, payload, size, 0) >= 0);
    free(payload);
    while (kvb_source_count(world->source)->disconnects == lost) {
        wait_ready(world, kvb_ready_live);
        (void)kvb_source_read_monitor(world->source);
    }
}

static void a_message_larger_than_the_ceiling_costs_one_connection(void **state)
{
    (void)state;
    struct world world;
    const uint64_t now_ns = 1000 * KVB_NS_PER_S;
    const char *reason = NULL;

    begin(&world);
    wait_until_link(&world, true);
    wait_for_subscription(&world);
    send_too_large(&world);
    assert_int_equal(kvb_source_renew(world.source, now_ns, &reason), KVB_AGAIN);
    assert_int_equal(kvb_source_renew(world.source, now_ns + KVB_NS_PER_S - 1, &reason), KVB_AGAIN);
    assert_ok(kvb_source_renew(world.source, now_ns + KVB_NS_PER_S, &reason));
    assert_non_null(strstr(reason, "16 MiB"));
    assert_int_equal(kvb_source_count(world.source)->protocol_errors, 1);
    wait_until_link(&world, true);
    receive_one(&world, 7);
    end(&world);
}

static void reconnects_to_a_broken_peer_are_further_and_further_apart(void **state)
{
    (void)state;
    struct world world;
    static const unsigned pauses_s[] = { 1, 1, 2, 4 };
    const char *reason = NULL;
    uint64_t now_ns = 1000 * KVB_NS_PER_S;

    begin(&world);
    wait_until_link(&world, true);
    for (size_t i = 0; i < sizeof pauses_s / sizeof pauses_s[0]; i++) {
        wait_for_subscription(&world);
        send_too_large(&world);
        assert_int_equal(kvb_source_renew(world.source, now_ns, &reason), KVB_AGAIN);
        now_ns += pauses_s[i] * KVB_NS_PER_S;
        assert_int_equal(kvb_source_renew(world.source, now_ns - 1, &reason), KVB_AGAIN);
        /* counted when it is detected, not when it is repaired */
        assert_int_equal(kvb_source_count(world.source)->protocol_errors, i + (pauses_s[i] > 1));
        assert_ok(kvb_source_renew(world.source, now_ns, &reason));
        wait_until_link(&world, true);
    }
    end(&world);
}

/* libzmq itself retries such a connection. */
static void an_engine_that_is_away_is_left_to_libzmq(void **state)
{
    (void)state;
    struct world world;
    const uint64_t now_ns = 1000 * KVB_NS_PER_S;
    const char *reason = NULL;

    begin(&world);
    wait_until_link(&world, true);
    (void)zmq_close(world.pub);
    world.pub = NULL;
    while (kvb_source_count(world.source)->retries == 0) {
        wait_ready(&world, kvb_ready_live);
        (void)kvb_source_read_monitor(world.source);
    }
    assert_int_equal(kvb_source_renew(world.source, now_ns, &reason), KVB_AGAIN);
    assert_int_equal(
        kvb_source_renew(world.source, now_ns + 29 * KVB_NS_PER_S, &reason), KVB_AGAIN);
    /* the peer is silent */
    assert_ok(kvb_source_renew(world.source, now_ns + 30 * KVB_NS_PER_S, &reason));
    assert_int_equal(kvb_source_count(world.source)->protocol_errors, 0);
    end(&world);
}

static void an_engine_is_received_again_after_another_socket_used_its_port(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    wait_until_link(&world, true);
    bind_again(&world, open_socket(world.context, ZMQ_REP));
    assert_non_null(strstr(look_until(&world, false, 1), "another protocol, socket type"));
    assert_true(kvb_source_count(world.source)->protocol_errors >= 1);
    bind_again(&world, open_publisher(world.context));
    (void)look_until(&world, true, 0);
    receive_one(&world, 8);
    end(&world);
}

static void publishers_are_pinged_250_times_a_second_altogether(void **state)
{
    (void)state;

    assert_int_equal(kvb_zmq_ping_ms(1), 500);
    assert_int_equal(kvb_zmq_ping_ms(125), 500);
    assert_int_equal(kvb_zmq_ping_ms(250), 1000);
    assert_int_equal(kvb_zmq_ping_ms(1000), 4000);
    assert_int_equal(kvb_zmq_ping_ms(2048), 4000); /* a frozen engine is found within 5 s */
}

SUITE(zmq_source)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_without_open_files_is_refused),
        cmocka_unit_test(a_replay_larger_than_its_bound_is_cut),
        cmocka_unit_test(two_replies_are_queued_however_large_they_are),
        cmocka_unit_test(an_engine_that_publishes_a_burst_and_ends_is_no_harm),
        cmocka_unit_test(a_connection_that_brings_more_than_is_received_is_ended),
        cmocka_unit_test(a_connection_that_is_received_from_is_not_ended),
        cmocka_unit_test(what_a_lost_connection_brought_is_not_received_after_it),
        cmocka_unit_test(a_message_larger_than_the_ceiling_costs_one_connection),
        cmocka_unit_test(reconnects_to_a_broken_peer_are_further_and_further_apart),
        cmocka_unit_test(an_engine_that_is_away_is_left_to_libzmq),
        cmocka_unit_test(an_engine_is_received_again_after_another_socket_used_its_port),
        cmocka_unit_test(publishers_are_pinged_250_times_a_second_altogether),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
