#include "kvbridge/sync_responder.h"

#include "bus/subject.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/router/sync.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    ring_requests = 1024, /* from nats.c's thread to the owner's */
    max_reply_bytes = 256,
    max_chunk_blocks = 4096,
    busy_ms = 200
};

/* One request, queued or being answered. */
struct kvb_pending_sync {
    uint64_t requester;
    bool is_returning;
    uint64_t worker_id;
    uint32_t dp_rank;
    struct kvb_sync_request request;
    struct kvb_sync_job job;
    char reply[max_reply_bytes];
};

kvb_status kvb_sync_responder_init(struct kvb_sync_responder *responder)
{
    (void)pthread_mutex_init(&responder->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(&responder->buf, kvb_max_nats_payload_bytes);
    if (getrandom(&responder->secret, sizeof responder->secret, 0) != sizeof responder->secret) {
        return KVB_IO;
    }
    return kvb_ring_new(ring_requests, free, &responder->incoming);
}

void kvb_sync_responder_done(struct kvb_sync_responder *responder)
{
    kvb_ring_free(responder->incoming);
    for (size_t i = 0; i < kvb_sync_entries; i++) {
        free(responder->queue.entries[i].pending);
    }
    kvb_router_batch_done(&responder->events);
    kvb_buf_done(&responder->buf);
    (void)pthread_mutex_destroy(&responder->lock);
}

/* ---- On nats.c's thread ---- */

/* A reply subject _INBOX.abc.7 belongs to the requester with the inbox _INBOX.abc. */
static uint64_t requester_of(const struct kvb_sync_responder *responder, const char *reply)
{
    const char *last = strrchr(reply, '.');
    const size_t len = last ? (size_t)(last - reply) : strlen(reply);

    return kvb_hash64((kvb_span){ .data = (const uint8_t *)reply, .len = len }, responder->secret);
}

static void say_busy(struct kvb_sync_responder *responder, const struct kvb_pending_sync *pending)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    const struct kvb_sync_reply reply = { .answer = KVB_SYNC_BUSY,
                                          .worker_id = pending->worker_id,
                                          .dp_rank = pending->dp_rank,
                                          .is_last = true,
                                          .chunk = pending->job.chunk, /* the next one it expects */
                                          .retry_ms = busy_ms };

    responder->busy++;
    /* A buffer of its own: nats.c's thread comes here, and the owner's, too. */
    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    if (kvb_sync_reply_encode(&reply, &buf) == KVB_OK) {
        /* If it is lost, the requester requests again. */
        (void)kvb_bus_publish(responder->bus, pending->reply, kvb_buf_span(&buf));
    }
}

static bool
read_sync_request(const struct kvb_bus_message *message, struct kvb_pending_sync *pending)
{
    return message->reply && strlen(message->reply) < sizeof pending->reply &&
           !kvb_reply_is_refused(message->reply) &&
           kvb_subject_read_stream(
               message->subject, "kv_sync", &pending->worker_id, &pending->dp_rank) == KVB_OK &&
           kvb_sync_request_decode(message->payload, &pending->request) == KVB_OK;
}

static void
enqueue_sync_request(struct kvb_sync_responder *responder, const struct kvb_pending_sync *pending)
{
    struct kvb_pending_sync *copy = malloc(sizeof *copy);

    if (!copy) {
        responder->failures++;
        return;
    }
    *copy = *pending;
    if (kvb_ring_put(responder->incoming, copy) != KVB_OK) {
        free(copy);
        say_busy(responder, pending);
    }
}

void kvb_sync_responder_receive(void *context, const struct kvb_bus_message *message)
{
    struct kvb_sync_responder *responder = context;
    struct kvb_pending_sync pending = { 0 };

    responder->requests++;
    if (!read_sync_request(message, &pending)) {
        responder->refused++;
        return;
    }
    memcpy(pending.reply, message->reply, strlen(message->reply) + 1);
    pending.requester = requester_of(responder, pending.reply);
    (void)pthread_mutex_lock(&responder->lock);
    const enum kvb_requester_kind kind = kvb_sync_requesters_note(
        &responder->requesters, pending.requester, kvb_clock_monotonic_ns());
    (void)pthread_mutex_unlock(&responder->lock);
    pending.is_returning = kind == KVB_SYNC_RETURNING;
    if (kind == KVB_SYNC_TOO_OFTEN) {
        say_busy(responder, &pending);
    } else {
        enqueue_sync_request(responder, &pending);
    }
}

