#pragma once

#include "core/status.h"
#include "ingest/zmq/frames.h"

#include <zmq.h>

/* One received message with all its frames; for the files of this room.
 * Threads: only the thread that made it. */
struct kvb_zmq_message {
    zmq_msg_t parts[kvb_max_frames];
    size_t part_count;
    struct kvb_frames frames; /* point into parts */
};

/* Receives without waiting.  On KVB_OK the caller closes it.
 * KVB_AGAIN nothing there, KVB_IO the socket is broken */
kvb_status kvb_zmq_message_receive(void *socket, struct kvb_zmq_message *message);
void kvb_zmq_message_close(struct kvb_zmq_message *message);
