#include "core/clock.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/own.h"
#include "kvaggregator/answers/indexer.h"
#include "kvaggregator/inside.h"
#include "wire/query/json.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    part_wait_s = 2,
    min_part_bytes = 32 << 10,     /* a smaller part of an answer is not worth a thread switch */
    max_part_turns = 256,          /* most turns for one part */
    long_prompt_tokens = 4096,     /* from here on a prompt is hashed by the requester's thread */
    long_payload_bytes = 64 << 10, /* from here on a request over NATS is read by a thread of its
                                      own */
    max_long_payloads = 64,        /* that wait for it, some 64 MiB at most */
    max_unread = 16384             /* requests of a subject that wait in nats.c, half a second */
};

/* A query in the query ring.
 *
 * Reference-counted.  From HTTP it has two owners, the waiting connection and the ring, because the
 * connection may give up; from NATS and gRPC only the ring.  The last owner frees it. */
struct pending_query {
    uint64_t received_ns;
    struct kvb_byte_budget *budget; /* borrowed; has given `bytes`; NULL: none yet */
    size_t bytes;
    struct kvb_query
        query; /* what it asks, where it has a prompt: read by the requester's thread */
    /* from HTTP */
    struct kvb_aggregator *aggregator;  /* borrowed */
    bool is_large;                      /* one of kvb_max_large_dumps */
    unsigned turns;                     /* that the part at hand has taken */
    const struct kvb_http_route *route; /* NULL: not from HTTP */
    struct kvb_http_request request;    /* query points into text */
    struct kvb_http_route_context context;
    struct pending_query *next; /* unfinished */
    /* of a text */
    struct kvb_tokenize_order *order;     /* owned; NULL: not asked yet */
    struct kvb_tokenize_result tokenized; /* its tokens: owned, in `tokens` */
    uint32_t *tokens;
    struct kvb_http_answer answer;
    pthread_mutex_t lock; /* the next three, and owners */
    pthread_cond_t answered;
    bool is_answered;
    struct kvb_http_later *later; /* the connection that waits; NULL: none, or it has given up */
    unsigned owners;
    struct kvb_grpc_call *call; /* from gRPC, until it is finished; else NULL */
    /* from NATS */
    const struct kvb_query_kind *kind; /* NULL: not from NATS */
    kvb_status read;                   /* whether the prompt could be read, and tokenized */
    struct kvb_detail detail;          /* why not */
    const char *reply;                 /* into text */
    kvb_span payload;                  /* into text; of a query without a prompt */
    struct kvb_bus_kept unread;        /* a long request, until its prompt is read */
    char text[];                       /* copies of what the requester's thread has borrowed */
};

static struct pending_query *new_pending(size_t text_bytes, unsigned owners)
{
    struct pending_query *pending = calloc(1, sizeof *pending + text_bytes);

    if (!pending) {
        return NULL;
    }
    pending->bytes = sizeof *pending + text_bytes;
    pending->owners = owners;
    pending->received_ns = kvb_clock_monotonic_ns();
    (void)pthread_mutex_init(&pending->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&pending->answered);
    kvb_buf_init(&pending->answer.body, kvb_max_answer_bytes);
    return pending;
}

static void free_order(struct kvb_tokenize_order *order)
{
    if (order) {
        kvb_buf_done(&order->body);
        free(order);
    }
}

static void free_pending(struct pending_query *pending)
{
    if (pending->is_large) {
        pending->aggregator->large_answers--;
    }
    if (pending->call) { /* never answered: this aggregator ends */
        kvb_grpc_call_finish(pending->call, KVB_GRPC_UNAVAILABLE);
    }
    (void)pthread_cond_destroy(&pending->answered);
    (void)pthread_mutex_destroy(&pending->lock);
    kvb_buf_done(&pending->answer.body);
    kvb_query_done(&pending->query);
    free_order(pending->order);
    free(pending->tokens);
    kvb_bus_kept_drop(&pending->unread);
    kvb_dump_done(&pending->context.dump);
    if (pending->budget) {
        kvb_byte_budget_give(pending->budget, pending->bytes);
    }
    free(pending);
}

static void release_pending(struct pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const unsigned left = --pending->owners;
    (void)pthread_mutex_unlock(&pending->lock);
    if (left == 0) {
        free_pending(pending);
    }
}

void kvb_aggregator_drop_query(void *item)
{
    release_pending(item);
}

/* Takes ownership of the query on KVB_OK.
 * KVB_AGAIN      the ring is full
 * KVB_TOO_LARGE waiting queries take all memory for queries
 * KVB_CLOSED */
