#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* How every socket towards an engine is set up; for the files of this room.
 *
 *     dead peer       found by heartbeats, not by TCP: five without an answer
 *     dead bridge     the peer lets go of us when ten are missing
 *     no answer       to a TCP connection for 1 s, or to its handshake for 2 s: again
 *     reconnecting    after 100 ms and up to 100 ms more, drawn by libzmq; doubled up to 1 s
 *     closing         at once: nothing lingers
 *
 * Threads: only the thread that made it. */
struct kvb_zmq_socket_options {
    int type;           /* ZMQ_SUB, ZMQ_DEALER */
    int high_water;     /* messages received and not taken; 0: any number */
    int heartbeat_ms;   /* 200 finds a dead peer in a second; 0: TCP looks, in 3 s */
    int64_t most_bytes; /* of one frame: a peer that sends a larger one is disconnected */
};

/* On KVB_OK the caller closes *out_socket.  KVB_IO: errno says why */
kvb_status
kvb_zmq_socket_open(void *context, const struct kvb_zmq_socket_options *options, void **out_socket);

/* *socket becomes NULL; NULL is fine. */
void kvb_zmq_socket_close(void **socket);
