#include "ingest/zmq_source.h"

#include "core/clock.h"
#include "core/limits.h"
#include "ingest/peers.h"
#include "ingest/reply_queue.h"
#include "ingest/waiter.h"
#include "ingest/zmq_inside.h"
#include "ingest/zmq_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { receive_high_water = 2000, heartbeat_ms = 200, endpoint_bytes = 256, topic_bytes = 256 };

/* libzmq says within milliseconds of a loss that it will connect again.  After a protocol
 * error it says nothing and never connects. */
static const uint64_t first_renewal_ns = KVB_NS_PER_S;
static const uint64_t max_renewal_ns = 30 * KVB_NS_PER_S;

/* While libzmq connects, it says so every 5 s at the latest.  A name server may take longer. */
static const uint64_t max_silence_ns = 30 * KVB_NS_PER_S;

/* A connection that lasts so long ends the series of renewals. */
static const uint64_t steady_ns = 60 * KVB_NS_PER_S;

/* When a SUB that connects is opened anew.  Times are those of kvb_source_renew(). */
struct renewal {
    bool is_retry_owed; /* the connection ended, and libzmq did not say that it connects again */
    bool was_up;        /* that connection had completed its handshake */
    bool is_heard;      /* the monitor told something since the last look */
    uint64_t quiet_ns;  /* since then it has told nothing; 0: not yet looked at */
    uint64_t up_ns;     /* connected since; 0: it is not */
    uint64_t pause_ns;  /* before the next renewal; 0: none yet */
};

struct kvb_source {
    struct kvb_zmq *zmq; /* borrowed, like the two below */
    void *context;
    struct kvb_waiter *waiter;
    size_t owner;
    void *sub; /* owned, like the two below */
    void *monitor;
    void *dealer; /* NULL while no replay runs */
    bool is_bound;
    bool is_up;             /* of one that connects */
    bool is_loss_new;       /* the next retry is because of it */
    struct kvb_peers peers; /* of one that is bound */
    struct renewal renewal; /* of one that connects */
    struct kvb_source_counters counters;
    char events[endpoint_bytes];
    char topic[topic_bytes];
    char replay[endpoint_bytes];
    enum kvb_replay_request replay_request;
    struct kvb_reply_queue replies;
    bool is_cut; /* what does not fit the queue was left */
    struct kvb_reply reply;
};

/* ---- Opening, closing ---- */

enum {
    failed_handshake = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    followed = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED,
    followed_when_bound = followed | ZMQ_EVENT_ACCEPTED | failed_handshake,
};

/* The monitor sees the handshake, not the TCP connection: a port that accepts
 * and says nothing is no engine. */
static kvb_status open_monitor(struct kvb_source *source)
{
    const int none = 0;
    char address[64];

    (void)snprintf(address, sizeof address, "inproc://monitor-%p", source->sub);
    if (zmq_socket_monitor(
            source->sub, address, source->is_bound ? followed_when_bound : followed) != 0) {
        return KVB_IO;
    }
    source->monitor = zmq_socket(source->context, ZMQ_PAIR);
    if (!source->monitor || zmq_setsockopt(source->monitor, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(source->monitor, ZMQ_RCVHWM, &none, sizeof none) != 0) {
        return KVB_IO;
    }
    return zmq_connect(source->monitor, address) == 0 ? KVB_OK : KVB_IO;
}

static kvb_status open_sub(struct kvb_source *source)
{
    const struct kvb_zmq_socket_options as = { .type = ZMQ_SUB,
                                               .high_water = receive_high_water,
                                               .heartbeat_ms = heartbeat_ms,
                                               .most_bytes = kvb_max_payload_bytes };

    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->sub));
    if (zmq_setsockopt(source->sub, ZMQ_SUBSCRIBE, source->topic, strlen(source->topic)) != 0) {
        return KVB_IO;
    }
    KVB_TRY(open_monitor(source));
    KVB_TRY(kvb_waiter_add_socket(source->waiter, source->owner, kvb_ready_live, source->sub));
    KVB_TRY(kvb_waiter_add_socket(source->waiter, source->owner, kvb_ready_live, source->monitor));
    const int failed = source->is_bound ? zmq_bind(source->sub, source->events)
                                        : zmq_connect(source->sub, source->events);
    return failed ? KVB_BAD_CONFIG : KVB_OK;
}