static kvb_status enqueue_pending(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    const size_t item_bytes = pending->query.form == KVB_QUERY_TOKENS
                                  ? sizeof *pending->query.tokens
                                  : sizeof *pending->query.hashes;

    pending->bytes += pending->query.count * item_bytes; /* at most as many as were decoded */
    pending->bytes += 2 * pending->query.text_bytes;     /* and the body of the tokenizer */
    pending->bytes +=
        2 * sizeof(uint64_t) *
        (pending->query.selection.worker_id_count + pending->query.selection.address_count);
    if (kvb_byte_budget_try(&aggregator->query_bytes, pending->bytes) != KVB_OK) {
        return KVB_TOO_LARGE;
    }
    pending->budget = &aggregator->query_bytes;
    return kvb_ring_put(aggregator->queries, pending);
}

/* The reason why a query was not accepted, as text for the requester. */
static const char *sentence_of(kvb_status status)
{
    return status == KVB_TOO_LARGE ? "busy: the queries that wait are too large; try again later"
                                   : "busy";
}

static enum kvb_aggregator_metric refused_query_counter(kvb_status status)
{
    return status == KVB_TOO_LARGE ? kvb_aggregator_queries_memory : kvb_aggregator_queries_refused;
}

static void count_query(struct kvb_aggregator *aggregator, enum kvb_aggregator_metric metric)
{
    kvb_metric_add(&aggregator->metrics, metric, 1);
}

/* ---- Long prompts are hashed by the requester's thread ----
 *
 * 131,072 tokens take some 0.06 ms.  The shape of the model's blocks is that of the query before.
 */

static _Atomic uint64_t *
shape_place(struct kvb_aggregator *aggregator, const struct kvb_query *query)
{
    return &aggregator->shapes[kvb_hash64(kvb_span_of(query->model), 0) % kvb_aggregator_shapes];
}

static void hash_long_prompt(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct kvb_query *query = &pending->query;

    if (query->form != KVB_QUERY_TOKENS || query->count < long_prompt_tokens) {
        return;
    }
    const uint64_t packed = atomic_load(shape_place(aggregator, query));
    const struct kvb_block_shape shape = { .block_size = (uint32_t)(packed >> 32U),
                                           .lookahead = (uint32_t)packed };
    if (shape.block_size > 0) {
        (void)kvb_query_hash_ahead(query, shape); /* without memory the index thread hashes */
        pending->bytes += query->hashes_ahead_count * sizeof *query->hashes_ahead;
    }
}

/* Called by who owns the index, after an answer. */
static void note_shape(struct kvb_aggregator *aggregator, const struct kvb_query *query)
{
    const struct kvb_block_shape shape = aggregator->ctx.hashed_shape;

    if (query->form == KVB_QUERY_TOKENS && query->count >= long_prompt_tokens) {
        atomic_store(
            shape_place(aggregator, query), (uint64_t)shape.block_size << 32U | shape.lookahead);
    }
}

/* ---- On the requester's thread, while the index thread waits ----
 *
 * A query that finds the index idle is answered by the thread that has received it, which saves two
 * thread switches.  Any other goes through the ring:
 *
 *     index thread    turn | waits .......................... | turn ...
 *     index_lock      held |      | HTTP: answers |           | held
 *     NATS, meanwhile                 lock taken: ring ->       answered in this turn
 *
 * Nobody but the index thread waits for the lock.  So it waits for one short answer at most, and no
 * query sees a part of an event, because messages are applied in turns only. */

void kvb_aggregator_enter_index(struct kvb_aggregator *aggregator)
{
    atomic_store(&aggregator->is_index_wanted, true);
    (void)pthread_mutex_lock(&aggregator->index_lock);
    atomic_store(&aggregator->is_index_wanted, false);
    aggregator->is_index_idle = false;
}

void kvb_aggregator_leave_index(struct kvb_aggregator *aggregator)
{
    aggregator->is_index_idle = !atomic_load(&aggregator->is_stopping);
    (void)pthread_mutex_unlock(&aggregator->index_lock);
}

/* Under the lock.  True: the index thread, if it were woken now, would answer the query next. */
static bool is_index_free(struct kvb_aggregator *aggregator)
{
    return aggregator->is_index_idle &&
           kvb_replica_turn_is_current(&aggregator->turn, kvb_clock_monotonic_ns()) &&
           kvb_ring_count(aggregator->events) == 0 && kvb_ring_count(aggregator->queries) == 0;
}

/* True: the caller owns the index until it unlocks index_lock. */
static bool try_index(struct kvb_aggregator *aggregator)
{
    if (atomic_load(&aggregator->is_index_wanted) ||
        pthread_mutex_trylock(&aggregator->index_lock) != 0) {
        return false;
    }
    if (is_index_free(aggregator)) {
        return true;
    }
    (void)pthread_mutex_unlock(&aggregator->index_lock);
    return false;
}

