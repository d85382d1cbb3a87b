#pragma once

#include "core/status.h"

#include <microhttpd.h>
#include <stdint.h>

/* One HTTP server with a thread of its own, as both servers of the fleet start it. */

struct kvb_listen_options {
    const char *address; /* IPv4; borrowed for the call */
    uint16_t port;       /* 0: any free one */
    MHD_AccessHandlerCallback on_request;
    MHD_RequestCompletedCallback on_completed; /* NULL: none */
    void *context;                             /* of both; borrowed until the server is stopped */
};

/* On KVB_OK the caller ends it with MHD_stop_daemon().  Connections may be suspended.
 * KVB_BAD_CONFIG  no such address, or it cannot be listened on: detail says which */
kvb_status kvb_listen(
    const struct kvb_listen_options *options, struct kvb_detail *detail,
    struct MHD_Daemon **out_daemon, uint16_t *out_port);
