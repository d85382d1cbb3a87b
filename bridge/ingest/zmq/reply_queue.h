#pragma once

#include "core/span.h"
#include "core/status.h"
#include "ingest/zmq/message.h"

#include <stddef.h>
#include <stdint.h>

/* The replies of a replay that were received and not yet applied; private to ingest/zmq/.
 * libzmq's own queue is unbounded, so replies are moved from it at once:
 *
 *     DEALER --- put ---> [ oldest | ... | newest ] --- take ---> one by one
 *
 * Threads: only the thread that made it.
 * Memory:  max_bytes, or two replies if these are larger, so that each round of a replay
 *          makes progress by at least one reply. */
enum kvb_reply_kind { kvb_reply_batch, kvb_reply_end, kvb_reply_bad };

struct kvb_reply {
    enum kvb_reply_kind kind;
    bool has_topic;
    uint64_t seq;
    zmq_msg_t payload; /* owned */
};

struct kvb_reply_queue {
    struct kvb_reply *items; /* owned */
    size_t first, end, capacity;
    size_t bytes;
    size_t max_bytes;
};

void kvb_reply_queue_done(struct kvb_reply_queue *queue);
size_t kvb_reply_queue_count(const struct kvb_reply_queue *queue);

/* Moves a reply of any kind into the queue.
 * KVB_TOO_LARGE (above the limit), KVB_NO_MEMORY: the caller still owns the message. */
kvb_status kvb_reply_queue_put(struct kvb_reply_queue *queue, struct kvb_zmq_message *message);

/* Removes the oldest reply.  The caller closes it: zmq_msg_close(&reply.payload).
 * KVB_AGAIN: the queue is empty. */
kvb_status kvb_reply_queue_take(struct kvb_reply_queue *queue, struct kvb_reply *out_reply);
