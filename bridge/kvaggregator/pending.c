#include "kvaggregator/pending.h"

#include "core/clock.h"
#include "core/metric.h"
#include "core/ring.h"
#include "core/thread.h"
#include "grpc/server.h"
#include "kvaggregator/doors/gateway.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/service.h"

#include <stdlib.h>
#include <string.h>

/* ---- On the stack, on the heap, in the ring ---- */

kvb_status kvb_pending_keep(struct kvb_pending_query *here, struct kvb_pending_query **out_kept)
{
    const char *text = here->door == KVB_DOOR_NATS ? here->reply : here->parameters;
    const size_t text_bytes = text ? strlen(text) + 1 : 0;
    struct kvb_pending_query *kept = malloc(sizeof *kept + text_bytes + here->payload.len);

    if (!kept) {
        return KVB_NO_MEMORY;
    }
    *kept = *here;
    if (text_bytes > 0) {
        memcpy(kept->copies, text, text_bytes);
        kept->reply = here->reply ? kept->copies : NULL;
        kept->parameters = here->parameters ? kept->copies : NULL;
    }
    if (here->payload.len > 0) {
        memcpy(kept->copies + text_bytes, here->payload.data, here->payload.len);
        kept->payload.data = (const uint8_t *)kept->copies + text_bytes;
    }
    kept->is_kept = true;
    (void)pthread_mutex_init(&kept->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&kept->answered);
    *out_kept = kept;
    return KVB_OK;
}

kvb_status kvb_pending_take_bytes(struct kvb_pending_query *pending, size_t bytes)
{
    KVB_TRY(kvb_byte_budget_try(&pending->aggregator->queries->bytes, bytes));
    pending->bytes += bytes;
    return KVB_OK;
}

/* What a query takes while it waits. */
static size_t bytes_of(const struct kvb_pending_query *pending)
{
    const struct kvb_query *query = &pending->query;
    const size_t item_bytes =
        query->form == KVB_QUERY_TOKENS ? sizeof *query->tokens : sizeof *query->hashes;

    return sizeof *pending + pending->payload.len +
           query->count * item_bytes + /* at most as many as were decoded */
           query->hashes_ahead_count * sizeof *query->hashes_ahead +
           2 * query->text.bytes + /* with the body of the tokenizer */
           query->text.end_count * sizeof *query->text.ends +
           2 * sizeof(uint64_t) *
               (query->selection.worker_id_count + query->selection.address_count);
}

enum kvb_pending_end
kvb_pending_hold(struct kvb_pending_query *here, struct kvb_pending_query **out_kept)
{
    struct kvb_queries *queries = here->aggregator->queries;

    *out_kept = here;
    /* What the ring has beyond the limit is for those that come again. */
    if (kvb_ring_count(queries->ring) >= queries->limit) {
        return KVB_END_BUSY;
    }
    if (kvb_pending_take_bytes(here, bytes_of(here)) != KVB_OK) {
        return KVB_END_BYTES;
    }
    if (!here->is_kept && kvb_pending_keep(here, out_kept) != KVB_OK) {
        return KVB_END_NO_MEMORY;
    }
    (*out_kept)->to = NULL; /* the server's answer is there only until the handler returns */
    return KVB_END_SENT;
}

struct kvb_pending_query *kvb_pending_queue(struct kvb_pending_query *here)
{
    struct kvb_http_answer *const to = here->to;
    struct kvb_pending_query *kept = NULL;

    const enum kvb_pending_end why = kvb_pending_hold(here, &kept);
    if (why != KVB_END_SENT) {
        kvb_pending_settle(here, why);
        return NULL;
    }
    const kvb_status status = kvb_pending_queue_again(kept);
    if (status != KVB_OK) {
        kept->to = to;
        kvb_pending_settle(kept, status == KVB_CLOSED ? KVB_END_STOPPING : KVB_END_BUSY);
        return NULL;
    }
    return kept;
}

