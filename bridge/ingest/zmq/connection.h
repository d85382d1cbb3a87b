#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One connection of a libzmq socket, as the kernel sees it: how much it has brought, and its end.
 *
 * A monitor reports the descriptor.  libzmq owns it and may close it at any moment, and its number
 * may then become another file of this process.  So it is duplicated for each use, and the
 * duplicate is used only while it is the same socket (its inode) as when the connection was
 * reported. ZMQ_EVENT_DISCONNECTED precedes the close, so the inode is right if that event has not
 * come by the next time that the monitor is read.
 *
 * Threads: the caller locks. */
struct kvb_connection {
    int fd; /* libzmq's; -1: none */
    uint64_t inode;
};

struct kvb_connection kvb_connection_none(void);
struct kvb_connection kvb_connection_of(int fd);

/* Bytes that have arrived, read or not.  False: it has ended, or it is not TCP, of which the kernel
 * keeps no such count. */
bool kvb_connection_received(const struct kvb_connection *connection, uint64_t *out_bytes);

/* Shuts it down: libzmq finds it ended, as if the peer had ended it.  False: it has ended. */
bool kvb_connection_end(const struct kvb_connection *connection);

/* How much a connection has brought that nobody has taken from its socket.  libzmq's queue has no
 * limit (socket.h says why), so its owner ends a connection that brings more than it takes.
 *
 *     settled              now
 *        |--- taken ---|--- waits ---|        bytes that have arrived
 *
 * What waits is known from when the socket was last found empty.  Bytes that are no message yet,
 * as of one whose last frame never comes, count too; answers to pings are allowed for.
 *
 * Threads: the caller locks. */
struct kvb_backlog {
    struct kvb_connection connection;
    uint64_t settled_bytes; /* had arrived when the socket was last known to be empty */
    uint64_t settled_ns;    /* when that was */
    uint64_t taken_bytes;   /* since then */
    bool was_empty;         /* found empty since the last check, after taking something */
};

struct kvb_backlog kvb_backlog_of(int fd, uint64_t now_ns);
void kvb_backlog_take(struct kvb_backlog *backlog, uint64_t bytes);
void kvb_backlog_found_empty(struct kvb_backlog *backlog);
/* True: more than max_bytes wait.  One system call, unless it is so. */
bool kvb_backlog_is_above(struct kvb_backlog *backlog, uint64_t max_bytes, uint64_t now_ns);
