#pragma once

#include "ingest/zmq_context.h"
#include "ingest/zmq_message.h"
#include "ingest/zmq_source.h"

enum { kvb_most_zmq_contexts = 16 };

/* The inside of the context, for the files of this room alone. */
struct kvb_zmq {
    void *contexts[kvb_most_zmq_contexts]; /* owned; NULL: not opened yet */

    /* Of the last receive, whichever source's it was: a thousand sources need no run
     * of their own each. */
    struct kvb_zmq_message run[kvb_source_run];
    size_t run_count;
};

/* The context of the sockets of this owner, as the waiter counts them; NULL: it cannot be
 * opened, errno says why. */
void *kvb_zmq_context(struct kvb_zmq *zmq, size_t owner);

void kvb_zmq_close_run(struct kvb_zmq *zmq);
