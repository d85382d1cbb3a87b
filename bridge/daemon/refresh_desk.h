#pragma once

#include "bus/bus.h"
#include "core/detail.h"
#include "core/ring.h"
#include "core/status.h"
#include "wire/refresh_json.h"

#include <stdbool.h>
#include <stdint.h>

/* Requests on P.kv_refresh, from nats.c's thread to the thread that owns the streams.
 *
 *     nats.c --> decoded, or what is wrong with it --> ring --> kvb_refresh_desk_take()
 *                                                        | full, or no place for an answer
 *                                                        +--> counted and dropped
 *
 * A plain message is a request too; it has no answer.
 * Threads: hear() on nats.c's; the rest on the owner's. */

enum { kvb_refresh_reply_bytes = 256 };

struct kvb_refresh_ask {
    struct kvb_refresh_request request; /* unless it is bad */
    bool is_bad;
    struct kvb_detail why;               /* it is bad */
    char reply[kvb_refresh_reply_bytes]; /* "": nobody waits for an answer */
};

struct kvb_refresh_desk {
    struct kvb_ring *asks;    /* owned */
    _Atomic uint64_t refused; /* bad bodies, bad reply subjects, what a flood lost; the owner adds
                                  what it refuses */
};

/* KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_refresh_desk_init(struct kvb_refresh_desk *desk);

/* {0} is fine. */
void kvb_refresh_desk_done(struct kvb_refresh_desk *desk);

/* A kvb_bus_handler; context is the desk. */
void kvb_refresh_desk_hear(void *context, const struct kvb_bus_message *message);

/* Readable while requests wait.  Borrowed. */
int kvb_refresh_desk_fd(const struct kvb_refresh_desk *desk);

/* KVB_AGAIN: none waits. */
kvb_status kvb_refresh_desk_take(struct kvb_refresh_desk *desk, struct kvb_refresh_ask *out_ask);
