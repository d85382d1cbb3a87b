#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "daemon/aggregator_inside.h"
#include "wire/query_json.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { answer_wait_s = 2 };

/* A question on its way through the query ring.
 *
 * From HTTP it has two owners, the waiting thread and the ring, because the former
 * may give up; from NATS the ring alone.  Who lets go last frees it. */
struct ask {
    uint64_t asked_ns;
    struct kvb_byte_budget *budget; /* borrowed; of which it has `bytes`; NULL: none yet */
    size_t bytes;
    struct kvb_query query; /* what it asks, where it has a prompt: read by the asker's thread */
    /* from HTTP */
    const struct kvb_http_route *route; /* NULL: from NATS */
    struct kvb_http_request request;    /* query points into text */
    struct kvb_http_route_context context;
    struct ask *next; /* unfinished */
    struct kvb_http_answer answer;
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool is_answered;
    unsigned owners;
    /* from NATS */
    const struct kvb_question *question;
    kvb_status read;          /* whether the prompt could be read */
    struct kvb_detail detail; /* why not */
    const char *reply;        /* into text */
    kvb_span payload;         /* into text; of a question without a prompt */
    char text[];              /* copies of what the asker's thread has borrowed */
};

static struct ask *new_ask(size_t text_bytes, unsigned owners)
{
    struct ask *ask = calloc(1, sizeof *ask + text_bytes);
    pthread_condattr_t monotonic;

    if (!ask) {
        return NULL;
    }
    ask->bytes = sizeof *ask + text_bytes;
    ask->owners = owners;
    ask->asked_ns = kvb_clock_monotonic_ns();
    (void)pthread_mutex_init(&ask->lock, NULL); /* none of these can fail with glibc */
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&ask->answered, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    kvb_buf_init(&ask->answer.body, kvb_max_answer_bytes);
    return ask;
}

static void free_ask(struct ask *ask)
{
    (void)pthread_cond_destroy(&ask->answered);
    (void)pthread_mutex_destroy(&ask->lock);
    kvb_buf_done(&ask->answer.body);
    kvb_query_done(&ask->query);
    kvb_dump_done(&ask->context.dump);
    if (ask->budget) {
        kvb_byte_budget_give(ask->budget, ask->bytes);
    }
    free(ask);
}

static void let_go(struct ask *ask)
{
    (void)pthread_mutex_lock(&ask->lock);
    const unsigned left = --ask->owners;
    (void)pthread_mutex_unlock(&ask->lock);
    if (left == 0) {
        free_ask(ask);
    }
}

void kvb_aggregator_drop_ask(void *item)
{
    let_go(item);
}

/* Takes ask on KVB_OK.
 * KVB_AGAIN      the ring is full
 * KVB_TOO_LARGE  what waits already takes all memory that there is for questions
 * KVB_CLOSED */
static kvb_status hand_over(struct kvb_aggregator *aggregator, struct ask *ask)
{
    const size_t item_bytes =
        ask->query.form == KVB_QUERY_TOKENS ? sizeof *ask->query.tokens : sizeof *ask->query.hashes;

    ask->bytes += ask->query.count * item_bytes; /* no more than were read */
    if (kvb_byte_budget_try(&aggregator->asked_bytes, ask->bytes) != KVB_OK) {
        return KVB_TOO_LARGE;
    }
    ask->budget = &aggregator->asked_bytes;
    return kvb_ring_put(aggregator->asks, ask);
}

/* Why a question was not handed over, for who asked. */
static const char *sentence_of(kvb_status status)
{
    return status == KVB_TOO_LARGE ? "busy: the questions that wait are too large; try again later"
                                   : "busy";
}

static enum kvb_aggregator_metric counter_of(kvb_status status)
{
    return status == KVB_TOO_LARGE ? kvb_aggregator_questions_memory
                                   : kvb_aggregator_questions_refused;
}

static void count(struct kvb_aggregator *aggregator, enum kvb_aggregator_metric metric)
{
    kvb_metric_add(&aggregator->metrics, metric, 1);
}

/* ---- On HTTP threads ---- */

/* Takes *query. */
static struct ask *copy_request(
    const struct kvb_http_route *route, const struct kvb_http_request *request,
    struct kvb_query *query)
{
    const size_t text_bytes = strlen(request->query) + 1;
    struct ask *ask = new_ask(text_bytes, 2);

    if (!ask) {
        kvb_query_done(query);
        return NULL;
    }
    memcpy(ask->text, request->query, text_bytes);
    ask->query = *query;
    ask->route = route;
    ask->request = (struct kvb_http_request){
        .method = "",
        .path = "",
        .query = ask->text,
        .content_type = "",
        .authorization = "",
        .if_none_match = "",
    };
    return ask;
}

