#include "core/clock.h"
#include "ingest/zmq/connection.h"
#include "kvb_test.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* A TCP connection over loopback. */
struct pair {
    int near;
    int far;
};

static struct pair connect_pair(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t size = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pair pair = { .far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };

    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    assert_int_equal(connect(pair.far, (struct sockaddr *)&at, sizeof at), 0);
    pair.near = accept(listener, NULL, NULL);
    assert_true(pair.near >= 0);
    (void)close(listener);
    return pair;
}

/* Sends so many bytes, and waits until the kernel has them at the other end. */
static void bring(const struct pair *pair, size_t bytes)
{
    static const char zeros[4096];
    const struct kvb_connection near = kvb_connection_of(pair->near);
    uint64_t before = 0;
    uint64_t now = 0;

    assert_true(kvb_connection_received(&near, &before));
    assert_int_equal(write(pair->far, zeros, bytes), bytes);
    while (now < before + bytes) {
        assert_true(kvb_connection_received(&near, &now));
    }
}

static void what_waits_is_what_has_arrived_and_was_not_taken(void **state)
{
    (void)state;
    const struct pair pair = connect_pair();
    struct kvb_backlog backlog = kvb_backlog_of(pair.near, 0);

    bring(&pair, 1000);
    assert_false(kvb_backlog_is_above(&backlog, 1000, 0));
    assert_true(kvb_backlog_is_above(&backlog, 999, 0));
    kvb_backlog_take(&backlog, 600);
    assert_false(kvb_backlog_is_above(&backlog, 400, 0));
    assert_true(kvb_backlog_is_above(&backlog, 399, 0));

    /* Found empty: bytes that were never counted as taken do not wait either. */
    kvb_backlog_found_empty(&backlog);
    assert_false(kvb_backlog_is_above(&backlog, 0, 0));
    bring(&pair, 10);
    assert_true(kvb_backlog_is_above(&backlog, 9, 0));

    /* Empty without a message: the bytes may be those of one that is not complete. */
    kvb_backlog_found_empty(&backlog);
    assert_true(kvb_backlog_is_above(&backlog, 9, 0));
    /* Pongs are no message. */
    assert_false(kvb_backlog_is_above(&backlog, 9, KVB_NS_PER_S));
    (void)close(pair.near);
    (void)close(pair.far);
}

static void another_file_with_its_number_is_left_alone(void **state)
{
    (void)state;
    const struct pair old = connect_pair();
    const struct kvb_connection connection = kvb_connection_of(old.near);
    const struct pair other = connect_pair();
    uint64_t bytes = 0;
    char byte = 0;

    assert_int_equal(dup2(other.near, old.near), old.near);
    assert_false(kvb_connection_received(&connection, &bytes));
    assert_false(kvb_connection_end(&connection));
    assert_int_equal(write(old.near, "a", 1), 1);
    assert_int_equal(read(other.far, &byte, 1), 1);
    (void)close(old.near);
    (void)close(old.far);
    (void)close(other.near);
    (void)close(other.far);
}

static void a_connection_that_is_ended_ends_for_both(void **state)
{
    (void)state;
    const struct pair pair = connect_pair();
    const struct kvb_connection connection = kvb_connection_of(pair.near);
    const struct kvb_connection none = kvb_connection_none();
    char byte = 0;

    assert_false(kvb_connection_end(&none));
    assert_true(kvb_connection_end(&connection));
    assert_int_equal(read(pair.near, &byte, 1), 0);
    assert_int_equal(read(pair.far, &byte, 1), 0);
    (void)close(pair.near);
    (void)close(pair.far);
}

static void of_other_sockets_the_bytes_are_not_known(void **state)
{
    (void)state;
    int fds[2] = { -1, -1 };
    uint64_t bytes = 0;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct kvb_backlog backlog = kvb_backlog_of(fds[0], 0);
    assert_int_equal(write(fds[1], "a", 1), 1);
    assert_false(kvb_connection_received(&backlog.connection, &bytes));
    assert_false(kvb_backlog_is_above(&backlog, 0, 0));
    (void)close(fds[0]);
    (void)close(fds[1]);
}

SUITE(connection)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_waits_is_what_has_arrived_and_was_not_taken),
        cmocka_unit_test(another_file_with_its_number_is_left_alone),
        cmocka_unit_test(a_connection_that_is_ended_ends_for_both),
        cmocka_unit_test(of_other_sockets_the_bytes_are_not_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
