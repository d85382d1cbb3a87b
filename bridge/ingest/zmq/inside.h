#pragma once

#include "ingest/zmq/context.h"
#include "ingest/zmq/message.h"
#include "ingest/zmq/reader_watch.h"
#include "ingest/zmq/source.h"

enum { kvb_max_zmq_contexts = 16 };

/* Private to ingest/zmq/: the contexts. */
struct kvb_zmq {
    struct kvb_control *control;           /* borrowed; NULL: no event server is opened */
    void *contexts[kvb_max_zmq_contexts];  /* owned; NULL: not opened yet */
    struct kvb_reader_watch *reader_watch; /* owned; NULL: no event server was opened yet */
    size_t publishers;                     /* there will be so many soon: kvb_zmq_expect() */

    /* The messages of the last receive.  All sources share this buffer, which saves memory with a
     * thousand sources. */
    struct kvb_zmq_message run[kvb_source_run];
    size_t run_count;
};

/* The context for the sockets of this owner of the poller.  NULL: it cannot be opened; errno says
 * why. */
void *kvb_zmq_context(struct kvb_zmq *zmq, size_t owner);

void kvb_zmq_close_run(struct kvb_zmq *zmq);
