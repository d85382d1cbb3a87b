#include "core/clock.h"
#include "core/limits.h"
#include "core/metric.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/group.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"

#include <time.h>

/* Queries over HTTP.  A connection waits without a thread:
 *
 *     thread of the server   receives  | serves others ......... | finish() | sends
 *     index thread                     | answers, wakes --------^
 *
 * A long answer is sent in parts: when one is sent, next_part() has the next one made. */

enum { part_wait_s = 2 };

static void count_late(struct kvb_aggregator *aggregator)
{
    kvb_metric_add(aggregator->metrics, kvb_aggregator_queries_late, 1);
}

/* ---- Parts ---- */

/* False: not answered in time. */
static bool wait_for_part(struct kvb_pending_query *pending)
{
    struct timespec deadline;
    bool is_late = false;

    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += part_wait_s;
    (void)pthread_mutex_lock(&pending->lock);
    while (pending->state != KVB_PENDING_ANSWERED && !is_late) {
        is_late = pthread_cond_timedwait(&pending->answered, &pending->lock, &deadline) != 0;
    }
    const bool is_answered = pending->state == KVB_PENDING_ANSWERED;
    (void)pthread_mutex_unlock(&pending->lock);
    return is_answered;
}

/* The body's buffer is used again for each part.  After a failure the server calls drop(). */
static kvb_status next_part(void *parts, struct kvb_buf *body)
{
    struct kvb_pending_query *pending = parts;

    /* The buffer moves to the query, for as long as the part is made on the index thread. */
    pending->answer.body = *body;
    *body = (struct kvb_buf){ 0 };
    pending->turns = 0;
    pending->received_ns = kvb_clock_monotonic_ns();
    if (kvb_pending_queue_again(pending) != KVB_OK) {
        return KVB_CLOSED;
    }
    if (!wait_for_part(pending)) {
        count_late(pending->aggregator);
        return KVB_IO;
    }
    *body = pending->answer.body;
    pending->answer.body = (struct kvb_buf){ 0 };
    /* The header with 200 is sent long since: all that can be said now is the end of the
     * connection. */
    if (pending->answer.status != 200) {
        return KVB_IO;
    }
    return pending->context.is_unfinished ? KVB_AGAIN : KVB_OK;
}

/* The connection ends, whether its query is answered or not. */
static void drop(void *parts)
{
    struct kvb_pending_query *pending = parts;

    if (!kvb_pending_leave(pending)) {
        kvb_pending_settle(pending, KVB_END_SENT);
    }
}

/* ---- The answer ---- */

/* On the thread of the connection, when the query is answered or the time is over. */
static void finish(void *parts, struct kvb_http_answer *answer)
{
    struct kvb_pending_query *pending = parts;

    if (kvb_pending_leave(pending)) { /* it ends when its turn comes; nothing of it is used here */
        count_late(pending->aggregator);
        *answer = (struct kvb_http_answer){ .body = answer->body };
        kvb_http_refuse(answer, 503, "no answer within 2 s; try again later");
        return;
    }
    if (!pending->context.is_unfinished) {
        pending->to = answer;
        kvb_pending_settle(pending, KVB_END_SENT);
        return;
    }
    kvb_pending_take_answer(pending, answer);
    answer->next = next_part;
    answer->drop = drop;
    answer->parts = pending;
}

/* ---- Receiving ---- */

/* False: the limit of large answers is reached. */
static bool enter_large(struct kvb_pending_query *pending)
{
    struct kvb_queries *queries = pending->aggregator->queries;

    if (queries->large_answers++ >= kvb_max_large_dumps) {
        queries->large_answers--;
        return false;
    }
    pending->is_large = true;
    return true;
}

static void receive_query(
    struct kvb_aggregator *aggregator, const struct kvb_http_route *route,
    const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_pending_query here = { .aggregator = aggregator,
                                      .door = KVB_DOOR_HTTP,
                                      .received_ns = kvb_clock_monotonic_ns(),
                                      .route = route,
                                      .parameters = request->parameters,
                                      .later = request->later,
                                      .to = answer };

    kvb_buf_init(&here.answer.body, kvb_max_answer_bytes);
    if (!kvb_http_route_read(route, request, &here.query, &here.answer)) {
        kvb_pending_settle(&here, KVB_END_SENT); /* the answer says what is wrong with the body */
        return;
    }
    if (kvb_http_route_is_large(route, request) && !enter_large(&here)) {
        kvb_pending_settle(&here, KVB_END_BUSY);
        return;
    }
    struct kvb_pending_query *queued = kvb_queries_submit(&here);
    if (queued) { /* else it has ended, and its answer is in *answer */
        answer->finish = finish;
        answer->drop = drop;
        answer->parts = queued;
    }
}

void kvb_door_receive_http(
    void *context, const struct kvb_http_request *request, struct kvb_http_answer *answer)
{
    struct kvb_aggregator *aggregator = context;
    const struct kvb_http_route *route = kvb_http_route_find(request, answer);

    if (!route) {
        return;
    }
    if (kvb_http_route_needs_context(route)) {
        receive_query(aggregator, route, request, answer);
        return;
    }
    /* Probes, metrics and the status page are answered here whatever the index does. */
    struct kvb_detail why;
    struct kvb_http_route_context here = {
        .metrics = aggregator->metrics,
        .dashboard = aggregator->dashboard,
        .not_ready = kvb_aggregator_not_ready(aggregator, &why),
        .share = &aggregator->group->share,
        .not_live = kvb_aggregator_not_live(aggregator),
    };
    kvb_http_route_answer(route, &here, request, answer);
}
