#include "fleet/publisher.h"

#include "core/clock.h"
#include "core/own.h"
#include "core/ring.h"
#include "core/thread.h"
#include "model/replay_buffer.h"

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* vLLM's defaults. */
enum { events_high_water = 100000, replay_high_water = 1000 };

enum {
    batches_a_turn = 64, /* batches between two looks for replay requests */
    bind_pause_ms = 10,
    bind_deadline_ms = 10000,
};

enum item_kind { publish_item, keep_item, restart_item };

struct item {
    enum item_kind kind;
    uint64_t seq;
    size_t len;
    uint8_t data[];
};

struct kvb_publisher {
    struct kvb_publisher_options options;
    struct kvb_ring *queue;           /* owned; of struct item */
    struct kvb_replay_buffer *buffer; /* owned; used only by the thread, like the sockets */
    void *pub;
    void *router;
    struct kvb_thread thread;
    uint64_t queued; /* of the fleet's thread */
    _Atomic uint64_t handled;
    _Atomic uint64_t published;
    _Atomic uint64_t withheld;
    _Atomic uint64_t replays;
    _Atomic uint64_t full_replays;
    _Atomic uint64_t replayed;
    _Atomic uint64_t ignored;
    _Atomic uint64_t failures;
};

static void count_published(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static uint64_t read_counter(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static kvb_status from_zmq(int error)
{
    switch (error) {
    case EADDRINUSE:
    case EMFILE: /* libzmq has not yet released closed sockets */
        return KVB_AGAIN;
    case ENOMEM:
        return KVB_NO_MEMORY;
    case ENODEV:
    case EADDRNOTAVAIL:
    case EINVAL:
    case EACCES:
        return KVB_BAD_CONFIG;
    default:
        return KVB_IO;
    }
}

/* ---- Sockets ---- */

/* A bound socket, or *out_socket as it was. */
static kvb_status bind_socket(
    const struct kvb_publisher_options *options, int type, uint16_t port, struct kvb_detail *detail,
    void **out_socket)
{
    char endpoint[128];
    const int high_water = type == ZMQ_PUB ? events_high_water : replay_high_water;
    const int linger_ms = 0;
    void *socket = zmq_socket(options->zmq_context, type);

    if (!socket) {
        kvb_detail_set(detail, "no socket: %s", zmq_strerror(zmq_errno()));
        return from_zmq(zmq_errno());
    }
    (void)snprintf(endpoint, sizeof endpoint, "tcp://%s:%u", options->address, port);
    if (zmq_setsockopt(socket, ZMQ_SNDHWM, &high_water, sizeof high_water) != 0 ||
        zmq_setsockopt(socket, ZMQ_RCVHWM, &high_water, sizeof high_water) != 0 ||
        zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms) != 0 ||
        zmq_bind(socket, endpoint) != 0) {
        const int error = zmq_errno();
        kvb_detail_set(detail, "%s: %s", endpoint, zmq_strerror(error));
        (void)zmq_close(socket);
        return from_zmq(error);
    }
    *out_socket = socket;
    return KVB_OK;
}

static void close_sockets(struct kvb_publisher *publisher)
{
    if (publisher->pub) {
        (void)zmq_close(publisher->pub);
    }
    if (publisher->router) {
        (void)zmq_close(publisher->router);
    }
    publisher->pub = NULL;
    publisher->router = NULL;
}

/* Binds each socket that is not bound yet.  When one port is not free, the other socket stays bound
 * for the next try: after a close libzmq would need some time to free that port, too. */
static kvb_status open_sockets(struct kvb_publisher *publisher, struct kvb_detail *detail)
{
    const struct kvb_publisher_options *options = &publisher->options;

    if (!publisher->pub) {
        KVB_TRY(bind_socket(options, ZMQ_PUB, options->events_port, detail, &publisher->pub));
    }
    if (!publisher->router && options->layout != KVB_REPLAY_NEVER) {
        KVB_TRY(bind_socket(options, ZMQ_ROUTER, options->replay_port, detail, &publisher->router));
    }
    return KVB_OK;
}

/* Tries again for a while: libzmq frees a port some time after the close. */
static kvb_status open_again(struct kvb_publisher *publisher)
{
    const uint64_t deadline_ns = kvb_clock_monotonic_ns() + bind_deadline_ms * KVB_NS_PER_MS;
    kvb_status status = open_sockets(publisher, NULL);

    while (status == KVB_AGAIN && kvb_clock_monotonic_ns() < deadline_ns) {
        (void)zmq_poll(NULL, 0, bind_pause_ms);
        status = open_sockets(publisher, NULL);
    }
    if (status != KVB_OK) {
        close_sockets(publisher);
    }
    return status;
}

/* ---- The queue ---- */

static void publish_batch_item(struct kvb_publisher *publisher, const struct item *item)
{
    const kvb_span topic = publisher->options.topic;
    const uint64_t seq = htobe64(item->seq);

    /* PUB never waits: above the high-water mark it drops, as the engine's does. */
    if (publisher->pub && zmq_send(publisher->pub, topic.data, topic.len, ZMQ_SNDMORE) >= 0 &&
        zmq_send(publisher->pub, &seq, sizeof seq, ZMQ_SNDMORE) >= 0 &&
        zmq_send(publisher->pub, item->data, item->len, 0) >= 0) {
        count_published(&publisher->published, 1);
    } else {
        count_published(&publisher->failures, 1);
    }
}

static void restart(struct kvb_publisher *publisher)
{
    close_sockets(publisher);
    kvb_replay_buffer_clear(publisher->buffer);
    atomic_store_explicit(&publisher->full_replays, 0, memory_order_relaxed); /* another process */
    if (open_again(publisher) != KVB_OK) {
        count_published(&publisher->failures, 1);
    }
}

static void handle_item(struct kvb_publisher *publisher, const struct item *item)
{
    if (item->kind == restart_item) {
        restart(publisher);
        return;
    }
    if (item->kind == publish_item) {
        publish_batch_item(publisher, item);
    } else {
        count_published(&publisher->withheld, 1);
    }
    const kvb_span payload = { item->data, item->len };
    if (kvb_replay_buffer_put(publisher->buffer, item->seq, payload) != KVB_OK) {
        count_published(&publisher->failures, 1);
    }
}

/* ---- Replays ---- */

enum { max_id_bytes = 256 };

struct request {
    uint8_t id[max_id_bytes];
    size_t id_len;
    uint64_t start;
    bool may_have_name; /* the peer may send a name before the empty frame */
    bool has_name;
    bool is_good;
};

/* Takes frame number `at` into the request; false when it does not belong there. */
static bool take_frame(struct request *request, unsigned at, const uint8_t *data, size_t len)
{
    if (at == 0 && len <= max_id_bytes) {
        memcpy(request->id, data, len);
        request->id_len = len;
        return true;
    }
    if (at == 1 && len > 0) {
        request->has_name = request->may_have_name;
        return request->may_have_name;
    }
    const unsigned place = at - (request->has_name ? 1 : 0);
    if (place == 1) {
        return len == 0;
    }
    if (place == 2 && len == sizeof request->start) {
        memcpy(&request->start, data, len);
        request->start = be64toh(request->start);
        return true;
    }
    return false;
}

/* Reads all frames of one message, also those that do not fit. */
static kvb_status receive_replay_request(void *router, struct request *out_request)
{
    bool is_good = true;
    bool has_more = true;
    unsigned at = 0;

    for (; has_more; at++) {
        zmq_msg_t frame;
        (void)zmq_msg_init(&frame); /* cannot fail */
        if (zmq_msg_recv(&frame, router, ZMQ_DONTWAIT) < 0) {
            const int reason = zmq_errno();
            (void)zmq_msg_close(&frame);
            return reason == EAGAIN ? KVB_AGAIN : KVB_IO;
        }
        is_good =
            take_frame(out_request, at, zmq_msg_data(&frame), zmq_msg_size(&frame)) && is_good;
        has_more = zmq_msg_more(&frame);
        (void)zmq_msg_close(&frame);
    }
    out_request->is_good = is_good && at == (out_request->has_name ? 4 : 3);
    return KVB_OK;
}

struct reply {
    struct kvb_publisher *publisher;
    const struct request *request;
};

static bool send_frame(void *router, kvb_span frame, bool is_last)
{
    return zmq_send(router, frame.data, frame.len, is_last ? 0 : ZMQ_SNDMORE) >= 0;
}

/* When the peer's pipe is full a ROUTER drops the message silently. */
static kvb_status send_frames(const struct reply *reply, const kvb_span *frames, size_t count)
{
    const kvb_span id = { reply->request->id, reply->request->id_len };
    bool is_sent = send_frame(reply->publisher->router, id, false);

    for (size_t i = 0; i < count && is_sent; i++) {
        is_sent = send_frame(reply->publisher->router, frames[i], i + 1 == count);
    }
    return is_sent ? KVB_OK : KVB_IO;
}

static const kvb_span no_bytes = { (const uint8_t *)"", 0 };

static kvb_status send_batch(const struct reply *reply, uint64_t seq, kvb_span payload)
{
    const uint64_t bytes = htobe64(seq);
    const kvb_span seq_frame = { (const uint8_t *)&bytes, sizeof bytes };
    const kvb_span with_topic[] = { no_bytes, reply->publisher->options.topic, seq_frame, payload };
    const kvb_span without[] = { no_bytes, seq_frame, payload };

    return reply->publisher->options.layout == KVB_REPLAY_WITH_TOPIC
               ? send_frames(reply, with_topic, KVB_COUNT_OF(with_topic))
               : send_frames(reply, without, KVB_COUNT_OF(without));
}

static kvb_status send_end(const struct reply *reply)
{
    static const uint8_t ones[8] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
    const kvb_span end = { ones, sizeof ones };
    const struct {
        kvb_span frames[4];
        size_t count;
    } ends[] = {
        [KVB_REPLAY_WITHOUT_TOPIC] = { { no_bytes, end, no_bytes }, 3 },
        [KVB_REPLAY_WITH_TOPIC] = { { no_bytes, no_bytes, end, no_bytes }, 4 },
        [KVB_REPLAY_MOONCAKE] = { { no_bytes, no_bytes, end }, 3 },
    };

    return send_frames(
        reply, ends[reply->publisher->options.layout].frames,
        ends[reply->publisher->options.layout].count);
}

/* Sends the batches of the buffer from the requested number on. */
static kvb_status send_all(const struct reply *reply)
{
    struct kvb_publisher *publisher = reply->publisher;
    const struct kvb_replay_buffer *buffer = publisher->buffer;
    const size_t first = kvb_replay_buffer_find(buffer, reply->request->start);
    const size_t count = kvb_replay_buffer_count(buffer);

    for (size_t at = first; at < count; at++) {
        uint64_t seq = 0;
        const kvb_span payload = kvb_replay_buffer_at(buffer, at, &seq);
        KVB_TRY(send_batch(reply, seq, payload));
    }
    KVB_TRY(send_end(reply));
    count_published(&publisher->replays, 1);
    count_published(&publisher->full_replays, first == 0 && count > 1);
    count_published(&publisher->replayed, count - first);
    return KVB_OK;
}

/* Reads one request and answers it from the buffer, all of it, before it returns.
 * Requests: ["", start seq in 8 bytes] as the peer sends it, nothing else; a Mooncake
 * also takes the one of its guide, [any name, "", start seq].
 * KVB_AGAIN  no request is there
 * KVB_IO     the socket is closed */
static kvb_status serve_replay(struct kvb_publisher *publisher)
{
    struct request request = { .may_have_name = publisher->options.layout == KVB_REPLAY_MOONCAKE };
    const struct reply reply = { .publisher = publisher, .request = &request };

    KVB_TRY(receive_replay_request(publisher->router, &request));
    if (!request.is_good) {
        count_published(&publisher->ignored, 1);
        return KVB_OK;
    }
    return send_all(&reply);
}

static void serve_replays(struct kvb_publisher *publisher)
{
    while (publisher->router && serve_replay(publisher) == KVB_OK) {
    }
}

/* ---- The thread ---- */

/* Handles queued items, at most one turn.  KVB_CLOSED: there are no more. */
static kvb_status serve_queue(struct kvb_publisher *publisher)
{
    for (int i = 0; i < batches_a_turn; i++) {
        void *item = NULL;
        const kvb_status status = kvb_ring_take(publisher->queue, &item);
        if (status != KVB_OK) {
            return status;
        }
        handle_item(publisher, item);
        free(item);
        atomic_fetch_add_explicit(&publisher->handled, 1, memory_order_release);
    }
    return KVB_AGAIN;
}

static void *run_publisher(void *context)
{
    struct kvb_publisher *publisher = context;

    do {
        zmq_pollitem_t items[] = {
            { .fd = kvb_ring_fd(publisher->queue), .events = ZMQ_POLLIN },
            { .socket = publisher->router, .events = ZMQ_POLLIN },
        };
        (void)zmq_poll(items, publisher->router ? 2 : 1, -1);
        serve_replays(publisher);
    } while (serve_queue(publisher) != KVB_CLOSED);
    return NULL;
}

/* ---- For the fleet ---- */

static kvb_status set_up_publisher(struct kvb_publisher *publisher, struct kvb_detail *detail)
{
    const struct kvb_publisher_options *options = &publisher->options;

    KVB_TRY(kvb_ring_new(options->queue_batches, free, &publisher->queue));
    KVB_TRY(
        kvb_replay_buffer_new(options->replay_batches, options->replay_bytes, &publisher->buffer));
    KVB_TRY(open_sockets(publisher, detail));
    /* The sockets change hands here; starting a thread is the fence they need. */
    const kvb_status status = kvb_thread_start(&publisher->thread, run_publisher, publisher);
    if (status != KVB_OK) {
        kvb_detail_set(detail, "no more threads");
    }
    return status;
}

kvb_status kvb_publisher_start(
    const struct kvb_publisher_options *options, struct kvb_detail *detail,
    struct kvb_publisher **out_publisher)
{
    struct kvb_publisher *publisher = calloc(1, sizeof *publisher);
    if (!publisher) {
        return KVB_NO_MEMORY;
    }
    publisher->options = *options;
    const kvb_status status = set_up_publisher(publisher, detail);
    if (status != KVB_OK) {
        kvb_publisher_stop(publisher);
        return status;
    }
    *out_publisher = publisher;
    return KVB_OK;
}

void kvb_publisher_stop(struct kvb_publisher *publisher)
{
    if (!publisher) {
        return;
    }
    if (publisher->thread.is_running) {
        kvb_ring_close(publisher->queue);
        kvb_thread_join(&publisher->thread);
    }
    close_sockets(publisher);
    kvb_ring_free(publisher->queue);
    kvb_replay_buffer_free(publisher->buffer);
    free(publisher);
}

static kvb_status
enqueue(struct kvb_publisher *publisher, enum item_kind kind, uint64_t seq, kvb_span payload)
{
    struct item *item = malloc(sizeof *item + payload.len);
    if (!item) {
        return KVB_NO_MEMORY;
    }
    *item = (struct item){ .kind = kind, .seq = seq, .len = payload.len };
    if (payload.len > 0) {
        memcpy(item->data, payload.data, payload.len);
    }
    const kvb_status status = kvb_ring_put_wait(publisher->queue, item);
    if (status != KVB_OK) {
        free(item);
        return status;
    }
    publisher->queued++;
    return KVB_OK;
}

kvb_status
kvb_publisher_send(struct kvb_publisher *publisher, uint64_t seq, kvb_span payload, bool is_live)
{
    return enqueue(publisher, is_live ? publish_item : keep_item, seq, payload);
}

kvb_status kvb_publisher_restart(struct kvb_publisher *publisher)
{
    return enqueue(publisher, restart_item, 0, (kvb_span){ 0 });
}

bool kvb_publisher_is_drained(const struct kvb_publisher *publisher)
{
    return atomic_load_explicit(&publisher->handled, memory_order_acquire) == publisher->queued;
}

void kvb_publisher_counts(
    const struct kvb_publisher *publisher, struct kvb_publisher_counts *out_counts)
{
    *out_counts = (struct kvb_publisher_counts){
        .published = read_counter(&publisher->published),
        .withheld = read_counter(&publisher->withheld),
        .replays = read_counter(&publisher->replays),
        .full_replays = read_counter(&publisher->full_replays),
        .replayed = read_counter(&publisher->replayed),
        .ignored = read_counter(&publisher->ignored),
        .failures = read_counter(&publisher->failures),
    };
}
