#include "ingest/zmq_source.h"

#include "core/limits.h"
#include "ingest/zmq_message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    receive_high_water = 2000,
    heartbeat_ms = 200,
    heartbeat_timeout_ms = 1000,
    reconnect_ms = 100,
    most_reconnect_ms = 1000,
    endpoint_bytes = 256,
};

struct kvb_source {
    void *context; /* borrowed */
    void *sub;     /* owned, like the two below */
    void *monitor;
    void *dealer; /* NULL while no replay runs */
    bool is_up;
    char replay[endpoint_bytes];
    struct kvb_zmq_message run[kvb_source_run]; /* of the last receive */
    size_t run_count;
    struct kvb_zmq_message reply;
};

struct option {
    int name;
    int value;
};

static kvb_status set_options(void *socket, const struct option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (zmq_setsockopt(socket, options[i].name, &options[i].value, sizeof(int)) != 0) {
            return KVB_IO;
        }
    }
    return KVB_OK;
}

static kvb_status set_common_options(void *socket, int high_water)
{
    const struct option options[] = {
        { ZMQ_LINGER, 0 },
        { ZMQ_RCVHWM, high_water },
        { ZMQ_HEARTBEAT_IVL, heartbeat_ms },
        { ZMQ_HEARTBEAT_TIMEOUT, heartbeat_timeout_ms },
        { ZMQ_RECONNECT_IVL, reconnect_ms },
        { ZMQ_RECONNECT_IVL_MAX, most_reconnect_ms },
    };
    const int64_t most_bytes = kvb_max_payload_bytes;

    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most_bytes, sizeof most_bytes) != 0) {
        return KVB_IO;
    }
    return set_options(socket, options, sizeof options / sizeof options[0]);
}

/* The monitor sees the handshake, not the TCP connection: a port that accepts
 * and says nothing is no engine. */
static kvb_status open_monitor(struct kvb_source *source)
{
    char address[64];

    (void)snprintf(address, sizeof address, "inproc://monitor-%p", source->sub);
    const int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
    if (zmq_socket_monitor(source->sub, address, events) != 0) {
        return KVB_IO;
    }
    source->monitor = zmq_socket(source->context, ZMQ_PAIR);
    if (!source->monitor) {
        return KVB_IO;
    }
    const struct option options[] = { { ZMQ_LINGER, 0 }, { ZMQ_RCVHWM, 0 } };
    KVB_TRY(set_options(source->monitor, options, 2));
    return zmq_connect(source->monitor, address) == 0 ? KVB_OK : KVB_IO;
}

static kvb_status open_sub(struct kvb_source *source, const struct kvb_source_options *options)
{
    source->sub = zmq_socket(source->context, ZMQ_SUB);
    if (!source->sub) {
        return KVB_IO;
    }
    KVB_TRY(set_common_options(source->sub, receive_high_water));
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, options->topic, strlen(options->topic)) != 0) {
        return KVB_IO;
    }
    KVB_TRY(open_monitor(source));
    const int failed = options->bind ? zmq_bind(source->sub, options->events)
                                     : zmq_connect(source->sub, options->events);
    return failed ? KVB_BAD_CONFIG : KVB_OK;
}

kvb_status kvb_source_open(
    struct kvb_zmq *zmq, const struct kvb_source_options *options, struct kvb_source **out_source,
    struct kvb_detail *detail)
{
    struct kvb_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->context = kvb_zmq_handle(zmq);
    (void)snprintf(source->replay, sizeof source->replay, "%s", options->replay);
    const kvb_status status = open_sub(source, options);
    if (status != KVB_OK) {
        kvb_detail_set(
            detail, "%s %s: %s", options->bind ? "bind" : "connect", options->events,
            zmq_strerror(errno));
        kvb_source_close(source);
        return status;
    }
    *out_source = source;
    return KVB_OK;
}

