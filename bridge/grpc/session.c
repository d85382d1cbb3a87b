#include "grpc/session.h"

#include "core/clock.h"
#include "core/decimal.h"
#include "core/own.h"

#include <assert.h>
#include <endian.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    stream_window_bytes = 1 << 20, /* what a client may send ahead */
    connection_window_bytes = 4 << 20,
    head_bytes = 5, /* before a message: whether it is compressed, and its length */
    head_is_compressed = 1,
    early_bytes = 64 << 10, /* of a message, for which memory is there before they come */
    piece_head_bytes = head_bytes + kvb_grpc_prefix_bytes,
    never_limited = 1 << 30 /* turns off nghttp2's own limit of resets */
};

enum stream_phase {
    STREAM_HEADER,
    STREAM_BODY,
    STREAM_WORK, /* its answer is due */
    STREAM_TALK, /* of a method with messages both ways */
    STREAM_SEND, /* answered; the rest of its body is ignored */
    STREAM_RESET /* reset by this side; the reset is not sent yet */
};

/* Bytes that wait to be sent on a stream with messages both ways. */
struct piece {
    struct piece *next;
    uint8_t head[piece_head_bytes]; /* gRPC's, and what the owner has put before the bytes */
    size_t head_len;
    kvb_span bytes;        /* in `memory`, in that of a later piece, or static */
    size_t sent;           /* of the head and the bytes */
    struct kvb_buf memory; /* owned; it is the last piece that uses it */
    size_t held_bytes;     /* of the gate's, by that memory */
};

struct kvb_grpc_stream {
    struct kvb_grpc_session *session;
    struct kvb_grpc_stream *next;
    struct kvb_grpc_stream **at; /* the pointer to this stream in the list */
    int32_t id;
    enum stream_phase phase;
    uint64_t since_ns;    /* when the phase began */
    uint64_t moved_bytes; /* in it */
    size_t held_bytes;    /* of the gate's */
    /* the request */
    bool is_post, is_grpc, is_timeout_bad;
    size_t method; /* method_count: none of ours */
    size_t header_bytes;
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint8_t head[head_bytes];
    size_t head_len;
    size_t message_bytes; /* as the head says */
    struct kvb_buf message;
    /* the answer: its head and message */
    enum kvb_grpc_status status;
    struct kvb_buf answer;
    size_t sent;
    /* with messages both ways */
    void *owner;           /* the caller's */
    struct piece *pieces;  /* owned; a queue */
    struct piece **last;   /* where the next one is linked */
    size_t unopened_bytes; /* received, and not yet returned to the client's window */
    bool was_opened;       /* on_open() was called, and on_close() is due */
    bool had_message;
    bool has_response; /* its headers are submitted */
    bool is_deferred;  /* nghttp2 does not ask for more bytes */
    bool is_finishing; /* the status follows the last piece */
};

struct kvb_grpc_session {
    struct kvb_grpc_gate *gate; /* borrowed */
    void *connection;           /* the caller's */
    nghttp2_session *http2;     /* owned */
    struct kvb_grpc_stream *streams;
    size_t stream_count;
    size_t held_bytes;
    uint64_t now_ns; /* of the call at hand */
    uint64_t requested_ns;
    uint64_t resets_ns; /* when the next one was counted */
    double resets_left;
    bool has_failed;
    bool has_news; /* something was submitted since the last write() */
};

static const struct kvb_grpc_method *
method_of(const struct kvb_grpc_session *session, const struct kvb_grpc_stream *stream)
{
    return &session->gate->methods[stream->method];
}

static bool is_talk(const struct kvb_grpc_session *session, const struct kvb_grpc_stream *stream)
{
    return stream->method < session->gate->method_count &&
           method_of(session, stream)->kind == KVB_GRPC_STREAM;
}

/* ---- Memory ---- */

static void release_bytes(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    session->held_bytes -= stream->held_bytes;
    session->gate->held_bytes -= stream->held_bytes;
    stream->held_bytes = 0;
}

static bool is_above(const struct kvb_grpc_session *session, size_t more, size_t max)
{
    /* A connection may hold as much as is left for all others: half of it alone, and however many
     * take all that they may, something is left for the next one. */
    return session->held_bytes + session->gate->held_bytes + 2 * more > max;
}

/* False: so many bytes are not allowed; nothing has changed. */
static bool
hold_bytes(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, size_t bytes)
{
    struct kvb_grpc_gate *gate = session->gate;
    const size_t more = bytes > stream->held_bytes ? bytes - stream->held_bytes : 0;
    /* Whoever owns a stream with messages both ways is told when it is crowded, and has as much
     * again to pass on what there is. */
    const size_t times = is_talk(session, stream) ? 2 : 1;

    if (more > 0 && is_above(session, more, times * gate->max_held_bytes)) {
        return false;
    }
    release_bytes(session, stream);
    stream->held_bytes = bytes;
    session->held_bytes += bytes;
    gate->held_bytes += bytes;
    return true;
}

static void
release_some(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, size_t bytes)
{
    const size_t some = bytes < stream->held_bytes ? bytes : stream->held_bytes;

    stream->held_bytes -= some;
    session->held_bytes -= some;
    session->gate->held_bytes -= some;
}

