#include "kvaggregator/intake.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/ring.h"
#include "index/block_hash.h"
#include "kvaggregator/audit.h"
#include "kvaggregator/books.h"
#include "kvaggregator/config.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/report.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/tracker.h"
#include "replica/follower.h"
#include "wire/load/json.h"
#include "wire/router/heartbeat.h"
#include "wire/router/json.h"
#include "wire/router/proto.h"
#include "wire/router/sync.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    max_event_bytes = 512 << 20, /* of messages in the event ring, with what each takes besides */
    slice_blocks = 1024,         /* of a message, applied at a time: about 100 us */
    max_spare = 1024,
    max_applied_bytes = 256 << 10,
    /* of a message in the event ring beside its payload: struct received, and natsMsg with subject
     * and reply */
    item_bytes = 512,
    no_counter = kvb_aggregator_metric_count
};

/* A message in the event ring, which owns it as nats.c has received it. */
struct received {
    enum kvb_intake_kind kind;
    struct kvb_stream_id names; /* of the subject; worker and rank are the payload's */
    uint64_t token;             /* of an answer; the number of an echo */
    uint64_t arrived_ns;
    uint64_t lost_before; /* messages that found no room before this one */
    struct kvb_bus_kept kept;
    struct received *next; /* in the pool */
};

/* The result of decoding one message.  It has a stream if decoding got that far. */
struct envelope {
    struct kvb_stream_id id;
    uint64_t token;
    bool is_read;
};

#define EVENT_BYTES kvb_max_payload_bytes
#define BOOKS_BYTES kvb_max_nats_payload_bytes

/* clang-format off */
static const struct {
    const char *name; /* for logs */
    enum kvb_contract_subject subject;
    unsigned counter; /* enum kvb_aggregator_metric, or no_counter */
    size_t max_bytes;
} kinds[KVB_INTAKE_COUNT] = {
    [KVB_INTAKE_EVENTS]        = { "kv_events",         KVB_SUBJECT_EVENTS,            kvb_aggregator_messages_events,      EVENT_BYTES },
    [KVB_INTAKE_EVENTS_PB]     = { "kv_events_pb",      KVB_SUBJECT_EVENTS_PB,         kvb_aggregator_messages_protobuf,    EVENT_BYTES },
    [KVB_INTAKE_WINDOW_EVENTS] = { "kv_window_events",  KVB_SUBJECT_WINDOW_EVENTS,     kvb_aggregator_messages_window,      EVENT_BYTES },
    [KVB_INTAKE_HEARTBEATS]    = { "kv_heartbeat",      KVB_SUBJECT_HEARTBEAT,         kvb_aggregator_messages_heartbeat,   EVENT_BYTES },
    [KVB_INTAKE_LOAD]          = { "load_metrics",      KVB_SUBJECT_LOAD,              kvb_aggregator_messages_load,        EVENT_BYTES },
    [KVB_INTAKE_ANSWERS]       = { "kv_sync",           KVB_SUBJECT_ANSWERS,           kvb_aggregator_messages_answers,     EVENT_BYTES },
    [KVB_INTAKE_ROUTED]        = { "kv_routed",         KVB_SUBJECT_ROUTED,            kvb_aggregator_messages_routed,      BOOKS_BYTES },
    [KVB_INTAKE_FINISHED]      = { "kv_finished",       KVB_SUBJECT_FINISHED,          kvb_aggregator_messages_finished,    BOOKS_BYTES },
    [KVB_INTAKE_FIRST_TOKEN]   = { "kv_first_token",    KVB_SUBJECT_FIRST_TOKEN,       kvb_aggregator_messages_first_token, BOOKS_BYTES },
    [KVB_INTAKE_STATUS]        = { "aggregator_status", KVB_SUBJECT_AGGREGATOR_STATUS, kvb_aggregator_messages_status,      BOOKS_BYTES },
    [KVB_INTAKE_ECHO]          = { "echo",              KVB_SUBJECT_ECHO,              no_counter,                          BOOKS_BYTES },
};
/* clang-format on */

#undef EVENT_BYTES
#undef BOOKS_BYTES

static void drop_received(void *item)
{
    struct received *received = item;

    kvb_bus_kept_drop(&received->kept);
    free(received);
}

