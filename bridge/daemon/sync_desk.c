#include "daemon/sync_desk.h"

#include "bus/subject.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "wire/sync.h"

#include <stdlib.h>
#include <string.h>

enum {
    waiting_asks = 256,
    most_reply_bytes = 256,
    chunk_blocks = 4096,
    busy_ms = 200,
    tokens_a_second = 500,
    most_tokens = 1000
};

/* One request, waiting or under way. */
struct kvb_sync_ask {
    uint64_t worker_id;
    uint32_t dp_rank;
    struct kvb_sync_request request;
    struct kvb_sync_job job;
    char reply[most_reply_bytes];
};

kvb_status kvb_sync_desk_init(struct kvb_sync_desk *desk)
{
    (void)pthread_mutex_init(&desk->lock, NULL); /* cannot fail without attributes */
    kvb_buf_init(&desk->buf, kvb_max_nats_payload_bytes);
    return kvb_ring_new(waiting_asks, free, &desk->asks);
}

void kvb_sync_desk_done(struct kvb_sync_desk *desk)
{
    kvb_ring_free(desk->asks);
    for (size_t i = 0; i < kvb_sync_jobs; i++) {
        free(desk->jobs[i]);
    }
    kvb_router_batch_done(&desk->events);
    kvb_buf_done(&desk->buf);
    (void)pthread_mutex_destroy(&desk->lock);
}

/* ---- On nats.c's thread ---- */

/* kv_sync.{worker_id}.{dp_rank}, as the subject's tail. */
static bool read_tail(const char *subject, struct kvb_sync_ask *ask)
{
    static const char first[] = "kv_sync.";
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;
    char *end = NULL;

    if (kvb_subject_split(subject, name_space, component, &tail) != KVB_OK ||
        strncmp(tail, first, sizeof first - 1) != 0) {
        return false;
    }
    ask->worker_id = strtoull(tail + sizeof first - 1, &end, 10);
    if (*end != '.') {
        return false;
    }
    const unsigned long long rank = strtoull(end + 1, &end, 10);
    ask->dp_rank = (uint32_t)rank;
    return *end == '\0' && rank <= UINT32_MAX;
}

/* _INBOX.abc.7: whoever has the inbox _INBOX.abc. */
static uint64_t asker_of(const char *reply)
{
    const char *last = strrchr(reply, '.');
    const size_t len = last ? (size_t)(last - reply) : strlen(reply);

    return kvb_hash64((kvb_span){ .data = (const uint8_t *)reply, .len = len }, 0);
}

static void fill(struct kvb_sync_asker *asker, uint64_t now_ns)
{
    const uint64_t fresh = (now_ns - asker->filled_ns) / (KVB_NS_PER_S / tokens_a_second);

    if (fresh > 0) {
        asker->tokens = asker->tokens + fresh < most_tokens ? asker->tokens + fresh : most_tokens;
        asker->filled_ns = now_ns;
    }
}

/* Askers that share a place share its tokens: fair enough, and bounded. */
static bool take_token(struct kvb_sync_desk *desk, const char *reply)
{
    const uint64_t key = asker_of(reply);
    struct kvb_sync_asker *asker = &desk->askers[key % kvb_sync_askers];
    const uint64_t now_ns = kvb_clock_monotonic_ns();

    (void)pthread_mutex_lock(&desk->lock);
    fill(asker, now_ns);
    const bool has_token = asker->tokens > 0;
    asker->tokens -= has_token;
    (void)pthread_mutex_unlock(&desk->lock);
    return has_token;
}

static void say_busy(struct kvb_sync_desk *desk, const struct kvb_sync_ask *ask)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };
    const struct kvb_sync_reply reply = { .answer = KVB_SYNC_BUSY,
                                          .worker_id = ask->worker_id,
                                          .dp_rank = ask->dp_rank,
                                          .is_last = true,
                                          .retry_ms = busy_ms };

    desk->busy++;
    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    if (kvb_sync_reply_encode(&reply, &buf) == KVB_OK) {
        (void)kvb_bus_publish(desk->bus, ask->reply, kvb_buf_span(&buf)); /* it asks again */
    }
}

