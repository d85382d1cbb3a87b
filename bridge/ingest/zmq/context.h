#pragma once

#include "core/status.h"

#include <stddef.h>

/* The ZMQ contexts of a bridge: one for each 256 publishers, 16 at most, each opened with its
 * first socket.  libzmq scans all timers of an I/O thread whenever it stops one, and each
 * connection has a heartbeat timer: a thousand connections on one thread would spend a fifth of
 * a core on that.  Each context has one I/O thread, so that the monitor's events of one socket
 * arrive in the order in which they happened.  Each context has room for its share of
 * kvb_max_streams, because publishers are added at run time and a context cannot grow.
 *
 * Threads: only the thread that uses its sockets, except where it says otherwise. */
struct kvb_zmq;

struct kvb_zmq_size {
    size_t publishers; /* event sockets, one a rank */
    size_t loads;      /* load sockets */
    size_t others;     /* other open files of the process */
};

/* Raises the process's limit of open files to what is needed, as far as the hard limit allows.
 * KVB_BAD_CONFIG  the hard limit is too low; detail says how many are needed, and what to do */
kvb_status kvb_zmq_raise_limits(const struct kvb_zmq_size *size, struct kvb_detail *detail);

/* KVB_NO_MEMORY */
kvb_status kvb_zmq_new(struct kvb_zmq **out_zmq);

/* Answers libzmq's requests whether an engine may connect to a socket with CURVE that listens:
 * ingest/zmq/zap.h.  Call it a few times a second or more: a handshake waits for the answer. */
void kvb_zmq_answer_handshakes(struct kvb_zmq *zmq);

/* All sockets must be closed.  NULL is fine. */
void kvb_zmq_free(struct kvb_zmq *zmq);