static void note_read(struct envelope *envelope, uint64_t worker_id, uint32_t dp_rank)
{
    envelope->id.worker_id = worker_id;
    envelope->id.dp_rank = dp_rank;
    envelope->is_read = true;
}

static void count_intake(struct kvb_aggregator *aggregator, enum kvb_aggregator_metric metric)
{
    kvb_metric_add(aggregator->metrics, metric, 1);
}

/* ---- The pool of items ----
 *
 *     spare --nats.c's thread: take_spare()--> event ring --index thread: apply--> applied
 *       ^                                                                             |
 *       +------------------ release_applied(): 64 messages or 256 KiB ----------------+
 *
 * nats.c frees messages on a thread of its own, and wakes it for the first. */

/* A new one when none is spare.  NULL: no memory. */
static struct received *take_spare(struct kvb_intake_pool *pool)
{
    (void)pthread_mutex_lock(&pool->lock);
    struct received *taken = pool->spare;
    if (taken) {
        pool->spare = taken->next;
        pool->spare_count--;
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return taken ? taken : malloc(sizeof *taken);
}

/* Under the lock. */
static void put_spare(struct kvb_intake_pool *pool, struct received *received)
{
    if (pool->spare_count == max_spare) {
        free(received);
        return;
    }
    received->next = pool->spare;
    pool->spare = received;
    pool->spare_count++;
}

/* Frees the messages before their bytes are given back. */
static void release_applied(struct kvb_intake *intake)
{
    struct kvb_intake_pool *pool = &intake->pool;

    if (pool->applied_count == 0) {
        return;
    }
    /* Outside of the lock: nats.c's thread would wait for it, with all requests behind it. */
    for (size_t i = 0; i < pool->applied_count; i++) {
        kvb_bus_kept_drop(&pool->applied[i]->kept);
    }
    (void)pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < pool->applied_count; i++) {
        put_spare(pool, pool->applied[i]);
    }
    (void)pthread_mutex_unlock(&pool->lock);
    kvb_byte_budget_give(&intake->bytes, pool->applied_bytes);
    pool->applied_count = 0;
    pool->applied_bytes = 0;
}

static void put_applied(struct kvb_intake *intake, struct received *received)
{
    struct kvb_intake_pool *pool = &intake->pool;

    pool->applied[pool->applied_count++] = received;
    pool->applied_bytes += item_bytes + received->kept.payload.len;
    if (pool->applied_count == kvb_intake_applied_messages ||
        pool->applied_bytes > max_applied_bytes) {
        release_applied(intake);
    }
}

/* ---- Events that hold prompts ---- */

/* The name of a LoRA adapter that has only an id; the same as in the bridge. */
static uint64_t prompt_seed(const struct kvb_prompt_event *event)
{
    char name[40];
    const int len = snprintf(name, sizeof name, "lora_id:%llu", (unsigned long long)event->lora_id);
    const kvb_span lora = { (const uint8_t *)name, event->has_lora ? (size_t)len : 0 };

    return kvb_block_seed(lora, (kvb_span){ 0 });
}

/* Makes the same event with hashes instead of tokens.  It has no id, as the events of other bridges
 * may have none.
 * KVB_BAD_INPUT  the tokens do not fill the blocks */
static kvb_status hash_prompt(
    const struct kvb_prompt_event *event, uint32_t configured, struct kvb_router_batch *batch)
{
    /* The configured block size.  If there is none, the tokens are divided evenly. */
    const bool is_even = event->block_count > 0 && event->token_count % event->block_count == 0;
    const size_t own = is_even ? event->token_count / event->block_count : 0;
    const uint32_t block_size = configured > 0 ? configured : (uint32_t)own;
    const uint64_t seed = prompt_seed(event);

    kvb_router_batch_reset(batch);
    batch->worker_id = event->worker_id;
    batch->dp_rank = event->dp_rank;
    if (!event->is_removed &&
        (block_size == 0 || event->block_count > event->token_count / block_size)) {
        return KVB_BAD_INPUT;
    }
    KVB_TRY(kvb_router_batch_add_event(
        batch, &(struct kvb_router_event){ .kind = event->is_removed ? KVB_ROUTER_REMOVED
                                                                     : KVB_ROUTER_STORED }));
    for (size_t i = 0; i < event->block_count; i++) {
        kvb_tokens_hash tokens = { 0 };
        if (!event->is_removed) {
            tokens = kvb_tokens_hash_of(event->tokens + i * block_size, block_size, NULL, 0, seed);
        }
        KVB_TRY(kvb_router_batch_add_block(batch, event->blocks[i], tokens));
    }
    return KVB_OK;
}

