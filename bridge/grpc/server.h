#pragma once

#include "core/buf.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/span.h"
#include "core/status.h"
#include "grpc/session.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr_storage;

/* A gRPC server of one unary method, over HTTP/2 without TLS (session.h).
 *
 *     clients <--> thread of the server --handler()--> the owner's threads
 *                          ^                                  |
 *                          +------------- ring <-- finish() --+
 *
 * A call is the handler's from its first to its last moment elsewhere: the server counts it as
 * under way until it is finished, also when its client is gone.
 *
 * Connections: a new one above kvb_max_grpc_connections makes the one go that never completed a
 * request, else the one that is idle longest; when all are busy it is closed itself.  Those that
 * do not complete a request in kvb_grpc_grace_s, read nothing for that long, or are idle for
 * kvb_grpc_idle_s, are closed.
 *
 * Threads: the server has one; the handler runs on it.
 * Memory:  bodies and answers: kvb_max_grpc_held_bytes; per connection some 20 KiB, and 64 KiB to
 *          be sent. */
struct kvb_grpc;

/* A request on its way. */
struct kvb_grpc_call;

enum { kvb_grpc_idle_s = 300, kvb_grpc_stop_ms = 1000 };

/* Rows for a daemon's table of metrics; one block, in this order. */
/* clang-format off */
#define KVB_GRPC_METRICS(X) \
    X(grpc_connections, GAUGE, "kvb_grpc_connections", "", "gRPC connections that are open") \
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
    X(grpc_closed_late, COUNTER, "kvb_grpc_closed_total", "reason=\"late\"", "gRPC connections closed on their client, by reason; late: no request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_idle, COUNTER, "kvb_grpc_closed_total", "reason=\"idle\"", "gRPC connections closed on their client, by reason; late: no request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_crowded, COUNTER, "kvb_grpc_closed_total", "reason=\"crowded\"", "gRPC connections closed on their client, by reason; late: no request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_misbehaved, COUNTER, "kvb_grpc_closed_total", "reason=\"misbehaved\"", "gRPC connections closed on their client, by reason; late: no request in time, or answers not read; misbehaved: not HTTP/2, or too many resets") \
    X(grpc_closed_memory, COUNTER, "kvb_grpc_closed_total", "reason=\"memory\"", "gRPC connections closed on their client, by reason; late: no request in time, or answers not read; misbehaved: not HTTP/2, or too many resets")
/* clang-format on */

/* KVB_GRPC_LATER: the call is taken, and will be finished.  Another status is the answer, without
 * a message; the call is gone.  message: borrowed. */
typedef enum kvb_grpc_status (*kvb_grpc_handler)(
    void *context, struct kvb_grpc_call *call, kvb_span message);

struct kvb_grpc_options {
    const struct sockaddr_storage *address; /* for the call; port 0 picks a free one */
    const char *listen;                     /* the same as text, for people */
    const char *path;                       /* of the method; borrowed, like all below */
    size_t max_message_bytes;
    size_t max_under_way;
    uint64_t grace_ms;        /* 0: kvb_grpc_grace_s, for a first request and for reading */
    uint64_t idle_ms;         /* 0: kvb_grpc_idle_s */
    unsigned max_connections; /* 0: kvb_max_grpc_connections */
    kvb_grpc_handler handler;
    void *context;
    struct kvb_log *log;
    struct kvb_metrics *metrics;
    size_t first_metric; /* of the block above */
};

/* KVB_BAD_CONFIG  listening there is not permitted; see detail
 * KVB_IO          the port is taken, or the address does not exist (yet); see detail
 * KVB_NO_MEMORY */
kvb_status kvb_grpc_start(
    const struct kvb_grpc_options *options, struct kvb_grpc **out_grpc, struct kvb_detail *detail);

/* The port on which the server listens. */
uint16_t kvb_grpc_port(const struct kvb_grpc *grpc);

/* Takes no more connections, answers UNAVAILABLE to new requests, waits at most kvb_grpc_stop_ms
 * for calls and clients, and ends the thread.  Calls may still be finished.  NULL is fine. */
void kvb_grpc_stop(struct kvb_grpc *grpc);

/* After kvb_grpc_stop(), when all calls are finished.  NULL is fine. */
void kvb_grpc_free(struct kvb_grpc *grpc);

/* The most open files that a server needs. */
size_t kvb_grpc_files(void);

/* ---- Calls.  Threads: whoever has taken the call ---- */

/* DEADLINE_EXCEEDED when its time is over or its client is gone: then it need not be worked on. */
bool kvb_grpc_call_is_over(const struct kvb_grpc_call *call, uint64_t now_ns);

/* Where the answer is to be written; sent with KVB_GRPC_OK alone. */
struct kvb_buf *kvb_grpc_call_message(struct kvb_grpc_call *call);

/* Once; the call is gone. */
void kvb_grpc_call_finish(struct kvb_grpc_call *call, enum kvb_grpc_status status);
