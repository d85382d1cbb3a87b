#include "ingest/zmq/connection.h"

#include "core/clock.h"

#include <fcntl.h>
#include <linux/tcp.h> /* glibc's struct tcp_info lacks tcpi_bytes_received */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* A pong has 7 bytes, and pings are at least 500 ms apart. */
enum { pong_bytes_a_second = 64 };

static bool inode_of(int fd, uint64_t *out)
{
    struct stat found;

    if (fstat(fd, &found) != 0 || !S_ISSOCK(found.st_mode)) {
        return false;
    }
    *out = found.st_ino;
    return true;
}

struct kvb_connection kvb_connection_none(void)
{
    return (struct kvb_connection){ .fd = -1 };
}

struct kvb_connection kvb_connection_of(int fd)
{
    struct kvb_connection connection = { .fd = fd };

    return inode_of(fd, &connection.inode) ? connection : kvb_connection_none();
}

/* A duplicate of the descriptor, which stays this connection whatever libzmq does; -1: it has
 * ended. */
static int hold(const struct kvb_connection *connection)
{
    uint64_t inode = 0;
    const int fd = connection->fd < 0 ? -1 : fcntl(connection->fd, F_DUPFD_CLOEXEC, 0);

    /* Compared after it was duplicated: from here on the number cannot change hands. */
    if (fd >= 0 && (!inode_of(fd, &inode) || inode != connection->inode)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static bool read_received(int fd, uint64_t *out_bytes)
{
    struct tcp_info info = { .tcpi_bytes_received = 0 };
    socklen_t size = sizeof info;

    if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(struct tcp_info, tcpi_segs_out)) {
        return false;
    }
    *out_bytes = info.tcpi_bytes_received;
    return true;
}

bool kvb_connection_received(const struct kvb_connection *connection, uint64_t *out_bytes)
{
    const int fd = hold(connection);
    const bool is_known = read_received(fd, out_bytes);

    if (fd >= 0) {
        (void)close(fd);
    }
    return is_known;
}

bool kvb_connection_end(const struct kvb_connection *connection)
{
    const int fd = hold(connection);

    if (fd < 0) {
        return false;
    }
    const bool is_done = shutdown(fd, SHUT_RDWR) == 0;
    (void)close(fd);
    return is_done;
}

struct kvb_backlog kvb_backlog_of(int fd, uint64_t now_ns)
{
    return (struct kvb_backlog){ .connection = kvb_connection_of(fd), .settled_ns = now_ns };
}

void kvb_backlog_take(struct kvb_backlog *backlog, uint64_t bytes)
{
    backlog->taken_bytes += bytes;
}

void kvb_backlog_found_empty(struct kvb_backlog *backlog)
{
    /* Without a message since the last check, what has arrived may be one that is not complete. */
    backlog->was_empty |= backlog->taken_bytes > 0;
}

bool kvb_backlog_is_above(struct kvb_backlog *backlog, uint64_t max_bytes, uint64_t now_ns)
{
    uint64_t received = 0;

    /* The descriptor may be another file by now.  Only a figure that matters is made sure of. */
    if (!read_received(backlog->connection.fd, &received)) {
        return false;
    }
    if (backlog->was_empty) {
        /* What has come since it was empty is not counted: less than one check's worth. */
        backlog->settled_bytes = received;
        backlog->settled_ns = now_ns;
        backlog->taken_bytes = 0;
        backlog->was_empty = false;
        return false;
    }
    /* Answers to pings are read within libzmq, and never taken here. */
    const uint64_t pongs = (now_ns - backlog->settled_ns) / KVB_NS_PER_S * pong_bytes_a_second;
    const uint64_t allowed = backlog->settled_bytes + backlog->taken_bytes + pongs + max_bytes;
    /* Above by a figure that may be another file's: it is read once more over a descriptor that is
     * held. */
    return received > allowed && kvb_connection_received(&backlog->connection, &received) &&
           received > allowed;
}