static kvb_status decode_events(struct kvb_aggregator *aggregator, kvb_span payload)
{
    const kvb_status status = kvb_router_payload_decode(payload, &aggregator->intake->batch);

    /* The events of other bridges, which hold prompts, are tried last: they are the rarest. */
    if (status != KVB_BAD_INPUT ||
        kvb_prompt_json_decode(payload, &aggregator->intake->prompt) != KVB_OK) {
        return status;
    }
    return hash_prompt(
        &aggregator->intake->prompt, aggregator->config->subscribe.fallback.block_size,
        &aggregator->intake->batch);
}

/* ---- On the index thread: each kind of message ---- */

bool kvb_intake_has_rest(const struct kvb_aggregator *aggregator)
{
    return aggregator->intake->next_event < aggregator->intake->batch.event_count;
}

static void drop_batch_rest(struct kvb_aggregator *aggregator)
{
    aggregator->intake->next_event = aggregator->intake->batch.event_count;
}

/* Ends the predictions of blocks that a stream has stored.  After a clear or a new epoch all of its
 * predictions end.  A stream that uses the engine's block names has predictions under other names:
 * there, predictions end only by time. */
static void
confirm_predictions(struct kvb_aggregator *aggregator, const struct kvb_router_batch *slice)
{
    struct kvb_predictions *predictions = aggregator->predictions;
    const struct kvb_stream_id *id = &aggregator->intake->batch_id;

    if (!kvb_predictions_any(predictions)) {
        return;
    }
    if (slice->has_epoch) {
        kvb_predictions_note_epoch(predictions, id, &slice->epoch);
    }
    for (size_t i = 0; i < slice->event_count; i++) {
        const struct kvb_router_event *event = &slice->events[i];
        if (event->kind == KVB_ROUTER_CLEARED) {
            kvb_predictions_retire(predictions, id);
        } else if (
            event->kind == KVB_ROUTER_STORED && event->tier != KVB_LIST_WINDOW &&
            event->block_count > 0) {
            kvb_predictions_stored(
                predictions, id, slice->blocks + event->block_at, event->block_count);
        }
    }
}

/* Applies the next slice of the batch, at least one event.  So a long message delays queries no
 * longer than a short one:
 *
 *     events  [ applied before ][ next_event: this slice ][ another time ]          */
static kvb_status apply_batch_slice(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_router_batch slice = aggregator->intake->batch; /* borrows its arrays */
    size_t blocks = 0;
    size_t end = aggregator->intake->next_event;

    /* Whole events only: a query between two slices must not see half of one. */
    while (end < aggregator->intake->batch.event_count && blocks < slice_blocks) {
        blocks += aggregator->intake->batch.events[end++].block_count + 1;
    }
    slice.events += aggregator->intake->next_event;
    slice.event_count = end - aggregator->intake->next_event;
    aggregator->intake->next_event = end;
    /* Books and audit look at what the list is about to lose, so they come first. */
    confirm_predictions(aggregator, &slice);
    kvb_aggregator_audit_events(aggregator, &slice);
    return kvb_followers_apply(
        aggregator->followers, &aggregator->intake->batch_id, &slice, now_ns);
}

/* A bridge may publish both formats.  What is not used of them costs no decoding. */
static bool
is_unused_json(struct kvb_aggregator *aggregator, const struct envelope *envelope, kvb_span payload)
{
    struct kvb_stream_id id = envelope->id;

    return kvb_router_json_peek(payload, &id.worker_id, &id.dp_rank) &&
           kvb_followers_skip_json(aggregator->followers, &id);
}

static kvb_status apply_events(
    struct kvb_aggregator *aggregator, struct envelope *envelope, kvb_span payload, uint64_t now_ns)
{
    if (is_unused_json(aggregator, envelope, payload)) {
        return KVB_OK;
    }
    kvb_status status = decode_events(aggregator, payload);

