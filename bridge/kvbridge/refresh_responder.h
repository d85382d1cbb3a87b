#pragma once

#include "bus/bus.h"
#include "core/ring.h"
#include "core/status.h"
#include "wire/query/refresh.h"

#include <stdbool.h>
#include <stdint.h>

/* Hands requests on P.kv_refresh from nats.c's thread to the thread that owns the streams.
 *
 *     nats.c --> request, or why it is invalid    --> ring --> kvb_refresh_responder_take()
 *                                                        | full, or an unusable reply subject
 *                                                        +--> counted and dropped
 *
 * A plain message is a request too; it gets no answer.
 * Threads: receive() on nats.c's; the rest on the owner's. */

enum { kvb_refresh_reply_bytes = 256 };

struct kvb_pending_refresh {
    struct kvb_refresh_request request; /* unless `status` is an error */
    bool is_bad;
    struct kvb_detail why;               /* why the request is invalid */
    char reply[kvb_refresh_reply_bytes]; /* "": no answer is expected */
};

struct kvb_refresh_responder {
    struct kvb_ring *incoming; /* owned */
    _Atomic uint64_t refused;  /* invalid bodies, unusable reply subjects, requests lost in a flood;
                                  the owner adds those that it refuses */
};

/* KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_refresh_responder_init(struct kvb_refresh_responder *responder);

/* {0} is fine. */
void kvb_refresh_responder_done(struct kvb_refresh_responder *responder);

/* A kvb_bus_handler; context is the responder. */
void kvb_refresh_responder_receive(void *context, const struct kvb_bus_message *message);

/* A descriptor that is readable while requests wait.  Borrowed. */
int kvb_refresh_responder_fd(const struct kvb_refresh_responder *responder);

/* KVB_AGAIN: no request waits. */
kvb_status kvb_refresh_responder_take(
    struct kvb_refresh_responder *responder, struct kvb_pending_refresh *out_pending);
