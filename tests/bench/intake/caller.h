#pragma once

#include "core/buf.h"
#include "core/span.h"

#include <stdbool.h>
#include <stdint.h>

/* The client side of gRPC as sgl-router uses it, with as little HTTP/2 as one request at a time on
 * one connection needs: the same header in every request, and only the ends of frames are examined.
 */

struct caller {
    int fd;
    uint32_t stream; /* of the newest request */
    uint32_t unread; /* bytes of answers that the server may not count on again yet */
    struct kvb_buf sent;
    uint8_t received[1 << 16];
    size_t len;
};

/* False when nobody listens. */
bool caller_open(struct caller *caller, uint16_t port);
void caller_close(struct caller *caller);

/* Sends the message and waits for the end of its answer. Returns the bytes of the answer's message;
 * 0 when it was refused or the connection ended. */
size_t caller_ask(struct caller *caller, kvb_span message);