/* False: not answered in time. */
static bool wait_for_answer(struct ask *ask)
{
    struct timespec deadline;
    bool is_late = false;

    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += answer_wait_s;
    (void)pthread_mutex_lock(&ask->lock);
    while (!ask->is_answered && !is_late) {
        is_late = pthread_cond_timedwait(&ask->answered, &ask->lock, &deadline) != 0;
    }
    const bool is_answered = ask->is_answered;
    (void)pthread_mutex_unlock(&ask->lock);
    return is_answered;
}

static void take_answer(struct ask *ask, struct kvb_http_answer *answer)
{
    kvb_buf_done(&answer->body);
    *answer = ask->answer;
    ask->answer.body = (struct kvb_buf){ 0 }; /* now the server's */
}

static void ask_index_thread(
    struct kvb_aggregator *aggregator, const struct kvb_http_route *route,
    const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_query query = { 0 };

    if (!kvb_http_route_read(route, request, &query, answer)) {
        count(aggregator, kvb_aggregator_questions_failed);
        return;
    }
    struct ask *ask = copy_request(route, request, &query);
    if (!ask) {
        kvb_http_route_refuse(answer, 503, "out of memory; try again later");
        return;
    }
    const kvb_status status = hand_over(aggregator, ask);
    if (status != KVB_OK) {
        free_ask(ask);
        count(aggregator, counter_of(status));
        kvb_http_route_refuse(answer, 503, sentence_of(status));
        return;
    }
    if (wait_for_answer(ask)) {
        take_answer(ask, answer);
        count(
            aggregator,
            answer->status < 400 ? kvb_aggregator_questions_http : kvb_aggregator_questions_failed);
    } else {
        count(aggregator, kvb_aggregator_questions_late);
        kvb_http_route_refuse(answer, 503, "no answer within 2 s; try again later");
    }
    let_go(ask);
}

void kvb_aggregator_answer_http(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_aggregator *aggregator = context;
    const struct kvb_http_route *route = kvb_http_route_find(request, answer);

    if (!route) {
        return;
    }
    if (kvb_http_route_needs_view(route)) {
        ask_index_thread(aggregator, route, request, answer);
        return;
    }
    struct kvb_http_route_context here = {
        .metrics = &aggregator->metrics,
        .board = aggregator->board,
        .not_ready = kvb_aggregator_not_ready(aggregator),
    };
    kvb_http_route_answer(route, &here, request, answer);
}

/* ---- On nats.c's threads ---- */

static void
refuse_over_nats(struct kvb_aggregator *aggregator, const char *reply, const char *sentence)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf = { 0 };

    kvb_buf_init(&buf, kvb_max_nats_payload_bytes);
    if (kvb_answer_error(sentence, &buf) == KVB_OK) {
        kvb_aggregator_publish(aggregator, reply, kvb_buf_span(&buf));
    }
}

static struct ask *
copy_question(const struct kvb_question *question, const struct kvb_bus_message *message)
{
    const bool has_prompt = kvb_question_has_prompt(question);
    const size_t reply_bytes = strlen(message->reply) + 1;
    const size_t payload_bytes = has_prompt ? 0 : message->payload.len;
    struct ask *ask = new_ask(reply_bytes + payload_bytes, 1);

    if (!ask) {
        return NULL;
    }
    memcpy(ask->text, message->reply, reply_bytes);
    if (payload_bytes > 0) {
        memcpy(ask->text + reply_bytes, message->payload.data, payload_bytes);
    }
    ask->question = question;
    ask->reply = ask->text;
    ask->payload =
        (kvb_span){ .data = (const uint8_t *)ask->text + reply_bytes, .len = payload_bytes };
    if (has_prompt) {
        ask->read = kvb_query_json_decode(message->payload, &ask->query, &ask->detail);
    }
    return ask;
}

void kvb_aggregator_hear_question(void *context, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = context;
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;

    if (!message->reply || kvb_subject_is_of_contract(message->reply) ||
        kvb_subject_split(message->subject, name_space, component, &tail) != KVB_OK) {
        count(aggregator, kvb_aggregator_questions_mute);
        return;
    }
    const struct kvb_question *question = kvb_question_find(tail);
    if (!question) {
        count(aggregator, kvb_aggregator_questions_refused);
        refuse_over_nats(
            aggregator, message->reply,
            "unknown question: there are kv_match, kv_route and kv_get.{state,load,streams,dump}");
        return;
    }
    struct ask *ask = copy_question(question, message);
    const kvb_status status = ask ? hand_over(aggregator, ask) : KVB_NO_MEMORY;
    if (status != KVB_OK) {
        if (ask) {
            free_ask(ask);
        }
        kvb_aggregator_note_request(aggregator, question, 0, sentence_of(status));
        count(aggregator, counter_of(status));
        refuse_over_nats(aggregator, message->reply, sentence_of(status));
    }
}

