#pragma once

#include "core/buf.h"
#include "core/span.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One connection of a gRPC server: HTTP/2 by nghttp2, calls of the methods in its gate's table.
 * Bytes that were received go in, requests come out; answers go in, bytes to be sent come out.
 *
 *     bytes --> receive() --> on_request()      begin --+-> BODY ----> WORK --+-> SEND ---> closed
 *     answer() --> write() --> bytes            of a    |     |  refused      |    ^
 *                                               stream: |     +---------------|----+
 *                                                       +-> TALK -- finish() -+
 *
 * A unary call is BODY and WORK.  A method with messages both ways is TALK: on_open(), then
 * on_message() for each, and on_close() at last; meanwhile its owner sends.  A message that comes
 * in may go out again without a copy (kvb_grpc_stream_send()).  While bytes of a stream wait to be
 * sent, the client's window for it stays closed, so no stream piles up what its client does not
 * read.
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

/* A stream with messages both ways. */
struct kvb_grpc_stream;

/* The numbers are those of gRPC. */
enum kvb_grpc_status {
    KVB_GRPC_LATER = -1, /* the answer follows */
    KVB_GRPC_OK = 0,
    KVB_GRPC_INVALID_ARGUMENT = 3,
    KVB_GRPC_DEADLINE_EXCEEDED = 4,
    KVB_GRPC_NOT_FOUND = 5, /* only of a handler */
    KVB_GRPC_RESOURCE_EXHAUSTED = 8,
    KVB_GRPC_OUT_OF_RANGE = 11,
    KVB_GRPC_UNIMPLEMENTED = 12,
    KVB_GRPC_UNAVAILABLE = 14,
    KVB_GRPC_STATUS_COUNT /* one above the highest */
};

enum {
    kvb_grpc_max_streams = 64,  /* where a gate says nothing else */
    kvb_grpc_prefix_bytes = 32, /* before the bytes of kvb_grpc_stream_send() */
    kvb_grpc_talk_s = 3600,     /* without a message, on a stream with messages both ways */
    kvb_grpc_max_header_bytes = 32 << 10, /* names and values of one request */
    kvb_grpc_grace_s = 10,
    kvb_grpc_bytes_a_second = 256 << 10,
    kvb_grpc_reset_burst = 1000, /* resets by a client at once; after that the next one */
    kvb_grpc_resets_a_second = 500
};

enum kvb_grpc_kind {
    KVB_GRPC_UNARY, /* one message each way */
    KVB_GRPC_STREAM /* messages both ways */
};

struct kvb_grpc_method {
    const char *path; /* borrowed */
    enum kvb_grpc_kind kind;
    size_t max_message_bytes; /* of a message of the client */
};

/* What all connections of a server share. */
struct kvb_grpc_gate {
    const struct kvb_grpc_method *methods; /* borrowed, like context */
    size_t method_count;
    size_t max_under_way; /* unary calls */
    size_t max_streams;   /* of a connection, as SETTINGS tell */
    size_t max_all_streams;
    size_t max_held_bytes; /* of bodies and answers; one connection: as much as it leaves.  Streams
                              with messages both ways: twice as much */
    bool expects_resets;   /* clients reset streams at their end: no abuse */
    /* Takes a complete request; message is borrowed for the call.  KVB_GRPC_LATER: answer() will
     * be called, unless on_gone() is first.  Another status is the answer, without a message. */
    enum kvb_grpc_status (*on_request)(
        void *context, void *connection, int32_t stream, size_t method, kvb_span message,
        uint64_t deadline_ns);
    /* The client reset a stream whose answer is due, or the connection ended: nobody waits for
     * the answer. */
    void (*on_gone)(void *context, void *connection, int32_t stream);
    /* A request got this status; KVB_GRPC_LATER: it ended without one. */
    void (*on_status)(void *context, enum kvb_grpc_status status);
    /* Of streams with messages both ways; NULL without such a method.  Who takes a message, and
     * leaves {0}, gives it back by kvb_grpc_stream_send() or _drop().  on_end: the client sends
     * nothing more.  on_close: the last call for the stream, which is gone when it returns. */
    void (*on_open)(void *stream_context, struct kvb_grpc_stream *stream);
    void (*on_message)(
        void *stream_context, struct kvb_grpc_stream *stream, struct kvb_buf *message);
    void (*on_end)(void *stream_context, struct kvb_grpc_stream *stream);
    void (*on_close)(void *stream_context, struct kvb_grpc_stream *stream);
    void *stream_context; /* of these four */
    void *context;
    /* The gate's own; 0 at first. */
    size_t under_way;
    size_t held_bytes;
    size_t stream_count;
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

/* ---- Streams with messages both ways; from on_open() to on_close() ---- */

/* The owner's pointer. */
void kvb_grpc_stream_set_owner(struct kvb_grpc_stream *stream, void *owner);
void *kvb_grpc_stream_owner(const struct kvb_grpc_stream *stream);

/* Sends one message: the prefix, which is copied, and the bytes, which are not.  They are static
 * (memory is NULL), or lie in a message that came in: that is *memory, given with the last bytes
 * of it that are sent, and taken if it is {0} afterwards.
 * KVB_CLOSED     it was finished, or is gone
 * KVB_NO_MEMORY  the stream cannot go on: finish it */
kvb_status kvb_grpc_stream_send(
    struct kvb_grpc_stream *stream, kvb_span prefix, kvb_span bytes, struct kvb_buf *memory);

/* Sends a copy of a small message.  Errors as above. */
kvb_status kvb_grpc_stream_send_copy(struct kvb_grpc_stream *stream, kvb_span message);

/* Frees a message that was taken and is not sent. */
void kvb_grpc_stream_drop(struct kvb_grpc_stream *stream, struct kvb_buf *message);

/* Ends the stream when all was sent. */
void kvb_grpc_stream_finish(struct kvb_grpc_stream *stream, enum kvb_grpc_status status);

/* True: max_held_bytes are taken, and nothing more should be kept. */
bool kvb_grpc_stream_is_crowded(const struct kvb_grpc_stream *stream);

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

/* Says that no more streams are accepted (GOAWAY); those that are open go on. */
void kvb_grpc_session_drain(struct kvb_grpc_session *session);

/* True: there may be something for kvb_grpc_session_write(), without a received byte. */
bool kvb_grpc_session_has_news(const struct kvb_grpc_session *session);

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
