#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The options of every socket to an engine; private to ingest/zmq/.
 *
 *     frozen peer     does not answer a ping within a second; without pings not detected here
 *     lost host       found by TCP keepalive after 3 s
 *     dead bridge     the peer closes the connection after ten missing heartbeats
 *     no answer       to a TCP connection for 1 s, or to a handshake for 2 s: libzmq tries again
 *     reconnecting    by libzmq, after 100 ms plus up to 100 ms at random; doubled up to 1 s
 *     closing         at once: linger is 0
 *
 * No peer may end the process.  libzmq (4.3.4 and its newest) has assertions that
 * a peer can make fail:
 *
 *     !_io_error (stream_engine_base)      a ping, or the answer to one, is due while input is
 *                                          stopped, because the queue is full, on a connection that
 *                                          has failed meanwhile
 *     _input_stopped (stream_engine_base)  a full queue is read after another connection has
 *                                          taken it over (its issue 3937)
 *     !_more (fq)                          ZMQ_IMMEDIATE: a loss ends the queue at once, also
 *                                          between two frames of a message that is being read
 *
 * The first two also fail without our pings: a peer may ping us.  So no socket has a limit to its
 * queue (ZMQ_RCVHWM is 0), and its input never stops.  What waits in it is limited from outside:
 * see connection.h.  And ZMQ_IMMEDIATE stays off: a SUB keeps its queue through a loss, and its
 * owner opens another SUB.
 *
 * Threads: only the thread that made it. */
struct kvb_zmq_socket_options {
    int type;          /* ZMQ_SUB, ZMQ_DEALER */
    int heartbeat_ms;  /* period of pings, answered within a second; 0: no pings */
    int64_t max_bytes; /* of one frame: a peer that sends a larger one is disconnected */
    bool is_ipv6;      /* its address is an IPv6 address */
};

/* On KVB_OK the caller closes *out_socket.  KVB_IO: errno says why */
kvb_status
kvb_zmq_socket_open(void *context, const struct kvb_zmq_socket_options *options, void **out_socket);

/* Sets *socket to NULL.  A *socket of NULL is fine. */
void kvb_zmq_socket_close(void **socket);