/* True: the answer is short, and needs no tokens from an engine. */
static bool is_query_short(const struct pending_query *pending)
{
    const bool is_text = pending->query.form == KVB_QUERY_TEXT && pending->read == KVB_OK;

    return !is_text && (pending->kind ? kvb_query_kind_has_prompt(pending->kind)
                                      : kvb_http_route_is_short(pending->route));
}

static bool answer_nats_query(struct kvb_aggregator *aggregator, struct pending_query *pending);
static bool answer_route_part(struct kvb_aggregator *aggregator, struct pending_query *pending);
static void reply(struct kvb_aggregator *aggregator, const struct pending_query *pending);
static void note_answered(struct kvb_aggregator *aggregator, const struct pending_query *pending);

/* True: answered, and the ring's share of the query is released. */
static bool answer_here(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    if (!is_query_short(pending) || !try_index(aggregator)) {
        return false;
    }
    aggregator->ctx.now_ns = kvb_clock_monotonic_ns();
    const bool is_done = pending->kind ? answer_nats_query(aggregator, pending)
                                       : answer_route_part(aggregator, pending); /* it is short */
    note_shape(aggregator, &pending->query);
    (void)pthread_mutex_unlock(&aggregator->index_lock);
    if (!is_done) {
        reply(aggregator, pending);
    }
    note_answered(aggregator, pending);
    count_query(aggregator, kvb_aggregator_queries_at_once);
    release_pending(pending);
    return true;
}

/* Answers the query now, or puts it into the ring.  Fails as enqueue_pending(). */
static kvb_status submit_pending(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    hash_long_prompt(aggregator, pending);
    return answer_here(aggregator, pending) ? KVB_OK : enqueue_pending(aggregator, pending);
}

/* ---- On HTTP threads ---- */

/* Takes ownership of *query. */
static struct pending_query *copy_request(
    struct kvb_aggregator *aggregator, const struct kvb_http_route *route,
    const struct kvb_http_request *request, struct kvb_query *query)
{
    const size_t text_bytes = strlen(request->query) + 1;
    struct pending_query *pending = new_pending(text_bytes, 2);

    if (!pending) {
        kvb_query_done(query);
        return NULL;
    }
    memcpy(pending->text, request->query, text_bytes);
    pending->query = *query;
    pending->aggregator = aggregator;
    pending->route = route;
    pending->request = (struct kvb_http_request){
        .method = "",
        .path = "",
        .query = pending->text,
        .content_type = "",
        .authorization = "",
        .if_none_match = "",
    };
    pending->later = request->later;
    return pending;
}

/* The connection waits no longer.  True: the query is answered. */
static bool leave_connection(struct pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const bool is_answered = pending->is_answered;
    pending->later = NULL;
    (void)pthread_mutex_unlock(&pending->lock);
    return is_answered;
}

static void take_http_answer(struct pending_query *pending, struct kvb_http_answer *answer)
{
    kvb_buf_done(&answer->body);
    *answer = pending->answer;
    pending->answer.body = (struct kvb_buf){ 0 }; /* the HTTP server owns it now */
}

/* ---- Answers in parts: the next part is made when the previous one was sent ---- */

/* False: not answered in time. */
static bool wait_for_part(struct pending_query *pending)
{
    struct timespec deadline;
    bool is_late = false;

    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += part_wait_s;
    (void)pthread_mutex_lock(&pending->lock);
    while (!pending->is_answered && !is_late) {
        is_late = pthread_cond_timedwait(&pending->answered, &pending->lock, &deadline) != 0;
    }
    const bool is_answered = pending->is_answered;
    (void)pthread_mutex_unlock(&pending->lock);
    return is_answered;
}

/* False: the limit of large answers is reached. */
static bool enter_large(struct pending_query *pending)
{
    if (pending->aggregator->large_answers++ >= kvb_max_large_dumps) {
        pending->aggregator->large_answers--;
        return false;
    }
    pending->is_large = true;
    return true;
}

/* Called by the HTTP thread, the only owner.  The body's buffer is used again for each part. */
static kvb_status next_part(void *parts, struct kvb_buf *body)
{
    struct pending_query *pending = parts;

    pending->answer.body = *body;
    *body = (struct kvb_buf){ 0 };
    pending->is_answered = false;
    pending->turns = 0;
    (void)pthread_mutex_lock(&pending->lock);
    pending->owners++; /* the index thread may still own the previous part */
    (void)pthread_mutex_unlock(&pending->lock);
    if (kvb_ring_put_wait(pending->aggregator->queries, pending) != KVB_OK) {
        release_pending(pending);
        return KVB_CLOSED;
    }
    if (!wait_for_part(pending)) {
        count_query(pending->aggregator, kvb_aggregator_queries_late);
        return KVB_IO;
    }
    *body = pending->answer.body;
    pending->answer.body = (struct kvb_buf){ 0 };
    if (pending->answer.status != 200) {
        return KVB_IO;
    }
    return pending->context.is_unfinished ? KVB_AGAIN : KVB_OK;
}

