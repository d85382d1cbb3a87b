#pragma once

#include "core/buf.h"
#include "core/detail.h"
#include "core/log.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The HTTP side, on libmicrohttpd's own threads: collects a request, calls one
 * handler, sends its answer.  Knows no path.
 *
 * Threads: the handler runs on any of the server's threads, several at once. */
struct kvb_http;

struct kvb_http_request {
    const char *method;        /* all borrowed for the call */
    const char *path;          /* without the query part */
    const char *query;         /* after '?', as sent; "" when there is none */
    const char *content_type;  /* "" when not given */
    const char *authorization; /* "" when not given */
    const char *if_none_match; /* "" when not given */
    kvb_span body;
};

struct kvb_http_header {
    const char *name;
    const char *value;
};

/* The handler fills this; body is freed by the server. */
struct kvb_http_answer {
    unsigned status;                       /* 200, 404, ... */
    const char *content_type;              /* static; NULL for none */
    const char *allow;                     /* static; for 405, e.g. "GET"; else NULL */
    const struct kvb_http_header *headers; /* static, up to one without a name; or NULL */
    struct kvb_buf body;
};

typedef void (*kvb_http_handler)(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);

struct kvb_http_options {
    const char *listen;       /* "127.0.0.1:9402"; port 0 draws a free one */
    size_t max_body_bytes;    /* above: 413 with a sentence */
    unsigned threads;         /* 1 .. 16 */
    unsigned max_connections; /* above: 503 with a sentence; 0: kvb_max_http_connections */
    struct kvb_log *log;      /* borrowed; may be NULL */
    kvb_http_handler handler;
    void *context;
};

/* KVB_BAD_CONFIG  listen is no address:port, or may not be listened on; detail says
 * KVB_IO          the port is taken, or the address not there yet: detail says */
kvb_status kvb_http_start(
    const struct kvb_http_options *options, struct kvb_http **out_http, struct kvb_detail *detail);

/* The port that is listened on. */
uint16_t kvb_http_port(const struct kvb_http *http);

/* No handler runs after it returns.  NULL is fine. */
void kvb_http_stop(struct kvb_http *http);
