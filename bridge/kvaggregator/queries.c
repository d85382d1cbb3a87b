#include "kvaggregator/queries.h"

#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/ring.h"
#include "grpc/server.h"
#include "kvaggregator/answers/answers.h"
#include "kvaggregator/answers/query_context.h"
#include "kvaggregator/books.h"
#include "kvaggregator/config.h"
#include "kvaggregator/doors/gateway.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/report.h"
#include "kvaggregator/service.h"
#include "kvaggregator/texts.h"

#include <sched.h>
#include <string.h>

enum {
    queries_a_turn_us = 1000,  /* time for queries in a turn, when events wait */
    min_part_bytes = 32 << 10, /* a smaller part of an answer is not worth a thread switch */
    max_part_turns = 256,      /* most turns for one part */
    long_prompt_tokens = 4096, /* from here on a prompt is hashed by the thread that received it */
    max_long_payloads = 64,    /* over NATS, that wait to be read: some 64 MiB at most */
    index_tries = 32,          /* while others answer; some 20 us where there are more cores */
    racing_threads = 16        /* may look at the ring at the same moment, and all find room */
};

/* ---- Long prompts are hashed by the thread that received them ----
 *
 * 131,072 tokens take some 0.06 ms.  The shape of the model's blocks is that of the query before.
 */

static _Atomic uint64_t *
shape_place(struct kvb_aggregator *aggregator, const struct kvb_query *query)
{
    const uint64_t hash = kvb_hash64(kvb_span_of(query->model), 0);

    return &aggregator->queries->shapes[hash % kvb_aggregator_shapes];
}

static bool is_prompt_long(const struct kvb_query *query)
{
    return query->form == KVB_QUERY_TOKENS && query->count >= long_prompt_tokens;
}

static void hash_long_prompt(struct kvb_pending_query *pending)
{
    if (!is_prompt_long(&pending->query)) {
        return;
    }
    const uint64_t packed = atomic_load(shape_place(pending->aggregator, &pending->query));
    const struct kvb_block_shape shape = { .block_size = (uint32_t)(packed >> 32U),
                                           .lookahead = (uint32_t)packed };
    if (shape.block_size > 0) {
        /* without memory whoever answers hashes */
        (void)kvb_query_hash_ahead(&pending->query, shape);
    }
}

/* ---- With the index: what is answered ----
 *
 * By its owner, which is the index thread, or who has index_lock while that waits. */

/* Counted with the part in which the dump began. */
static void count_left_out(struct kvb_aggregator *aggregator, struct kvb_dump *dump)
{
    static const enum kvb_aggregator_metric rows[KVB_DUMP_REASON_COUNT] = {
        [KVB_DUMP_STATE] = kvb_aggregator_dump_state,
        [KVB_DUMP_STORE] = kvb_aggregator_dump_store,
        [KVB_DUMP_MODEL_NAME] = kvb_aggregator_dump_model_name,
        [KVB_DUMP_BLOCK_SIZE] = kvb_aggregator_dump_block_size,
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        kvb_metric_add(aggregator->metrics, rows[i], dump->left_out[i]);
        dump->left_out[i] = 0;
    }
}

/* False: the part at hand is too small to be worth a thread switch, and there is more to come. */
static bool answer_http(struct kvb_aggregator *aggregator, struct kvb_pending_query *pending)
{
    struct kvb_http_route_context *context = &pending->context;
    const struct kvb_http_request request = {
        .method =
            "", /* all that routes read beside the query, which is parsed, is its parameters */
        .path = "",
        .parameters = pending->parameters,
        .content_type = "",
        .authorization = "",
        .if_none_match = "",
    };

    context->ctx = aggregator->ctx;
    context->query = &pending->query;
    context->metrics = aggregator->metrics;
    kvb_http_route_answer(pending->route, context, &request, &pending->answer);
    count_left_out(aggregator, &context->dump);
    return !context->is_unfinished || pending->answer.body.len >= min_part_bytes ||
           ++pending->turns >= max_part_turns;
}