static void close_socket(void **socket)
{
    if (*socket) {
        (void)zmq_close(*socket);
        *socket = NULL;
    }
}

static void close_run(struct kvb_source *source)
{
    for (size_t i = 0; i < source->run_count; i++) {
        kvb_zmq_message_close(&source->run[i]);
    }
    source->run_count = 0;
}

void kvb_source_close(struct kvb_source *source)
{
    if (!source) {
        return;
    }
    close_run(source);
    kvb_source_replay_stop(source);
    if (source->sub) {
        (void)zmq_socket_monitor(source->sub, NULL, 0); /* ends the PAIR's other side */
    }
    close_socket(&source->monitor);
    close_socket(&source->sub);
    free(source);
}

size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused)
{
    size_t batches = 0;

    close_run(source);
    *out_refused = 0;
    while (source->run_count < kvb_source_run) {
        struct kvb_zmq_message *message = &source->run[source->run_count];
        struct kvb_source_batch *batch = &out_batches[batches];
        if (kvb_zmq_message_receive(source->sub, message) != KVB_OK) {
            break;
        }
        source->run_count++;
        if (kvb_frames_read_live(&message->frames, &batch->seq, &batch->payload) == KVB_OK) {
            batches++;
        } else {
            (*out_refused)++;
        }
    }
    return batches;
}

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source)
{
    struct kvb_source_link link = { .was_lost = false };
    struct kvb_zmq_message message;

    while (kvb_zmq_message_receive(source->monitor, &message) == KVB_OK) {
        uint16_t event = 0;
        if (message.frames.frame[0].len >= sizeof event) {
            memcpy(&event, message.frames.frame[0].data, sizeof event);
        }
        link.was_lost |= event == ZMQ_EVENT_DISCONNECTED;
        source->is_up = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        kvb_zmq_message_close(&message);
    }
    link.is_up = source->is_up;
    return link;
}

/* ---- Replay ---- */

static kvb_status send_request(void *dealer, uint64_t from)
{
    uint8_t seq[8];

    kvb_frames_write_seq(from, seq);
    if (zmq_send(dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
        zmq_send(dealer, seq, sizeof seq, ZMQ_DONTWAIT) < 0) {
        return KVB_IO;
    }
    return KVB_OK;
}

kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from)
{
    kvb_source_replay_stop(source);
    source->dealer = zmq_socket(source->context, ZMQ_DEALER);
    if (!source->dealer) {
        return KVB_IO;
    }
    /* 0 = no high-water mark: what it holds is bounded by the engine's buffer,
     * and a full pipe would drop replies for good. */
    kvb_status status = set_common_options(source->dealer, 0);
    if (status == KVB_OK && zmq_connect(source->dealer, source->replay) != 0) {
        status = KVB_IO;
    }
    if (status == KVB_OK) {
        status = send_request(source->dealer, from);
    }
    if (status != KVB_OK) {
        kvb_source_replay_stop(source);
    }
    return status;
}

void kvb_source_replay_stop(struct kvb_source *source)
{
    kvb_zmq_message_close(&source->reply);
    close_socket(&source->dealer);
}

kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    enum kvb_replay_frame kind = KVB_REPLAY_END;

    kvb_zmq_message_close(&source->reply);
    if (!source->dealer) {
        return KVB_AGAIN;
    }
    KVB_TRY(kvb_zmq_message_receive(source->dealer, &source->reply));
    KVB_TRY(
        kvb_frames_read_replay(&source->reply.frames, &kind, &out_batch->seq, &out_batch->payload));
    *out_kind = kind == KVB_REPLAY_END ? KVB_REPLY_END : KVB_REPLY_BATCH;
    return KVB_OK;
}

size_t kvb_source_handles(const struct kvb_source *source, void *out[kvb_source_sockets])
{
    size_t count = 0;

    out[count++] = source->sub;
    out[count++] = source->monitor;
    if (source->dealer) {
        out[count++] = source->dealer;
    }
    return count;
}
