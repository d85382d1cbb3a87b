#pragma once

#include "core/buf.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/span.h"
#include "core/status.h"
#include "daemon/config_parts.h"
#include "grpc/session.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_control;
struct kvb_http_security;
struct sockaddr_storage;

/* A gRPC server of the methods in its table, over HTTP/2 (session.h), with TLS where
 * options.security names certificates (tls.h).
 *
 *     clients <-->    control thread    --handler()--> the owner's threads
 *                          ^                                  |
 *                          +------------- ring <-- finish() --+
 *
 * A unary call belongs to the handler until it is finished: the server counts it as under way until
 * then, even if its client is gone.  Of methods with messages both ways the owner gets all that
 * happens, and answers on the control thread; work of other threads it takes up in on_turn(), when
 * work_fd is readable.
 *
 * Connections: a new one above kvb_max_grpc_connections makes the one go that never completed a
 * request, else the one that is idle longest; when all are busy it is ended itself, with SETTINGS
 * and a GOAWAY, for which there are kvb_max_grpc_extra places more (with TLS: it is closed).  Those
 * that do not complete a request in kvb_grpc_grace_s, read nothing for that long, or are idle for
 * kvb_grpc_idle_s, are closed.
 *
 * With TLS, a handshake has half of kvb_grpc_grace_s, and a connection in it makes room before all
 * others.  Handshakes cost the CPU time of a signature each, so in each turn they
 * come after the connections that are open, and end when they have taken kvb_grpc_handshakes_us.
 *
 * Threads: a job of the control thread, on which the handler runs.
 * Memory:  bodies and answers: kvb_max_grpc_held_bytes; per connection some 20 KiB, with TLS 60
 *          KiB, and 64 KiB to be sent. */
struct kvb_grpc;

/* A request on its way. */
struct kvb_grpc_call;

enum { kvb_grpc_idle_s = 300, kvb_grpc_stop_ms = 1000, kvb_grpc_handshakes_us = 2000 };

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_GRPC_METRICS(X) \
    X(grpc_connections, GAUGE, "kvb_grpc_connections", "", "gRPC connections that are open; at most 256, and 32 that are being refused") \
    X(grpc_under_way, GAUGE, "kvb_grpc_requests_under_way", "", "gRPC requests that are being answered; at most 32") \
    X(grpc_held, GAUGE, "kvb_grpc_held_bytes", "", "Memory that bodies and answers of gRPC take; at most 64 MiB") \
    X(grpc_ok, COUNTER, "kvb_grpc_requests_total", "status=\"ok\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_invalid_argument, COUNTER, "kvb_grpc_requests_total", "status=\"invalid_argument\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_deadline_exceeded, COUNTER, "kvb_grpc_requests_total", "status=\"deadline_exceeded\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_resource_exhausted, COUNTER, "kvb_grpc_requests_total", "status=\"resource_exhausted\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_out_of_range, COUNTER, "kvb_grpc_requests_total", "status=\"out_of_range\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_unimplemented, COUNTER, "kvb_grpc_requests_total", "status=\"unimplemented\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_unavailable, COUNTER, "kvb_grpc_requests_total", "status=\"unavailable\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_none, COUNTER, "kvb_grpc_requests_total", "status=\"none\"", "gRPC requests, by the status that was sent; none: reset by the client, given up, or no gRPC") \
    X(grpc_closed_late, COUNTER, "kvb_grpc_closed_total", "reason=\"late\"", "gRPC connections closed on their client, by reason; late: no handshake or request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_idle, COUNTER, "kvb_grpc_closed_total", "reason=\"idle\"", "gRPC connections closed on their client, by reason; late: no handshake or request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_crowded, COUNTER, "kvb_grpc_closed_total", "reason=\"crowded\"", "gRPC connections closed on their client, by reason; late: no handshake or request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_misbehaved, COUNTER, "kvb_grpc_closed_total", "reason=\"misbehaved\"", "gRPC connections closed on their client, by reason; late: no handshake or request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_memory, COUNTER, "kvb_grpc_closed_total", "reason=\"memory\"", "gRPC connections closed on their client, by reason; late: no handshake or request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_handshakes_ok, COUNTER, "kvb_grpc_handshakes_total", "result=\"ok\"", "TLS handshakes of gRPC, by result; alpn: the client does not offer h2; other: not TLS, too old a version, or the client does not trust the server's certificate") \
    X(grpc_handshakes_alpn, COUNTER, "kvb_grpc_handshakes_total", "result=\"alpn\"", "TLS handshakes of gRPC, by result; alpn: the client does not offer h2; other: not TLS, too old a version, or the client does not trust the server's certificate") \
    X(grpc_handshakes_other, COUNTER, "kvb_grpc_handshakes_total", "result=\"other\"", "TLS handshakes of gRPC, by result; alpn: the client does not offer h2; other: not TLS, too old a version, or the client does not trust the server's certificate")
