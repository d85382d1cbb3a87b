#include "fleet/truth.h"

#include "core/buf.h"
#include "core/limits.h"
#include "fleet/truth_commands.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

enum { max_clients = 16, max_line_bytes = 256, send_timeout_s = 5, no_fd = -1 };

struct client {
    int fd; /* no_fd: a free place */
    size_t len;
    char line[max_line_bytes];
};

struct kvb_truth_server {
    struct kvb_fleet *fleet; /* borrowed */
    int listener;
    int epoll;
    struct client clients[max_clients];
    struct kvb_buf answer;
    struct sockaddr_un address;
    bool is_bound;
    bool is_stopped;
};

/* A socket file of an earlier run would make bind() fail. */
static void remove_socket(const char *path)
{
    struct stat state;

    if (lstat(path, &state) == 0 && S_ISSOCK(state.st_mode)) {
        (void)unlink(path); /* if it stays, bind() fails */
    }
}

static kvb_status watch_client(const struct kvb_truth_server *server, int fd, uint32_t number)
{
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = number };

    return epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0 ? KVB_OK : KVB_IO;
}

static kvb_status listen_for_truth(struct kvb_truth_server *server)
{
    remove_socket(server->address.sun_path);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server->epoll < 0 || server->listener < 0) {
        return KVB_IO;
    }
    if (bind(server->listener, (struct sockaddr *)&server->address, sizeof server->address) != 0) {
        return KVB_IO;
    }
    server->is_bound = true;
    if (listen(server->listener, max_clients) != 0) {
        return KVB_IO;
    }
    return watch_client(server, server->listener, max_clients);
}

kvb_status kvb_truth_server_new(
    const char *path, struct kvb_fleet *fleet, struct kvb_detail *detail,
    struct kvb_truth_server **out_server)
{
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path) {
        kvb_detail_set(detail, "%s: a socket's path has at most 107 bytes", path);
        return KVB_BAD_CONFIG;
    }
    struct kvb_truth_server *server = calloc(1, sizeof *server);
    if (!server) {
        return KVB_NO_MEMORY;
    }
    server->fleet = fleet;
    server->epoll = server->listener = no_fd;
    for (size_t i = 0; i < max_clients; i++) {
        server->clients[i].fd = no_fd;
    }
    kvb_buf_init(&server->answer, kvb_max_answer_bytes);
    server->address.sun_family = AF_UNIX;
    (void)snprintf(server->address.sun_path, sizeof server->address.sun_path, "%s", path);
    if (listen_for_truth(server) != KVB_OK) {
        char reason[128] = "";
        kvb_detail_set(detail, "%s: %s", path, strerror_r(errno, reason, sizeof reason));
        kvb_truth_server_free(server);
        return KVB_BAD_CONFIG;
    }
    *out_server = server;
    return KVB_OK;
}

static void close_client(struct client *client)
{
    if (client->fd != no_fd) {
        (void)close(client->fd); /* epoll forgets it */
    }
    client->fd = no_fd;
    client->len = 0;
}

void kvb_truth_server_free(struct kvb_truth_server *server)
{
    if (!server) {
        return;
    }
    for (size_t i = 0; i < max_clients; i++) {
        close_client(&server->clients[i]);
    }
    if (server->listener != no_fd) {
        (void)close(server->listener);
    }
    if (server->epoll != no_fd) {
        (void)close(server->epoll);
    }
    if (server->is_bound) {
        (void)unlink(server->address.sun_path);
    }
    kvb_buf_done(&server->answer);
    free(server);
}

int kvb_truth_server_fd(const struct kvb_truth_server *server)
{
    return server->epoll;
}

bool kvb_truth_server_is_stopped(const struct kvb_truth_server *server)
{
    return server->is_stopped;
}

static void accept_client(struct kvb_truth_server *server)
{
    const struct timeval timeout = { .tv_sec = send_timeout_s };
    const int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0) {
        return; /* gone again */
    }
    for (uint32_t i = 0; i < max_clients; i++) {
        struct client *client = &server->clients[i];
        if (client->fd == no_fd &&
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
            watch_client(server, fd, i) == KVB_OK) {
            client->fd = fd;
            client->len = 0;
            return;
        }
    }
    (void)close(fd); /* too many clients */
}

static kvb_status send_truth_answer(void *context, struct kvb_buf *out)
{
    const struct client *client = context;
    size_t sent = 0;

    while (sent < out->len) {
        const ssize_t more = send(client->fd, out->data + sent, out->len - sent, MSG_NOSIGNAL);
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more <= 0) {
            return KVB_IO;
        }
        sent += (size_t)more;
    }
    kvb_buf_reset(out);
    return KVB_OK;
}

static kvb_status run_line(struct kvb_truth_server *server, struct client *client, char *line)
{
    struct kvb_truth_session session = {
        .fleet = server->fleet,
        .out = &server->answer,
        .send = send_truth_answer,
        .context = client,
    };
    const kvb_status status = kvb_truth_run(&session, line);

    server->is_stopped |= session.is_stopped;
    return status;
}

/* Runs the whole lines that were read, keeps the rest. */
static kvb_status run_lines(struct kvb_truth_server *server, struct client *client)
{
    char *newline = memchr(client->line, '\n', client->len);

    while (newline) {
        const size_t used = (size_t)(newline - client->line) + 1;
        char line[max_line_bytes];

        memcpy(line, client->line, used);
        line[used - 1] = '\0';
        client->len -= used;
        memmove(client->line, client->line + used, client->len);
        KVB_TRY(run_line(server, client, line));
        newline = memchr(client->line, '\n', client->len);
    }
    return client->len < max_line_bytes ? KVB_OK : KVB_TOO_LARGE;
}

static kvb_status read_client(struct kvb_truth_server *server, struct client *client)
{
    const ssize_t more =
        recv(client->fd, client->line + client->len, max_line_bytes - client->len, MSG_DONTWAIT);

    if (more < 0 && (errno == EAGAIN || errno == EINTR)) {
        return KVB_OK;
    }
    if (more <= 0) {
        return KVB_CLOSED;
    }
    client->len += (size_t)more;
    return run_lines(server, client);
}

void kvb_truth_server_serve(struct kvb_truth_server *server)
{
    struct epoll_event events[max_clients + 1];
    const int count = epoll_wait(server->epoll, events, max_clients + 1, 0);

    for (int i = 0; i < count; i++) {
        const uint32_t number = events[i].data.u32;
        if (number == max_clients) {
            accept_client(server);
        } else if (read_client(server, &server->clients[number]) != KVB_OK) {
            close_client(&server->clients[number]);
        }
    }
}
