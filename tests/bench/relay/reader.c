#include "reader.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    buffer_bytes = 4 << 20, /* a message of 1 MiB at most, and many small ones */
    read_bytes = 1 << 20,
    receive_ms = 20,
    answer_tries = 250,
};

/* ---- What a message holds ---- */

struct found {
    uint64_t first_id;
    uint64_t events;
    bool has_id;
};

/* One varint of at most 32 bits: longer ones do not occur in what is looked at. */
static bool read_varint(kvb_span *rest, uint32_t *out)
{
    *out = 0;
    for (unsigned shift = 0; rest->len > 0 && shift < 32; shift += 7) {
        const uint8_t byte = *rest->data++;
        rest->len--;
        *out |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            return true;
        }
    }
    return false;
}

static bool skip(kvb_span *rest, size_t bytes)
{
    if (bytes > rest->len) {
        return false;
    }
    rest->data += bytes;
    rest->len -= bytes;
    return true;
}

enum { varint = 0, fixed64 = 1, length = 2, first_event_id = 4, forms = 5 };

/* False at the end, and where it is no protobuf. */
static bool take_field(kvb_span *rest, struct found *found)
{
    uint32_t tag = 0;
    uint32_t value = 0;

    if (!read_varint(rest, &tag)) {
        return false;
    }
    const uint32_t field = tag >> 3;
    switch (tag & 7) {
    case fixed64:
        if (field == first_event_id && rest->len >= sizeof found->first_id) {
            memcpy(&found->first_id, rest->data, sizeof found->first_id);
            found->has_id = true;
        }
        return skip(rest, sizeof found->first_id);
    case varint:
        return read_varint(rest, &value);
    case length:
        if (!read_varint(rest, &value)) {
            return false;
        }
        found->events = field == forms ? value : 0;
        return skip(rest, value);
    default:
        return false;
    }
}

/* KvEventBatch: epoch 1, worker_id 2, dp_rank 3, first_event_id 4, forms 5, which are
 * one byte each; the fields behind them are not read. */
static struct found look_into_protobuf(kvb_span rest)
{
    struct found found = { .has_id = false };

    while (found.events == 0 && take_field(&rest, &found)) {
    }
    return found;
}

static struct found look_into_json(kvb_span json)
{
    static const char key[] = "\"event_id\":";
    const char *at = memmem(json.data, json.len, key, sizeof key - 1);
    struct found found = { .events = 1, .has_id = at != NULL };

    if (at) {
        found.first_id = strtoull(at + sizeof key - 1, NULL, 10); /* ends at a comma */
    }
    return found;
}

static struct found look_into(kvb_span payload)
{
    switch (payload.len > 0 ? payload.data[0] : 0) {
    case 0x0A:
        return look_into_protobuf(payload);
    case '{':
        return look_into_json(payload);
    default:
        return (struct found){ .events = 1 };
    }
}

static void count(struct reader *reader, kvb_span payload)
{
    const struct found found = look_into(payload);

    if (found.has_id && !reader->has_many_streams) {
        reader->jumps += reader->next_id != 0 && found.first_id != reader->next_id;
        reader->next_id = found.first_id + found.events;
    }
    reader->events += found.events;
    reader->bytes += payload.len;
}

/* ---- The protocol's text ---- */

static kvb_status send_text(const struct reader *reader, const char *text)
{
    const size_t len = strlen(text);

    return send(reader->fd, text, len, MSG_NOSIGNAL) == (ssize_t)len ? KVB_OK : KVB_IO;
}

static bool begins_with(kvb_span line, const char *word)
{
    const size_t len = strlen(word);

    return line.len >= len && memcmp(line.data, word, len) == 0;
}

static kvb_span unread(const struct reader *reader)
{
    return (kvb_span){ .data = reader->buf.data + reader->begin,
                       .len = reader->buf.len - reader->begin };
}

/* The last number of "MSG subject sid bytes\r\n". */
static size_t size_of_message(kvb_span line)
{
    size_t at = line.len;

    while (at > 0 && line.data[at - 1] != ' ') {
        at--;
    }
    return strtoull((const char *)line.data + at, NULL, 10); /* ends at the \r */
}