/* ---- On the index thread ---- */

/* False: there is more to come. */
static bool answer_route(struct kvb_aggregator *aggregator, struct ask *ask)
{
    struct kvb_http_route_context *context = &ask->context;

    context->view = &aggregator->view;
    context->query = &ask->query;
    context->metrics = &aggregator->metrics;
    kvb_http_route_answer(ask->route, context, &ask->request, &ask->answer);
    if (context->is_unfinished) {
        return false;
    }
    if (context->has_decision) {
        kvb_aggregator_publish_decision(aggregator, &context->decision);
    }
    (void)pthread_mutex_lock(&ask->lock);
    ask->is_answered = true;
    (void)pthread_cond_signal(&ask->answered);
    (void)pthread_mutex_unlock(&ask->lock);
    return true;
}

/* The answer goes out in one message or not at all. */
static void reply(struct kvb_aggregator *aggregator, const struct ask *ask)
{
    const kvb_status status =
        kvb_bus_publish(aggregator->bus, ask->reply, kvb_buf_span(&ask->answer.body));

    if (status == KVB_TOO_LARGE) {
        static const char why[] = "the answer is larger than nats-server's max_payload";
        kvb_aggregator_note_error(aggregator, ask->question, why);
        count(aggregator, kvb_aggregator_questions_refused);
        refuse_over_nats(aggregator, ask->reply, why);
    } else if (status != KVB_OK) {
        count(aggregator, kvb_aggregator_publish_failures);
    }
}

static void answer_question(struct kvb_aggregator *aggregator, struct ask *ask)
{
    struct kvb_asked asked = { .query = &ask->query,
                               .read = ask->read,
                               .detail = ask->detail,
                               .payload = ask->payload,
                               .out = &ask->answer.body };

    kvb_question_answer(ask->question, aggregator, &asked);
    reply(aggregator, ask);
    if (asked.has_decision) {
        kvb_aggregator_publish_decision(aggregator, &asked.decision);
    }
}

/* The asker has given up already: the ring is the only owner left. */
static bool is_given_up(struct ask *ask)
{
    (void)pthread_mutex_lock(&ask->lock);
    const bool is_alone = ask->route && ask->owners == 1;
    (void)pthread_mutex_unlock(&ask->lock);
    return is_alone;
}

/* False: there is more to come, and the ring's share of it is the caller's. */
static bool answer_ask(struct kvb_aggregator *aggregator, struct ask *ask)
{
    if (is_given_up(ask)) {
        return true;
    }
    if (ask->question) {
        answer_question(aggregator, ask);
    } else if (!answer_route(aggregator, ask)) {
        return false;
    }
    kvb_metric_observe(
        &aggregator->metrics, kvb_aggregator_question_duration,
        kvb_clock_monotonic_ns() - ask->asked_ns, 1);
    return true;
}

/* ---- Long answers: a part each turn, behind all questions that are short ---- */

static void put_last(struct kvb_aggregator *aggregator, struct ask *ask)
{
    struct ask **at = &aggregator->unfinished;

    while (*at) {
        at = &(*at)->next;
    }
    *at = ask;
    ask->next = NULL;
}

static struct ask *take_first(struct kvb_aggregator *aggregator)
{
    struct ask *ask = aggregator->unfinished;

    if (ask) {
        aggregator->unfinished = ask->next;
    }
    return ask;
}

static void answer_or_keep(struct kvb_aggregator *aggregator, struct ask *ask)
{
    if (answer_ask(aggregator, ask)) {
        let_go(ask);
    } else {
        put_last(aggregator, ask); /* no more than there are HTTP connections */
    }
}

void kvb_aggregator_drop_unfinished(struct kvb_aggregator *aggregator)
{
    for (struct ask *ask = take_first(aggregator); ask; ask = take_first(aggregator)) {
        let_go(ask);
    }
}

/* At least one; more only as long as events need not wait for them: their ring would fill,
 * and NATS give us up as slow. */
bool kvb_aggregator_take_asks(struct kvb_aggregator *aggregator)
{
    struct ask *longest_waiting = take_first(aggregator);
    bool had_any = longest_waiting != NULL;
    const uint64_t end_ns =
        kvb_clock_monotonic_ns() + kvb_aggregator_asks_a_turn_us * KVB_NS_PER_MS / 1000;
    void *item = NULL;

    while (kvb_ring_take(aggregator->asks, &item) == KVB_OK) { /* ends: the time does */
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
