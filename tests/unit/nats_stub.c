#include "nats_stub.h"

#include "kvb_test.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void send_text(int fd, const char *text)
{
    /* on failure the connection is gone, which the test sees */
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* The caller holds lock, as for the next three functions. */
static void send_pongs(struct nats_stub_connection *one)
{
    for (; one->pongs_owed > 0 && one->pongs_left > 0; one->pongs_owed--, one->pongs_left--) {
        send_text(one->fd, "PONG\r\n");
    }
}

static void answer_line(struct nats_stub *stub, struct nats_stub_connection *one, const char *line)
{
    const bool must_sign = stub->nonces[one - stub->connections] != NULL;

    if (must_sign && strncmp(line, "CONNECT", 7) == 0 && !strstr(line, "\"sig\":")) {
        send_text(one->fd, "-ERR 'Authorization Violation'\r\n");
        one->pongs_left = 0;
    } else if (strncmp(line, "PING", 4) == 0) {
        one->pongs_owed++;
        send_pongs(one);
    }
}

static bool read_some(struct nats_stub *stub, struct nats_stub_connection *one)
{
    const ssize_t got =
        recv(one->fd, one->received + one->len, sizeof one->received - 1 - one->len, MSG_DONTWAIT);

    if (got <= 0) {
        return false;
    }
    one->len += (size_t)got;
    for (char *end = NULL; (end = strchr(one->received + one->parsed, '\n'));) {
        answer_line(stub, one, one->received + one->parsed);
        one->parsed = (size_t)(end + 1 - one->received);
    }
    return true;
}

static void greet(int fd, const char *nonce)
{
    char info[256];

    (void)snprintf(
        info, sizeof info,
        "INFO {\"server_id\":\"a\",\"version\":\"2.9.10\",\"proto\":1,\"headers\":true,"
        "\"max_payload\":1048576,\"nonce\":\"%s\"}\r\n",
        nonce ? nonce : "");
    send_text(fd, info);
}

static void accept_one(struct nats_stub *stub)
{
    const int fd = accept4(stub->fd, NULL, NULL, SOCK_CLOEXEC);

    if (fd >= 0 && stub->count < nats_stub_connections) {
        greet(fd, stub->nonces[stub->count]);
        stub->connections[stub->count++].fd = fd;
    } else if (fd >= 0) {
        close(fd);
    }
}

static size_t list_fds(struct nats_stub *stub, struct pollfd *out)
{
    pthread_mutex_lock(&stub->lock);
    const size_t count = stub->count;
    for (size_t i = 0; i < count; i++) {
        out[i] = (struct pollfd){ .fd = stub->connections[i].fd, .events = POLLIN };
    }
    pthread_mutex_unlock(&stub->lock);
    out[count] = (struct pollfd){ .fd = stub->fd, .events = POLLIN };
    return count;
}

static void *serve(void *argument)
{
    struct nats_stub *stub = argument;
    struct pollfd fds[nats_stub_connections + 1];

    for (bool is_open = true; is_open;) {
        const size_t count = list_fds(stub, fds);
        (void)poll(fds, count + 1, -1);
        pthread_mutex_lock(&stub->lock);
        for (size_t i = 0; i < count; i++) {
            if (fds[i].revents != 0 && !read_some(stub, &stub->connections[i])) {
                close(stub->connections[i].fd);
                stub->connections[i].fd = -1; /* poll() ignores a negative descriptor */
            }
        }
        is_open = (fds[count].revents & POLLHUP) == 0;
        if (is_open && fds[count].revents != 0) {
            accept_one(stub);
        }
        pthread_mutex_unlock(&stub->lock);
    }
    return NULL;
}

void nats_stub_start(struct nats_stub *stub)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;

    *stub = (struct nats_stub){ .lock = PTHREAD_MUTEX_INITIALIZER };
    for (unsigned i = 0; i < nats_stub_connections; i++) {
        stub->connections[i].pongs_left = nats_stub_unlimited;
    }
    stub->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(stub->fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(stub->fd, nats_stub_connections), 0);
    assert_int_equal(getsockname(stub->fd, (struct sockaddr *)&address, &len), 0);
    (void)snprintf(
        stub->url, sizeof stub->url, "nats://127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
    assert_int_equal(pthread_create(&stub->thread, NULL, serve, stub), 0);
}

void nats_stub_stop(struct nats_stub *stub)
{
    (void)shutdown(stub->fd, SHUT_RDWR);
    pthread_join(stub->thread, NULL);
    for (unsigned i = 0; i < stub->count; i++) {
        if (stub->connections[i].fd >= 0) {
            close(stub->connections[i].fd);
        }
    }
    close(stub->fd);
}

void nats_stub_answer(struct nats_stub *stub, unsigned i, unsigned pongs)
{
    pthread_mutex_lock(&stub->lock);
    stub->connections[i].pongs_left = pongs;
    send_pongs(&stub->connections[i]);
    pthread_mutex_unlock(&stub->lock);
}

unsigned nats_stub_received(struct nats_stub *stub, unsigned i, const char *text)
{
    unsigned count = 0;

    pthread_mutex_lock(&stub->lock);
    for (const char *at = stub->connections[i].received; (at = strstr(at, text));) {
        count++;
        at++;
    }
    pthread_mutex_unlock(&stub->lock);
    return count;
}

void nats_stub_demand_signature(struct nats_stub *stub, unsigned i, const char *nonce)
{
    pthread_mutex_lock(&stub->lock);
    stub->nonces[i] = nonce;
    pthread_mutex_unlock(&stub->lock);
}

void nats_stub_send(struct nats_stub *stub, unsigned i, const char *text)
{
    pthread_mutex_lock(&stub->lock);
    send_text(stub->connections[i].fd, text);
    pthread_mutex_unlock(&stub->lock);
}