/* clang-format on */

/* KVB_GRPC_LATER: the handler has taken the call and will finish it.  Another status is the answer,
 * without a message, and the call must not be used any more.  message: borrowed. */
typedef enum kvb_grpc_status (*kvb_grpc_handler)(
    void *context, struct kvb_grpc_call *call, size_t method, kvb_span message);

struct kvb_grpc_counts {
    size_t connections;
    size_t held_bytes;
};

/* What happens on streams with messages both ways: the functions of struct kvb_grpc_gate. */
struct kvb_grpc_talk {
    void (*on_open)(void *context, struct kvb_grpc_stream *stream);
    void (*on_message)(void *context, struct kvb_grpc_stream *stream, struct kvb_buf *message);
    void (*on_end)(void *context, struct kvb_grpc_stream *stream);
    void (*on_close)(void *context, struct kvb_grpc_stream *stream);
    /* Once in each turn, before answers are sent.  Returns when it is due next, monotonic ns. */
    uint64_t (*on_turn)(void *context, uint64_t now_ns);
    /* After that, when they are sent as far as clients take them, with what is open.  The first
     * time may be before kvb_grpc_start() has returned. */
    void (*on_sent)(void *context, const struct kvb_grpc_counts *counts);
    /* The server stops: streams that are open may go on for drain_ms. */
    void (*on_drain)(void *context);
    size_t max_all_streams;
    uint32_t max_streams; /* of a connection */
    uint64_t max_held_bytes;
};

struct kvb_grpc_options {
    struct kvb_control *control;              /* borrowed until the end; its thread runs */
    const struct sockaddr_storage *address;   /* for the call; port 0 picks a free one */
    const char *listen;                       /* the same as text, for people */
    const struct kvb_http_security *security; /* NULL, or without a certificate: no TLS; borrowed
                                                 until the end, like all below */
    enum kvb_listener listener;               /* names the keys and the room in errors and logs */
    const struct kvb_grpc_method *methods;
    size_t method_count;
    const struct kvb_grpc_talk *talk; /* NULL: all methods are unary */
    size_t max_under_way;
    uint64_t grace_ms;        /* 0: kvb_grpc_grace_s, for a first request and for reading */
    uint64_t idle_ms;         /* 0: kvb_grpc_idle_s */
    uint64_t drain_ms;        /* 0: kvb_grpc_stop_ms */
    unsigned max_connections; /* 0: kvb_max_grpc_connections */
    int work_fd;              /* borrowed; readable: on_turn() has something to do.  0: none */
    kvb_grpc_handler handler;
    void *context;
    struct kvb_log *log;
    struct kvb_metrics *metrics; /* NULL: none */
    size_t first_metric;         /* of the block above */
};

/* KVB_BAD_CONFIG  listening there is not permitted, or a file of options.security cannot be used;
 *                 see detail
 * KVB_IO          the port is taken, or the address does not exist (yet); see detail
 * KVB_NO_MEMORY */
kvb_status kvb_grpc_start(
    const struct kvb_grpc_options *options, struct kvb_grpc **out_grpc, struct kvb_detail *detail);

/* The port on which the server listens. */
uint16_t kvb_grpc_port(const struct kvb_grpc *grpc);

/* Reads the certificate and its key again: kvb_http_access_reload(). */
void kvb_grpc_reload(struct kvb_grpc *grpc);

/* Begins what kvb_grpc_stop() does, and does not wait.  NULL is fine. */
void kvb_grpc_begin_stop(struct kvb_grpc *grpc);

/* Takes no more connections, answers UNAVAILABLE to new requests, waits at most drain_ms for calls,
 * streams and clients.  Calls may still be finished.  NULL is fine. */
void kvb_grpc_stop(struct kvb_grpc *grpc);

/* After kvb_grpc_stop(), when all calls are finished.  NULL is fine. */
void kvb_grpc_free(struct kvb_grpc *grpc);

/* The largest number of open files that a server needs. */
size_t kvb_grpc_files(void);

/* ---- Calls.  Threads: whoever has taken the call ---- */

/* True when its deadline is over or its client is gone: then no answer is needed. */
bool kvb_grpc_call_is_over(const struct kvb_grpc_call *call, uint64_t now_ns);

/* The buffer for the answer.  It is sent only with KVB_GRPC_OK. */
struct kvb_buf *kvb_grpc_call_message(struct kvb_grpc_call *call);

/* Called once; the call must not be used after it. */
void kvb_grpc_call_finish(struct kvb_grpc_call *call, enum kvb_grpc_status status);
