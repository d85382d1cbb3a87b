#include "intake/web.h"

#include "parts/bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { max_answer_bytes = 256 << 20, read_bytes = 1 << 16 };

/* To a port of 127.0.0.1; -1: nobody listens. */
static int web_connect(uint16_t port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;

    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        (void)close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* else slower */
    return fd;
}

bool web_open(struct web *web, uint16_t port)
{
    *web = (struct web){ .fd = web_connect(port) };
    kvb_buf_init(&web->text, max_answer_bytes);
    return web->fd >= 0;
}

void web_close(struct web *web)
{
    if (web->fd >= 0) {
        (void)close(web->fd);
    }
    kvb_buf_done(&web->text);
    web->fd = -1;
}

void web_send(struct web *web, kvb_span request)
{
    kvb_buf_reset(&web->text);
    web->body_at = 0;
    for (size_t at = 0; at < request.len;) {
        const ssize_t sent = send(web->fd, request.data + at, request.len - at, MSG_NOSIGNAL);
        BENCH_MUST_BE(sent > 0);
        at += (size_t)sent;
    }
}

bool web_read(struct web *web)
{
    struct kvb_buf *text = &web->text;

    BENCH_MUST(kvb_buf_reserve(text, read_bytes));
    const ssize_t got = recv(web->fd, text->data + text->len, read_bytes - 1, 0);
    BENCH_MUST_BE(got > 0);
    text->len += (size_t)got;
    text->data[text->len] = '\0';
    const char *head = (const char *)text->data;
    const char *end = web->body_at == 0 ? strstr(head, "\r\n\r\n") : NULL;
    if (end) {
        const char *length = strcasestr(head, "content-length:");
        BENCH_MUST_BE(strncmp(head, "HTTP/1.1 200", 12) == 0 && length && length < end);
        web->body_at = (size_t)(end - head) + 4;
        web->end = web->body_at + strtoull(length + strlen("content-length:"), NULL, 10);
    }
    return web->body_at > 0 && text->len >= web->end;
}

void web_make_query(struct kvb_buf *out, kvb_span body)
{
    BENCH_MUST(kvb_buf_append_format(
        out,
        "POST /query HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n",
        body.len));
    BENCH_MUST(kvb_buf_append(out, body.data, body.len));
}

/* ---- gRPC ---- */

enum {
    frame_head = 9,
    type_data = 0,
    type_headers = 1,
    type_reset = 3,
    type_settings = 4,
    type_window = 8,
    flag_end_stream = 1, /* of settings: their acknowledgement */
    flag_end_headers = 4,
    window_bytes = INT32_MAX,
    first_window_bytes = 65535,
    renewed_bytes = 1 << 20, /* of the connection's window, at a time */
    grpc_head = 5,
    max_request_bytes = 16 << 10
};

static void put_u32(struct kvb_buf *out, uint32_t value)
{
    const uint8_t bytes[] = { (uint8_t)(value >> 24U), (uint8_t)(value >> 16U),
                              (uint8_t)(value >> 8U), (uint8_t)value };

    BENCH_MUST(kvb_buf_append(out, bytes, sizeof bytes));
}

static void
put_frame_head(struct kvb_buf *out, size_t len, uint8_t type, uint8_t flags, uint32_t stream)
{
    const uint8_t bytes[] = { (uint8_t)(len >> 16U), (uint8_t)(len >> 8U), (uint8_t)len, type,
                              flags };

    BENCH_MUST(kvb_buf_append(out, bytes, sizeof bytes));
    put_u32(out, stream);
}

static bool send_sent(struct caller *caller)
{
    const struct kvb_buf *out = &caller->sent;
    const ssize_t sent = send(caller->fd, out->data, out->len, MSG_NOSIGNAL);
    const bool is_sent = sent == (ssize_t)out->len; /* a few KiB on loopback */

    kvb_buf_reset(&caller->sent);
    return is_sent;
}

