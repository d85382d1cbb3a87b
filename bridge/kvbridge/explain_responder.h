#pragma once

#include "bus/bus.h"
#include "core/ring.h"
#include "core/status.h"
#include "wire/query/explain.h"

#include <stdbool.h>
#include <stdint.h>

/* Hands requests on P.kv_explain.{worker_id}.{dp_rank} from nats.c's thread to the thread that owns
 * the streams.  People send them, a few at a time; more are dropped before they are decoded, and so
 * are requests about streams of other bridges, because each bridge receives every request.
 *
 * Threads: receive() on nats.c's; the rest on the owner's. */

enum { kvb_explain_reply_bytes = 256 };

struct kvb_pending_explain {
    uint64_t worker_id;
    uint32_t dp_rank;
    struct kvb_explain_request request; /* unless `why` says why it is invalid */
    bool is_bad;
    struct kvb_detail why;
    char reply[kvb_explain_reply_bytes];
};

struct kvb_explain_responder {
    struct kvb_ring *incoming; /* owned */
    _Atomic uint64_t refused;  /* invalid ones, and those lost in a flood */

    /* Whether the stream is of this bridge.  On nats.c's thread; NULL: all are. */
    bool (*has_stream)(void *context, uint64_t worker_id, uint32_t dp_rank);
    void *context;
};

/* has_stream and context are the caller's.  KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_explain_responder_init(struct kvb_explain_responder *responder);

/* {0} is fine. */
void kvb_explain_responder_done(struct kvb_explain_responder *responder);

/* A kvb_bus_handler; context is the responder. */
void kvb_explain_responder_receive(void *context, const struct kvb_bus_message *message);

/* The caller owns the request, and frees it with kvb_pending_explain_free().  NULL: none waits. */
struct kvb_pending_explain *kvb_explain_responder_take(struct kvb_explain_responder *responder);
void kvb_pending_explain_free(struct kvb_pending_explain *pending);
