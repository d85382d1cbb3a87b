#include "kvb_test.h"

#include "core/clock.h"
#include "ingest/zmq/poller.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

/* PUSH sockets send to PULL sockets, which the poller waits for. */
enum { pairs = 3 };

struct world {
    void *context;
    void *push[pairs];
    void *pull[pairs];
    struct kvb_poller *poller;
};

static void begin(struct world *world)
{
    *world = (struct world){ .context = zmq_ctx_new() };
    assert_ok(kvb_poller_new(pairs + 1, &world->poller));
    for (size_t i = 0; i < pairs; i++) {
        char address[128];
        size_t size = sizeof address;
        world->push[i] = zmq_socket(world->context, ZMQ_PUSH);
        world->pull[i] = zmq_socket(world->context, ZMQ_PULL);
        assert_int_equal(zmq_bind(world->push[i], "tcp://127.0.0.1:*"), 0);
        assert_int_equal(zmq_getsockopt(world->push[i], ZMQ_LAST_ENDPOINT, address, &size), 0);
        assert_ok(kvb_poller_add_socket(world->poller, i, kvb_ready_live, world->pull[i]));
        assert_int_equal(zmq_connect(world->pull[i], address), 0);
    }
}

static void end(struct world *world)
{
    for (size_t i = 0; i < pairs; i++) {
        (void)zmq_close(world->push[i]);
        (void)zmq_close(world->pull[i]);
    }
    kvb_poller_free(world->poller);
    (void)zmq_ctx_term(world->context);
}

/* Waits until a socket is ready and returns its number; fails after 10 s. */
static size_t wait_ready(struct world *world)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;
    size_t owner = 0;
    unsigned kinds = 0;

    while (!kvb_poller_next(world->poller, &owner, &kinds)) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        assert_ok(kvb_poller_wait(world->poller, 100));
    }
    assert_int_equal(kinds, kvb_ready_live);
    assert_false(kvb_poller_is_idle(world->poller));
    return owner;
}

static void nobody_is_ready(struct world *world)
{
    size_t owner = 0;
    unsigned kinds = 0;

    for (int i = 0; i < 3; i++) {
        assert_ok(kvb_poller_wait(world->poller, 5));
        assert_false(kvb_poller_next(world->poller, &owner, &kinds));
    }
}

static void only_ready_sockets_are_reported(void **state)
{
    (void)state;
    struct world world;
    char byte = 0;

    begin(&world);
    assert_int_equal(zmq_send(world.push[1], "x", 1, 0), 1);
    assert_int_equal(wait_ready(&world), 1);
    assert_int_equal(zmq_recv(world.pull[1], &byte, 1, ZMQ_DONTWAIT), 1);
    nobody_is_ready(&world);
    end(&world);
}

/* The descriptor of a libzmq socket is edge-triggered: it signals no further edge for the messages
 * after the first. */
static void a_socket_with_messages_left_is_reported_again(void **state)
{
    (void)state;
    struct world world;
    char byte = 0;
    int taken = 0;

    begin(&world);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(zmq_send(world.push[0], "x", 1, 0), 1);
    }
    for (; taken < 1000; taken++) {
        assert_int_equal(wait_ready(&world), 0);
        assert_int_equal(zmq_recv(world.pull[0], &byte, 1, ZMQ_DONTWAIT), 1);
    }
    nobody_is_ready(&world);
    end(&world);
}

/* A send, and a receive that finds nothing, also swallow the edge of a message that arrives
 * meanwhile. */
static void a_check_of_a_quiet_socket_loses_nothing(void **state)
{
    (void)state;
    struct world world;
    char byte = 0;

    begin(&world);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(zmq_send(world.push[2], "x", 1, 0), 1);
        assert_int_equal(wait_ready(&world), 2);
        assert_int_equal(zmq_recv(world.pull[2], &byte, 1, ZMQ_DONTWAIT), 1);
        assert_int_equal(zmq_recv(world.pull[2], &byte, 1, ZMQ_DONTWAIT), -1);
    }
    end(&world);
}

/* It is reported again with the edge of the next message, at whichever moment that is sent. */
static void a_drained_socket_loses_nothing(void **state)
{
    (void)state;
    struct world world;
    char byte = 0;

    begin(&world);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(zmq_send(world.push[2], "x", 1, 0), 1);
        assert_int_equal(wait_ready(&world), 2);
        assert_int_equal(zmq_recv(world.pull[2], &byte, 1, ZMQ_DONTWAIT), 1);
        if (zmq_recv(world.pull[2], &byte, 1, ZMQ_DONTWAIT) < 0) {
            kvb_poller_set_drained(world.poller, 2, kvb_ready_live);
        }
    }
    nobody_is_ready(&world);
    end(&world);
}

/* Nobody looks at it: the caller knows better, until the next edge. */
static void a_drained_socket_is_not_checked(void **state)
{
    (void)state;
    struct world world;
    char byte = 0;

    begin(&world);
    assert_int_equal(zmq_send(world.push[0], "x", 1, 0), 1);
    assert_int_equal(wait_ready(&world), 0);
    kvb_poller_set_drained(world.poller, 0, kvb_ready_live); /* which is not true */
    nobody_is_ready(&world);
    assert_int_equal(zmq_recv(world.pull[0], &byte, 1, ZMQ_DONTWAIT), 1);
    assert_int_equal(zmq_recv(world.pull[0], &byte, 1, ZMQ_DONTWAIT), -1);
    assert_int_equal(zmq_send(world.push[0], "y", 1, 0), 1);
    assert_int_equal(wait_ready(&world), 0);
    end(&world);
}

