#pragma once

#include "core/detail.h"
#include "core/status.h"
#include "ingest/zmq_context.h"
#include "model/load.h"
#include "wire/coordinator.h"

#include <stddef.h>

/* Load figures of one worker from a PUB socket, of one of two kinds:
 *
 *     engine        the last frame of each message is a ForwardPassMetrics map; topic and
 *                   seq frames may stand before it
 *     coordinator   one frame, see wire/coordinator.h
 *
 * Nothing is ever sent but the subscription to everything: to vLLM's coordinator other
 * bytes would be commands.
 *
 * Threads: only the thread that made it. */
struct kvb_load_source;
struct kvb_waiter;

struct kvb_load_source_options {
    const char *endpoint;      /* "tcp://127.0.0.1:7557" */
    struct kvb_waiter *waiter; /* borrowed: told of the socket */
    size_t owner;              /* the waiter's number for this source */
};

/* KVB_BAD_CONFIG  libzmq refuses the endpoint; detail says why
 * KVB_NO_MEMORY, KVB_IO */
kvb_status kvb_load_source_open(
    struct kvb_zmq *zmq, const struct kvb_load_source_options *options,
    struct kvb_load_source **out_source, struct kvb_detail *detail);
void kvb_load_source_close(struct kvb_load_source *source);

/* Opens the socket anew: after a protocol error libzmq never connects again, and says so to
 * nobody.  For a source that is silent, in pauses that grow.
 * KVB_IO: it has no socket until the next time */
kvb_status kvb_load_source_renew(struct kvb_load_source *source);

/* The next message.  KVB_AGAIN nothing there; KVB_BAD_INPUT one of another kind: count
 * it. */
kvb_status
kvb_load_source_receive(struct kvb_load_source *source, struct kvb_load_sample *out_sample);
kvb_status kvb_load_source_receive_coordinator(
    struct kvb_load_source *source, struct kvb_coordinator_news *out_news);