/* Said when it begins and when it ends. */
static void note_several_models(struct kvb_aggregator *aggregator, bool has_several)
{
    if (has_several) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_grpc_several_models, 1);
    }
    if (has_several != aggregator->queries->has_several_models) {
        aggregator->queries->has_several_models = has_several;
        kvb_log_write(
            aggregator->log, has_several ? KVB_LOG_WARNING : KVB_LOG_INFO, "grpc",
            has_several ? "several models, and requests name none: nothing is matched; set "
                          "grpc.model"
                        : "the model of requests is known again",
            NULL);
    }
}

static void answer_call(struct kvb_aggregator *aggregator, struct kvb_pending_query *pending)
{
    struct kvb_indexer_gaps gaps = { 0 };
    const kvb_status status = kvb_answer_indexer(
        aggregator->ctx, &pending->query, kvb_grpc_call_message(pending->call), &gaps);

    kvb_metric_add(aggregator->metrics, kvb_aggregator_grpc_without_address, gaps.without_address);
    note_several_models(aggregator, gaps.has_several_models);
    kvb_metric_add(
        aggregator->metrics,
        status == KVB_OK ? kvb_aggregator_queries_grpc : kvb_aggregator_queries_failed, 1);
    pending->status = status == KVB_OK          ? KVB_GRPC_OK
                      : status == KVB_BAD_INPUT ? KVB_GRPC_INVALID_ARGUMENT
                                                : KVB_GRPC_RESOURCE_EXHAUSTED;
}

/* The other aggregators enter the decision or the report, too.  It is published before the answer
 * is sent: so they have it when the router reports what became of the request. */
static void share_books(struct kvb_aggregator *aggregator, const struct kvb_pending_query *pending)
{
    const struct kvb_http_route_context *context = &pending->context;

    if (context->has_request_report) {
        kvb_aggregator_share_report(
            aggregator, context->request_report, &pending->query, &aggregator->books->peers.self);
    }
    if (context->has_decision) {
        kvb_aggregator_share_decision(aggregator, &context->decision);
        kvb_aggregator_publish_decision(aggregator, &context->decision);
    }
}

/* Long prompts of this model that arrive from now on are hashed in this shape. */
static void note_shape(struct kvb_aggregator *aggregator, const struct kvb_query *query)
{
    const struct kvb_block_shape shape = aggregator->ctx->hashed_shape;

    if (is_prompt_long(query)) {
        atomic_store(
            shape_place(aggregator, query), (uint64_t)shape.block_size << 32U | shape.lookahead);
    }
}

/* False: more is to be made before there is something to send. */
static bool make_answer(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;

    switch (pending->door) {
    case KVB_DOOR_HTTP:
        if (!answer_http(aggregator, pending)) {
            return false;
        }
        break;
    case KVB_DOOR_NATS:
        kvb_query_kind_answer(pending);
        break;
    case KVB_DOOR_GRPC:
        answer_call(aggregator, pending);
        break;
    case KVB_DOOR_GATEWAY:
        kvb_gateway_answer(pending);
        break;
    }
    share_books(aggregator, pending);
    note_shape(aggregator, &pending->query);
    return true;
}

static void send_answer(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;
    const uint64_t received_ns = pending->received_ns;

    kvb_pending_settle(pending, KVB_END_SENT);
    kvb_metric_observe(
        aggregator->metrics, kvb_aggregator_query_duration, kvb_clock_monotonic_ns() - received_ns,
        1);
}

/* ---- On the thread that received it, while the index thread waits ---- */

void kvb_queries_enter_index(struct kvb_aggregator *aggregator)
{
    struct kvb_queries *queries = aggregator->queries;

    atomic_store(&queries->is_index_wanted, true);
    (void)pthread_mutex_lock(&queries->index_lock);
    atomic_store(&queries->is_index_wanted, false);
    atomic_store(&queries->is_index_idle, false);
}

void kvb_queries_leave_index(struct kvb_aggregator *aggregator)
{
    atomic_store(&aggregator->queries->is_index_idle, !atomic_load(&aggregator->loop->is_stopping));
    (void)pthread_mutex_unlock(&aggregator->queries->index_lock);
}

/* Under the lock.  True: the index thread, if it were woken now for a new query or message, would
 * have to take that next. */
