#pragma once

#include "core/buf.h"
#include "core/span.h"

#include <stdbool.h>
#include <stdint.h>

/* sgl-router's side of gRPC, as little of HTTP/2 as one request at a time on one connection needs:
 * a header that is the same in every request, and frames of which only the ends are looked at. */

struct caller {
    int fd;
    uint32_t stream; /* of the newest request */
    uint32_t unread; /* bytes of answers that the server may not count on again yet */
    struct kvb_buf sent;
    uint8_t received[1 << 16];
    size_t len;
};

/* False: nobody listens. */
bool caller_open(struct caller *caller, uint16_t port);
void caller_close(struct caller *caller);

/* Sends the message and waits for the end of its answer.  Returns the bytes of the answer's
 * message; 0: it was refused, or the connection ended. */
size_t caller_ask(struct caller *caller, kvb_span message);