    if (status == KVB_OK) {
        note_read(envelope, aggregator->intake->batch.worker_id, aggregator->intake->batch.dp_rank);
        aggregator->intake->batch_id = envelope->id;
        aggregator->intake->next_event = 0;
        status = apply_batch_slice(aggregator, now_ns);
    }
    if (status != KVB_OK) {
        drop_batch_rest(aggregator); /* not decodable, or too many streams */
    }
    return status;
}

static kvb_status apply_heartbeat(
    struct kvb_aggregator *aggregator, struct envelope *envelope, kvb_span payload, uint64_t now_ns)
{
    struct kvb_heartbeat heartbeat;

    KVB_TRY(kvb_heartbeat_decode(payload, &heartbeat));
    note_read(envelope, heartbeat.worker_id, heartbeat.dp_rank);
    /* Books and audit first: they compare it with the heartbeat before, which the follower has. */
    if (heartbeat.is_bye) {
        kvb_predictions_retire(aggregator->predictions, &envelope->id);
    } else {
        kvb_predictions_note_epoch(aggregator->predictions, &envelope->id, &heartbeat.epoch);
        kvb_aggregator_audit_heartbeat(aggregator, &envelope->id, &heartbeat);
    }
    return kvb_followers_heartbeat(aggregator->followers, &envelope->id, &heartbeat, now_ns);
}

static kvb_status apply_load(
    struct kvb_aggregator *aggregator, struct envelope *envelope, kvb_span payload, uint64_t now_ns)
{
    struct kvb_load_report report;

    KVB_TRY(kvb_load_json_decode(payload, &report));
    note_read(envelope, report.worker_id, report.dp_rank);
    const struct kvb_load_endpoint *known =
        kvb_load_tracker_find(aggregator->tracker, &envelope->id);
    /* Readers of load_stats get news with the next tick, and nothing else sooner than
     * load.publish_ms.
     */
    if (!known || known->is_stale || !kvb_load_equal(&known->load, &report.load)) {
        aggregator->report->has_load_changed = true;
    }
    kvb_requests_load_reported(aggregator->requests, &envelope->id, now_ns);
    return kvb_load_tracker_report(aggregator->tracker, &envelope->id, &report, now_ns);
}

static kvb_status apply_answer(
    struct kvb_aggregator *aggregator, struct envelope *envelope, kvb_span payload, uint64_t now_ns)
{
    struct kvb_sync_reply reply;

    KVB_TRY(kvb_sync_reply_decode(payload, &aggregator->intake->answer_parts, &reply));
    note_read(envelope, reply.worker_id, reply.dp_rank);
    kvb_followers_reply(aggregator->followers, envelope->token, &reply, now_ns);
    return KVB_OK;
}

/* What can be told of a message goes into *envelope before it is refused. */
static kvb_status apply(
    struct kvb_aggregator *aggregator, enum kvb_intake_kind kind, struct envelope *envelope,
    kvb_span payload, uint64_t now_ns)
{
    switch (kind) {
    case KVB_INTAKE_EVENTS:
    case KVB_INTAKE_EVENTS_PB:
    case KVB_INTAKE_WINDOW_EVENTS:
        return apply_events(aggregator, envelope, payload, now_ns);
    case KVB_INTAKE_HEARTBEATS:
        return apply_heartbeat(aggregator, envelope, payload, now_ns);
    case KVB_INTAKE_LOAD:
        return apply_load(aggregator, envelope, payload, now_ns);
    case KVB_INTAKE_ANSWERS:
        return apply_answer(aggregator, envelope, payload, now_ns);
    case KVB_INTAKE_ROUTED:
        return kvb_aggregator_take_decision(aggregator, payload, now_ns);
    case KVB_INTAKE_FINISHED:
        return kvb_aggregator_take_request_report(
            aggregator, KVB_REQUEST_FINISHED, payload, now_ns);
    case KVB_INTAKE_FIRST_TOKEN:
        return kvb_aggregator_take_request_report(
            aggregator, KVB_REQUEST_FIRST_TOKEN, payload, now_ns);
    case KVB_INTAKE_STATUS:
        return kvb_aggregator_take_status(aggregator, payload, now_ns);
    case KVB_INTAKE_ECHO:
        /* All that the server sent before it is applied now. */
        aggregator->intake->echo_applied = envelope->token;
        return KVB_OK;
    case KVB_INTAKE_COUNT:
        break;
    }
    return KVB_BAD_INPUT;
}

