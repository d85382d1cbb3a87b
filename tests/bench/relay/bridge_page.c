#include "bridge_page.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { patience_s = 10, read_bytes = 1 << 16, line_bytes = 128 };

static kvb_status connect_to(uint16_t port, int fd)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval patience = { .tv_sec = patience_s };

    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
                   connect(fd, (const struct sockaddr *)&address, sizeof address) == 0
               ? KVB_OK
               : KVB_IO;
}

/* Of version 1.0: the answer ends where the connection does. */
static kvb_status ask(int fd, struct kvb_buf *page)
{
    static const char request[] = "GET /metrics HTTP/1.0\r\n\r\n";
    const size_t len = sizeof request - 1;
    ssize_t got = 1;

    if (send(fd, request, len, MSG_NOSIGNAL) != (ssize_t)len) {
        return KVB_IO;
    }
    while (got > 0) {
        KVB_TRY(kvb_buf_reserve(page, read_bytes));
        got = recv(fd, page->data + page->len, read_bytes, 0);
        page->len += got > 0 ? (size_t)got : 0;
    }
    return got == 0 ? kvb_buf_append(page, "", 1) : KVB_IO;
}

kvb_status bridge_page_fetch(uint16_t http_port, struct kvb_buf *page)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    kvb_status status = fd >= 0 ? connect_to(http_port, fd) : KVB_IO;

    if (status == KVB_OK) {
        status = ask(fd, page);
    }
    if (fd >= 0) {
        close(fd);
    }
    return status;
}

uint64_t bridge_page_value(const struct kvb_buf *page, const char *metric)
{
    char line[line_bytes];

    (void)snprintf(line, sizeof line, "\n%s ", metric);
    const char *at = strstr((const char *)page->data, line);
    return at ? strtoull(at + strlen(line), NULL, 10) : 0;
}
