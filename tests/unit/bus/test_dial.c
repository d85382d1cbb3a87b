#include "bus/bus.h"
#include "core/clock.h"
#include "core/own.h"
#include "process.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { patience_ms = 30000, max_accepted = 16, wanted = 5 };

/* ---- A server that accepts connections and then says nothing more -------------------------- */

struct mute_server {
    const char *greeting; /* the bytes it sends before it falls silent */
    int fd;
    char url[64];
    int accepted[max_accepted]; /* used by the server's thread alone */
    _Atomic unsigned count;
    pthread_t thread;
};

static void *accept_and_be_mute(void *argument)
{
    struct mute_server *server = argument;
    unsigned count = 0;

    while (count < max_accepted) {
        const int fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            break; /* shut down */
        }
        (void)send(fd, server->greeting, strlen(server->greeting), MSG_NOSIGNAL);
        server->accepted[count++] = fd;
        atomic_store(&server->count, count);
    }
    for (unsigned i = 0; i < count; i++) {
        close(server->accepted[i]);
    }
    return NULL;
}

static void start_mute(struct mute_server *server, const char *scheme, const char *greeting)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;

    *server = (struct mute_server){ .greeting = greeting };
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server->fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server->fd, max_accepted), 0);
    assert_int_equal(getsockname(server->fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(
        server->url, sizeof server->url, "%s://127.0.0.1:%u", scheme, ntohs(address.sin_port));
    assert_int_equal(pthread_create(&server->thread, NULL, accept_and_be_mute, server), 0);
}

static void stop_mute(struct mute_server *server)
{
    (void)shutdown(server->fd, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->fd);
}

static bool has_some(void *context)
{
    return atomic_load(&((struct mute_server *)context)->count) >= wanted;
}

static bool has_first(void *context)
{
    return atomic_load(&((struct mute_server *)context)->count) >= 1;
}

static struct kvb_bus *open_to(const struct mute_server *server)
{
    const struct kvb_bus_options options = { .url = server->url, .name = "test" };
    struct kvb_bus *bus = NULL;

    assert_ok(kvb_bus_open(&options, &bus, NULL));
    return bus;
}

/* ---- Tests ------------------------------------------------------------------------------------
 */

#define INFO                                                                                       \
    "INFO {\"server_id\":\"a\",\"version\":\"2.9.10\",\"proto\":1,\"tls_required\":true,"          \
    "\"max_payload\":1048576}\r\n"

static const struct {
    const char *scheme;
    const char *greeting;
    const char *reason;
} mutes[] = {
    { "nats", "", "Timeout" },
    { "tls", "", "Timeout" },
    { "tls", INFO, "does not answer in the TLS handshake" },
    { "tls", INFO "\x16\x03\x03", "does not answer in the TLS handshake" },
};

/* More dials than may be under way at once. */
static void a_server_that_says_nothing_is_dialed_again_and_again(void **state)
{
    struct mute_server servers[KVB_COUNT_OF(mutes)];
    struct kvb_bus *buses[KVB_COUNT_OF(mutes)];
    struct kvb_detail failure = { .text = "" };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(mutes); i++) {
        start_mute(&servers[i], mutes[i].scheme, mutes[i].greeting);
        buses[i] = open_to(&servers[i]);
    }
    for (size_t i = 0; i < KVB_COUNT_OF(mutes); i++) {
        assert_true(wait_until(has_some, &servers[i], patience_ms));
        kvb_bus_dial_failure(buses[i], &failure);
        assert_non_null(strstr(failure.text, mutes[i].reason));
        kvb_bus_close(buses[i]);
        stop_mute(&servers[i]);
    }
}

/* A bus that is not freed because its dial has not ended is a leak that the sanitizers find. */
static void closing_does_not_wait_for_a_handshake(void **state)
{
    struct mute_server server;

    (void)state;
    start_mute(&server, "tls", INFO);
    struct kvb_bus *bus = open_to(&server);
    assert_true(wait_until(has_first, &server, patience_ms));
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    kvb_bus_close(bus);
    assert_true(kvb_clock_monotonic_ns() - began_ns < KVB_NS_PER_S);
    stop_mute(&server);
}

SUITE(dial)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_says_nothing_is_dialed_again_and_again),
        cmocka_unit_test(closing_does_not_wait_for_a_handshake),
    };

    kvb_openssl_keep_at_exit(); /* as the daemons do: a dial may outlive its bus and main() */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