/* ---- On nats.c's thread ----
 *
 *     connection --> events, heartbeats, echoes ... --> event ring --> index thread
 *                |                                        | full: dropped, and counted
 *                +-> requests (doors/nats.c)
 *
 * One thread for all subscriptions, in the order of the connection: so a heartbeat stays behind the
 * events that it counts, and an echo behind all that came before it.  The thread never waits,
 * because requests would wait with it. */

/* Takes from the message what its payload does not say.  False: it is not one of ours. */
static bool read_head(
    struct kvb_aggregator *aggregator, const struct kvb_bus_message *message,
    struct received *out_head)
{
    struct kvb_intake *intake = aggregator->intake;
    const char *tail = NULL;
    struct kvb_echo echo;

    switch (out_head->kind) {
    case KVB_INTAKE_EVENTS:
    case KVB_INTAKE_EVENTS_PB:
    case KVB_INTAKE_WINDOW_EVENTS:
    case KVB_INTAKE_HEARTBEATS:
    case KVB_INTAKE_LOAD:
        if (kvb_subject_split(
                message->subject, out_head->names.name_space, out_head->names.component, &tail) ==
            KVB_OK) {
            return true;
        }
        count_intake(aggregator, kvb_aggregator_refused_bad_input);
        return false;
    case KVB_INTAKE_ANSWERS:
        tail = strrchr(message->subject, '.');
        if (!tail || message->payload.len == 0) {
            return false; /* no bridge subscribes there: the request times out */
        }
        out_head->token = strtoull(tail + 1, NULL, 16);
        return true;
    case KVB_INTAKE_ECHO:
        if (message->payload.len != sizeof echo) {
            return false; /* not ours */
        }
        /* That it has returned is known at once, also while the ring is long or full: NATS works.
         * That it is applied is known when it comes out of the ring. */
        memcpy(&echo, message->payload.data, sizeof echo);
        atomic_store_explicit(&intake->connects_subscribed, echo.connects, memory_order_relaxed);
        intake->echo_returned = echo.number;
        out_head->token = echo.number;
        return true;
    default:
        return true; /* the books say all themselves */
    }
}

/* Owned by the caller, with its message.  KVB_AGAIN: no room.  KVB_NO_MEMORY. */
static kvb_status keep_message(
    struct kvb_aggregator *aggregator, const struct received *head,
    const struct kvb_bus_message *message, struct received **out_received)
{
    const size_t bytes = item_bytes + message->payload.len;

    KVB_TRY(kvb_byte_budget_try(&aggregator->intake->bytes, bytes));
    struct received *received = take_spare(&aggregator->intake->pool);
    if (received) {
        *received = *head;
        if (kvb_bus_message_keep(message, &received->kept) == KVB_OK) {
            *out_received = received;
            return KVB_OK;
        }
        free(received);
    }
    kvb_byte_budget_give(&aggregator->intake->bytes, bytes);
    return KVB_NO_MEMORY;
}

/* What is lost here leaves a gap in the event ids of its stream, or a heartbeat behind it does, and
 * the follower requests it from the bridge.  The next message that finds room says that some were
 * lost, so until then no list is EXACT. */
static void count_lost(struct kvb_aggregator *aggregator, kvb_status status)
{
    if (status == KVB_AGAIN || status == KVB_NO_MEMORY) { /* else taken, or it is stopping */
        count_intake(
            aggregator, status == KVB_AGAIN ? kvb_aggregator_refused_ring_full
                                            : kvb_aggregator_refused_no_memory);
        aggregator->intake->lost++;
    }
}

struct received *kvb_intake_keep(
    const struct kvb_intake_subscription *subscription, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = subscription->aggregator;
    struct received head = { .kind = subscription->kind };
    struct received *received = NULL;

    if (!read_head(aggregator, message, &head)) {
        return NULL;
    }
    if (message->payload.len > kinds[head.kind].max_bytes) {
        count_intake(aggregator, kvb_aggregator_refused_too_large);
        return NULL;
    }
    head.arrived_ns = kvb_clock_monotonic_ns();
    /* Says where among the messages the loss was: heartbeats from before it may still prove. */
    head.lost_before = aggregator->intake->lost;
    count_lost(aggregator, keep_message(aggregator, &head, message, &received));
    return received;
}

