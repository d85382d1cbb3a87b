#include "bus/bus.h"
#include "bus/subject.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/limits.h"
#include "core/metric.h"
#include "core/ring.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/pending.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/service.h"
#include "wire/query/json.h"

#include <stdio.h>
#include <string.h>

/* Requests over NATS, on nats.c's one thread, which also delivers events and heartbeats.
 *
 *     nats.c's thread   short: read and submitted | 64 KiB and more: to the ring of prompts
 *     control thread                                                 a thread for them
 *     that thread                                                    read and submitted
 *
 * 700 KB of token ids take some 0.5 ms, for which all that comes behind them would wait. */

enum {
    long_payload_bytes = 64 << 10,
    max_unread = 16384 /* requests of a subject that wait in nats.c, half a second */
};

static void read_and_submit(struct kvb_pending_query *pending, kvb_span payload)
{
    const kvb_status status =
        kvb_query_kind_has_prompt(pending->kind)
            ? kvb_query_json_decode(payload, &pending->query, &pending->detail)
            : KVB_OK;

    kvb_bus_kept_drop(&pending->unread); /* up to a MiB, that nobody counts */
    if (status != KVB_OK) {
        kvb_pending_fail(pending); /* needs no index */
        kvb_pending_settle(pending, KVB_END_SENT);
        return;
    }
    (void)kvb_queries_submit(pending); /* queued or not: it is not ours any more */
}

/* At the end there is no reader any more, and who has removed it reads what is left. */
static void wake_reader(struct kvb_queries *queries)
{
    (void)pthread_mutex_lock(&queries->reader_lock);
    if (queries->reader) {
        kvb_job_wake(queries->reader);
    }
    (void)pthread_mutex_unlock(&queries->reader_lock);
}

/* Takes the query, unless there is no memory for it here. */
static bool leave_to_reader(struct kvb_pending_query *here, const struct kvb_bus_message *message)
{
    struct kvb_pending_query *kept = NULL;

    if (kvb_bus_message_keep(message, &here->unread) != KVB_OK ||
        kvb_pending_keep(here, &kept) != KVB_OK) {
        return false;
    }
    if (kvb_ring_put(here->aggregator->queries->prompts, kept) == KVB_OK) {
        wake_reader(here->aggregator->queries);
    } else {
        read_and_submit(kept, kept->unread.payload); /* too many wait: it takes its time here */
    }
    return true;
}

void kvb_door_read_prompts(void *context)
{
    const struct kvb_aggregator *aggregator = context;
    void *item = NULL;

    while (kvb_ring_take(aggregator->queries->prompts, &item) == KVB_OK) {
        struct kvb_pending_query *pending = item;
        read_and_submit(pending, pending->unread.payload);
    }
}

/* On the control thread: when a prompt has come, and when those before are read. */
static uint64_t look_for_prompts(void *context, uint64_t now_ns)
{
    struct kvb_aggregator *aggregator = context;
    const struct kvb_queries *queries = aggregator->queries;

    (void)now_ns;
    if (kvb_ring_count(queries->prompts) > 0 && !kvb_job_is_working(queries->reader) &&
        kvb_job_work(queries->reader, kvb_door_read_prompts) != KVB_OK) {
        kvb_door_read_prompts(aggregator); /* the system has no more threads */
    }
    return UINT64_MAX;
}

kvb_status kvb_door_open_prompts(struct kvb_aggregator *aggregator)
{
    const struct kvb_job_options job = { .turn = look_for_prompts, .context = aggregator };

    return kvb_job_add(aggregator->control, &job, &aggregator->queries->reader);
}

void kvb_door_close_prompts(struct kvb_aggregator *aggregator)
{
    struct kvb_queries *queries = aggregator->queries;

    if (!queries->prompts) {
        return; /* it never began */
    }
    /* The subscriptions are still there: a prompt that comes from now on is read where it comes. */
    kvb_ring_close(queries->prompts);
    (void)pthread_mutex_lock(&queries->reader_lock);
    struct kvb_job *reader = queries->reader;
    queries->reader = NULL;
    (void)pthread_mutex_unlock(&queries->reader_lock);
    kvb_job_remove(reader); /* and what it reads is read */
    kvb_door_read_prompts(aggregator);
}

/* Finds the kind of query.  The id of this aggregator at the end of the subject is ignored.  NULL:
 * there is no such kind. */
static const struct kvb_query_kind *
find_query_kind(const struct kvb_aggregator *aggregator, const char *tail)
{
    const char *id = aggregator->service->identity.id;
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

void kvb_door_receive_nats(void *context, const struct kvb_bus_message *message)
{
    struct kvb_aggregator *aggregator = context;
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;

    if (!message->reply || kvb_reply_is_refused(message->reply) ||
        kvb_subject_split(message->subject, name_space, component, &tail) != KVB_OK) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_queries_mute, 1);
        return;
    }
    struct kvb_pending_query here = { .aggregator = aggregator,
                                      .door = KVB_DOOR_NATS,
                                      .received_ns = kvb_clock_monotonic_ns(),
                                      .kind = find_query_kind(aggregator, tail),
                                      .reply = message->reply };
    kvb_buf_init(&here.answer.body, kvb_max_answer_bytes);
    if (!here.kind) {
        kvb_pending_settle(&here, KVB_END_UNKNOWN);
        return;
    }
    /* Events wait behind requests on this thread, and lists lag from a second on: where so many
     * wait, this one is refused unread. */
    if (kvb_bus_waiting(message) > max_unread) {
        kvb_pending_settle(&here, KVB_END_BUSY);
        return;
    }
    const bool has_prompt = kvb_query_kind_has_prompt(here.kind);
    here.payload = has_prompt ? (kvb_span){ 0 } : message->payload;
    if (has_prompt && message->payload.len >= long_payload_bytes &&
        leave_to_reader(&here, message)) {
        return;
    }
    read_and_submit(&here, message->payload);
}