/* Takes one line, or one message with its payload.  KVB_AGAIN: it is not all there. */
static kvb_status take(struct reader *reader)
{
    const kvb_span rest = unread(reader);
    const uint8_t *end = memchr(rest.data, '\n', rest.len);

    if (!end) {
        return KVB_AGAIN;
    }
    const kvb_span line = { .data = rest.data, .len = (size_t)(end - rest.data) + 1 };
    if (begins_with(line, "MSG ")) {
        const size_t size = size_of_message(line);
        if (rest.len - line.len < size + 2) {
            return KVB_AGAIN;
        }
        count(reader, (kvb_span){ .data = end + 1, .len = size });
        reader->begin += line.len + size + 2;
        return KVB_OK;
    }
    reader->begin += line.len;
    if (begins_with(line, "-ERR")) {
        return KVB_IO;
    }
    return begins_with(line, "PING") ? send_text(reader, "PONG\r\n") : KVB_OK;
}

/* Moves the rest to the front, so that the remainder of an incomplete message fits behind it. */
static void make_room(struct reader *reader)
{
    const kvb_span rest = unread(reader);

    if (reader->begin > 0) {
        memmove(reader->buf.data, rest.data, rest.len);
        reader->buf.len = rest.len;
        reader->begin = 0;
    }
}

static kvb_status receive(struct reader *reader)
{
    make_room(reader);
    KVB_TRY(kvb_buf_reserve(&reader->buf, read_bytes));
    const ssize_t got = recv(reader->fd, reader->buf.data + reader->buf.len, read_bytes, 0);
    if (got > 0) {
        reader->buf.len += (size_t)got;
        return KVB_OK;
    }
    return got < 0 && (errno == EAGAIN || errno == EINTR) ? KVB_AGAIN : KVB_IO;
}

kvb_status reader_read(struct reader *reader, uint64_t *out_events)
{
    const uint64_t before = reader->events;
    kvb_status status = KVB_OK;

    KVB_TRY(receive(reader));
    while (status == KVB_OK && reader->begin < reader->buf.len) {
        status = take(reader);
    }
    *out_events = reader->events - before;
    return status == KVB_AGAIN ? KVB_OK : status;
}

/* ---- Start and end ---- */

static kvb_status connect_to(struct reader *reader, uint16_t port)
{
    const struct sockaddr_in address = { .sin_family = AF_INET,
                                         .sin_port = htons(port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct timeval patience = { .tv_usec = receive_ms * 1000L };
    const int yes = 1;

    reader->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (reader->fd < 0 ||
        setsockopt(reader->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        setsockopt(reader->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0 ||
        connect(reader->fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        return KVB_IO;
    }
    return KVB_OK;
}

/* The PONG arrives when the subscription is in place. */
static kvb_status wait_for_pong(struct reader *reader)
{
    for (int i = 0; i < answer_tries; i++) {
        const kvb_status status = receive(reader);
        if (status != KVB_OK && status != KVB_AGAIN) {
            return status;
        }
        const kvb_span rest = unread(reader);
        const uint8_t *pong = memmem(rest.data, rest.len, "PONG\r\n", 6);
        if (pong) {
            reader->begin += (size_t)(pong - rest.data) + 6;
            return KVB_OK;
        }
        if (memmem(rest.data, rest.len, "-ERR", 4)) {
            return KVB_IO;
        }
    }
    return KVB_IO;
}

static kvb_status subscribe(struct reader *reader, const char *subject)
{
    char hello[512];

    (void)snprintf(
        hello, sizeof hello,
        "CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"bench\"}\r\nSUB %s 1\r\nPING\r\n",
        subject);
    KVB_TRY(send_text(reader, hello));
    return wait_for_pong(reader);
}

kvb_status reader_open(struct reader *out_reader, uint16_t port, const char *subject)
{
    struct reader reader = { .fd = -1 };

    kvb_buf_init(&reader.buf, buffer_bytes);
    kvb_status status = connect_to(&reader, port);
    if (status == KVB_OK) {
        status = subscribe(&reader, subject);
    }
    if (status != KVB_OK) {
        reader_close(&reader);
        return status;
    }
    *out_reader = reader;
    return KVB_OK;
}

void reader_close(struct reader *reader)
{
    if (reader->fd >= 0) {
        close(reader->fd);
        reader->fd = -1;
    }
    kvb_buf_done(&reader->buf);
}