kvb_status kvb_pending_queue_again(struct kvb_pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const enum kvb_pending_state before = pending->state;
    /* A connection that has left meanwhile does not come back. */
    pending->state = before == KVB_PENDING_LEFT ? KVB_PENDING_LEFT : KVB_PENDING_QUEUED;
    (void)pthread_mutex_unlock(&pending->lock);
    /* Once it is in the ring it may be gone at any moment. */
    const kvb_status status = kvb_ring_put(pending->aggregator->queries->ring, pending);
    if (status != KVB_OK) {
        (void)pthread_mutex_lock(&pending->lock);
        pending->state = pending->state == KVB_PENDING_LEFT ? KVB_PENDING_LEFT : before;
        (void)pthread_mutex_unlock(&pending->lock);
    }
    return status;
}

/* ---- The connection of a query over HTTP ---- */

bool kvb_pending_leave(struct kvb_pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const bool is_queued = pending->state == KVB_PENDING_QUEUED;
    pending->state = is_queued ? KVB_PENDING_LEFT : pending->state;
    pending->later = NULL; /* not valid any more; what follows is waited for otherwise */
    (void)pthread_mutex_unlock(&pending->lock);
    return is_queued;
}

bool kvb_pending_is_left(struct kvb_pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const bool is_left = pending->state == KVB_PENDING_LEFT;
    (void)pthread_mutex_unlock(&pending->lock);
    return is_left;
}

/* True: the query is the connection's from here on, and may be gone already. */
static bool hand_to_connection(struct kvb_pending_query *pending)
{
    if (!pending->is_kept) {
        return false; /* the connection's thread itself is here */
    }
    (void)pthread_mutex_lock(&pending->lock);
    const bool is_waiting = pending->state == KVB_PENDING_QUEUED;
    if (is_waiting) {
        pending->state = KVB_PENDING_ANSWERED;
    }
    /* Of the first part a connection of the server is woken; of the others its thread waits. */
    if (is_waiting && pending->later) {
        kvb_http_wake(pending->later); /* its lock is taken under this one, never this under it */
    } else if (is_waiting) {
        (void)pthread_cond_signal(&pending->answered);
    }
    (void)pthread_mutex_unlock(&pending->lock);
    return is_waiting;
}

void kvb_pending_take_answer(struct kvb_pending_query *pending, struct kvb_http_answer *out_answer)
{
    const bool is_answered = pending->answer.status < 400;

    if (!pending->is_refused) { /* else it was counted by its reason */
        kvb_metric_add(
            pending->aggregator->metrics,
            is_answered ? kvb_aggregator_queries_http : kvb_aggregator_queries_failed, 1);
    }
    kvb_buf_done(&out_answer->body);
    *out_answer = pending->answer;
    pending->answer.body = (struct kvb_buf){ 0 }; /* the HTTP server owns it now */
}

/* ---- Answers that are errors ---- */

void kvb_pending_fail(struct kvb_pending_query *pending)
{
    switch (pending->door) {
    case KVB_DOOR_HTTP:
        kvb_http_refuse(&pending->answer, 503, pending->detail.text);
        break;
    case KVB_DOOR_NATS:
        kvb_query_kind_fail(pending, 0, pending->detail.text);
        break;
    case KVB_DOOR_GRPC:
        kvb_metric_add(pending->aggregator->metrics, kvb_aggregator_queries_failed, 1);
        pending->status = KVB_GRPC_INVALID_ARGUMENT;
        break;
    case KVB_DOOR_GATEWAY: /* nothing makes it fail */
        break;
    }
}

/* clang-format off */
static const struct {
    enum kvb_aggregator_metric counter;
    enum kvb_grpc_status status; /* for any but these sgl-router fails its user's request */
    const char *sentence;        /* NULL: nobody reads it */
} refusals[KVB_END_COUNT] = {
    [KVB_END_UNKNOWN]   = { kvb_aggregator_queries_refused, KVB_GRPC_UNIMPLEMENTED,
                            "unknown query: there are kv_match, kv_route and "
                            "kv_get.{state,load,streams,dump}" },
    [KVB_END_BUSY]      = { kvb_aggregator_queries_refused, KVB_GRPC_RESOURCE_EXHAUSTED, "busy" },
    [KVB_END_BYTES]     = { kvb_aggregator_queries_memory,  KVB_GRPC_RESOURCE_EXHAUSTED,
                            "busy: the queries that wait are too large; try again later" },
    [KVB_END_NO_MEMORY] = { kvb_aggregator_queries_refused, KVB_GRPC_RESOURCE_EXHAUSTED,
                            "out of memory; try again later" },
    [KVB_END_LATE]      = { kvb_aggregator_queries_late,    KVB_GRPC_DEADLINE_EXCEEDED,
                            "no answer within 2 s; try again later" },
    [KVB_END_BEHIND]    = { kvb_aggregator_queries_failed,  KVB_GRPC_UNAVAILABLE,
                            "the lists are not up to date; try again later" },
    [KVB_END_STOPPING]  = { kvb_aggregator_queries_refused, KVB_GRPC_UNAVAILABLE,
                            "this aggregator is stopping; ask another one" },
};
/* clang-format on */

