#pragma once

#include "core/buf.h"
#include "core/span.h"

#include <stdbool.h>
#include <stdint.h>

/* An HTTP client: one request at a time on one connection.  An answer that is not 200 ends the
 * program, like an end of the connection. */

struct web {
    int fd;
    struct kvb_buf text; /* of the answer, head and body */
    size_t body_at;      /* in text; 0: the head has not arrived yet */
    size_t end;          /* of the whole answer */
};

/* False when nobody listens. */
bool web_open(struct web *web, uint16_t port);
void web_close(struct web *web);

void web_send(struct web *web, kvb_span request);

/* Receives once; true when the answer is complete. */
bool web_read(struct web *web);

/* Appends "POST /query" with a JSON body. */
void web_make_query(struct kvb_buf *out, kvb_span body);

/* ---- gRPC ----
 *
 * The client side as sgl-router uses it, with as little HTTP/2 as one request at a time on
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