void kvb_intake_put(struct kvb_aggregator *aggregator, struct received *received)
{
    const kvb_status status = kvb_ring_put(aggregator->intake->events, received);

    if (status != KVB_OK) {
        kvb_byte_budget_give(&aggregator->intake->bytes, item_bytes + received->kept.payload.len);
        drop_received(received);
    }
    count_lost(aggregator, status);
}

/* ---- Subscriptions ---- */

kvb_status kvb_intake_open(struct kvb_aggregator *aggregator, kvb_bus_handler handler)
{
    for (size_t i = 0; i < KVB_INTAKE_COUNT; i++) {
        struct kvb_intake_subscription *intake = &aggregator->intake->subscriptions[i];
        intake->aggregator = aggregator;
        intake->kind = (enum kvb_intake_kind)i;
        KVB_TRY(kvb_contract_subject_make(kinds[i].subject, aggregator->names, intake->subject));
        KVB_TRY(kvb_bus_subscribe(
            aggregator->bus, intake->subject, handler, intake, &intake->subscription));
    }
    return KVB_OK;
}

void kvb_intake_close(struct kvb_aggregator *aggregator)
{
    for (size_t i = 0; i < KVB_INTAKE_COUNT; i++) {
        kvb_bus_unsubscribe(aggregator->intake->subscriptions[i].subscription);
    }
}

/* Messages that nats.c dropped before, so far. */
static uint64_t count_dropped(struct kvb_aggregator *aggregator)
{
    uint64_t dropped = 0;

    for (size_t i = 0; i < KVB_INTAKE_COUNT; i++) {
        dropped += kvb_bus_dropped(aggregator->intake->subscriptions[i].subscription);
    }
    kvb_metric_set(aggregator->metrics, kvb_aggregator_refused_dropped, dropped);
    return dropped;
}

/* ---- Applying ---- */

/* Counts it by its reason, and says so from time to time.  received: NULL for the rest of a
 * message, which was logged with its beginning, if at all. */
static void note_refusal(
    struct kvb_aggregator *aggregator, const struct received *received, bool is_read,
    kvb_status status, uint64_t now_ns)
{
    uint64_t times = 0;

    /* A message that could be decoded is refused only when there are too many streams. */
    count_intake(
        aggregator, status == KVB_NO_MEMORY   ? kvb_aggregator_refused_no_memory
                    : is_read                 ? kvb_aggregator_refused_stream
                    : status == KVB_TOO_LARGE ? kvb_aggregator_refused_too_large
                                              : kvb_aggregator_refused_bad_input);
    if (received && kvb_log_limit_due(&aggregator->intake->refusals, now_ns, &times)) {
        kvb_log_write(
            aggregator->log, KVB_LOG_WARNING, "aggregator", "messages refused", "count",
            KVB_LOG_U64(times), "namespace", received->names.name_space, "component",
            received->names.component, "kind", kinds[received->kind].name, "last_reason",
            kvb_status_name(status), NULL);
    }
}

/* Lost messages have no stream: all lists must be proven again. */
static void note_lost(struct kvb_aggregator *aggregator, uint64_t lost, uint64_t now_ns)
{
    if (lost != aggregator->intake->lost_seen) {
        aggregator->intake->lost_seen = lost;
        kvb_followers_messages_dropped(aggregator->followers, now_ns);
    }
}

static void take_one(struct kvb_aggregator *aggregator, struct received *received, uint64_t now_ns)
{
    struct envelope envelope = { .id = received->names, .token = received->token };

    /* Before it is applied: a heartbeat behind a loss must not prove a list from before it. */
    note_lost(aggregator, received->lost_before, now_ns);
    if (kinds[received->kind].counter != no_counter) {
        count_intake(aggregator, (enum kvb_aggregator_metric)kinds[received->kind].counter);
    }
    aggregator->intake->batch_arrived_ns = received->arrived_ns;
    const kvb_status status =
        apply(aggregator, received->kind, &envelope, received->kept.payload, now_ns);
    if (status != KVB_OK) {
        note_refusal(aggregator, received, envelope.is_read, status, now_ns);
    }
    put_applied(aggregator->intake, received);
}

