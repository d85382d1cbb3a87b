#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One connection of a gRPC server: HTTP/2 by nghttp2, unary calls of one method.  Bytes that were
 * received go in, requests come out; answers go in, bytes to be sent come out.
 *
 *     bytes --> receive() --> on_request()      begin ---> BODY ----> WORK ----> SEND ---> closed
 *     answer() --> write() --> bytes            of a stream:  |  refused         ^
 *                                                             +------------------+
 *
 * What a client gets:
 *
 *     status                  when
 *      0 OK                   as answered
 *      3 INVALID_ARGUMENT     the body is no gRPC message, or not the one that was announced
 *      4 DEADLINE_EXCEEDED    grpc-timeout is over when the request is complete
 *      8 RESOURCE_EXHAUSTED   max_under_way requests are being answered, or bodies and answers
 *                             take all memory that there is for them
 *     11 OUT_OF_RANGE         the message is above max_message_bytes
 *     12 UNIMPLEMENTED        another path, or a compressed message
 *     14 UNAVAILABLE          as answered, and of requests that cross the end of a connection
 *
 * A client that is no gRPC client gets 405 or 415 of HTTP.
 *
 * For any other status sgl-router fails its user's request.  Its client also maps error codes of
 * HTTP/2 to statuses: most of them to INTERNAL, and a connection that ends during a request to
 * UNKNOWN.  So streams that this side gives up are reset with CANCEL or ENHANCE_YOUR_CALM, and
 * connections end with ENHANCE_YOUR_CALM (RESOURCE_EXHAUSTED) or REFUSED_STREAM (UNAVAILABLE).
 *
 * A stream has kvb_grpc_grace_s to send its header, to send its body and to read its answer, and
 * one more second for each kvb_grpc_bytes_a_second of these.  Resets by the client are limited,
 * because each may have cost a look-up (rapid reset).
 *
 * No socket, no clock.  Threads: the caller locks; all sessions of one gate on one thread.
 * Memory: kvb_grpc_max_streams streams, what nghttp2 takes for them, and what the gate allows. */
struct kvb_grpc_session;

/* The numbers are those of gRPC. */
enum kvb_grpc_status {
    KVB_GRPC_LATER = -1, /* the answer follows */
    KVB_GRPC_OK = 0,
    KVB_GRPC_INVALID_ARGUMENT = 3,
    KVB_GRPC_DEADLINE_EXCEEDED = 4,
    KVB_GRPC_RESOURCE_EXHAUSTED = 8,
    KVB_GRPC_OUT_OF_RANGE = 11,
    KVB_GRPC_UNIMPLEMENTED = 12,
    KVB_GRPC_UNAVAILABLE = 14,
    KVB_GRPC_STATUS_COUNT /* one above the highest */
};

enum {
    kvb_grpc_max_streams = 64,
    kvb_grpc_max_header_bytes = 32 << 10, /* names and values of one request */
    kvb_grpc_grace_s = 10,
    kvb_grpc_bytes_a_second = 256 << 10,
    kvb_grpc_reset_burst = 1000, /* resets by a client at once; after that the next one */
    kvb_grpc_resets_a_second = 500
};

/* What all connections of a server share. */
struct kvb_grpc_gate {
    const char *path; /* of the method; borrowed, like context */
    size_t max_message_bytes;
    size_t max_under_way;
    size_t max_held_bytes; /* of bodies and answers; one connection: as much as it leaves */
    /* Takes a complete request; message is borrowed for the call.  KVB_GRPC_LATER: answer() will
     * be called, unless on_gone() is first.  Another status is the answer, without a message. */
    enum kvb_grpc_status (*on_request)(
        void *context, void *connection, int32_t stream, kvb_span message, uint64_t deadline_ns);
    /* The client reset a stream whose answer is due, or the connection ended: nobody waits for
     * the answer. */
    void (*on_gone)(void *context, void *connection, int32_t stream);
    /* A request got this status; KVB_GRPC_LATER: it ended without one. */
    void (*on_status)(void *context, enum kvb_grpc_status status);
    void *context;
    /* The gate's own; 0 at first. */
    size_t under_way;
    size_t held_bytes;
};

/* gate and connection, which is the caller's, are borrowed until kvb_grpc_session_free().
 * KVB_NO_MEMORY */
kvb_status kvb_grpc_session_new(
    struct kvb_grpc_gate *gate, void *connection, uint64_t now_ns,
    struct kvb_grpc_session **out_session);

/* NULL is fine. */
void kvb_grpc_session_free(struct kvb_grpc_session *session);

/* Takes received bytes.  KVB_CLOSED: they are not HTTP/2, or the client misbehaves.  The caller
 * sends what write() still gives, and closes the connection.  KVB_NO_MEMORY: the same. */
kvb_status
kvb_grpc_session_receive(struct kvb_grpc_session *session, kvb_span bytes, uint64_t now_ns);

/* Answers a request, once.  message: borrowed; sent with KVB_GRPC_OK only.  A stream that is gone
 * is skipped. */
void kvb_grpc_session_answer(
    struct kvb_grpc_session *session, int32_t stream, enum kvb_grpc_status status, kvb_span message,
    uint64_t now_ns);

/* Appends what is to be sent, until there is no more or out has about max_bytes.
 * KVB_CLOSED, KVB_NO_MEMORY: the connection cannot go on. */
kvb_status kvb_grpc_session_write(
    struct kvb_grpc_session *session, struct kvb_buf *out, size_t max_bytes, uint64_t now_ns);

/* Resets streams whose time is over.  KVB_CLOSED: the connection is to be closed, because the
 * header of a request has not come in time. */
kvb_status kvb_grpc_session_expire(struct kvb_grpc_session *session, uint64_t now_ns);

/* Ends the connection (GOAWAY): requests that are not answered yet, and those that cross it, end
 * as UNAVAILABLE. */
void kvb_grpc_session_end(struct kvb_grpc_session *session);

/* True when everything was answered and sent, and no more requests are accepted. */
bool kvb_grpc_session_is_finished(const struct kvb_grpc_session *session);

/* True when this side ended the connection because the client misbehaves. */
bool kvb_grpc_session_has_failed(const struct kvb_grpc_session *session);

/* Streams that are open. */
size_t kvb_grpc_session_streams(const struct kvb_grpc_session *session);

/* When the newest complete request arrived; 0: none yet. */
uint64_t kvb_grpc_session_requested_ns(const struct kvb_grpc_session *session);

/* Nanoseconds of a grpc-timeout: "100000u", up to 8 digits and one of H M S m u n.
 * KVB_BAD_INPUT */
kvb_status kvb_grpc_timeout_read(kvb_span text, uint64_t *out_ns);
