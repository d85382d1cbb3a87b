#pragma once

#include "core/buf.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/span.h"
#include "core/status.h"
#include "daemon/http_access.h"

#include <stdbool.h>
#include <stdint.h>

struct sockaddr_storage;

/* The HTTP server, on libmicrohttpd's threads.  It collects a request, calls one handler, and sends
 * the answer.
 *
 * No client can block others (http_slots.h).  A client has kvb_http_grace_s to send a header, to
 * send a body or to read an answer, and one more second for each kvb_http_bytes_a_second of body
 * or answer that was transferred.  It gets at most three quarters of the connections and of the
 * memory.  When connections run out, the server closes one that waits for its client, and takes the
 * new one.  When none waits, the new one is answered with 503, except on vital paths.
 *
 * With options.security the server uses TLS when certificates are configured.  It checks a request
 * when its header is complete: a request without the token that the rule of its path requires
 * (http_access.h) is refused, and its body is not read.  A connection is proven by its first
 * granted request to a guarded path (to any path when nothing is required).  Unproven connections
 * take at most half of all, and are closed first when connections run out.  While that half is
 * taken, a new connection is answered when its first request is granted, else with 503.
 *
 * Memory: kvb_max_http_held_bytes for all bodies and answers, and kvb_http_own_bytes for each
 * connection; above that: 503 with Retry-After.  An answer is counted when it is complete, so each
 * thread may have one that is not counted yet.
 *
 * A handler that must wait for another thread gives that thread the request's `later`, and returns.
 * Then only the connection waits, and the thread serves others:
 *
 *     thread of the server      handler() | serves others ........... | finish() | sends
 *     another thread                      | kvb_http_wake(later) -----^
 *
 * Threads: the handler runs on any of the server's threads, several at once; finish() and next() on
 * the thread of their connection. */
struct kvb_control;
struct kvb_http;

/* A request whose answer may come later. */
struct kvb_http_later;

enum {
    kvb_http_grace_s = 10,
    kvb_http_wait_s = 2, /* for an answer that comes later */
    kvb_http_bytes_a_second = 256 << 10
};

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_HTTP_METRICS(X) \
    X(http_connections, GAUGE, "kvb_http_connections", "", "HTTP connections that are open") \
    X(http_held, GAUGE, "kvb_http_held_bytes", "", "Memory that bodies and answers of HTTP take, beyond 64 KiB of each connection; at most 64 MiB") \
    X(http_refused_crowded, COUNTER, "kvb_http_refused_total", "reason=\"connections\"", "HTTP requests refused, by reason; connections, memory: 503 of the server itself; denied: 401 and 403; malformed: a header that is none of HTTP, or above 32 KiB; request: any other 4xx") \
    X(http_refused_memory, COUNTER, "kvb_http_refused_total", "reason=\"memory\"", "HTTP requests refused, by reason; connections, memory: 503 of the server itself; denied: 401 and 403; malformed: a header that is none of HTTP, or above 32 KiB; request: any other 4xx") \
    X(http_refused_denied, COUNTER, "kvb_http_refused_total", "reason=\"denied\"", "HTTP requests refused, by reason; connections, memory: 503 of the server itself; denied: 401 and 403; malformed: a header that is none of HTTP, or above 32 KiB; request: any other 4xx") \
    X(http_refused_malformed, COUNTER, "kvb_http_refused_total", "reason=\"malformed\"", "HTTP requests refused, by reason; connections, memory: 503 of the server itself; denied: 401 and 403; malformed: a header that is none of HTTP, or above 32 KiB; request: any other 4xx") \
    X(http_refused_request, COUNTER, "kvb_http_refused_total", "reason=\"request\"", "HTTP requests refused, by reason; connections, memory: 503 of the server itself; denied: 401 and 403; malformed: a header that is none of HTTP, or above 32 KiB; request: any other 4xx") \
    X(http_closed_late, COUNTER, "kvb_http_closed_total", "reason=\"late\"", "HTTP connections closed on their client, by reason; late: idle, or too slow with a header, a body or the reading of an answer") \
    X(http_closed_crowded, COUNTER, "kvb_http_closed_total", "reason=\"crowded\"", "HTTP connections closed on their client, by reason; late: idle, or too slow with a header, a body or the reading of an answer")
/* clang-format on */

struct kvb_http_request {
    const char *method;        /* all borrowed for the call */
    const char *path;          /* without its parameters */
    const char *parameters;    /* after '?', as sent; "" when there are none */
    const char *content_type;  /* "" when not given */
    const char *authorization; /* "" when not given */
    const char *if_none_match; /* "" when not given */
    kvb_span body;
    struct kvb_http_later *later; /* valid until finish() or drop() is called */
};

struct kvb_http_header {
    const char *name;
    const char *value;
};

