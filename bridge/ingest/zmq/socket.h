#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The options of every socket to an engine; for the files of this room.
 *
 *     dead peer       detected by heartbeats, not by TCP: five without an answer
 *     dead bridge     the peer closes the connection when ten heartbeats are missing
 *     no answer       to a TCP connection for 1 s, or to its handshake for 2 s: tries again
 *     reconnecting    after 100 ms plus up to 100 ms at random, by libzmq; doubled up to 1 s
 *     closing         at once: linger is 0
 *     lost            a SUB drops what it has received but not delivered when its connection is
 *                     lost: otherwise libzmq (its issue 3937, in 4.3.5 too) aborts the process
 *                     when a full pipe is read after another connection has taken its place
 *
 * Threads: only the thread that made it. */
struct kvb_curve;

struct kvb_zmq_socket_options {
    int type;          /* ZMQ_SUB, ZMQ_DEALER */
    int high_water;    /* messages received and not taken; 0: any number */
    int heartbeat_ms;  /* 200 detects a dead peer in 1 s; 0: TCP detects it in 3 s */
    int64_t max_bytes; /* of one frame: a peer that sends a larger one is disconnected */
    bool is_ipv6;      /* its address is one of IPv6 */
    const struct kvb_curve *curve; /* borrowed for the call; NULL: in clear, with anybody */
    const char *domain;            /* the socket listens, and ZAP gets this; NULL: it connects */
};

/* On KVB_OK the caller closes *out_socket.  KVB_IO: errno says why */
kvb_status
kvb_zmq_socket_open(void *context, const struct kvb_zmq_socket_options *options, void **out_socket);

/* *socket becomes NULL; NULL is fine. */
void kvb_zmq_socket_close(void **socket);