bool kvb_intake_take(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    void *item = NULL;

    /* The rest of a message comes before the next one: events of a stream keep their order. */
    if (kvb_intake_has_rest(aggregator)) {
        const kvb_status status = apply_batch_slice(aggregator, now_ns);
        if (status != KVB_OK) { /* its stream was removed since, and there is no room for it now */
            note_refusal(aggregator, NULL, true, status, now_ns);
            drop_batch_rest(aggregator);
        }
        return true;
    }
    if (aggregator->intake->direct) {
        item = aggregator->intake->direct;
        aggregator->intake->direct = NULL;
    } else if (kvb_ring_take(aggregator->intake->events, &item) != KVB_OK) {
        note_lost(aggregator, aggregator->intake->lost, now_ns); /* nothing came after them */
        return false;
    }
    take_one(aggregator, item, now_ns);
    return true;
}

bool kvb_intake_take_until(struct kvb_aggregator *aggregator, uint64_t now_ns, uint64_t until_ns)
{
    if (!kvb_intake_take(aggregator, now_ns)) {
        return false;
    }
    while (kvb_clock_monotonic_ns() < until_ns && kvb_intake_take(aggregator, now_ns)) {
    }
    return true;
}

/* ---- What a turn has to know ---- */

uint64_t kvb_intake_lag_ns(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    const struct received *oldest = kvb_ring_oldest(aggregator->intake->events);
    uint64_t arrived_ns = oldest ? oldest->arrived_ns : now_ns;

    if (kvb_intake_has_rest(aggregator)) {
        arrived_ns = aggregator->intake->batch_arrived_ns;
    }
    const uint64_t lag_ns = now_ns > arrived_ns ? now_ns - arrived_ns : 0;
    kvb_metric_set_real(
        aggregator->metrics, kvb_aggregator_event_lag, (double)lag_ns / (double)KVB_NS_PER_S);
    return lag_ns;
}

void kvb_intake_read_nats(
    const struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts)
{
    *out_facts = (struct kvb_replica_facts){
        .now_ns = kvb_clock_monotonic_ns(),
        .is_connected = kvb_bus_is_connected(aggregator->bus),
        .connects = kvb_bus_connects(aggregator->bus),
        .echo_returned = aggregator->intake->echo_returned,
    };
}

void kvb_intake_read_messages(
    struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts)
{
    out_facts->now_ns = kvb_clock_monotonic_ns();
    out_facts->lag_ns = kvb_intake_lag_ns(aggregator, out_facts->now_ns);
    out_facts->echo_applied = aggregator->intake->echo_applied;
    if (out_facts->now_ns >=
        aggregator->loop->turn.next_tick_ns) { /* takes a lock a subscription */
        out_facts->dropped = count_dropped(aggregator);
    }
}

/* ---- Beginning and end ---- */

kvb_status kvb_intake_init(struct kvb_intake *intake, size_t ring_items)
{
    (void)pthread_mutex_init(&intake->pool.lock, NULL); /* cannot fail with glibc */
    kvb_byte_budget_init(&intake->bytes, max_event_bytes);
    return kvb_ring_new(ring_items, drop_received, &intake->events);
}

void kvb_intake_done(struct kvb_intake *intake)
{
    kvb_ring_free(intake->events);
    release_applied(intake);
    while (intake->pool.spare) {
        free(take_spare(&intake->pool));
    }
    kvb_router_batch_done(&intake->batch);
    kvb_prompt_event_done(&intake->prompt);
    kvb_sync_reply_parts_done(&intake->answer_parts);
    kvb_byte_budget_done(&intake->bytes);
    (void)pthread_mutex_destroy(&intake->pool.lock);
}

kvb_status kvb_intake_name_inbox(struct kvb_intake *intake)
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != sizeof random) {
        return KVB_IO;
    }
    (void)snprintf(/* fits */
                   intake->inbox, sizeof intake->inbox, "%016" PRIx64 "%016" PRIx64, random[0],
                   random[1]);
    return KVB_OK;
}