/* The handler fills this; body is freed by the server.
 *
 * A long answer is sent in parts: body is the first.  When a part was sent, next() writes the
 * next one into the emptied body, on a thread of the server.  KVB_AGAIN: more follow; KVB_OK:
 * this was the last; any other status closes the connection, so that no client takes a partial
 * answer for the whole.
 *
 * An answer that comes later has finish(), drop() and parts, and nothing else.  After
 * kvb_http_wake(), or kvb_http_wait_s without it, finish() makes the answer in *answer, which still
 * has drop() and parts. */
struct kvb_http_answer {
    unsigned status;                       /* 200, 404, ... */
    const char *content_type;              /* static; NULL for none */
    const char *allow;                     /* static; for 405, e.g. "GET"; else NULL */
    const struct kvb_http_header *headers; /* static, ended by a NULL name; or NULL */
    struct kvb_buf body;
    kvb_status (*next)(void *parts, struct kvb_buf *body); /* NULL: body is the whole answer */
    void (*finish)(void *parts, struct kvb_http_answer *answer); /* NULL: the answer is made */
    void (*drop)(void *parts); /* called once in any case when parts is set */
    void *parts;
};

typedef void (*kvb_http_handler)(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer);

/* The rule of a path.  Paths without a rule are KVB_HTTP_GUARDED. */
struct kvb_http_path_rule {
    const char *path; /* NULL ends a list */
    enum kvb_http_rule rule;
};

struct kvb_http_options {
    struct kvb_control *control; /* closes connections whose time is over; borrowed until the end */
    const char *listen;          /* "127.0.0.1:9402"; port 0 picks a free one */
    size_t max_body_bytes;       /* above: 413 with an error text */
    unsigned threads;            /* 1 .. 16 */
    unsigned max_connections;    /* 0: kvb_max_http_connections */
    const char *const *vital;    /* paths answered even when full; ends with NULL; static or NULL */
    const struct kvb_http_security *security; /* NULL: nothing is required; borrowed until the end,
                                                 like the next two */
    const char *register_token_file;          /* "" or NULL: none */
    const struct kvb_http_path_rule *rules;   /* NULL: none */
    size_t max_held_bytes;                    /* 0: kvb_max_http_held_bytes */
    uint64_t grace_ms;                        /* 0: kvb_http_grace_s */
    uint64_t wait_ms;                         /* 0: kvb_http_wait_s */
    struct kvb_log *log;                      /* borrowed, like metrics; both may be NULL */
    struct kvb_metrics *metrics;
    size_t first_metric; /* of the block above */
    kvb_http_handler handler;
    void *context;
};

/* The largest number of open files that a server with these limits needs. */
size_t kvb_http_files(unsigned max_connections, unsigned threads);

/* KVB_BAD_CONFIG  listen is not address:port, listening there is not permitted, or a file of
 *                 options.security cannot be used; detail says which
 * KVB_IO          the port is taken, or the address does not exist (yet); detail says which */
kvb_status kvb_http_start(
    const struct kvb_http_options *options, struct kvb_http **out_http, struct kvb_detail *detail);

/* Reads certificate, key and token again: kvb_http_access_reload(). */
void kvb_http_reload(struct kvb_http *http);

/* Has finish() called for a request.  Any thread; also before the handler returns, or twice. */
void kvb_http_wake(struct kvb_http_later *later);

/* The port on which the server listens. */
uint16_t kvb_http_port(const struct kvb_http *http);

/* Requests whose answers come later are answered first.  No handler runs after it returns.  NULL is
 * fine. */
void kvb_http_stop(struct kvb_http *http);

/* True when kvb_http_start() accepts this text as an address and port. */
bool kvb_http_listen_is_valid(const char *listen);

/* Parses a numeric address and port: "127.0.0.1:9402", "[::1]:9402".  Names are not accepted,
 * because a look-up could block.  False: it is neither. */
bool kvb_http_listen_read(const char *listen, struct sockaddr_storage *out_address);

/* True when only processes of this host can reach it. */
bool kvb_http_listen_is_loopback(const char *listen);

/* ---- For handlers: errors, and the parts of a request.  Threads: any ---- */

/* Fills the answer with the status and {"error":"..."}. */
void kvb_http_refuse(struct kvb_http_answer *answer, unsigned status, const char *sentence);

/* {"error":"..."}; KVB_NO_MEMORY, KVB_TOO_LARGE. */
kvb_status kvb_http_write_error(const char *sentence, struct kvb_buf *out);

/* True for "application/json", with or without parameters, in upper or lower case. */
bool kvb_http_is_json(const char *content_type);

/* The value of a key among parameters such as "format=rows&down=true", not decoded.
 * False when it is missing or too long for out. */
bool kvb_http_parameter(const char *parameters, const char *key, char *out, size_t out_bytes);