static void drop_parts(void *parts)
{
    release_pending(parts);
}

/* Takes ownership of the query and its answer. */
static void send_answer_parts(struct pending_query *pending, struct kvb_http_answer *answer)
{
    take_http_answer(pending, answer);
    count_query(
        pending->aggregator,
        answer->status < 400 ? kvb_aggregator_queries_http : kvb_aggregator_queries_failed);
    if (pending->context.is_unfinished) {
        answer->next = next_part;
        answer->drop = drop_parts;
        answer->parts = pending;
    } else {
        release_pending(pending);
    }
}

/* On the thread of the connection, when the query is answered or the time is over. */
static void finish_http_query(void *parts, struct kvb_http_answer *answer)
{
    struct pending_query *pending = parts;

    if (leave_connection(pending)) {
        send_answer_parts(pending, answer);
        return;
    }
    count_query(pending->aggregator, kvb_aggregator_queries_late);
    *answer = (struct kvb_http_answer){ .body = answer->body };
    kvb_http_refuse(answer, 503, "no answer within 2 s; try again later");
    release_pending(pending);
}

/* The connection ends before. */
static void drop_http_query(void *parts)
{
    (void)leave_connection(parts);
    release_pending(parts);
}

static void query_index_thread(
    struct kvb_aggregator *aggregator, const struct kvb_http_route *route,
    const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_query query = { 0 };

    if (!kvb_http_route_read(route, request, &query, answer)) {
        count_query(aggregator, kvb_aggregator_queries_failed);
        return;
    }
    struct pending_query *pending = copy_request(aggregator, route, request, &query);
    if (!pending) {
        kvb_http_refuse(answer, 503, "out of memory; try again later");
        return;
    }
    const bool is_refused = kvb_http_route_is_large(route, request) && !enter_large(pending);
    const kvb_status status = is_refused ? KVB_AGAIN : submit_pending(aggregator, pending);
    if (status != KVB_OK) {
        free_pending(pending);
        count_query(aggregator, refused_query_counter(status));
        kvb_http_refuse(answer, 503, sentence_of(status));
        return;
    }
    answer->finish = finish_http_query;
    answer->drop = drop_http_query;
    answer->parts = pending;
}

void kvb_aggregator_answer_http(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_aggregator *aggregator = context;
    const struct kvb_http_route *route = kvb_http_route_find(request, answer);

    if (!route) {
        return;
    }
    if (kvb_http_route_needs_context(route)) {
        query_index_thread(aggregator, route, request, answer);
        return;
    }
    struct kvb_detail why;
    struct kvb_http_route_context here = {
        .metrics = &aggregator->metrics,
        .dashboard = aggregator->dashboard,
        .not_ready = kvb_aggregator_not_ready(aggregator, &why),
        .share = &aggregator->group.share,
        .not_live = kvb_aggregator_not_live(aggregator),
    };
    kvb_http_route_answer(route, &here, request, answer);
}

/* ---- On nats.c's thread ---- */

static void
refuse_over_nats(struct kvb_aggregator *aggregator, const char *reply, const char *sentence)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    if (kvb_http_write_error(sentence, &buf) == KVB_OK) {
        kvb_aggregator_publish(aggregator, reply, kvb_buf_span(&buf));
    }
}

static void refuse_nats_query(
    struct kvb_aggregator *aggregator, const struct kvb_query_kind *kind, const char *reply,
    kvb_status status)
{
    kvb_aggregator_note_request(aggregator, kind, 0, sentence_of(status));
    count_query(aggregator, refused_query_counter(status));
    refuse_over_nats(aggregator, reply, sentence_of(status));
}

/* Takes ownership of the query. */
static void submit_nats_query(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    const kvb_status status = submit_pending(aggregator, pending);

    if (status != KVB_OK) {
        refuse_nats_query(aggregator, pending->kind, pending->reply, status);
        free_pending(pending);
    }
}