static void refuse(struct kvb_pending_query *pending, enum kvb_pending_end why)
{
    const char *sentence = refusals[why].sentence;

    pending->is_refused = true;
    kvb_metric_add(pending->aggregator->metrics, refusals[why].counter, 1);
    switch (pending->door) {
    case KVB_DOOR_HTTP:
        kvb_http_refuse(&pending->answer, 503, sentence);
        break;
    case KVB_DOOR_NATS:
        if (pending->kind) {
            kvb_aggregator_note_request(pending->aggregator, pending->kind, 0, sentence);
        }
        kvb_buf_reset(&pending->answer.body);
        /* Without memory even for this, the requester runs into its own deadline. */
        (void)kvb_http_write_error(sentence, &pending->answer.body);
        break;
    case KVB_DOOR_GRPC:
        pending->status = refusals[why].status;
        break;
    case KVB_DOOR_GATEWAY: /* it comes again, or answers without us */
        break;
    }
}

/* ---- The end ---- */

/* In one message; an answer that is too large for it becomes an error. */
static void reply_over_nats(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;
    struct kvb_buf *body = &pending->answer.body;
    kvb_status status = kvb_bus_publish(aggregator->bus, pending->reply, kvb_buf_span(body));

    if (status == KVB_TOO_LARGE) {
        static const char why[] = "the answer is larger than nats-server's max_payload: raise "
                                  "it, or ask over HTTP";
        kvb_aggregator_note_error(aggregator, pending->kind, why);
        kvb_metric_add(aggregator->metrics, kvb_aggregator_queries_refused, 1);
        kvb_buf_reset(body);
        (void)kvb_http_write_error(why, body); /* into memory that the answer has had */
        status = kvb_bus_publish(aggregator->bus, pending->reply, kvb_buf_span(body));
    }
    if (status != KVB_OK) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_publish_failures, 1);
    }
}

static void free_pending(struct kvb_pending_query *pending)
{
    struct kvb_queries *queries = pending->aggregator->queries;

    kvb_buf_done(&pending->answer.body);
    kvb_query_done(&pending->query);
    kvb_dump_done(&pending->context.dump);
    kvb_bus_kept_drop(&pending->unread);
    free(pending->tokens);
    if (pending->order) {
        kvb_tokenize_text_done(&pending->order->text);
        free(pending->order);
    }
    /* What it had taken of limits goes back with it. */
    if (pending->is_large) {
        queries->large_answers--;
    }
    if (pending->bytes > 0) {
        kvb_byte_budget_give(&queries->bytes, pending->bytes);
    }
    if (pending->is_kept) {
        (void)pthread_cond_destroy(&pending->answered);
        (void)pthread_mutex_destroy(&pending->lock);
        free(pending);
    }
}

void kvb_pending_settle(struct kvb_pending_query *pending, enum kvb_pending_end why)
{
    if (refusals[why].sentence) {
        refuse(pending, why);
    }
    switch (pending->door) {
    case KVB_DOOR_HTTP:
        /* While its connection waits, that goes on with it: the answer may have more parts. */
        if (hand_to_connection(pending)) {
            return;
        }
        if (pending->to) {
            kvb_pending_take_answer(pending, pending->to);
        }
        break;
    case KVB_DOOR_NATS:
        reply_over_nats(pending);
        break;
    case KVB_DOOR_GRPC:
        kvb_grpc_call_finish(pending->call, pending->status);
        break;
    case KVB_DOOR_GATEWAY:
        kvb_gateway_give_back(pending);
        break;
    }
    free_pending(pending);
}

void kvb_pending_drop(void *item)
{
    kvb_pending_settle(item, KVB_END_STOPPING);
}
