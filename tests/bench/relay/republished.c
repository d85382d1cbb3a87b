#include "republished.h"

#include "core/span.h"

#include <string.h>
#include <zmq.h>

enum {
    wait_ms = 20,
    answer_ms = 10000,
    most_at_once = 4096, /* messages, so that a thread that waits for arrivals is woken */
    frames = 3,
    number_bytes = 8,
};

/* ---- Life ---- */

kvb_status republished_open(const char *events, struct republished *out_reader)
{
    struct republished reader = { .zmq_context = zmq_ctx_new() };
    const int none = 0;

    if (!reader.zmq_context) {
        return KVB_NO_MEMORY;
    }
    reader.socket = zmq_socket(reader.zmq_context, ZMQ_SUB);
    if (!reader.socket || zmq_setsockopt(reader.socket, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        zmq_setsockopt(reader.socket, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(reader.socket, ZMQ_SUBSCRIBE, "", 0) != 0 ||
        zmq_connect(reader.socket, events) != 0) {
        republished_close(&reader);
        return KVB_IO;
    }
    *out_reader = reader;
    return KVB_OK;
}

void republished_close(struct republished *reader)
{
    if (reader->socket) {
        (void)zmq_close(reader->socket);
    }
    if (reader->zmq_context) {
        (void)zmq_ctx_term(reader->zmq_context);
    }
    *reader = (struct republished){ .socket = NULL };
}

/* ---- Payloads ---- */

/* How many items the msgpack array has that begins here; 0: it is none. */
static uint32_t array_count(const uint8_t *at, const uint8_t *end)
{
    const uint8_t kind = at < end ? at[0] : 0;

    if ((kind & 0xF0) == 0x90) {
        return kind & 0x0F;
    }
    if (kind == 0xDC && end - at >= 3) {
        return (uint32_t)at[1] << 8 | at[2];
    }
    if (kind == 0xDD && end - at >= 5) {
        return (uint32_t)at[1] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 8 | at[4];
    }
    return 0;
}

/* A Cleared is the first event of its batch; a script removes nothing. */
static void count_payload(struct republished *reader, kvb_span payload)
{
    static const char cleared[] = "AllBlocksCleared";
    static const char hashes[] = "block_hashes";
    enum { first_event_bytes = 64 };
    const uint8_t *end = payload.data + payload.len;
    const uint8_t *at = payload.data;
    const size_t head = payload.len < first_event_bytes ? payload.len : first_event_bytes;

    reader->bytes += payload.len;
    if (memmem(at, head, cleared, sizeof cleared - 1)) {
        reader->laps++;
        reader->blocks = 0;
    }
    while ((at = memmem(at, (size_t)(end - at), hashes, sizeof hashes - 1))) {
        at += sizeof hashes - 1;
        reader->blocks += array_count(at, end);
    }
}

/* ---- Messages ---- */

static uint64_t number_of(const uint8_t *bytes)
{
    uint64_t number = 0;

    for (int i = 0; i < number_bytes; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

static void count_number(struct republished *reader, uint64_t number)
{
    reader->jumps += reader->next_number != 0 && number != reader->next_number;
    reader->next_number = number + 1;
}

/* topic | number | payload */
static kvb_status take_message(struct republished *reader)
{
    kvb_status status = KVB_OK;
    int more = 1;

    for (int i = 0; more && status != KVB_IO; i++) {
        zmq_msg_t frame;
        (void)zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, reader->socket, ZMQ_DONTWAIT) < 0) {
            status = i == 0 ? KVB_AGAIN : KVB_IO;
            more = 0;
        } else {
            const kvb_span bytes = { zmq_msg_data(&frame), zmq_msg_size(&frame) };
            more = zmq_msg_more(&frame);
            if ((i == 1 && bytes.len != number_bytes) || i >= frames || (i < frames - 1) != more) {
                status = KVB_IO;
            } else if (i == 1) {
                count_number(reader, number_of(bytes.data));
            } else if (i == frames - 1) {
                count_payload(reader, bytes);
            }
        }
        (void)zmq_msg_close(&frame);
    }
    return status;
}

kvb_status republished_read(struct republished *reader)
{
    zmq_pollitem_t item = { .socket = reader->socket, .events = ZMQ_POLLIN };

    if (zmq_poll(&item, 1, wait_ms) <= 0) {
        return KVB_AGAIN;
    }
    for (int i = 0; i < most_at_once; i++) {
        const kvb_status status = take_message(reader);
        if (status == KVB_AGAIN) {
            return KVB_OK;
        }
        KVB_TRY(status);
    }
    return KVB_OK;
}

uint64_t republished_position(const struct republished *reader, const struct script *script)
{
    return reader->laps == 0
               ? 0
               : (reader->laps - 1) * script->count + 1 + reader->blocks / script->blocks_per_batch;
}

/* ---- A request ---- */

/* topic "" | number | payload, behind an empty frame; the end's number is all ones. */
static bool is_end_mark(void *socket)
{
    static const uint8_t ones[number_bytes] = { 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF };
    bool is_end = false;
    int more = 1;

    while (more) {
        uint8_t bytes[number_bytes];
        size_t size = sizeof more;
        const int len = zmq_recv(socket, bytes, sizeof bytes, 0);
        if (len < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) {
            return false;
        }
        is_end |= len == number_bytes && memcmp(bytes, ones, sizeof ones) == 0;
    }
    return is_end;
}

kvb_status republished_ask_for_all(const struct republished *reader, const char *replay)
{
    static const uint8_t zero[number_bytes];
    void *socket = zmq_socket(reader->zmq_context, ZMQ_DEALER);
    const int none = 0;
    const int patience_ms = answer_ms;
    kvb_status status = KVB_IO;

    if (socket && zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none) == 0 &&
        zmq_setsockopt(socket, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms) == 0 &&
        zmq_connect(socket, replay) == 0 && zmq_send(socket, "", 0, ZMQ_SNDMORE) == 0 &&
        zmq_send(socket, zero, sizeof zero, 0) == sizeof zero) {
        status = is_end_mark(socket) ? KVB_OK : KVB_AGAIN;
    }
    if (socket) {
        (void)zmq_close(socket);
    }
    return status;
}