static void free_first_piece(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    struct piece *piece = stream->pieces;

    stream->pieces = piece->next;
    if (!stream->pieces) {
        stream->last = &stream->pieces;
    }
    release_some(session, stream, piece->held_bytes);
    kvb_buf_done(&piece->memory);
    free(piece);
}

static void free_stream(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    *stream->at = stream->next;
    if (stream->next) {
        stream->next->at = stream->at;
    }
    session->stream_count--;
    session->gate->stream_count--;
    while (stream->pieces) {
        free_first_piece(session, stream);
    }
    release_bytes(session, stream);
    kvb_buf_done(&stream->message);
    kvb_buf_done(&stream->answer);
    free(stream);
}

static struct kvb_grpc_stream *new_stream(struct kvb_grpc_session *session, int32_t id)
{
    struct kvb_grpc_stream *stream = calloc(1, sizeof *stream);

    if (!stream) {
        return NULL;
    }
    stream->session = session;
    stream->id = id;
    stream->method = session->gate->method_count;
    stream->last = &stream->pieces;
    stream->since_ns = session->now_ns;
    stream->deadline_ns = UINT64_MAX;
    stream->next = session->streams;
    stream->at = &session->streams;
    if (stream->next) {
        stream->next->at = &stream->next;
    }
    session->streams = stream;
    session->stream_count++;
    session->gate->stream_count++;
    return stream;
}

/* ---- Answers ---- */

static void enter_stream_phase(
    const struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, enum stream_phase phase)
{
    stream->phase = phase;
    stream->since_ns = session->now_ns;
    stream->moved_bytes = 0;
}

/* For a stream whose answer found no memory, or whose client does not read it. */
static void
reset_stream(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, uint32_t code)
{
    if (stream->phase <= STREAM_BODY || stream->phase == STREAM_TALK) {
        session->gate->on_status(session->gate->context, KVB_GRPC_LATER);
    }
    enter_stream_phase(session, stream, STREAM_RESET);
    session->has_news = true;
    /* out of memory: the stream stays open until its connection is closed */
    (void)nghttp2_submit_rst_stream(session->http2, NGHTTP2_FLAG_NONE, stream->id, code);
}

/* For nghttp2, which takes pointers to bytes that are not const and only reads them. */
static uint8_t *bytes_of_text(const char *text)
{
    const union {
        const char *text;
        uint8_t *bytes;
    } same = { .text = text };

    return same.bytes;
}

static nghttp2_nv make_nv(const char *name, const char *value)
{
    return (nghttp2_nv){ .name = bytes_of_text(name),
                         .namelen = strlen(name),
                         .value = bytes_of_text(value),
                         .valuelen = strlen(value),
                         .flags = NGHTTP2_NV_FLAG_NO_COPY_NAME };
}

/* The trailers after the message. */
static kvb_status submit_status(nghttp2_session *http2, int32_t id, enum kvb_grpc_status status)
{
    char number[12];

    (void)snprintf(number, sizeof number, "%d", (int)status);
    const nghttp2_nv trailer = make_nv("grpc-status", number);
    return nghttp2_submit_trailer(http2, id, &trailer, 1) == 0 ? KVB_OK : KVB_NO_MEMORY;
}

static ssize_t read_answer(
    nghttp2_session *http2, int32_t id, uint8_t *out, size_t len, uint32_t *flags,
    nghttp2_data_source *source, void *context)
{
    struct kvb_grpc_stream *stream = source->ptr;
    const size_t left = stream->answer.len - stream->sent;
    const size_t part = left < len ? left : len;

    (void)context;
    memcpy(out, stream->answer.data + stream->sent, part);
    stream->sent += part;
    stream->moved_bytes += part;
    if (stream->sent == stream->answer.len) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (submit_status(http2, id, stream->status) != KVB_OK) {
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    }
    return (ssize_t)part;
}

static int submit_message(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    const nghttp2_nv headers[] = { make_nv(":status", "200"),
                                   make_nv("content-type", "application/grpc") };
    const nghttp2_data_provider answer = { .source = { .ptr = stream },
                                           .read_callback = read_answer };

    return nghttp2_submit_response(
        session->http2, stream->id, headers, KVB_COUNT_OF(headers), &answer);
}

/* An answer without a message: its headers are its trailers. */
static int submit_trailers_only(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    char number[12];

    (void)snprintf(number, sizeof number, "%d", (int)stream->status);
    const nghttp2_nv headers[] = { make_nv(":status", "200"),
                                   make_nv("content-type", "application/grpc"),
                                   make_nv("grpc-status", number) };
    return nghttp2_submit_response(
        session->http2, stream->id, headers, KVB_COUNT_OF(headers), NULL);
}

static void begin_to_send(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    kvb_buf_done(&stream->message);
    enter_stream_phase(session, stream, STREAM_SEND);
}

