#include "ingest/zmq/event_server.h"

#include "ingest/zmq/frames.h"
#include "ingest/zmq/inside.h"
#include "ingest/zmq/monitor.h"
#include "ingest/zmq/socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* batches_high_water: batches that wait for one subscriber; the value is vLLM's.
 * replies_high_water: replies that wait for one reader; the caller keeps further ones.
 * max_request_bytes: of one frame of a reader; a reader that sends more is disconnected.
 * receive_buffer_bytes: of the kernel, for each reader: what it holds is read even when the reader
 * is ended. */
enum {
    batches_high_water = 100000,
    replies_high_water = 256,
    max_request_bytes = 2048,
    receive_buffer_bytes = 8 << 10,
    seq_bytes = 8
};

/* What a reader may bring: subscriptions, or requests of 15 bytes; pings are part of it. */
struct reader_limit {
    uint64_t max_bytes;
    uint64_t bytes_a_second;
};

static const struct reader_limit of_subscriber = { 32 << 10, 1 << 10 };
static const struct reader_limit of_requester = { 1 << 20, 64 << 10 };

struct server_socket {
    void *socket;                        /* owned; NULL: none */
    void *monitor;                       /* owned; read by the watch, which sees who connects */
    struct kvb_watched_readers *readers; /* owned; NULL: not watched yet */
};

struct kvb_event_server {
    struct kvb_zmq *zmq; /* borrowed, like the next */
    struct kvb_poller *poller;
    size_t owner;
    struct server_socket xpub;
    struct server_socket router;
    size_t topic_len;
    uint8_t topic[kvb_event_topic_bytes];
    struct kvb_zmq_message message; /* the newest request */
};

/* ---- Opening, closing ---- */

static kvb_status set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0 ? KVB_OK : KVB_IO;
}

static kvb_status set_xpub(void *socket)
{
    KVB_TRY(set_int(socket, ZMQ_SNDHWM, batches_high_water));
    /* Without it a second reader of the same topic would not be reported. */
    return set_int(socket, ZMQ_XPUB_VERBOSE, 1);
}

static kvb_status set_router(void *socket)
{
    KVB_TRY(set_int(socket, ZMQ_SNDHWM, replies_high_water));
    /* Without it a reply to a reader that has left, or has no room, would be dropped in silence. */
    return set_int(socket, ZMQ_ROUTER_MANDATORY, 1);
}

static kvb_status listen_at(void *socket, const char *address, struct kvb_detail *detail)
{
    if (zmq_bind(socket, address) == 0) {
        return KVB_OK;
    }
    kvb_detail_set(detail, "cannot listen at %.200s: %s", address, zmq_strerror(zmq_errno()));
    return KVB_AGAIN;
}

static kvb_status watch_readers_of(
    struct kvb_event_server *server, const struct reader_limit *limit, struct server_socket *one)
{
    if (!server->zmq->reader_watch) {
        KVB_TRY(kvb_reader_watch_new(server->zmq->control, &server->zmq->reader_watch));
    }
    return kvb_reader_watch_add(
        server->zmq->reader_watch, one->monitor, limit->max_bytes, limit->bytes_a_second,
        &one->readers);
}

static kvb_status open_socket(
    struct kvb_event_server *server, const struct kvb_event_server_options *given, int type,
    const char *address, struct server_socket *out)
{
    void *context = kvb_zmq_context(server->zmq, server->owner);
    const struct kvb_zmq_socket_options options = { .type = type,
                                                    .max_bytes = max_request_bytes,
                                                    .is_ipv6 = strchr(address, '[') != NULL };

    if (!context) {
        return KVB_IO;
    }
    KVB_TRY(kvb_zmq_socket_open(context, &options, &out->socket));
    /* All of it before the address is bound: nobody connects without a limit, or unwatched. */
    KVB_TRY(set_int(out->socket, ZMQ_TCP_MAXRT, given->stalled_ms));
    KVB_TRY(set_int(out->socket, ZMQ_RCVBUF, receive_buffer_bytes));
    KVB_TRY(type == ZMQ_XPUB ? set_xpub(out->socket) : set_router(out->socket));
    KVB_TRY(kvb_zmq_monitor_open(context, out->socket, kvb_reader_watch_events, &out->monitor));
    KVB_TRY(watch_readers_of(server, type == ZMQ_XPUB ? &of_subscriber : &of_requester, out));
    return kvb_poller_add_socket(server->poller, server->owner, kvb_ready_live, out->socket);
}

static kvb_status open_server_sockets(
    struct kvb_event_server *server, const struct kvb_event_server_options *options,
    struct kvb_detail *detail)
{
    KVB_TRY(open_socket(server, options, ZMQ_XPUB, options->events, &server->xpub));
    KVB_TRY(listen_at(server->xpub.socket, options->events, detail));
    /* Without replays there is no ROUTER, which others look at before they use it. */
    if (options->replay[0] == '\0') {
        return KVB_OK;
    }
    KVB_TRY(open_socket(server, options, ZMQ_ROUTER, options->replay, &server->router));
    return listen_at(server->router.socket, options->replay, detail);
}

kvb_status kvb_event_server_open(
    struct kvb_zmq *zmq, const struct kvb_event_server_options *options,
    struct kvb_event_server **out_server, struct kvb_detail *detail)
{
    struct kvb_event_server *server = calloc(1, sizeof *server);

