#include "ingest/zmq/message.h"

#include <errno.h>

/* KVB_AGAIN, and nothing else, means that there is no input. */
static int receive_frame(zmq_msg_t *frame, void *socket)
{
    int len = -1;

    do {
        len = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
    } while (len < 0 && errno == EINTR);
    return len;
}

/* Drops the frames beyond kvb_max_frames, but counts them. */
static void drop_other_frames(void *socket, struct kvb_zmq_message *message)
{
    zmq_msg_t part;
    bool has_more = true;

    while (has_more) {
        (void)zmq_msg_init(&part);
        if (receive_frame(&part, socket) < 0) {
            (void)zmq_msg_close(&part);
            return; /* does not happen: frames of one message arrive together */
        }
        message->frames.count++;
        has_more = zmq_msg_more(&part) != 0;
        (void)zmq_msg_close(&part);
    }
}

static kvb_status receive_part(void *socket, struct kvb_zmq_message *message)
{
    zmq_msg_t *part = &message->parts[message->part_count];

    (void)zmq_msg_init(part); /* cannot fail */
    if (receive_frame(part, socket) < 0) {
        const kvb_status status = errno == EAGAIN ? KVB_AGAIN : KVB_IO;
        (void)zmq_msg_close(part);
        return status;
    }
    message->frames.frame[message->part_count] =
        (kvb_span){ .data = zmq_msg_data(part), .len = zmq_msg_size(part) };
    message->part_count++;
    message->frames.count = message->part_count;
    return KVB_OK;
}

kvb_status kvb_zmq_message_receive(void *socket, struct kvb_zmq_message *message)
{
    message->part_count = 0;
    message->frames.count = 0;
    do {
        /* The rest must be received, or it would be the beginning of the next message. */
        if (message->part_count == kvb_max_frames) {
            drop_other_frames(socket, message);
            return KVB_OK;
        }
        const kvb_status status = receive_part(socket, message);
        if (status != KVB_OK) {
            /* It may have parts already; a caller that sees a failure closes nothing. */
            kvb_zmq_message_close(message);
            return status;
        }
    } while (zmq_msg_more(&message->parts[message->part_count - 1]));
    return KVB_OK;
}

void kvb_zmq_message_close(struct kvb_zmq_message *message)
{
    for (size_t i = 0; i < message->part_count; i++) {
        (void)zmq_msg_close(&message->parts[i]);
    }
    message->part_count = 0;
}

uint64_t kvb_zmq_message_wire_bytes(const struct kvb_zmq_message *message)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < message->part_count; i++) {
        const size_t len = message->frames.frame[i].len;
        /* ZMTP: a byte of flags, and a length of one byte or of eight. */
        bytes += len + (len > UINT8_MAX ? 9 : 2);
    }
    return bytes;
}
