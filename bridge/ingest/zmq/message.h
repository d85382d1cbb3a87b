#pragma once

#include "core/status.h"
#include "ingest/zmq/frames.h"

#include <zmq.h>

/* One received message with all its frames; private to ingest/zmq/.
 * Threads: only the thread that made it. */
struct kvb_zmq_message {
    zmq_msg_t parts[kvb_max_frames];
    size_t part_count;
    struct kvb_frames frames; /* they point into parts */
};

/* Receives one message without waiting.  On KVB_OK the caller closes it.
 * KVB_AGAIN: there is none.  KVB_IO: the socket cannot be used. */
kvb_status kvb_zmq_message_receive(void *socket, struct kvb_zmq_message *message);
void kvb_zmq_message_close(struct kvb_zmq_message *message);

/* What it had on the wire: each frame has a header of 2 or 9 bytes. */
uint64_t kvb_zmq_message_wire_bytes(const struct kvb_zmq_message *message);
