#pragma once

#include "ingest/zmq/context.h"
#include "ingest/zmq/message.h"
#include "ingest/zmq/source.h"
#include "ingest/zmq/zap.h"

enum { kvb_max_zmq_contexts = 16 };

/* The fields of the context, for the files of this room only. */
struct kvb_zmq {
    void *contexts[kvb_max_zmq_contexts];   /* owned; NULL: not opened yet */
    void *responders[kvb_max_zmq_contexts]; /* owned; of ZAP; NULL: not needed yet */
    struct kvb_zap_rule *rules;             /* borrowed from the sources */

    /* The messages of the last receive, shared by all sources so that a thousand sources do not
     * each need a buffer. */
    struct kvb_zmq_message run[kvb_source_run];
    size_t run_count;
};

/* The context for the sockets of this owner, a number of the poller; NULL: it cannot be opened,
 * errno says why. */
void *kvb_zmq_context(struct kvb_zmq *zmq, size_t owner);

/* The number of that context. */
size_t kvb_zmq_context_number(size_t owner);

void kvb_zmq_close_run(struct kvb_zmq *zmq);