/* ---- On the owner's thread ---- */

int kvb_sync_responder_fd(const struct kvb_sync_responder *responder)
{
    return kvb_ring_fd(responder->incoming);
}

/* Takes ownership of the request. */
static void begin_job(struct kvb_sync_responder *responder, struct kvb_pending_sync *pending)
{
    const struct kvb_stream *stream =
        responder->find(responder->context, pending->worker_id, pending->dp_rank);
    const struct kvb_sync_entry entry = { .pending = pending,
                                          .is_returning = pending->is_returning,
                                          .requester = pending->requester,
                                          .worker_id = pending->worker_id,
                                          .dp_rank = pending->dp_rank };
    struct kvb_sync_displaced displaced = { 0 };

    if (!stream) {
        free(pending); /* a stream of another bridge of the component */
        return;
    }
    kvb_sync_job_begin(&pending->job, stream, &pending->request);
    if (kvb_sync_queue_put(&responder->queue, &entry, &displaced) != KVB_OK) {
        displaced.pending = pending;
    }
    /* A requester that has asked again expects no answer to its former request. */
    if (displaced.pending && !displaced.is_replaced) {
        say_busy(responder, displaced.pending);
    }
    free(displaced.pending);
}

static void begin_jobs(struct kvb_sync_responder *responder)
{
    void *item = NULL;

    /* No more than the ring holds, so that a flood cannot keep the thread here. */
    for (int i = 0; i < ring_requests && kvb_ring_take(responder->incoming, &item) == KVB_OK; i++) {
        begin_job(responder, item);
    }
}

/* How many blocks certainly fit one message, even if each block is a separate event. */
static size_t chunk_blocks(const struct kvb_sync_responder *responder)
{
    const size_t blocks = kvb_sync_reply_room(kvb_bus_max_payload(responder->bus));

    return blocks < max_chunk_blocks ? blocks : max_chunk_blocks;
}

/* Builds and sends one chunk.  False: the job is done. */
static bool send_chunk(struct kvb_sync_responder *responder, struct kvb_pending_sync *pending)
{
    /* Looked up for each chunk: the rank may have left since the last one. */
    const struct kvb_stream *stream =
        responder->find(responder->context, pending->worker_id, pending->dp_rank);
    struct kvb_sync_reply reply = { .is_last = true };

    kvb_buf_reset(&responder->buf);
    if (!stream ||
        kvb_sync_job_step(
            &pending->job, stream, chunk_blocks(responder), &responder->events, &reply) != KVB_OK ||
        kvb_sync_reply_encode(&reply, &responder->buf) != KVB_OK ||
        kvb_bus_publish(responder->bus, pending->reply, kvb_buf_span(&responder->buf)) != KVB_OK) {
        responder->failures++; /* the requester times out and requests again */
        return false;
    }
    responder->chunks++;
    if (reply.is_last) {
        responder->answered(responder->context, pending->worker_id, pending->dp_rank);
    }
    return !reply.is_last;
}

static bool step_next(struct kvb_sync_responder *responder)
{
    struct kvb_sync_entry *entry = kvb_sync_queue_next(&responder->queue);

    if (!entry) {
        return false;
    }
    if (!send_chunk(responder, entry->pending)) {
        free(kvb_sync_queue_drop(&responder->queue, entry));
    }
    return true;
}

bool kvb_sync_responder_work(
    struct kvb_sync_responder *responder, uint64_t now_ns, uint64_t budget_ns)
{
    do {
        /* New requests compete for the very next chunk. */
        begin_jobs(responder);
        if (!step_next(responder)) {
            return false;
        }
    } while (kvb_clock_monotonic_ns() < now_ns + budget_ns);
    return true;
}