static void close_watched(struct kvb_source *source, void **socket)
{
    if (*socket) {
        kvb_waiter_drop_socket(source->waiter, source->owner, *socket);
        kvb_zmq_socket_close(socket);
    }
}

static void close_sub(struct kvb_source *source)
{
    if (source->sub) {
        (void)zmq_socket_monitor(source->sub, NULL, 0); /* ends the PAIR's other side */
    }
    close_watched(source, &source->monitor);
    close_watched(source, &source->sub);
}

static bool copy_text(char *out, size_t size, const char *text)
{
    const int len = snprintf(out, size, "%s", text);

    return len >= 0 && (size_t)len < size;
}

static kvb_status set_addresses(struct kvb_source *source, const struct kvb_source_options *options)
{
    const bool fits = copy_text(source->events, sizeof source->events, options->events) &&
                      copy_text(source->topic, sizeof source->topic, options->topic) &&
                      copy_text(source->replay, sizeof source->replay, options->replay);

    errno = fits ? 0 : ENAMETOOLONG;
    return fits ? KVB_OK : KVB_BAD_CONFIG;
}

kvb_status kvb_source_open(
    struct kvb_zmq *zmq, const struct kvb_source_options *options, struct kvb_source **out_source,
    struct kvb_detail *detail)
{
    struct kvb_source *source = calloc(1, sizeof *source);

    if (!source) {
        return KVB_NO_MEMORY;
    }
    source->zmq = zmq;
    source->context = kvb_zmq_context(zmq, options->owner);
    source->waiter = options->waiter;
    source->owner = options->owner;
    source->is_bound = options->bind;
    source->replay_request = options->replay_request;
    source->replies.max_bytes = options->max_replay_bytes;
    (void)zmq_msg_init(&source->reply.payload); /* cannot fail */
    kvb_peers_init(&source->peers);
    kvb_status status = set_addresses(source, options);
    if (status == KVB_OK) {
        status = open_sub(source);
    }
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

void kvb_source_close(struct kvb_source *source)
{
    if (!source) {
        return;
    }
    kvb_source_replay_stop(source);
    close_sub(source);
    kvb_peers_done(&source->peers);
    free(source);
}

/* ---- Live ---- */

/* Peers of ZMTP before 3 have no name here: no engine is so old, but what a port
 * scanner sends may look like it. */
static int sender_of(const struct kvb_source *source, struct kvb_zmq_message *message)
{
    if (!source->is_bound) {
        return kvb_any_peer;
    }
    const int fd = zmq_msg_get(&message->parts[0], ZMQ_SRCFD);
    return fd >= 0 ? fd : kvb_unknown_peer;
}

/* libzmq's thread wrote the bytes, on another core: they are on their way here while the rest
 * of the run is received.  What is longer than that follows by itself. */
static void fetch_ahead(kvb_span payload)
{
    enum { line_bytes = 64, most_bytes = 256 };
    const size_t len = payload.len < most_bytes ? payload.len : most_bytes;

    for (size_t at = 0; at < len; at += line_bytes) {
        __builtin_prefetch(payload.data + at);
    }
}

size_t kvb_source_receive(
    struct kvb_source *source, struct kvb_source_batch out_batches[kvb_source_run],
    uint64_t *out_refused)
{
    struct kvb_zmq *zmq = source->zmq;
    size_t batches = 0;

    kvb_zmq_close_run(zmq);
    *out_refused = 0;
    while (zmq->run_count < kvb_source_run) {
        struct kvb_zmq_message *message = &zmq->run[zmq->run_count];
        struct kvb_source_batch *batch = &out_batches[batches];
        if (kvb_zmq_message_receive(source->sub, message) != KVB_OK) {
            break;
        }
        zmq->run_count++;
        batch->sender = sender_of(source, message);
        if (kvb_frames_read_live(&message->frames, &batch->seq, &batch->payload) == KVB_OK) {
            fetch_ahead(batch->payload);
            batches++;
        } else {
            (*out_refused)++;
        }
    }
    return batches;
}

/* ---- The monitor ---- */

static void note_loss(struct kvb_source *source, struct kvb_source_link *link)
{
    struct kvb_source_counters *counters = &source->counters;

    source->renewal.is_retry_owed = true;
    source->renewal.was_up = source->is_up;
    /* a connection that completed no handshake was an attempt that failed */
    source->is_loss_new = counters->disconnects < counters->connects;
    counters->disconnects += source->is_loss_new;
    source->is_up = false;
    link->was_lost = true;
}

static void
follow_monitor(struct kvb_source *source, uint16_t event, int fd, struct kvb_source_link *link)
{
    switch (event) {
    case ZMQ_EVENT_ACCEPTED:
        kvb_peers_accepted(&source->peers, fd);
        break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        source->counters.connects++;
        source->is_up = true;
        source->renewal.is_retry_owed = false;
        kvb_peers_shook_hands(&source->peers);
        break;
    case ZMQ_EVENT_DISCONNECTED:
        if (!source->is_bound || kvb_peers_left(&source->peers, fd)) {
            note_loss(source, link);
        }
        break;
    case ZMQ_EVENT_CONNECT_RETRIED:
        source->counters.retries++;
        source->renewal.is_retry_owed = false;
        source->counters.failures += !source->is_loss_new;
        source->is_loss_new = false;
        break;
    default:
        if (event & failed_handshake) {
            kvb_peers_failed(&source->peers);
        } /* else: the monitor stopped */
    }
}

/* 16 bits of event and 32 of value, in the order of this machine. */
static void read_event(const struct kvb_zmq_message *message, uint16_t *out_event, int *out_value)
{
    const kvb_span frame = message->frames.frame[0];

    *out_event = 0;
    *out_value = -1;
    if (frame.len >= sizeof *out_event + sizeof *out_value) {
        memcpy(out_event, frame.data, sizeof *out_event);
        memcpy(out_value, frame.data + sizeof *out_event, sizeof *out_value);
    }
}

struct kvb_source_link kvb_source_read_monitor(struct kvb_source *source)
{
    struct kvb_source_link link = { .was_lost = false };
    struct kvb_zmq_message message;