static bool read_ask(const struct kvb_bus_message *message, struct kvb_sync_ask *ask)
{
    return message->reply && strlen(message->reply) < sizeof ask->reply &&
           !kvb_subject_is_of_contract(message->reply) && read_tail(message->subject, ask) &&
           kvb_sync_request_decode(message->payload, &ask->request) == KVB_OK;
}

static void queue_ask(struct kvb_sync_desk *desk, const struct kvb_sync_ask *ask)
{
    struct kvb_sync_ask *copy = malloc(sizeof *copy);

    if (!copy) {
        desk->failures++;
        return;
    }
    *copy = *ask;
    if (kvb_ring_put(desk->asks, copy) != KVB_OK) {
        free(copy);
        say_busy(desk, ask);
    }
}

void kvb_sync_desk_hear(void *context, const struct kvb_bus_message *message)
{
    struct kvb_sync_desk *desk = context;
    struct kvb_sync_ask ask = { 0 };

    desk->requests++;
    if (!read_ask(message, &ask)) {
        desk->refused++;
        return;
    }
    memcpy(ask.reply, message->reply, strlen(message->reply) + 1);
    if (take_token(desk, ask.reply)) {
        queue_ask(desk, &ask);
    } else {
        say_busy(desk, &ask);
    }
}

/* ---- On the owner's thread ---- */

int kvb_sync_desk_fd(const struct kvb_sync_desk *desk)
{
    return kvb_ring_fd(desk->asks);
}

static void begin_jobs(struct kvb_sync_desk *desk)
{
    for (size_t i = 0; i < kvb_sync_jobs; i++) {
        void *item = NULL;
        if (desk->jobs[i]) {
            continue;
        }
        if (kvb_ring_take(desk->asks, &item) != KVB_OK) {
            return;
        }
        struct kvb_sync_ask *ask = item;
        const struct kvb_stream *stream = desk->find(desk->context, ask->worker_id, ask->dp_rank);
        if (stream) {
            kvb_sync_job_begin(&ask->job, stream, &ask->request);
            desk->jobs[i] = ask;
        } else {
            free(ask); /* of another bridge of the component */
        }
    }
}

/* Makes and sends one chunk; false when the job is over. */
static bool step(struct kvb_sync_desk *desk, struct kvb_sync_ask *ask)
{
    const struct kvb_stream *stream = desk->find(desk->context, ask->worker_id, ask->dp_rank);
    struct kvb_sync_reply reply = { .is_last = true };

    kvb_buf_reset(&desk->buf);
    if (!stream ||
        kvb_sync_job_step(&ask->job, stream, chunk_blocks, &desk->events, &reply) != KVB_OK ||
        kvb_sync_reply_encode(&reply, &desk->buf) != KVB_OK ||
        kvb_bus_publish(desk->bus, ask->reply, kvb_buf_span(&desk->buf)) != KVB_OK) {
        desk->failures++; /* the asker notices that nothing comes, and asks again */
        return false;
    }
    desk->chunks++;
    if (reply.is_last) {
        desk->answered(desk->context, ask->worker_id, ask->dp_rank);
    }
    return !reply.is_last;
}

static bool step_next(struct kvb_sync_desk *desk)
{
    for (size_t i = 0; i < kvb_sync_jobs; i++) {
        const size_t at = (desk->next_job + i) % kvb_sync_jobs;
        if (!desk->jobs[at]) {
            continue;
        }
        if (!step(desk, desk->jobs[at])) {
            free(desk->jobs[at]);
            desk->jobs[at] = NULL;
        }
        desk->next_job = at + 1; /* by turns */
        return true;
    }
    return false;
}

bool kvb_sync_desk_work(struct kvb_sync_desk *desk, uint64_t now_ns, uint64_t budget_ns)
{
    do {
        begin_jobs(desk);
        if (!step_next(desk)) {
            return false;
        }
    } while (kvb_clock_monotonic_ns() < now_ns + budget_ns);
    return true;
}