    if (!server) {
        return KVB_NO_MEMORY;
    }
    server->zmq = zmq;
    server->poller = options->poller;
    server->owner = options->owner;
    server->topic_len = strnlen(options->topic, sizeof server->topic);
    memcpy(server->topic, options->topic, server->topic_len);
    const kvb_status status = open_server_sockets(server, options, detail);
    if (status != KVB_OK) {
        kvb_event_server_close(server, 0);
        return status;
    }
    *out_server = server;
    return KVB_OK;
}

static void close_socket(struct kvb_event_server *server, struct server_socket *one, int linger_ms)
{
    /* The watch reads the monitor on the control thread, so it goes first. */
    kvb_reader_watch_drop(server->zmq->reader_watch, one->readers);
    one->readers = NULL;
    if (one->monitor) {
        kvb_zmq_monitor_close(one->socket, &one->monitor);
    }
    if (one->socket) {
        kvb_poller_drop_socket(server->poller, server->owner, one->socket);
        (void)set_int(one->socket, ZMQ_LINGER, linger_ms); /* on failure: 0 */
        kvb_zmq_socket_close(&one->socket);
    }
}

void kvb_event_server_close(struct kvb_event_server *server, int linger_ms)
{
    if (!server) {
        return;
    }
    kvb_zmq_message_close(&server->message);
    close_socket(server, &server->xpub, linger_ms);
    close_socket(server, &server->router, linger_ms);
    free(server);
}

uint64_t kvb_event_server_take_ended(struct kvb_event_server *server)
{
    uint64_t ended = kvb_reader_watch_take_ended(server->zmq->reader_watch, server->xpub.readers);

    if (server->router.readers) { /* else: no replay socket */
        ended += kvb_reader_watch_take_ended(server->zmq->reader_watch, server->router.readers);
    }
    return ended;
}

/* ---- Receiving ---- */

/* True for a subscription to a prefix of our topic. */
static bool is_subscription(const struct kvb_event_server *server, const struct kvb_frames *frames)
{
    const kvb_span frame = frames->frame[0];

    /* A byte 1, then the prefix; 0 ends a subscription. */
    return frames->count == 1 && frame.len > 0 && frame.data[0] == 1 &&
           frame.len - 1 <= server->topic_len &&
           memcmp(frame.data + 1, server->topic, frame.len - 1) == 0;
}

bool kvb_event_server_receive(
    struct kvb_event_server *server, struct kvb_event_server_received *out_received)
{
    struct kvb_event_server_received received = { .kind = KVB_EVENT_IGNORED };

    kvb_zmq_message_close(&server->message);
    /* Subscriptions come first: libzmq has taken them in already, and they must be counted. */
    if (kvb_zmq_message_receive(server->xpub.socket, &server->message) == KVB_OK) {
        kvb_reader_watch_subscribed(
            server->zmq->reader_watch, server->xpub.readers,
            zmq_msg_get(&server->message.parts[0], ZMQ_SRCFD));
        /* An unsubscription counts as well, but is nothing to the caller. */
        if (is_subscription(server, &server->message.frames)) {
            received.kind = KVB_EVENT_SUBSCRIBED;
        }
    } else if (
        !server->router.socket ||
        kvb_zmq_message_receive(server->router.socket, &server->message) != KVB_OK) {
        return false;
    } else if (
        kvb_frames_read_request(&server->message.frames, &received.identity, &received.seq) ==
        KVB_OK) {
        received.kind = KVB_EVENT_REQUEST;
    }
    *out_received = received;
    return true;
}

/* ---- Sending ---- */

static kvb_status from_send_errno(int code)
{
    return code == EAGAIN || code == EINTR ? KVB_AGAIN
           : code == EHOSTUNREACH          ? KVB_NOT_FOUND
                                           : KVB_IO;
}

static kvb_status send_server_frames(void *socket, const kvb_span *frames, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const int more = i + 1 < count ? ZMQ_SNDMORE : 0;
        /* Only the first frame can fail for lack of room: libzmq then accepts the others. */
        if (zmq_send(socket, frames[i].data, frames[i].len, ZMQ_DONTWAIT | more) < 0) {
            return from_send_errno(zmq_errno());
        }
    }
    return KVB_OK;
}

static kvb_span topic_of_server(const struct kvb_event_server *server)
{
    return (kvb_span){ .data = server->topic, .len = server->topic_len };
}

kvb_status kvb_event_server_publish(struct kvb_event_server *server, uint64_t seq, kvb_span payload)
{
    uint8_t number[seq_bytes];
    const kvb_span frames[] = { topic_of_server(server), { number, sizeof number }, payload };

    kvb_frames_write_seq(seq, number);
    return send_server_frames(server->xpub.socket, frames, sizeof frames / sizeof frames[0]);
}

static kvb_status send_server_reply(
    struct kvb_event_server *server, kvb_span identity, kvb_span topic, uint64_t seq,
    kvb_span payload)
{
    uint8_t number[seq_bytes];
    /* The ROUTER takes the first frame as the address; the DEALER of a reader gets the rest. */
    const kvb_span frames[] = { identity, { .len = 0 }, topic, { number, sizeof number }, payload };

    kvb_frames_write_seq(seq, number);
    return send_server_frames(server->router.socket, frames, sizeof frames / sizeof frames[0]);
}

kvb_status kvb_event_server_reply(
    struct kvb_event_server *server, kvb_span identity, uint64_t seq, kvb_span payload)
{
    return send_server_reply(server, identity, topic_of_server(server), seq, payload);
}

kvb_status kvb_event_server_end(struct kvb_event_server *server, kvb_span identity)
{
    const kvb_span nothing = { .len = 0 };

    return send_server_reply(server, identity, nothing, UINT64_MAX, nothing);
}
