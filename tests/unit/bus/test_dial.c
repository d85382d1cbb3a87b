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

static void start_serving(
    struct mute_server *server, const char *scheme, const char *greeting,
    void *(*serve)(void *argument), void *argument)
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
    assert_int_equal(pthread_create(&server->thread, NULL, serve, argument), 0);
}

static void start_mute(struct mute_server *server, const char *scheme, const char *greeting)
{
    start_serving(server, scheme, greeting, accept_and_be_mute, server);
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

/* ---- A server that answers the PING of a dial, and then ends the connection ---------------- */

struct short_server {
    struct mute_server server; /* its greeting has no end: connect_urls and "}" follow */
    const char *others;        /* its connect_urls, as JSON */
    unsigned most;             /* connections, after which it stops listening */
};

static void *answer_once_each(void *argument)
{
    struct short_server *one = argument;

    for (unsigned count = 1; count <= one->most; count++) {
        const int fd = accept4(one->server.fd, NULL, NULL, SOCK_CLOEXEC);
        char info[512];
        char heard[1024] = "";
        size_t len = 0;
        if (fd < 0) {
            break; /* shut down */
        }
        (void)snprintf(
            info, sizeof info, "%s,\"connect_urls\":[%s]}\r\n", one->server.greeting, one->others);
        (void)send(fd, info, strlen(info), MSG_NOSIGNAL);
        while (len < sizeof heard - 1 && !strstr(heard, "PING")) {
            const ssize_t more = recv(fd, heard + len, sizeof heard - 1 - len, 0);
            if (more <= 0) {
                break;
            }
            len += (size_t)more;
        }
        (void)send(fd, "PONG\r\n", 6, MSG_NOSIGNAL);
        close(fd);
        atomic_store(&one->server.count, count);
    }
    (void)shutdown(one->server.fd, SHUT_RDWR);
    return NULL;
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

static bool has_two(void *context)
{
    return atomic_load(&((struct mute_server *)context)->count) >= 2;
}

/* The configured server is gone after it has named another one.  That one names a third, which
 * nobody serves. */
static void servers_that_were_announced_are_dialed_also_after_others_were_announced(void **state)
{
    static const char greeting[] =
        "INFO {\"server_id\":\"a\",\"version\":\"2.9.10\",\"proto\":1,\"max_payload\":1048576";
    struct short_server first = { .most = 1 };
    struct short_server second = { .most = max_accepted };
    char names[2][64];
    uint16_t unused = 0;

    (void)state;
    assert_ok(free_port(&unused));
    (void)snprintf(names[1], sizeof names[1], "\"127.0.0.1:%u\"", unused);
    second.others = names[1];
    start_serving(&second.server, "nats", greeting, answer_once_each, &second);
    (void)snprintf(names[0], sizeof names[0], "\"%s\"", second.server.url + strlen("nats://"));
    first.others = names[0];
    start_serving(&first.server, "nats", greeting, answer_once_each, &first);
    struct kvb_bus *bus = open_to(&first.server);
    assert_true(wait_until(has_two, &second.server, patience_ms));
    kvb_bus_close(bus);
    stop_mute(&first.server);
    stop_mute(&second.server);
}

SUITE(dial)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_says_nothing_is_dialed_again_and_again),
        cmocka_unit_test(closing_does_not_wait_for_a_handshake),
        cmocka_unit_test(servers_that_were_announced_are_dialed_also_after_others_were_announced),
    };

    kvb_openssl_keep_at_exit(); /* as the daemons do: a dial may outlive its bus and main() */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
