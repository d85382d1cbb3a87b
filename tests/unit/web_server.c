#include "web_server.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { max_connections = 256 };

struct connection {
    struct web_server *server;
    pthread_t thread;
    int fd;
};

struct web_server {
    const struct web_page *pages;
    int listener;
    uint16_t port;
    pthread_t thread;
    struct connection connections[max_connections];
    size_t count;
    _Atomic unsigned requests;
};

static bool send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        const ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        bytes += sent;
        len -= (size_t)sent;
    }
    return true;
}

static bool send_text(int fd, const char *text)
{
    return send_all(fd, text, strlen(text));
}

static bool send_head(int fd, const char *status, const char *more)
{
    char head[256];

    (void)snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%s\r\n", status, more);
    return send_text(fd, head);
}

static bool send_length(int fd, const char *status, size_t length, const char *body)
{
    char more[64];

    (void)snprintf(more, sizeof more, "Content-Length: %zu\r\n", length);
    return send_head(fd, status, more) && send_text(fd, body);
}

static bool send_chunk(int fd, const char *bytes, size_t len)
{
    char size[32];

    (void)snprintf(size, sizeof size, "%zx\r\n", len);
    return send_text(fd, size) && send_all(fd, bytes, len) && send_text(fd, "\r\n");
}

static bool send_parts(int fd, const char *body)
{
    const size_t len = strlen(body);
    bool is_well = send_head(fd, "200 OK", "Transfer-Encoding: chunked\r\n");

    for (size_t at = 0; at < len && is_well; at += 7) {
        is_well = send_chunk(fd, body + at, len - at < 7 ? len - at : 7);
    }
    return is_well && send_text(fd, "0\r\n\r\n");
}

static bool send_endless(int fd, const char *body)
{
    bool is_well = send_head(fd, "200 OK", "Transfer-Encoding: chunked\r\n");

    while (is_well) {
        is_well = send_chunk(fd, body, strlen(body));
    }
    return false;
}

static bool send_authorization(int fd, const char *request)
{
    char text[256] = "none";

    (void)sscanf(
        strstr(request, "Authorization: ") ? strstr(request, "Authorization: ") : "",
        "Authorization: %255[^\r]", text);
    return send_length(fd, "200 OK", strlen(text), text);
}

static bool send_body_back(int fd, const char *request)
{
    static const char key[] = "Content-Type: ";
    const char *type = strstr(request, key);
    char text[4096] = "";

    (void)snprintf(
        text, sizeof text, "%.*s: %s", type ? (int)strcspn(type + sizeof key - 1, "\r") : 0,
        type ? type + sizeof key - 1 : "", strstr(request, "\r\n\r\n") + 4);
    return send_length(fd, "200 OK", strlen(text), text);
}

/* False: the connection ends. */
static bool answer(int fd, const struct web_page *page, const char *request)
{
    switch (page->manner) {
    case web_answers:
        return send_length(fd, "200 OK", strlen(page->body), page->body);
    case web_in_parts:
        return send_parts(fd, page->body);
    case web_refuses:
        return send_length(
            fd, "503 Service Unavailable\r\nRetry-After: 7", strlen(page->body), page->body);
    case web_rejects:
        return send_length(fd, "400 Bad Request", strlen(page->body), page->body);
    case web_echoes:
        return send_authorization(fd, request);
    case web_echoes_body:
        return send_body_back(fd, request);
    case web_sends_on:
        return send_head(fd, "302 Found", "Location: /ok\r\nContent-Length: 0\r\n");
    case web_compresses:
        return send_length(fd, "200 OK\r\nContent-Encoding: gzip", strlen(page->body), page->body);
    case web_cuts:
        (void)send_length(fd, "200 OK", strlen(page->body) + 100, page->body);
        return false;
    case web_endless:
        return send_endless(fd, page->body);
    default:
        return true; /* web_hangs: waits for the next request, which never comes */
    }
}

static const struct web_page *find(const struct web_server *server, const char *request)
{
    for (const struct web_page *page = server->pages; page->path; page++) {
        const size_t len = strlen(page->path);
        const size_t from = strcspn(request, " ") + 1; /* GET, POST */
        if (strncmp(request + from, page->path, len) == 0 && request[from + len] == ' ') {
            return page;
        }
    }
    return NULL;
}

/* Header and body are complete. */
static bool is_request_whole(const char *request, size_t len)
{
    const char *header_end = strstr(request, "\r\n\r\n");
    const char *length = strstr(request, "Content-Length: ");

    return header_end && len >= (size_t)(header_end + 4 - request) +
                                    (length ? strtoul(length + 16, NULL, 10) : 0);
}

static void *serve(void *context)
{
    struct connection *connection = context;
    char request[4096];
    size_t len = 0;

    for (bool goes_on = true; goes_on;) {
        const ssize_t got = recv(connection->fd, request + len, sizeof request - 1 - len, 0);
        if (got <= 0) {
            break;
        }
        len += (size_t)got;
        request[len] = '\0';
        if (!is_request_whole(request, len)) {
            continue;
        }
        connection->server->requests++;
        const struct web_page *page = find(connection->server, request);
        goes_on = page ? answer(connection->fd, page, request)
                       : send_length(connection->fd, "404 Not Found", 0, "");
        len = 0;
    }
    (void)shutdown(connection->fd, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *context)
{
    struct web_server *server = context;

    while (server->count < max_connections) {
        const int fd = accept(server->listener, NULL, NULL);
        if (fd < 0) {
            break;
        }
        struct connection *connection = &server->connections[server->count];
        *connection = (struct connection){ .server = server, .fd = fd };
        if (pthread_create(&connection->thread, NULL, serve, connection) == 0) {
            server->count++;
        }
    }
    return NULL;
}

struct web_server *web_server_start(const struct web_page *pages)
{
    struct web_server *server = calloc(1, sizeof *server);
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;

    if (!server) {
        abort();
    }
    server->pages = pages;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server->listener < 0 ||
        bind(server->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(server->listener, 64) != 0 ||
        getsockname(server->listener, (struct sockaddr *)&address, &len) != 0 ||
        pthread_create(&server->thread, NULL, accept_all, server) != 0) {
        abort();
    }
    server->port = ntohs(address.sin_port);
    return server;
}

unsigned web_server_requests(const struct web_server *server)
{
    return server->requests;
}

void web_server_stop(struct web_server *server)
{
    (void)shutdown(server->listener, SHUT_RDWR);
    (void)pthread_join(server->thread, NULL);
    for (size_t i = 0; i < server->count; i++) {
        (void)shutdown(server->connections[i].fd, SHUT_RDWR);
        (void)pthread_join(server->connections[i].thread, NULL);
        (void)close(server->connections[i].fd);
    }
    (void)close(server->listener);
    free(server);
}

const char *web_server_url(const struct web_server *server, const char *path, char out[128])
{
    (void)snprintf(out, 128, "http://127.0.0.1:%u%s", server->port, path);
    return out;
}
