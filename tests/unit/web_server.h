#pragma once

#include <stddef.h>
#include <stdint.h>

/* A web server on loopback that answers each path as the test says, and misbehaves on request. Each
 * connection has a thread of its own, so one that hangs does not stop others. Threads: its own; all
 * calls only from the thread that started it. */

enum web_manner {
    web_answers,     /* 200, the body, Connection: keep-alive */
    web_in_parts,    /* the same, chunked, a few bytes at a time */
    web_refuses,     /* 503, the body, Retry-After: 7 */
    web_rejects,     /* 400, the body */
    web_echoes,      /* 200, and the request's Authorization */
    web_echoes_body, /* 200, and "{content type}: {body}" of a POST */
    web_sends_on,    /* 302 to /ok */
    web_compresses,  /* 200, and a header that says the body is gzip */
    web_cuts,        /* promises 100 bytes more than it sends, and closes */
    web_hangs,       /* does not answer */
    web_endless      /* the body again and again, until the client closes */
};

struct web_page {
    const char *path; /* "/ok" */
    enum web_manner manner;
    const char *body;
};

struct web_server;

/* pages is borrowed until the stop; a page without a path ends it. */
struct web_server *web_server_start(const struct web_page *pages);
/* How many requests the server has received. */
unsigned web_server_requests(const struct web_server *server);

void web_server_stop(struct web_server *server);

/* "http://127.0.0.1:port/path" */
const char *web_server_url(const struct web_server *server, const char *path, char out[128]);
