#pragma once

#include "core/detail.h"
#include "core/status.h"

#include <stddef.h>

/* The one ZMQ context of a bridge, sized for its publishers.
 *
 * Threads: any thread may make sockets; a socket belongs to the thread that uses it. */
struct kvb_zmq;

/* sockets: how many will be open at once, at most.
 * KVB_BAD_CONFIG  more descriptors than the process may open; detail says how
 *                 many are needed
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_zmq_new(size_t sockets, struct kvb_zmq **out_zmq, struct kvb_detail *detail);

/* All sockets must be closed.  NULL is fine. */
void kvb_zmq_free(struct kvb_zmq *zmq);

/* libzmq's own handle, for the files of this room. */
void *kvb_zmq_handle(struct kvb_zmq *zmq);