static bool is_index_free(const struct kvb_aggregator *aggregator)
{
    struct kvb_replica_facts facts;

    if (!atomic_load(&aggregator->queries->is_index_idle) ||
        kvb_ring_count(aggregator->intake->events) > 0 ||
        kvb_ring_count(aggregator->queries->ring) > 0) {
        return false;
    }
    kvb_intake_read_nats(aggregator, &facts);
    return kvb_replica_turn_is_current(&aggregator->loop->turn, &facts);
}

bool kvb_queries_try_index(struct kvb_aggregator *aggregator)
{
    struct kvb_queries *queries = aggregator->queries;

    for (int i = 0; i < index_tries; i++) {
        /* In a turn, which may take milliseconds; or about to begin one.  Where many queries
         * arrive, the lock would else go from one to the next, and never to the index thread. */
        if (atomic_load(&queries->is_index_wanted) || !atomic_load(&queries->is_index_idle)) {
            return false;
        }
        if (pthread_mutex_trylock(&queries->index_lock) == 0) {
            if (is_index_free(aggregator)) {
                return true;
            }
            (void)pthread_mutex_unlock(&queries->index_lock);
            return false;
        }
        /* Somebody else answers a query.  The end of that is nearer than a turn of the index
         * thread, for which two threads would have to be woken. */
        (void)sched_yield();
    }
    return false;
}

void kvb_queries_give_index(struct kvb_aggregator *aggregator)
{
    (void)pthread_mutex_unlock(&aggregator->queries->index_lock);
}

/* True: the answer is short.  A text needs tokens first, for which only a gateway does not wait: it
 * is on the thread that has them. */
static bool is_answer_short(const struct kvb_pending_query *pending)
{
    switch (pending->door) {
    case KVB_DOOR_HTTP:
        return pending->query.form != KVB_QUERY_TEXT && kvb_http_route_is_short(pending->route);
    case KVB_DOOR_NATS:
        return pending->query.form != KVB_QUERY_TEXT && kvb_query_kind_has_prompt(pending->kind);
    case KVB_DOOR_GRPC:
    case KVB_DOOR_GATEWAY:
        return true;
    }
    return false;
}

/* With the index, which is given back. */
static void answer_at_once(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;

    aggregator->ctx->now_ns = kvb_clock_monotonic_ns();
    (void)make_answer(pending); /* whole, because it is short */
    kvb_queries_give_index(aggregator);
    /* The index is free again while the answer is sent. */
    kvb_metric_add(aggregator->metrics, kvb_aggregator_queries_at_once, 1);
    send_answer(pending);
}

/* With the index, which is given back: it says which engines can be asked, and is not needed until
 * the tokens are known. */
static void hand_to_tokenizer(struct kvb_pending_query *here)
{
    struct kvb_aggregator *aggregator = here->aggregator;
    struct kvb_pending_query *kept = NULL;
    const enum kvb_pending_end why = kvb_pending_hold(here, &kept);
    const bool is_handed = why == KVB_END_SENT && kvb_texts_request(kept);

    kvb_queries_give_index(aggregator);
    if (why != KVB_END_SENT) {
        kvb_pending_settle(here, why);
    } else if (!is_handed) {
        kvb_queries_resume(kept);
    }
}

struct kvb_pending_query *kvb_queries_submit(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;

    hash_long_prompt(pending);
    /* What takes longer would hold up events, and the index thread gives each a bounded part. */
    if (!is_answer_short(pending) || !kvb_queries_try_index(aggregator)) {
        return kvb_pending_queue(pending);
    }
    if (pending->query.form == KVB_QUERY_TEXT) {
        hand_to_tokenizer(pending);
    } else {
        answer_at_once(pending);
    }
    return NULL;
}

/* ---- What comes again, and on the index thread what lies in the ring ---- */

/* KVB_END_SENT: it is wanted. */
static enum kvb_pending_end why_not_wanted(struct kvb_pending_query *pending)
{
    struct kvb_aggregator *aggregator = pending->aggregator;