static void a_removed_socket_is_not_reported(void **state)
{
    (void)state;
    struct world world;

    begin(&world);
    assert_int_equal(zmq_send(world.push[1], "x", 1, 0), 1);
    assert_int_equal(wait_ready(&world), 1);
    kvb_poller_drop_socket(world.poller, 1, world.pull[1]);
    nobody_is_ready(&world);
    assert_ok(kvb_poller_add_socket(world.poller, 1, kvb_ready_live, world.pull[1]));
    /* it arrived before the socket was added, so there was no edge */
    assert_int_equal(wait_ready(&world), 1);
    end(&world);
}

static void descriptors_and_pending_work_are_reported_with_sockets(void **state)
{
    (void)state;
    struct world world;
    const uint64_t one = 1;
    uint64_t value = 0;
    size_t owner = 0;
    unsigned kinds = 0;
    const int fd = eventfd(0, EFD_NONBLOCK);

    begin(&world);
    assert_ok(kvb_poller_add_fd(world.poller, pairs, fd));
    nobody_is_ready(&world);
    assert_int_equal(write(fd, &one, sizeof one), sizeof one);
    assert_int_equal(wait_ready(&world), pairs);
    assert_int_equal(wait_ready(&world), pairs); /* reported until it is read */
    assert_int_equal(read(fd, &value, sizeof value), sizeof value);
    (void)kvb_poller_wait(world.poller, 0);
    while (kvb_poller_next(world.poller, &owner, &kinds)) {
    }
    nobody_is_ready(&world);

    kvb_poller_set_pending(world.poller, 2, kvb_ready_reply);
    for (int i = 0; i < 3; i++) {
        assert_ok(kvb_poller_wait(world.poller, 10000));
        assert_true(kvb_poller_next(world.poller, &owner, &kinds));
        assert_int_equal(owner, 2);
        assert_int_equal(kinds, kvb_ready_reply);
    }
    kvb_poller_set_pending(world.poller, 2, 0);
    nobody_is_ready(&world);
    (void)close(fd);
    end(&world);
}

static int count_epolls(int *out_newest)
{
    DIR *folder = opendir("/proc/self/fd");
    int found = 0;

    assert_non_null(folder);
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread uses this folder */
    for (const struct dirent *entry = NULL; (entry = readdir(folder));) {
        char path[300];
        char target[64] = "";
        (void)snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        (void)!readlink(path, target, sizeof target - 1);
        if (strcmp(target, "anon_inode:[eventpoll]") == 0) {
            *out_newest = (int)strtol(entry->d_name, NULL, 10);
            found++;
        }
    }
    (void)closedir(folder);
    return found;
}

/* When epoll_wait() fails, the poller pauses instead, and still finds messages. */
static void a_failing_wait_neither_spins_nor_stalls(void **state)
{
    (void)state;
    struct kvb_poller *poller = NULL;
    size_t owner = 0;
    unsigned kinds = 0;
    char address[64];
    int fd = -1;

    (void)snprintf(address, sizeof address, "ipc://@kvb-test-wait-%d", (int)getpid());
    assert_ok(kvb_poller_new(1, &poller));
    assert_int_equal(count_epolls(&fd), 1); /* before libzmq opens descriptors of its own */
    void *context = zmq_ctx_new();
    void *pull = zmq_socket(context, ZMQ_PULL);
    void *push = zmq_socket(context, ZMQ_PUSH);
    assert_ok(kvb_poller_add_socket(poller, 0, kvb_ready_live, pull));
    assert_int_equal(zmq_bind(pull, address), 0);
    assert_int_equal(zmq_connect(push, address), 0);
    assert_ok(kvb_poller_wait(poller, 0));
    assert_int_equal(close(fd), 0);

    const uint64_t before_ns = kvb_clock_monotonic_ns();
    assert_int_equal(kvb_poller_wait(poller, 20), KVB_IO);
    assert_true(kvb_clock_monotonic_ns() - before_ns >= 20 * KVB_NS_PER_MS);
    assert_int_equal(zmq_send(push, "x", 1, 0), 1);
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + 10 * KVB_NS_PER_S;
    while (!kvb_poller_next(poller, &owner, &kinds)) {
        assert_true(kvb_clock_monotonic_ns() < deadline_ns);
        assert_int_equal(kvb_poller_wait(poller, 5), KVB_IO);
    }
    (void)zmq_close(push);
    (void)zmq_close(pull);
    (void)zmq_ctx_term(context);
    kvb_poller_free(poller); /* the test has closed its descriptor already */
}

SUITE(poller)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_ready_sockets_are_reported),
        cmocka_unit_test(a_socket_with_messages_left_is_reported_again),
        cmocka_unit_test(a_check_of_a_quiet_socket_loses_nothing),
        cmocka_unit_test(a_drained_socket_loses_nothing),
        cmocka_unit_test(a_drained_socket_is_not_checked),
        cmocka_unit_test(a_removed_socket_is_not_reported),
        cmocka_unit_test(descriptors_and_pending_work_are_reported_with_sockets),
        cmocka_unit_test(a_failing_wait_neither_spins_nor_stalls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