static void refuse_request(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, enum kvb_grpc_status status)
{
    begin_to_send(session, stream);
    release_bytes(session, stream);
    stream->status = status;
    session->gate->on_status(session->gate->context, status);
    if (submit_trailers_only(session, stream) != 0) {
        reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

/* Answers a client that does not speak gRPC. */
static void refuse_http(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, const char *http_status)
{
    const nghttp2_nv headers[] = { make_nv(":status", http_status) };

    begin_to_send(session, stream);
    session->gate->on_status(session->gate->context, KVB_GRPC_LATER);
    if (nghttp2_submit_response(session->http2, stream->id, headers, 1, NULL) != 0) {
        reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

/* Of a message with so many bytes, which are fewer than 4 GiB. */
static void write_head(uint8_t head[head_bytes], size_t bytes)
{
    const uint32_t length = htobe32((uint32_t)bytes);

    head[0] = 0; /* not compressed */
    memcpy(head + 1, &length, sizeof length);
}

/* KVB_TOO_LARGE, KVB_NO_MEMORY: nothing is changed. */
static kvb_status
copy_answer(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, kvb_span message)
{
    const size_t bytes = head_bytes + message.len;
    uint8_t head[head_bytes];

    write_head(head, message.len);
    if (message.len > UINT32_MAX || !hold_bytes(session, stream, bytes)) {
        return KVB_TOO_LARGE;
    }
    kvb_buf_init(&stream->answer, bytes);
    KVB_TRY(kvb_buf_reserve(&stream->answer, bytes));
    KVB_TRY(kvb_buf_append(&stream->answer, head, sizeof head));
    return kvb_buf_append(&stream->answer, message.data, message.len);
}

static void
send_message(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, kvb_span message)
{
    begin_to_send(session, stream);
    if (copy_answer(session, stream, message) != KVB_OK) {
        refuse_request(session, stream, KVB_GRPC_RESOURCE_EXHAUSTED);
        return;
    }
    stream->status = KVB_GRPC_OK;
    session->gate->on_status(session->gate->context, KVB_GRPC_OK);
    if (submit_message(session, stream) != 0) {
        reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

void kvb_grpc_session_answer(
    struct kvb_grpc_session *session, int32_t stream, enum kvb_grpc_status status, kvb_span message,
    uint64_t now_ns)
{
    struct kvb_grpc_stream *found = nghttp2_session_get_stream_user_data(session->http2, stream);

    session->now_ns = now_ns;
    session->has_news = true;
    if (!found || found->phase != STREAM_WORK) {
        return;
    }
    if (status == KVB_GRPC_OK) {
        send_message(session, found, message);
    } else {
        refuse_request(session, found, status);
    }
}

/* ---- Requests ---- */

/* Why a complete request is not passed on; KVB_GRPC_LATER: it is. */
static enum kvb_grpc_status
check_request(const struct kvb_grpc_session *session, const struct kvb_grpc_stream *stream)
{
    const struct kvb_grpc_gate *gate = session->gate;

    if (stream->head_len < head_bytes || stream->message.len != stream->message_bytes ||
        stream->is_timeout_bad) {
        return KVB_GRPC_INVALID_ARGUMENT;
    }
    if (session->now_ns >= stream->deadline_ns) {
        return KVB_GRPC_DEADLINE_EXCEEDED;
    }
    return gate->under_way >= gate->max_under_way ? KVB_GRPC_RESOURCE_EXHAUSTED : KVB_GRPC_LATER;
}

static void finish_request(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    struct kvb_grpc_gate *gate = session->gate;
    enum kvb_grpc_status status = check_request(session, stream);

    session->requested_ns = session->now_ns;
    if (status != KVB_GRPC_LATER) {
        refuse_request(session, stream, status);
        return;
    }
    /* From here on the call may be answered at any time, also before on_request() returns. */
    enter_stream_phase(session, stream, STREAM_WORK);
    gate->under_way++;
    status = gate->on_request(
        gate->context, session->connection, stream->id, stream->method,
        kvb_buf_span(&stream->message), stream->deadline_ns);
    if (status != KVB_GRPC_LATER) {
        gate->under_way--;
        refuse_request(session, stream, status);
        return;
    }
    kvb_buf_done(&stream->message);
    release_bytes(session, stream);
}

/* Checks the head of the message, and refuses a message that will not be read. */
static enum kvb_grpc_status
check_message_head(const struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    const uint8_t *head = stream->head;

    stream->message_bytes =
        (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
    if (head[0] > head_is_compressed) {
        return KVB_GRPC_INVALID_ARGUMENT;
    }
    if (head[0] == head_is_compressed) {
        return KVB_GRPC_UNIMPLEMENTED;
    }
    if (stream->message_bytes > method_of(session, stream)->max_message_bytes) {
        return KVB_GRPC_OUT_OF_RANGE;
    }
    kvb_buf_init(&stream->message, stream->message_bytes);
    return KVB_GRPC_OK;
}

static enum kvb_grpc_status append_message(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, const uint8_t *bytes,
    size_t len)
{
    if (len > stream->message_bytes - stream->message.len) {
        return KVB_GRPC_INVALID_ARGUMENT; /* more than one message */
    }
    return hold_bytes(session, stream, stream->message.len + len) &&
                   kvb_buf_append(&stream->message, bytes, len) == KVB_OK
               ? KVB_GRPC_OK
               : KVB_GRPC_RESOURCE_EXHAUSTED;
}

static enum kvb_grpc_status take_body_bytes(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, const uint8_t *bytes,
    size_t len)
{
    const size_t missing = head_bytes - stream->head_len;
    const size_t taken = missing < len ? missing : len;

    memcpy(stream->head + stream->head_len, bytes, taken);
    stream->head_len += taken;
    if (taken > 0 && stream->head_len == head_bytes) {
        const enum kvb_grpc_status status = check_message_head(session, stream);
        if (status != KVB_GRPC_OK) {
            return status;
        }
    }
    return taken < len ? append_message(session, stream, bytes + taken, len - taken) : KVB_GRPC_OK;
}

/* ---- Messages both ways ---- */

/* Hands over the message that is complete; the next one begins. */
static void deliver_message(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    struct kvb_buf message = stream->message;

    stream->message = (struct kvb_buf){ 0 };
    stream->head_len = 0;
    stream->had_message = true;
    stream->since_ns = session->now_ns;
    session->requested_ns = session->now_ns;
    const size_t bytes = message.len;
    session->gate->on_message(session->gate->stream_context, stream, &message);
    if (message.data) { /* not taken */
        release_some(session, stream, bytes);
        kvb_buf_done(&message);
    }
}

static enum kvb_grpc_status take_talk_bytes(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, const uint8_t *bytes,
    size_t len)
{
    /* Ends: each round takes a byte.  An answer may have ended the stream. */
    while (len > 0 && stream->phase == STREAM_TALK) {
        if (stream->head_len < head_bytes) {
            stream->head[stream->head_len++] = *bytes++;
            len--;
            if (stream->head_len < head_bytes) {
                continue;
            }
            const enum kvb_grpc_status status = check_message_head(session, stream);
            if (status != KVB_GRPC_OK) {
                return status;
            }
            /* Bytes that were only announced need no memory yet. */
            const size_t early =
                stream->message_bytes < early_bytes ? stream->message_bytes : early_bytes;
            if (kvb_buf_reserve(&stream->message, early) != KVB_OK) {
                return KVB_GRPC_RESOURCE_EXHAUSTED;
            }
        }
        const size_t missing = stream->message_bytes - stream->message.len;
        const size_t part = missing < len ? missing : len;
        if (!hold_bytes(session, stream, stream->held_bytes + part) ||
            kvb_buf_append(&stream->message, bytes, part) != KVB_OK) {
            return KVB_GRPC_RESOURCE_EXHAUSTED;
        }
        bytes += part;
        len -= part;
        if (stream->message.len == stream->message_bytes) {
            deliver_message(session, stream);
        }
    }
    return KVB_GRPC_OK;
}

/* The client may send as much more.  While bytes for it wait, it may not: what comes in has to go
 * out first. */
static void open_window(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    if (!stream->pieces && stream->unopened_bytes > 0) {
        /* Out of memory: the connection is closed by the next call that needs some. */
        (void)nghttp2_session_consume_stream(session->http2, stream->id, stream->unopened_bytes);
        stream->unopened_bytes = 0;
        session->has_news = true;
    }
}

static ssize_t read_pieces(
    nghttp2_session *http2, int32_t id, uint8_t *out, size_t len, uint32_t *flags,
    nghttp2_data_source *source, void *context)
{
    struct kvb_grpc_stream *stream = source->ptr;
    struct kvb_grpc_session *session = context;
    size_t at = 0;

    while (stream->pieces && at < len) {
        struct piece *piece = stream->pieces;
        /* The head and the prefix are sent before the piece's own bytes, and may be cut
         * anywhere. */
        const bool is_head = piece->sent < piece->head_len;
        const uint8_t *from = is_head ? piece->head + piece->sent
                                      : piece->bytes.data + (piece->sent - piece->head_len);
        const size_t left = is_head ? piece->head_len - piece->sent
                                    : piece->bytes.len - (piece->sent - piece->head_len);
        const size_t part = left < len - at ? left : len - at;
        if (part > 0) {
            memcpy(out + at, from, part);
        }
        at += part;
        piece->sent += part;
        stream->moved_bytes += part;
        if (piece->sent == piece->head_len + piece->bytes.len) {
            free_first_piece(session, stream);
        }
    }
    open_window(session, stream);
    if (!stream->pieces && stream->is_finishing) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (submit_status(http2, id, stream->status) != KVB_OK) {
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        }
    } else if (at == 0) {
        stream->is_deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)at;
}

/* Has nghttp2 ask for the pieces. */
static kvb_status wake_stream(struct kvb_grpc_stream *stream)
{
    struct kvb_grpc_session *session = stream->session;
    int status = 0;

    session->has_news = true;
    /* The first piece begins the answer; later ones wake a stream that ran dry. */
    if (!stream->has_response) {
        const nghttp2_nv headers[] = { make_nv(":status", "200"),
                                       make_nv("content-type", "application/grpc") };
        const nghttp2_data_provider pieces = { .source = { .ptr = stream },
                                               .read_callback = read_pieces };
        status = nghttp2_submit_response(
            session->http2, stream->id, headers, KVB_COUNT_OF(headers), &pieces);
        stream->has_response = status == 0;
    } else if (stream->is_deferred) {
        stream->is_deferred = false;
        status = nghttp2_session_resume_data(session->http2, stream->id);
    }
    return status == 0 ? KVB_OK : KVB_NO_MEMORY;
}

static struct piece *new_piece(kvb_span prefix, kvb_span bytes)
{
    assert(prefix.len <= kvb_grpc_prefix_bytes && bytes.len < UINT32_MAX - prefix.len);
    struct piece *piece = calloc(1, sizeof *piece);

    if (piece) {
        write_head(piece->head, prefix.len + bytes.len);
        if (prefix.len > 0) {
            memcpy(piece->head + head_bytes, prefix.data, prefix.len);
        }
        piece->head_len = head_bytes + prefix.len;
        piece->bytes = bytes;
    }
    return piece;
}

static kvb_status queue_piece(struct kvb_grpc_stream *stream, struct piece *piece)
{
    *stream->last = piece;
    stream->last = &piece->next;
    return wake_stream(stream);
}

kvb_status kvb_grpc_stream_send(
    struct kvb_grpc_stream *stream, kvb_span prefix, kvb_span bytes, struct kvb_buf *memory)
{
    struct piece *piece = stream->phase == STREAM_TALK ? new_piece(prefix, bytes) : NULL;

    if (!piece) {
        return stream->phase == STREAM_TALK ? KVB_NO_MEMORY : KVB_CLOSED;
    }
    if (memory) {
        piece->held_bytes = memory->len;
        piece->memory = *memory;
        *memory = (struct kvb_buf){ 0 };
    }
    return queue_piece(stream, piece);
}

kvb_status kvb_grpc_stream_send_copy(struct kvb_grpc_stream *stream, kvb_span message)
{
    struct kvb_buf copy;

    kvb_buf_init(&copy, message.len);
    KVB_TRY(kvb_buf_append(&copy, message.data, message.len));
    struct piece *piece =
        stream->phase == STREAM_TALK ? new_piece((kvb_span){ 0 }, kvb_buf_span(&copy)) : NULL;
    if (!piece) {
        kvb_buf_done(&copy);
        return stream->phase == STREAM_TALK ? KVB_NO_MEMORY : KVB_CLOSED;
    }
    piece->memory = copy; /* small: not counted */
    return queue_piece(stream, piece);
}

void kvb_grpc_stream_drop(struct kvb_grpc_stream *stream, struct kvb_buf *message)
{
    release_some(stream->session, stream, message->len);
    kvb_buf_done(message);
}

void kvb_grpc_stream_finish(struct kvb_grpc_stream *stream, enum kvb_grpc_status status)
{
    struct kvb_grpc_session *session = stream->session;

    if (stream->phase != STREAM_TALK) {
        return;
    }
    if (!stream->has_response) {
        refuse_request(session, stream, status);
        session->has_news = true;
        return;
    }
    enter_stream_phase(session, stream, STREAM_SEND);
    stream->status = status;
    stream->is_finishing = true;
    session->gate->on_status(session->gate->context, status);
    if (wake_stream(stream) != KVB_OK) {
        reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

void kvb_grpc_stream_set_owner(struct kvb_grpc_stream *stream, void *owner)
{
    stream->owner = owner;
}

void *kvb_grpc_stream_owner(const struct kvb_grpc_stream *stream)
{
    return stream->owner;
}

bool kvb_grpc_stream_is_crowded(const struct kvb_grpc_stream *stream)
{
    return is_above(stream->session, 0, stream->session->gate->max_held_bytes);
}

/* ---- What nghttp2 calls ---- */

static struct kvb_grpc_stream *grpc_stream_of(nghttp2_session *http2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(http2, id);
}

static int on_begin_headers(nghttp2_session *http2, const nghttp2_frame *frame, void *context)
{
    struct kvb_grpc_session *session = context;

    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    const struct kvb_grpc_gate *gate = session->gate;
    const bool has_room =
        session->stream_count < gate->max_streams && gate->stream_count < gate->max_all_streams;
    struct kvb_grpc_stream *stream = has_room ? new_stream(session, frame->hd.stream_id) : NULL;
    if (!stream) {
        /* out of memory, too: nghttp2 resets it by itself */
        (void)nghttp2_submit_rst_stream(
            http2, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    (void)nghttp2_session_set_stream_user_data(http2, stream->id, stream); /* the stream exists */
    return 0;
}

static bool is_grpc_type(kvb_span value)
{
    static const char type[] = "application/grpc";
    const size_t len = sizeof type - 1;

    return value.len >= len && memcmp(value.data, type, len) == 0 &&
           (value.len == len || value.data[len] == '+' || value.data[len] == ';');
}

static void take_timeout(struct kvb_grpc_stream *stream, kvb_span value)
{
    uint64_t timeout_ns = 0;

    stream->is_timeout_bad = kvb_grpc_timeout_read(value, &timeout_ns) != KVB_OK;
    if (!stream->is_timeout_bad && timeout_ns < UINT64_MAX - stream->since_ns) {
        stream->deadline_ns = stream->since_ns + timeout_ns;
    }
}

static size_t method_named(const struct kvb_grpc_gate *gate, kvb_span path)
{
    size_t at = 0;

    while (at < gate->method_count && !kvb_span_is(path, gate->methods[at].path)) {
        at++;
    }
    return at;
}

static void take_header(
    const struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, kvb_span name,
    kvb_span value)
{
    if (kvb_span_is(name, ":method")) {
        stream->is_post = kvb_span_is(value, "POST");
    } else if (kvb_span_is(name, ":path")) {
        stream->method = method_named(session->gate, value);
    } else if (kvb_span_is(name, "content-type")) {
        stream->is_grpc = is_grpc_type(value);
    } else if (kvb_span_is(name, "grpc-timeout")) {
        take_timeout(stream, value);
    }
}

static int on_header(
    nghttp2_session *http2, const nghttp2_frame *frame, const uint8_t *name, size_t name_len,
    const uint8_t *value, size_t value_len, uint8_t flags, void *context)
{
    struct kvb_grpc_session *session = context;
    struct kvb_grpc_stream *stream = grpc_stream_of(http2, frame->hd.stream_id);

    (void)flags;
    if (!stream) {
        return 0;
    }
    stream->header_bytes += name_len + value_len;
    if (stream->header_bytes > kvb_grpc_max_header_bytes) {
        reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (stream->phase == STREAM_HEADER) { /* trailers are ignored */
        take_header(session, stream, (kvb_span){ name, name_len }, (kvb_span){ value, value_len });
    }
    return 0;
}

static void finish_header(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    enter_stream_phase(session, stream, STREAM_BODY);
    if (!stream->is_post) {
        refuse_http(session, stream, "405");
    } else if (!stream->is_grpc) {
        refuse_http(session, stream, "415");
    } else if (stream->method == session->gate->method_count) {
        refuse_request(session, stream, KVB_GRPC_UNIMPLEMENTED);
    } else if (is_talk(session, stream)) {
        enter_stream_phase(session, stream, STREAM_TALK);
        stream->was_opened = true;
        session->gate->on_open(session->gate->stream_context, stream);
    }
}

static int on_data(
    nghttp2_session *http2, uint8_t flags, int32_t id, const uint8_t *bytes, size_t len,
    void *context)
{
    struct kvb_grpc_session *session = context;
    struct kvb_grpc_stream *stream = grpc_stream_of(http2, id);

    (void)flags;
    /* No stream may stop the others of its connection; its own window opens when its bytes are
     * out of the way. */
    (void)nghttp2_session_consume_connection(http2, len); /* out of memory: as in open_window() */
    if (!stream) {
        return 0;
    }
    stream->unopened_bytes += len;
    stream->moved_bytes += len;
    if (stream->phase == STREAM_BODY || stream->phase == STREAM_TALK) {
        const enum kvb_grpc_status status = stream->phase == STREAM_BODY
                                                ? take_body_bytes(session, stream, bytes, len)
                                                : take_talk_bytes(session, stream, bytes, len);
        if (status != KVB_GRPC_OK && stream->has_response) {
            reset_stream(session, stream, NGHTTP2_ENHANCE_YOUR_CALM);
        } else if (status != KVB_GRPC_OK) {
            refuse_request(session, stream, status);
        }
    }
    open_window(session, stream);
    return 0;
}

/* A token bucket.  nghttp2 has one too, but its code at the end means an error of this side. */
static void count_reset(struct kvb_grpc_session *session)
{
    const double passed_s = (double)(session->now_ns - session->resets_ns) / (double)KVB_NS_PER_S;

    session->resets_ns = session->now_ns;
    session->resets_left += passed_s * kvb_grpc_resets_a_second;
    if (session->resets_left > kvb_grpc_reset_burst) {
        session->resets_left = kvb_grpc_reset_burst;
    }
    session->resets_left -= 1;
    if (session->resets_left < 0) {
        /* Stream 0 as the last: requests under way end with that code, too, and not with the
         * end of the connection, which sgl-router takes for a failure.  Out of memory: the next
         * reset tries again. */
        (void)nghttp2_session_terminate_session2(session->http2, 0, NGHTTP2_ENHANCE_YOUR_CALM);
    }
}

static void take_stream_frame(
    struct kvb_grpc_session *session, struct kvb_grpc_stream *stream, const nghttp2_frame *frame)
{
    if (frame->hd.type == NGHTTP2_HEADERS && stream->phase == STREAM_HEADER) {
        finish_header(session, stream);
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) && stream->phase == STREAM_BODY) {
        finish_request(session, stream);
    } else if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) && stream->phase == STREAM_TALK) {
        session->gate->on_end(session->gate->stream_context, stream);
    }
}

static int on_frame_received(nghttp2_session *http2, const nghttp2_frame *frame, void *context)
{
    struct kvb_grpc_session *session = context;
    struct kvb_grpc_stream *stream = NULL;

    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
    case NGHTTP2_DATA:
        stream = grpc_stream_of(http2, frame->hd.stream_id);
        if (stream) {
            take_stream_frame(session, stream, frame);
        }
        break;
    case NGHTTP2_RST_STREAM:
        /* Envoy resets each stream at its end.  Before its first message it is abuse: a stream was
         * made for nothing. */
        stream = grpc_stream_of(http2, frame->hd.stream_id);
        if (!session->gate->expects_resets || (stream && !stream->had_message)) {
            count_reset(session);
        }
        break;
    default:
        break;
    }
    return 0;
}

/* After an answer that was sent before the end of the request the client need not send the rest. */
static int on_frame_sent(nghttp2_session *http2, const nghttp2_frame *frame, void *context)
{
    struct kvb_grpc_session *session = context;
    const struct kvb_grpc_stream *stream = NULL;

    if (frame->hd.type == NGHTTP2_GOAWAY &&
        frame->goaway.error_code != NGHTTP2_NO_ERROR &&       /* that of kvb_grpc_session_drain() */
        frame->goaway.error_code != NGHTTP2_REFUSED_STREAM) { /* that of kvb_grpc_session_end() */
        session->has_failed = true;
    }
    if (frame->hd.type == NGHTTP2_HEADERS && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) {
        stream = grpc_stream_of(http2, frame->hd.stream_id);
    }
    if (stream && !nghttp2_session_get_stream_remote_close(http2, stream->id)) {
        /* out of memory: it stays open until its time is over */
        (void)nghttp2_submit_rst_stream(http2, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
    }
    return 0;
}

static void end_stream(struct kvb_grpc_session *session, struct kvb_grpc_stream *stream)
{
    const struct kvb_grpc_gate *gate = session->gate;

    if (stream->phase == STREAM_WORK) {
        gate->on_gone(gate->context, session->connection, stream->id);
    }
    if (stream->phase <= STREAM_TALK) {
        gate->on_status(gate->context, KVB_GRPC_LATER);
    }
    stream->phase = STREAM_RESET; /* its owner may not send any more */
    if (stream->was_opened) {
        gate->on_close(gate->stream_context, stream);
    }
    free_stream(session, stream);
}

static int on_stream_close(nghttp2_session *http2, int32_t id, uint32_t code, void *context)
{
    struct kvb_grpc_stream *stream = grpc_stream_of(http2, id);

    (void)code;
    if (stream) {
        end_stream(context, stream);
    }
    return 0;
}

/* ---- Creating and freeing ---- */

/* nghttp2 takes its memory here, so that a test can have each of its allocations fail. */

static void *http2_malloc(size_t size, void *context)
{
    (void)context;
    return malloc(size);
}

static void http2_free(void *bytes, void *context)
{
    (void)context;
    free(bytes);
}

static void *http2_calloc(size_t count, size_t size, void *context)
{
    (void)context;
    return calloc(count, size);
}

static void *http2_realloc(void *bytes, size_t size, void *context)
{
    (void)context;
    return realloc(bytes, size);
}

static kvb_status make_http2(struct kvb_grpc_session *session)
{
    nghttp2_mem memory = { NULL, http2_malloc, http2_free, http2_calloc, http2_realloc };
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int status = nghttp2_session_callbacks_new(&callbacks);

    if (status == 0) {
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_received);
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
        status = nghttp2_option_new(&option);
    }
    if (status == 0) {
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_option_set_no_auto_window_update(option, 1); /* see on_data() */
        nghttp2_option_set_stream_reset_rate_limit(option, never_limited, never_limited);
        status = nghttp2_session_server_new3(&session->http2, callbacks, session, option, &memory);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return status == 0 ? KVB_OK : KVB_NO_MEMORY;
}

static kvb_status submit_settings(struct kvb_grpc_session *session)
{
    const nghttp2_settings_entry settings[] = {
        { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)session->gate->max_streams },
        { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, stream_window_bytes },
        { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kvb_grpc_max_header_bytes },
    };

    return nghttp2_submit_settings(
               session->http2, NGHTTP2_FLAG_NONE, settings, KVB_COUNT_OF(settings)) == 0 &&
                   nghttp2_session_set_local_window_size(
                       session->http2, NGHTTP2_FLAG_NONE, 0, connection_window_bytes) == 0
               ? KVB_OK
               : KVB_NO_MEMORY;
}

kvb_status kvb_grpc_session_new(
    struct kvb_grpc_gate *gate, void *connection, uint64_t now_ns,
    struct kvb_grpc_session **out_session)
{
    struct kvb_grpc_session *session = calloc(1, sizeof *session);

    if (!session) {
        return KVB_NO_MEMORY;
    }
    session->gate = gate;
    session->connection = connection;
    session->now_ns = now_ns;
    session->resets_ns = now_ns;
    session->resets_left = kvb_grpc_reset_burst;
    kvb_status status = make_http2(session);
    if (status == KVB_OK) {
        status = submit_settings(session);
    }
    if (status != KVB_OK) {
        kvb_grpc_session_free(session);
        return status;
    }
    *out_session = session;
    return KVB_OK;
}

void kvb_grpc_session_free(struct kvb_grpc_session *session)
{
    if (!session) {
        return;
    }
    for (struct kvb_grpc_stream *stream = session->streams, *next = NULL; stream; stream = next) {
        next = stream->next;
        end_stream(session, stream);
    }
    nghttp2_session_del(session->http2); /* calls nothing back */
    free(session);
}

/* ---- Bytes ---- */

static kvb_status status_of_http2(ssize_t result)
{
    return result == NGHTTP2_ERR_NOMEM ? KVB_NO_MEMORY : KVB_CLOSED;
}

kvb_status
kvb_grpc_session_receive(struct kvb_grpc_session *session, kvb_span bytes, uint64_t now_ns)
{
    session->now_ns = now_ns;
    const ssize_t taken = nghttp2_session_mem_recv(session->http2, bytes.data, bytes.len);

    if (taken < 0) {
        return status_of_http2(taken);
    }
    return kvb_grpc_session_is_finished(session) ? KVB_CLOSED : KVB_OK;
}

kvb_status kvb_grpc_session_write(
    struct kvb_grpc_session *session, struct kvb_buf *out, size_t max_bytes, uint64_t now_ns)
{
    const uint8_t *bytes = NULL;

    session->now_ns = now_ns;
    session->has_news = false;
    while (out->len < max_bytes) { /* ends, because the bytes to be sent are finite */
        const ssize_t len = nghttp2_session_mem_send(session->http2, &bytes);
        if (len < 0) {
            return status_of_http2(len);
        }
        if (len == 0) {
            break;
        }
        KVB_TRY(kvb_buf_append(out, bytes, (size_t)len));
    }
    return KVB_OK;
}

/* ---- Time ---- */

static bool
is_stream_late(const struct kvb_grpc_session *session, const struct kvb_grpc_stream *stream)
{
    const uint64_t grace_ns = kvb_grpc_grace_s * KVB_NS_PER_S +
                              stream->moved_bytes / kvb_grpc_bytes_a_second * KVB_NS_PER_S;

    if (stream->phase == STREAM_TALK) {
        return session->now_ns - stream->since_ns >= kvb_grpc_talk_s * KVB_NS_PER_S;
    }
    return stream->phase != STREAM_WORK && session->now_ns - stream->since_ns >= grace_ns;
}

kvb_status kvb_grpc_session_expire(struct kvb_grpc_session *session, uint64_t now_ns)
{
    session->now_ns = now_ns;
    for (struct kvb_grpc_stream *stream = session->streams; stream; stream = stream->next) {
        if (!is_stream_late(session, stream)) {
            continue;
        }
        /* No frame can follow a header that is not complete; a reset that cannot be sent means
         * that the client does not read. */
        if (stream->phase == STREAM_HEADER || stream->phase == STREAM_RESET) {
            return KVB_CLOSED;
        }
        reset_stream(session, stream, NGHTTP2_CANCEL);
    }
    return KVB_OK;
}

void kvb_grpc_session_end(struct kvb_grpc_session *session)
{
    /* Stream 0 as the last, as above.  Out of memory: the connection is closed without it. */
    (void)nghttp2_session_terminate_session2(session->http2, 0, NGHTTP2_REFUSED_STREAM);
}

void kvb_grpc_session_drain(struct kvb_grpc_session *session)
{
    session->has_news = true;
    /* Out of memory: the connection is closed without it. */
    (void)nghttp2_submit_goaway(
        session->http2, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session->http2),
        NGHTTP2_NO_ERROR, NULL, 0);
}

bool kvb_grpc_session_has_news(const struct kvb_grpc_session *session)
{
    return session->has_news;
}

bool kvb_grpc_session_is_finished(const struct kvb_grpc_session *session)
{
    return !nghttp2_session_want_read(session->http2) &&
           !nghttp2_session_want_write(session->http2);
}

bool kvb_grpc_session_has_failed(const struct kvb_grpc_session *session)
{
    return session->has_failed;
}

size_t kvb_grpc_session_streams(const struct kvb_grpc_session *session)
{
    return session->stream_count;
}

uint64_t kvb_grpc_session_requested_ns(const struct kvb_grpc_session *session)
{
    return session->requested_ns;
}

/* ---- grpc-timeout ---- */

kvb_status kvb_grpc_timeout_read(kvb_span text, uint64_t *out_ns)
{
    static const struct {
        char unit;
        uint64_t ns;
    } units[] = {
        { 'H', 3600 * KVB_NS_PER_S },
        { 'M', 60 * KVB_NS_PER_S },
        { 'S', KVB_NS_PER_S },
        { 'm', KVB_NS_PER_MS },
        { 'u', 1000 },
        { 'n', 1 },
    };
    enum { max_digits = 8 };
    char digits[max_digits + 1] = "";
    uint64_t value = 0;

    if (text.len < 2 || text.len > max_digits + 1) {
        return KVB_BAD_INPUT;
    }
    memcpy(digits, text.data, text.len - 1);
    if (!kvb_decimal_read(digits, &value)) {
        return KVB_BAD_INPUT;
    }
    for (size_t i = 0; i < KVB_COUNT_OF(units); i++) {
        if ((char)text.data[text.len - 1] == units[i].unit) {
            if (__builtin_mul_overflow(value, units[i].ns, out_ns)) {
                *out_ns = UINT64_MAX; /* it would be centuries */
            }
            return KVB_OK;
        }
    }
    return KVB_BAD_INPUT;
}
