#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The options of every socket to an engine; private to ingest/zmq/.
 *
 *     dead peer       detected after five heartbeats without an answer; without heartbeats by
 *                     TCP keepalive after 3 s
 *     dead bridge     the peer closes the connection after ten missing heartbeats
 *     no answer       to a TCP connection for 1 s, or to a handshake for 2 s: libzmq tries again
 *     reconnecting    by libzmq, after 100 ms plus up to 100 ms at random; doubled up to 1 s
 *     closing         at once: linger is 0
 *     lost            when its connection is lost, a SUB drops messages that it has received but
 *                     not delivered.  Otherwise libzmq (its issue 3937, also in 4.3.5) aborts the
 *                     process when a full pipe is read after another connection has replaced it
 *
 * Threads: only the thread that made it. */
struct kvb_curve;

struct kvb_zmq_socket_options {
    int type;          /* ZMQ_SUB, ZMQ_DEALER */
    int high_water;    /* messages received but not taken; 0: no limit */
    int heartbeat_ms;  /* period of pings, answered within a second; 0: no heartbeats */
    int64_t max_bytes; /* of one frame: a peer that sends a larger one is disconnected */
    bool is_ipv6;      /* its address is an IPv6 address */
    const struct kvb_curve *curve; /* borrowed for the call; NULL: no encryption */
    const char *domain;            /* ZAP domain of a listening socket; NULL: it connects */
};

/* On KVB_OK the caller closes *out_socket.  KVB_IO: errno says why */
kvb_status
kvb_zmq_socket_open(void *context, const struct kvb_zmq_socket_options *options, void **out_socket);

/* Sets *socket to NULL.  A *socket of NULL is fine. */
void kvb_zmq_socket_close(void **socket);