/* Without the prompt. */
static struct pending_query *
copy_nats_query(const struct kvb_query_kind *kind, const struct kvb_bus_message *message)
{
    const bool has_prompt = kvb_query_kind_has_prompt(kind);
    const size_t reply_bytes = strlen(message->reply) + 1;
    const size_t payload_bytes = has_prompt ? 0 : message->payload.len;
    struct pending_query *pending = new_pending(reply_bytes + payload_bytes, 1);

    if (!pending) {
        return NULL;
    }
    memcpy(pending->text, message->reply, reply_bytes);
    if (payload_bytes > 0) {
        memcpy(pending->text + reply_bytes, message->payload.data, payload_bytes);
    }
    pending->kind = kind;
    pending->reply = pending->text;
    pending->payload =
        (kvb_span){ .data = (const uint8_t *)pending->text + reply_bytes, .len = payload_bytes };
    return pending;
}

static void read_nats_prompt(struct pending_query *pending, kvb_span payload)
{
    if (kvb_query_kind_has_prompt(pending->kind)) {
        pending->read = kvb_query_json_decode(payload, &pending->query, &pending->detail);
    }
}

/* ---- Long prompts over NATS are read by a thread of their own ----
 *
 * 700 KB of token ids take some 0.5 ms, for which all requests behind them on nats.c's thread would
 * wait. */

kvb_status kvb_aggregator_make_long_queries(struct kvb_aggregator *aggregator)
{
    return kvb_ring_new(max_long_payloads, kvb_aggregator_drop_query, &aggregator->long_queries);
}

/* True: that thread has the query.  When too many wait for it, the caller reads the prompt. */
static bool leave_long_query(
    struct kvb_aggregator *aggregator, struct pending_query *pending,
    const struct kvb_bus_message *message)
{
    if (message->payload.len < long_payload_bytes || !kvb_query_kind_has_prompt(pending->kind) ||
        kvb_bus_message_keep(message, &pending->unread) != KVB_OK) {
        return false;
    }
    return kvb_ring_put(aggregator->long_queries, pending) == KVB_OK;
}

void *kvb_aggregator_read_long_queries(void *context)
{
    struct kvb_aggregator *aggregator = context;
    struct pollfd queries = { .fd = kvb_ring_fd(aggregator->long_queries), .events = POLLIN };
    kvb_status status = KVB_AGAIN;
    void *item = NULL;

    (void)pthread_setname_np(pthread_self(), "kvb-prompts"); /* for top -H; else unnamed */
    while (status != KVB_CLOSED) {
        status = kvb_ring_take(aggregator->long_queries, &item);
        if (status == KVB_OK) {
            struct pending_query *pending = item;
            read_nats_prompt(pending, pending->unread.payload);
            kvb_bus_kept_drop(&pending->unread);
            submit_nats_query(aggregator, pending);
        } else if (status == KVB_AGAIN) {
            (void)poll(&queries, 1, -1);
        }
    }
    return NULL;
}

/* Finds the kind of query.  The id of this aggregator at the end of the subject is ignored.  NULL:
 * there is no such kind. */
static const struct kvb_query_kind *
find_query_kind(const struct kvb_aggregator *aggregator, const char *tail)
{
    const char *id = aggregator->service.identity.id;
    const size_t id_len = strlen(id);
    const size_t len = strlen(tail);
    char name[kvb_subject_bytes];

    (void)snprintf(name, sizeof name, "%s", tail); /* a longer name is not a known one */
    if (len > id_len + 1 && len < sizeof name && strcmp(tail + len - id_len, id) == 0 &&
        tail[len - id_len - 1] == '.') {
        name[len - id_len - 1] = '\0';
    }
    return kvb_query_kind_find(name);
}

void kvb_aggregator_receive_query(void *context, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = context;
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;

    if (!message->reply || kvb_reply_is_refused(message->reply) ||
        kvb_subject_split(message->subject, name_space, component, &tail) != KVB_OK) {
        count_query(aggregator, kvb_aggregator_queries_mute);
        return;
    }
    const struct kvb_query_kind *kind = find_query_kind(aggregator, tail);
    if (!kind) {
        count_query(aggregator, kvb_aggregator_queries_refused);
        refuse_over_nats(
            aggregator, message->reply,
            "unknown query: there are kv_match, kv_route and kv_get.{state,load,streams,dump}");
        return;
    }
    /* Events wait behind requests on this thread, and lists lag from a second on: where so many
     * wait, this one is refused unread. */
    if (kvb_bus_waiting(message) > max_unread) {
        refuse_nats_query(aggregator, kind, message->reply, KVB_AGAIN);
        return;
    }
    struct pending_query *pending = copy_nats_query(kind, message);
    if (!pending) {
        refuse_nats_query(aggregator, kind, message->reply, KVB_NO_MEMORY);
    } else if (!leave_long_query(aggregator, pending, message)) {
        read_nats_prompt(pending, message->payload);
        submit_nats_query(aggregator, pending);
    }
}