    switch (pending->door) {
    case KVB_DOOR_HTTP:
        return kvb_pending_is_left(pending) ? KVB_END_LEFT : KVB_END_SENT;
    case KVB_DOOR_NATS: /* its requester waits as long as it likes, which we do not know */
        return KVB_END_SENT;
    case KVB_DOOR_GRPC:
        if (kvb_grpc_call_is_over(pending->call, kvb_clock_monotonic_ns())) {
            return KVB_END_LATE;
        }
        /* these answers have no states that could say STALE */
        return aggregator->loop->turn.behind_echo > 0 ? KVB_END_BEHIND : KVB_END_SENT;
    case KVB_DOOR_GATEWAY:
        return kvb_gateway_is_left(pending) ? KVB_END_LEFT : KVB_END_SENT;
    }
    return KVB_END_SENT;
}

void kvb_queries_resume(struct kvb_pending_query *pending)
{
    hash_long_prompt(pending);
    if (!is_answer_short(pending) || !kvb_queries_try_index(pending->aggregator)) {
        if (kvb_pending_queue_again(pending) != KVB_OK) { /* only at the aggregator's end */
            kvb_pending_settle(pending, KVB_END_STOPPING);
        }
        return;
    }
    const enum kvb_pending_end why = why_not_wanted(pending);
    if (why == KVB_END_SENT) {
        answer_at_once(pending);
    } else {
        kvb_queries_give_index(pending->aggregator);
        kvb_pending_settle(pending, why);
    }
}

/* Takes a step with a query from the ring.  False: a part of a long answer was made, which is
 * enough for this turn. */
static bool go_on_with(struct kvb_pending_query *pending)
{
    const enum kvb_pending_end why = why_not_wanted(pending);
    if (why != KVB_END_SENT) {
        kvb_pending_settle(pending, why);
        return true;
    }
    if (kvb_texts_request(pending)) { /* the tokenizer has it, and it comes again */
        return true;
    }
    if (make_answer(pending)) {
        send_answer(pending);
        return true;
    }
    /* To the end of the ring, behind all that are short. */
    const kvb_status status = kvb_pending_queue_again(pending);
    if (status != KVB_OK) {
        kvb_pending_settle(pending, status == KVB_CLOSED ? KVB_END_STOPPING : KVB_END_BUSY);
    }
    return false;
}

bool kvb_queries_take(struct kvb_aggregator *aggregator)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t end_ns = began_ns + queries_a_turn_us * KVB_NS_PER_MS / 1000;
    bool had_any = false;
    void *item = NULL;

    aggregator->ctx->now_ns = began_ns;
    while (kvb_ring_take(aggregator->queries->ring, &item) == KVB_OK) { /* ends: the time does */
        had_any = true;
        if (!go_on_with(item) || kvb_clock_monotonic_ns() >= end_ns) {
            break;
        }
    }
    return had_any;
}

/* ---- Beginning and end ---- */

void kvb_queries_init(struct kvb_queries *queries)
{
    kvb_byte_budget_init(&queries->bytes, kvb_max_waiting_query_bytes);
    (void)pthread_mutex_init(&queries->index_lock, NULL); /* cannot fail without attributes */
    (void)pthread_mutex_init(&queries->reader_lock, NULL);
}

void kvb_queries_done(struct kvb_queries *queries)
{
    kvb_byte_budget_done(&queries->bytes);
    (void)pthread_mutex_destroy(&queries->index_lock);
    (void)pthread_mutex_destroy(&queries->reader_lock);
}

kvb_status kvb_queries_open(struct kvb_aggregator *aggregator)
{
    struct kvb_queries *queries = aggregator->queries;
    const size_t again =
        kvb_max_tokenize_requests + kvb_max_http_connections + (size_t)racing_threads;

    queries->limit = aggregator->config->limits.query_ring;
    KVB_TRY(kvb_ring_new(max_long_payloads, kvb_pending_drop, &queries->prompts));
    return kvb_ring_new(queries->limit + again, kvb_pending_drop, &queries->ring);
}

void kvb_queries_close(struct kvb_aggregator *aggregator)
{
    kvb_ring_free(aggregator->queries->ring);
    kvb_ring_free(aggregator->queries->prompts);
    aggregator->queries->ring = NULL;
    aggregator->queries->prompts = NULL;
}