bool caller_open(struct caller *caller, uint16_t port)
{
    static const uint8_t initial_window[] = { 0, 4 };

    *caller = (struct caller){ .fd = web_connect(port) };
    kvb_buf_init(&caller->sent, (size_t)2 * max_request_bytes);
    if (caller->fd < 0) {
        return false;
    }
    BENCH_MUST(kvb_buf_append_text(&caller->sent, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    put_frame_head(&caller->sent, 6, type_settings, 0, 0);
    BENCH_MUST(kvb_buf_append(&caller->sent, initial_window, sizeof initial_window));
    put_u32(&caller->sent, window_bytes);
    put_frame_head(&caller->sent, 4, type_window, 0, 0);
    put_u32(&caller->sent, window_bytes - first_window_bytes);
    return send_sent(caller);
}

void caller_close(struct caller *caller)
{
    if (caller->fd >= 0) {
        (void)close(caller->fd);
    }
    kvb_buf_done(&caller->sent);
}

/* HPACK: two headers of its static table, and literals that no table keeps. */
static void put_request(struct caller *caller, kvb_span message)
{
    static const char header[] = "\x83\x86\x04\x2e/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"
                                 "\x01\x05index\x0f\x10\x10"
                                 "application/grpc"
                                 "\x00\x02te\x08trailers\x00\x0cgrpc-timeout\x03"
                                 "10S";
    struct kvb_buf *out = &caller->sent;

    put_frame_head(out, sizeof header - 1, type_headers, flag_end_headers, caller->stream);
    BENCH_MUST(kvb_buf_append(out, header, sizeof header - 1));
    put_frame_head(out, grpc_head + message.len, type_data, flag_end_stream, caller->stream);
    BENCH_MUST(kvb_buf_append(out, "", 1)); /* not compressed */
    put_u32(out, (uint32_t)message.len);
    BENCH_MUST(kvb_buf_append(out, message.data, message.len));
    if (caller->unread >= renewed_bytes) {
        put_frame_head(out, 4, type_window, 0, 0);
        put_u32(out, caller->unread);
        caller->unread = 0;
    }
}

/* What the frames that have arrived completely contain. */
struct seen {
    size_t bytes; /* of the answer */
    bool is_over;
};

static size_t
look_at_frame(struct caller *caller, const uint8_t *frame, size_t left, struct seen *seen)
{
    if (left < frame_head) {
        return 0;
    }
    const size_t len = (size_t)frame[0] << 16U | (size_t)frame[1] << 8U | frame[2];
    if (left < frame_head + len) {
        return 0;
    }
    if (frame[3] == type_data) {
        seen->bytes += len;
        caller->unread += (uint32_t)len;
    }
    if (frame[3] == type_settings && !(frame[4] & flag_end_stream)) {
        put_frame_head(&caller->sent, 0, type_settings, flag_end_stream, 0);
    }
    seen->is_over = seen->is_over || frame[3] == type_reset ||
                    (frame[3] <= type_headers && (frame[4] & flag_end_stream));
    return frame_head + len;
}

static bool read_frames(struct caller *caller, struct seen *seen)
{
    const ssize_t len =
        recv(caller->fd, caller->received + caller->len, sizeof caller->received - caller->len, 0);
    size_t at = 0;

    if (len <= 0) {
        return false;
    }
    caller->len += (size_t)len;
    for (size_t taken = 1; taken > 0; at += taken) {
        taken = look_at_frame(caller, caller->received + at, caller->len - at, seen);
    }
    caller->len -= at;
    memmove(caller->received, caller->received + at, caller->len);
    return true;
}

size_t caller_ask(struct caller *caller, kvb_span message)
{
    struct seen seen = { 0 };

    caller->stream += caller->stream == 0 ? 1 : 2;
    put_request(caller, message);
    if (!send_sent(caller)) {
        return 0;
    }
    while (!seen.is_over) { /* terminates: the answer ends, or the connection does */
        if (!read_frames(caller, &seen)) {
            return 0;
        }
    }
    return seen.bytes;
}