/* ---- On the thread of the gRPC server ---- */

/* What sgl-router goes on with: for any other status it fails its user's request. */
static enum kvb_grpc_status grpc_status_of(kvb_status status)
{
    switch (status) {
    case KVB_OK:
        return KVB_GRPC_OK;
    case KVB_BAD_INPUT:
        return KVB_GRPC_INVALID_ARGUMENT;
    case KVB_CLOSED:
        return KVB_GRPC_UNAVAILABLE;
    default: /* the ring is full, or memory is short */
        return KVB_GRPC_RESOURCE_EXHAUSTED;
    }
}

/* Takes *query on KVB_OK. */
static kvb_status enqueue_call(
    struct kvb_aggregator *aggregator, struct kvb_grpc_call *call, const struct kvb_query *query)
{
    struct pending_query *pending = new_pending(0, 1);

    if (!pending) {
        return KVB_NO_MEMORY;
    }
    pending->query = *query;
    pending->call = call;
    const kvb_status status = enqueue_pending(aggregator, pending);
    if (status != KVB_OK) {
        pending->call = NULL; /* the server's again, and the query the caller's */
        pending->query = (struct kvb_query){ 0 };
        free_pending(pending);
        count_query(aggregator, refused_query_counter(status));
    }
    return status;
}

enum kvb_grpc_status
kvb_aggregator_receive_call(void *context, struct kvb_grpc_call *call, kvb_span message)
{
    struct kvb_aggregator *aggregator = context;
    struct kvb_query query = { 0 };
    struct kvb_detail why;

    if (kvb_aggregator_not_ready(aggregator, &why)) {
        return KVB_GRPC_UNAVAILABLE;
    }
    kvb_status status = kvb_indexer_request_decode(message, &query, NULL);
    if (status != KVB_OK) {
        count_query(aggregator, kvb_aggregator_queries_failed);
        return grpc_status_of(status);
    }
    query.has_model = aggregator->config->grpc.model[0] != '\0';
    memcpy(query.model, aggregator->config->grpc.model, sizeof query.model);
    status = enqueue_call(aggregator, call, &query);
    if (status != KVB_OK) {
        kvb_query_done(&query);
        return grpc_status_of(status);
    }
    return KVB_GRPC_LATER;
}

/* ---- On the index thread ---- */

/* True while a part is too small to be worth a thread switch. */
static bool is_part_short(struct pending_query *pending)
{
    return pending->context.is_unfinished && pending->answer.body.len < min_part_bytes &&
           ++pending->turns < max_part_turns;
}

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
        kvb_metric_add(&aggregator->metrics, rows[i], dump->left_out[i]);
        dump->left_out[i] = 0;
    }
}

/* False: there is more to come. */
static bool answer_route_part(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct kvb_http_route_context *context = &pending->context;

    context->ctx = &aggregator->ctx;
    context->query = &pending->query;
    context->metrics = &aggregator->metrics;
    if (pending->read == KVB_OK) {
        kvb_http_route_answer(pending->route, context, &pending->request, &pending->answer);
    } else {
        kvb_http_refuse(&pending->answer, 503, pending->detail.text);
    }
    count_left_out(aggregator, &context->dump);
    if (is_part_short(pending)) {
        return false;
    }
    if (context->has_request_report) {
        kvb_aggregator_share_report(aggregator, context->request_report, &pending->query);
    }
    if (context->has_decision) {
        kvb_aggregator_share_decision(aggregator, &context->decision);
        kvb_aggregator_publish_decision(aggregator, &context->decision);
    }
    (void)pthread_mutex_lock(&pending->lock);
    pending->is_answered = true;
    if (pending->later) {
        kvb_http_wake(pending->later); /* its lock is taken under this one, never this under it */
    } else {
        (void)pthread_cond_signal(&pending->answered);
    }
    (void)pthread_mutex_unlock(&pending->lock);
    return true;
}

/* Sends the answer in one message, or an error if it is too large. */
static void reply(struct kvb_aggregator *aggregator, const struct pending_query *pending)
{
    const kvb_status status =
        kvb_bus_publish(aggregator->bus, pending->reply, kvb_buf_span(&pending->answer.body));

    if (status == KVB_TOO_LARGE) {
        static const char why[] = "the answer is larger than nats-server's max_payload: raise "
                                  "it, or ask over HTTP";
        kvb_aggregator_note_error(aggregator, pending->kind, why);
        count_query(aggregator, kvb_aggregator_queries_refused);
        refuse_over_nats(aggregator, pending->reply, why);
    } else if (status != KVB_OK) {
        count_query(aggregator, kvb_aggregator_publish_failures);
    }
}

