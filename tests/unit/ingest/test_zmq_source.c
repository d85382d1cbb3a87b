#include "kvb_test.h"

#include "core/clock.h"
#include "ingest/frames.h"
#include "ingest/waiter.h"

#include <string.h>
#include <zmq.h>

/* An engine's two sockets on free ports, and a source that is connected to them. */
struct world {
    void *context;
    void *pub;
    void *router;
    char events[128];
    char replay[128];
    struct kvb_zmq *zmq;
    struct kvb_source *source;
};

static void bind_anywhere(void *socket, char address[128])
{
    size_t size = 128;

    assert_int_equal(zmq_bind(socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size), 0);
}

static void begin(struct world *world)
{
    struct kvb_detail detail = { .text = "" };

    *world = (struct world){ .context = zmq_ctx_new() };
    world->pub = zmq_socket(world->context, ZMQ_XPUB); /* tells when someone subscribed */
    world->router = zmq_socket(world->context, ZMQ_ROUTER);
    bind_anywhere(world->pub, world->events);
    bind_anywhere(world->router, world->replay);
    const struct kvb_source_options options = { .events = world->events,
                                                .replay = world->replay,
                                                .topic = "kv" };
    assert_ok(kvb_zmq_new(8, &world->zmq, &detail));
    assert_ok(kvb_source_open(world->zmq, &options, &world->source, &detail));
}

static void close_now(void *socket)
{
    const int none = 0;

    if (socket) {
        (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
        (void)zmq_close(socket);
    }
}

static void end(struct world *world)
{
    kvb_source_close(world->source);
    kvb_zmq_free(world->zmq);
    close_now(world->pub);
    close_now(world->router);
    (void)zmq_ctx_term(world->context);
}

static void set_deadline(void *socket)
{
    const int ms = 10000;

    assert_int_equal(zmq_setsockopt(socket, ZMQ_RCVTIMEO, &ms, sizeof ms), 0);
}

static void wait_for_subscription(struct world *world)
{
    char bytes[16];

    set_deadline(world->pub);
    assert_int_equal(zmq_recv(world->pub, bytes, sizeof bytes, 0), 3); /* 1 'k' 'v' */
}

static void publish(struct world *world, const char *topic, uint64_t seq, const char *payload)
{
    uint8_t bytes[8];

    kvb_frames_write_seq(seq, bytes);
    assert_true(zmq_send(world->pub, topic, strlen(topic), ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(world->pub, bytes, 8, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(world->pub, payload, strlen(payload), 0) >= 0);
}

/* Waits until the source has something of this kind; fails after 10 s. */
static void wait_ready(struct world *world, unsigned kind)
{
    struct kvb_waiter *waiter = NULL;
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;
    unsigned ready = 0;

    assert_ok(kvb_waiter_new(kvb_source_sockets, &waiter));
    while (!(ready & kind)) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        kvb_waiter_begin(waiter);
        const size_t at = kvb_waiter_add_source(waiter, world->source);
        kvb_waiter_wait(waiter, 100);
        ready = kvb_waiter_source_ready(waiter, at);
    }
    kvb_waiter_free(waiter);
}

static void wait_until_link(struct world *world, bool is_up)
{
    while (kvb_source_read_monitor(world->source).is_up != is_up) {
        wait_ready(world, kvb_ready_live);
    }
}

static void live_batches_come_in_order_and_odd_messages_are_counted(void **state)
{
    (void)state;
    struct world world;
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;
    uint64_t refused_now = 0;
    size_t count = 0;

    begin(&world);
    wait_for_subscription(&world);
    publish(&world, "kv-events", 41, "one");
    assert_true(zmq_send(world.pub, "kv", 2, 0) >= 0); /* one frame */
    publish(&world, "other", 99, "not ours");
    publish(&world, "kv", 42, "two");
    while (count + refused < 3) {
        wait_ready(&world, kvb_ready_live);
        const size_t got = kvb_source_receive(world.source, batches, &refused_now);
        for (size_t i = 0; i < got; i++) {
            assert_int_equal(batches[i].seq, 41 + count + i);
        }
        count += got;
        refused += refused_now;
    }
    assert_int_equal(count, 2);
    assert_int_equal(refused, 1);
    end(&world);
}

static void the_monitor_tells_when_the_engine_comes_and_goes(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    wait_until_link(&world, true);
    close_now(world.pub);
    world.pub = NULL;
    wait_until_link(&world, false);
    end(&world);
}

static void a_replay_asks_as_engines_expect_and_reads_the_replies(void **state)
{
    (void)state;
    struct world world;
    uint8_t id[64];
    uint8_t request[16];
    const uint8_t want[] = { 0, 0, 0, 0, 0, 0, 0, 5 };
    const uint8_t end_seq[] = { 255, 255, 255, 255, 255, 255, 255, 255 };
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { 0 };

    begin(&world);
    set_deadline(world.router);
    assert_ok(kvb_source_replay_start(world.source, 5));
    const int id_len = zmq_recv(world.router, id, sizeof id, 0);
    assert_true(id_len > 0);
    assert_int_equal(zmq_recv(world.router, request, sizeof request, 0), 0);
    assert_int_equal(zmq_recv(world.router, request, sizeof request, 0), 8);
    assert_memory_equal(request, want, 8);

    (void)zmq_send(world.router, id, (size_t)id_len, ZMQ_SNDMORE);
    (void)zmq_send(world.router, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(world.router, want, 8, ZMQ_SNDMORE);
    (void)zmq_send(world.router, "five", 4, 0);
    (void)zmq_send(world.router, id, (size_t)id_len, ZMQ_SNDMORE);
    (void)zmq_send(world.router, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(world.router, end_seq, 8, ZMQ_SNDMORE);
    (void)zmq_send(world.router, "", 0, 0);
    wait_ready(&world, kvb_ready_reply);
    assert_ok(kvb_source_replay_receive(world.source, &kind, &batch));
    assert_int_equal(kind, KVB_REPLY_BATCH);
    assert_int_equal(batch.seq, 5);
    assert_memory_equal(batch.payload.data, "five", 4);
    wait_ready(&world, kvb_ready_reply);
    assert_ok(kvb_source_replay_receive(world.source, &kind, &batch));
    assert_int_equal(kind, KVB_REPLY_END);
    kvb_source_replay_stop(world.source);
    assert_int_equal(kvb_source_replay_receive(world.source, &kind, &batch), KVB_AGAIN);
    end(&world);
}

static void an_endpoint_that_is_none_is_refused_in_words(void **state)
{
    (void)state;
    struct kvb_zmq *zmq = NULL;
    struct kvb_source *source = NULL;
    struct kvb_detail detail = { .text = "" };
    const struct kvb_source_options options = { .events = "nonsense", .replay = "", .topic = "" };

    assert_ok(kvb_zmq_new(4, &zmq, &detail));
    assert_int_equal(kvb_source_open(zmq, &options, &source, &detail), KVB_BAD_CONFIG);
    assert_non_null(strstr(detail.text, "nonsense"));
    kvb_zmq_free(zmq);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_batches_come_in_order_and_odd_messages_are_counted),
        cmocka_unit_test(the_monitor_tells_when_the_engine_comes_and_goes),
        cmocka_unit_test(a_replay_asks_as_engines_expect_and_reads_the_replies),
        cmocka_unit_test(an_endpoint_that_is_none_is_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