    while (kvb_zmq_message_receive(source->monitor, &message) == KVB_OK) {
        uint16_t event = 0;
        int value = 0;
        read_event(&message, &event, &value);
        follow_monitor(source, event, value, &link);
        source->renewal.is_heard = true;
        kvb_zmq_message_close(&message);
    }
    const size_t engines = kvb_peers_count(&source->peers);
    link.is_up = source->is_bound ? engines == 1 : source->is_up;
    link.is_crowded = source->is_bound && engines > 1;
    return link;
}

/* ---- Renewal ---- */

/* True when libzmq will not connect again by itself. */
static bool is_given_up(struct kvb_source *source, uint64_t now_ns)
{
    struct renewal *renewal = &source->renewal;

    if (source->is_up) {
        renewal->quiet_ns = 0;
        renewal->up_ns = renewal->up_ns == 0 ? now_ns : renewal->up_ns;
        renewal->pause_ns = now_ns - renewal->up_ns >= steady_ns ? 0 : renewal->pause_ns;
        return false;
    }
    renewal->up_ns = 0;
    if (renewal->is_heard || renewal->quiet_ns == 0) {
        renewal->is_heard = false;
        renewal->quiet_ns = now_ns;
    }
    const uint64_t wait_ns =
        renewal->pause_ns > first_renewal_ns ? renewal->pause_ns : first_renewal_ns;
    const bool is_idle = renewal->is_retry_owed || !source->sub;
    return now_ns - renewal->quiet_ns >= (is_idle ? wait_ns : max_silence_ns);
}

static const char *reason_of(const struct kvb_source *source)
{
    const struct renewal *renewal = &source->renewal;

    if (!source->sub) {
        return "its sockets could not be opened";
    }
    if (!renewal->is_retry_owed) {
        return "no handshake and no new attempt for 30 s";
    }
    return renewal->was_up ? "protocol error: a message above 16 MiB, or bytes that are not ZMTP"
                           : "handshake failed: another protocol or socket type at this port";
}

kvb_status kvb_source_renew(struct kvb_source *source, uint64_t now_ns, const char **out_reason)
{
    struct renewal *renewal = &source->renewal;

    if (source->is_bound || !is_given_up(source, now_ns)) {
        return KVB_AGAIN;
    }
    const char *reason = reason_of(source);
    const uint64_t doubled_ns = renewal->pause_ns == 0 ? first_renewal_ns : 2 * renewal->pause_ns;
    source->counters.protocol_errors += renewal->is_retry_owed;
    source->counters.renewals++;
    *renewal = (struct renewal){
        .pause_ns = doubled_ns < max_renewal_ns ? doubled_ns : max_renewal_ns,
    };
    close_sub(source);
    const kvb_status status = open_sub(source);
    if (status != KVB_OK) {
        close_sub(source); /* receiving from no socket fails without harm */
    }
    *out_reason = reason;
    return status;
}

bool kvb_source_is_of_engine(struct kvb_source *source, const struct kvb_source_batch *batch)
{
    if (!source->is_bound) {
        return true;
    }
    kvb_peers_heard(&source->peers, batch->sender);
    return batch->sender == source->peers.only;
}

const struct kvb_source_counters *kvb_source_count(const struct kvb_source *source)
{
    return &source->counters;
}

/* ---- Replay ---- */

static kvb_status send_request(const struct kvb_source *source, uint64_t from)
{
    struct kvb_frames frames;
    uint8_t seq[8];

    kvb_frames_of_request(source->replay_request, from, seq, &frames);
    for (size_t i = 0; i < frames.count; i++) {
        const int more = i + 1 < frames.count ? ZMQ_SNDMORE : 0;
        const kvb_span frame = frames.frame[i];
        if (zmq_send(source->dealer, frame.data, frame.len, ZMQ_DONTWAIT | more) < 0) {
            return KVB_IO;
        }
    }
    return KVB_OK;
}

static kvb_status open_dealer(struct kvb_source *source)
{
    /* 0 = no high-water mark: a full pipe would drop replies for good.  What lies in
     * it is taken at once, into a queue that is bounded. */
    const struct kvb_zmq_socket_options as = { .type = ZMQ_DEALER,
                                               .high_water = 0,
                                               .heartbeat_ms = heartbeat_ms,
                                               .most_bytes = kvb_max_payload_bytes };

    KVB_TRY(kvb_zmq_socket_open(source->context, &as, &source->dealer));
    KVB_TRY(kvb_waiter_add_socket(source->waiter, source->owner, kvb_ready_reply, source->dealer));
    return zmq_connect(source->dealer, source->replay) == 0 ? KVB_OK : KVB_IO;
}

kvb_status kvb_source_replay_start(struct kvb_source *source, uint64_t from)
{
    kvb_source_replay_stop(source);
    kvb_status status = open_dealer(source);
    if (status == KVB_OK) {
        status = send_request(source, from);
    }
    if (status != KVB_OK) {
        kvb_source_replay_stop(source);
    }
    return status;
}

void kvb_source_replay_stop(struct kvb_source *source)
{
    (void)zmq_msg_close(&source->reply.payload);
    (void)zmq_msg_init(&source->reply.payload);
    kvb_reply_queue_done(&source->replies);
    source->is_cut = false;
    kvb_waiter_set_pending(source->waiter, source->owner, 0);
    close_watched(source, &source->dealer);
}

void kvb_source_replay_drain(struct kvb_source *source)
{
    struct kvb_zmq_message message;

    while (source->dealer && kvb_zmq_message_receive(source->dealer, &message) == KVB_OK) {
        if (kvb_reply_queue_put(&source->replies, &message) != KVB_OK) {
            kvb_zmq_message_close(&message);
            close_watched(source, &source->dealer);
            source->is_cut = true;
            source->counters.cuts++;
        }
    }
    const bool has_more = source->is_cut || kvb_reply_queue_count(&source->replies) > 0;
    kvb_waiter_set_pending(source->waiter, source->owner, has_more ? kvb_ready_reply : 0);
}

kvb_status kvb_source_replay_receive(
    struct kvb_source *source, enum kvb_source_reply *out_kind, struct kvb_source_batch *out_batch)
{
    (void)zmq_msg_close(&source->reply.payload);
    (void)zmq_msg_init(&source->reply.payload);
    if (kvb_reply_queue_take(&source->replies, &source->reply) != KVB_OK) {
        *out_kind = KVB_REPLY_CUT;
        return source->is_cut ? KVB_OK : KVB_AGAIN;
    }
    if (source->reply.kind == kvb_reply_bad) {
        return KVB_BAD_INPUT;
    }
    *out_kind = source->reply.kind == kvb_reply_end ? KVB_REPLY_END : KVB_REPLY_BATCH;
    *out_batch =
        (struct kvb_source_batch){ .seq = source->reply.seq,
                                   .payload = { .data = zmq_msg_data(&source->reply.payload),
                                                .len = zmq_msg_size(&source->reply.payload) } };
    return KVB_OK;
}