/* True: the reply is sent, between the messages about its decision.  False: there is no decision,
 * and reply() is the caller's, who may let the index go first. */
static bool answer_nats_query(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct kvb_query_call call = { .query = &pending->query,
                                   .read = pending->read,
                                   .detail = pending->detail,
                                   .payload = pending->payload,
                                   .out = &pending->answer.body };

    kvb_query_kind_answer(pending->kind, aggregator, &call);
    if (call.has_decision) {
        kvb_aggregator_share_decision(aggregator, &call.decision);
        reply(aggregator, pending);
        kvb_aggregator_publish_decision(aggregator, &call.decision);
    }
    return call.has_decision;
}

/* Said when it begins and when it ends. */
static void note_several_models(struct kvb_aggregator *aggregator, bool has_several)
{
    if (has_several) {
        count_query(aggregator, kvb_aggregator_grpc_several_models);
    }
    if (has_several != aggregator->has_several_models) {
        aggregator->has_several_models = has_several;
        kvb_log_write(
            aggregator->log, has_several ? KVB_LOG_WARNING : KVB_LOG_INFO, "grpc",
            has_several ? "several models, and requests name none: nothing is matched; set "
                          "grpc.model"
                        : "the model of requests is known again",
            NULL);
    }
}

static void answer_call(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct kvb_grpc_call *call = pending->call;
    struct kvb_indexer_gaps gaps = { 0 };

    pending->call = NULL;
    if (kvb_grpc_call_is_over(call, kvb_clock_monotonic_ns())) {
        count_query(aggregator, kvb_aggregator_queries_late);
        kvb_grpc_call_finish(call, KVB_GRPC_DEADLINE_EXCEEDED);
        return;
    }
    if (aggregator->turn.behind_echo > 0) { /* these answers have no states that could say STALE */
        count_query(aggregator, kvb_aggregator_queries_failed);
        kvb_grpc_call_finish(call, KVB_GRPC_UNAVAILABLE);
        return;
    }
    const kvb_status status =
        kvb_answer_indexer(&aggregator->ctx, &pending->query, kvb_grpc_call_message(call), &gaps);
    kvb_metric_add(&aggregator->metrics, kvb_aggregator_grpc_without_address, gaps.without_address);
    note_several_models(aggregator, gaps.has_several_models);
    count_query(
        aggregator, status == KVB_OK ? kvb_aggregator_queries_grpc : kvb_aggregator_queries_failed);
    kvb_grpc_call_finish(call, grpc_status_of(status));
}

/* The requester has given up already: the ring is the only owner left. */
static bool is_query_abandoned(struct pending_query *pending)
{
    (void)pthread_mutex_lock(&pending->lock);
    const bool is_alone = pending->route && pending->owners == 1;
    (void)pthread_mutex_unlock(&pending->lock);
    return is_alone;
}

static void note_answered(struct kvb_aggregator *aggregator, const struct pending_query *pending)
{
    kvb_metric_observe(
        &aggregator->metrics, kvb_aggregator_query_duration,
        kvb_clock_monotonic_ns() - pending->received_ns, 1);
}

/* False: there is more to come, and the ring's share of it is the caller's. */
static bool answer_pending(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    if (is_query_abandoned(pending)) {
        return true;
    }
    if (pending->kind) {
        if (!answer_nats_query(aggregator, pending)) {
            reply(aggregator, pending);
        }
    } else if (pending->call) {
        answer_call(aggregator, pending);
    } else if (!answer_route_part(aggregator, pending)) {
        return false;
    }
    note_shape(aggregator, &pending->query);
    note_answered(aggregator, pending);
    return true;
}

/* ---- Queries of text: their tokens are asked for elsewhere, then they come again ---- */

/* On the thread of the tokenizer.  The ring has room for all that wait. */
static void take_tokens(
    void *context, struct kvb_tokenize_order *order, const struct kvb_tokenize_result *result)
{
    struct kvb_aggregator *aggregator = context;
    struct pending_query *pending = order->owner;
    const size_t bytes = result->count * sizeof *pending->tokens;

    pending->tokenized = *result;
    if (result->outcome == KVB_TOKENIZE_OK) {
        const bool has_room = kvb_byte_budget_try(&aggregator->query_bytes, bytes) == KVB_OK;
        pending->bytes += has_room ? bytes : 0;
        pending->tokens = has_room ? malloc(bytes) : NULL;
        if (pending->tokens) {
            memcpy(pending->tokens, result->tokens, bytes);
        } else {
            pending->tokenized.outcome = KVB_TOKENIZE_BUSY;
        }
    }
    if (kvb_ring_put(aggregator->tokenized, pending) != KVB_OK) {
        release_pending(pending);
    }
}

kvb_status kvb_aggregator_open_tokenizer(struct kvb_aggregator *aggregator)
{
    if (aggregator->config->tokenize.networks.count == 0) {
        return KVB_OK;
    }
    KVB_TRY(
        kvb_ring_new(kvb_max_tokenize_requests, kvb_aggregator_drop_query, &aggregator->tokenized));
    return kvb_aggregator_open_texts(aggregator, take_tokens);
}

static void refuse_text(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    kvb_aggregator_explain_tokens(aggregator, &pending->tokenized, &pending->detail);
    pending->read = KVB_AGAIN;
}

/* True: the tokenizer has the query.  False: it is to be answered now. */
static bool request_tokens(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    const char *model = NULL;

    if (pending->query.form != KVB_QUERY_TEXT || pending->read != KVB_OK || pending->order ||
        kvb_query_context_find_model(&aggregator->ctx, &pending->query, &model, NULL) != KVB_OK) {
        return false; /* without its model, the answer says so */
    }
    pending->order = calloc(1, sizeof *pending->order);
    if (!pending->order) {
        pending->tokenized.outcome = KVB_TOKENIZE_BUSY;
        refuse_text(aggregator, pending);
        return false;
    }
    pending->order->owner = pending;
    const enum kvb_tokenize_outcome outcome =
        kvb_aggregator_request_tokens(aggregator, &pending->query, model, pending->order);
    if (outcome != KVB_TOKENIZE_OK) { /* else another thread may have it already */
        pending->tokenized.outcome = outcome;
        refuse_text(aggregator, pending);
    }
    return outcome == KVB_TOKENIZE_OK;
}

/* Makes a query of tokens of one of text. */
static void settle_text(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct kvb_query *query = &pending->query;

    if (pending->tokenized.outcome != KVB_TOKENIZE_OK) {
        refuse_text(aggregator, pending);
        return;
    }
    free(query->text);
    query->text = NULL;
    query->form = KVB_QUERY_TOKENS;
    query->tokens = pending->tokens;
    query->count = pending->tokenized.count;
    query->was_text = true;
    pending->tokens = NULL;
}

/* ---- Long answers: a part each turn, behind all queries that are short ---- */

static void put_last(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    struct pending_query **at = &aggregator->unfinished;

    while (*at) {
        at = &(*at)->next;
    }
    *at = pending;
    pending->next = NULL;
}

static struct pending_query *take_first(struct kvb_aggregator *aggregator)
{
    struct pending_query *pending = aggregator->unfinished;

    if (pending) {
        aggregator->unfinished = pending->next;
    }
    return pending;
}

static void answer_or_keep(struct kvb_aggregator *aggregator, struct pending_query *pending)
{
    if (!is_query_abandoned(pending) && request_tokens(aggregator, pending)) {
        return;
    }
    if (answer_pending(aggregator, pending)) {
        release_pending(pending);
    } else {
        put_last(aggregator, pending); /* no more than there are HTTP connections */
    }
}

void kvb_aggregator_drop_unfinished(struct kvb_aggregator *aggregator)
{
    for (struct pending_query *pending = take_first(aggregator); pending;
         pending = take_first(aggregator)) {
        release_pending(pending);
    }
}

/* Those whose tokens have come are first: they have waited longer. */
static bool take_query(struct kvb_aggregator *aggregator, void **out_item)
{
    if (aggregator->tokenized && kvb_ring_take(aggregator->tokenized, out_item) == KVB_OK) {
        aggregator->texts_waiting--;
        settle_text(aggregator, *out_item);
        return true;
    }
    return kvb_ring_take(aggregator->queries, out_item) == KVB_OK;
}

/* Answers at least one query if any waits, and further ones only for a bounded time: meanwhile
 * the event ring could fill, and NATS would disconnect us as a slow consumer. */
bool kvb_aggregator_take_queries(void *context)
{
    struct kvb_aggregator *aggregator = context;
    struct pending_query *longest_waiting = take_first(aggregator);
    bool had_any = longest_waiting != NULL;
    const uint64_t end_ns =
        kvb_clock_monotonic_ns() + kvb_aggregator_queries_a_turn_us * KVB_NS_PER_MS / 1000;
    void *item = NULL;

    aggregator->ctx.now_ns = kvb_clock_monotonic_ns();
    while (take_query(aggregator, &item)) { /* ends: the time does */
        answer_or_keep(aggregator, item);
        had_any = true;
        if (kvb_clock_monotonic_ns() >= end_ns) {
            break;
        }
    }
    if (longest_waiting) {
        answer_or_keep(aggregator, longest_waiting);
    }
    return had_any;
}
