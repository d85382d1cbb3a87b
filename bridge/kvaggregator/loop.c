#include "kvaggregator/loop.h"

#include "bus/bus.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/metric.h"
#include "core/own.h"
#include "core/ring.h"
#include "index/index.h"
#include "kvaggregator/audit.h"
#include "kvaggregator/books.h"
#include "kvaggregator/doors/gateway.h"
#include "kvaggregator/group.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/queries.h"
#include "kvaggregator/report.h"
#include "load/predictions.h"
#include "load/requests.h"
#include "load/tracker.h"
#include "wire/router/sync.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

enum { max_waiting = 16 }; /* messages; above this, the index thread applies them */
enum { expired_a_tick = 4096, expired_blocks_a_tick = 1 << 16 }; /* a few ms at most */
enum {
    reclaimed_a_turn = 250,     /* extents of the index; takes well under 250 us */
    populated_a_turn = 2 << 20, /* bytes of the index's memory; takes 0.1 to 5 ms */
    min_spare_nodes = 1 << 15,  /* populated ahead: a sixteenth of what the index has, at least */
    max_spare_nodes = 1 << 20,  /* this, and at most this, which is some 64 MB */
    rest_wait_ms = 1000         /* for the answers to waiting requests, at the end */
};

/* ---- Requests to bridges ---- */

/* Requests missing data from the bridges of streams:
 *
 *     P.kv_sync.{worker_id}.{dp_rank}   reply to  _INBOX.{ours}.{token}
 *
 * The answers pass through the event ring, like events.
 *
 * The aggregator also sends messages to itself, on _INBOX.{ours}.echo.0.  They distinguish a fault
 * of NATS from a fault of the bridges: when all bridges are silent and the echo does not arrive
 * either, NATS has failed.  Its payload names the connection: the first one received proves that
 * the server has processed the subscriptions, which were sent before it; messages published earlier
 * may be missed.  It also has a number, and passes through the event ring behind all that the
 * server sent before it: once it has come out, all of that is applied. */

static bool publish_echo(struct kvb_aggregator *aggregator, uint64_t number)
{
    const struct kvb_echo echo = { .connects = kvb_bus_connects(aggregator->bus),
                                   .number = number };
    const kvb_span payload = { .data = (const uint8_t *)&echo, .len = sizeof echo };

    return kvb_bus_publish(
               aggregator->bus, aggregator->intake->subscriptions[KVB_INTAKE_ECHO].subject,
               payload) == KVB_OK;
}

static kvb_status
send_sync_request(struct kvb_aggregator *aggregator, const struct kvb_follower_request *due)
{
    char tail[64];
    char subject[kvb_subject_bytes];
    char reply[kvb_subject_bytes + 20];

    (void)snprintf(
        tail, sizeof tail, "kv_sync.%" PRIu64 ".%" PRIu32, due->id.worker_id, due->id.dp_rank);
    (void)snprintf(
        reply, sizeof reply, "%s.%s.%016" PRIx64, aggregator->names->inbox_prefix,
        aggregator->names->inbox, due->token);
    KVB_TRY(kvb_subject_make(subject, due->id.name_space, due->id.component, tail));
    kvb_buf_reset(aggregator->buf);
    KVB_TRY(kvb_sync_request_encode(&due->request, aggregator->buf));
    return kvb_bus_publish_request(aggregator->bus, subject, reply, kvb_buf_span(aggregator->buf));
}

/* ---- What time brings ---- */

/* Ends the predictions of workers that are DOWN: they will store nothing.  A tick reads all streams
 * only while there are predictions. */
static void retire_predictions(struct kvb_aggregator *aggregator)
{
    const size_t limit = kvb_followers_limit(aggregator->followers);

    for (size_t i = 0; kvb_predictions_any(aggregator->predictions) && i < limit; i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower && follower->state == KVB_STREAM_DOWN) {
            kvb_predictions_retire(aggregator->predictions, &follower->id);
        }
    }
}

static void expire_books(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    retire_predictions(aggregator);
    (void)kvb_predictions_expire(aggregator->predictions, now_ns, expired_blocks_a_tick);
    (void)kvb_requests_expire(aggregator->requests, now_ns, expired_a_tick);
}

static void update_outputs(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_detail why;

    if (kvb_load_tracker_expire(aggregator->tracker, now_ns)) {
        aggregator->report->has_load_changed = true;
    }
    expire_books(aggregator, now_ns);
    kvb_aggregator_update_peers(
        aggregator, kvb_aggregator_not_ready(aggregator, &why) == NULL, now_ns);
    kvb_aggregator_update_audit(aggregator, now_ns);
    kvb_gateways_count(aggregator, now_ns);
    kvb_aggregator_publish_load(aggregator, now_ns);
    kvb_aggregator_update_metrics(aggregator, now_ns);
    kvb_aggregator_update_dashboard(aggregator, now_ns);
}

/* ---- The turn ---- */

/* True: there were messages or queries, so the next turn follows at once.  *out_now_ns: the time
 * after the messages were applied. */
static bool take_turn(struct kvb_aggregator *aggregator, uint64_t *out_now_ns)
{
    struct kvb_replica_turn *turn = &aggregator->loop->turn;
    struct kvb_replica_action action;
    struct kvb_replica_facts facts;
    bool had_work = false;

    kvb_intake_read_nats(aggregator, &facts);
    while (kvb_replica_next(turn, &facts, &action)) {
        switch (action.kind) {
        case KVB_REPLICA_SEND_ECHO:
            if (publish_echo(aggregator, action.number)) {
                kvb_replica_echo_sent(turn, action.number, &facts);
            }
            break;
        case KVB_REPLICA_APPLY_MESSAGES:
            had_work = kvb_intake_take_until(aggregator, facts.now_ns, action.until_ns);
            /* That may have taken a while; the states have to follow before queries are answered.
             */
            kvb_intake_read_messages(aggregator, &facts);
            break;
        case KVB_REPLICA_ANSWER_QUERIES:
            had_work = kvb_queries_take(aggregator) || had_work;
            break;
        case KVB_REPLICA_SEND_REQUEST:
            /* One that could not be sent gets no answer, so the follower sends another one. */
            if (send_sync_request(aggregator, &action.request) != KVB_OK) {
                kvb_metric_add(aggregator->metrics, kvb_aggregator_publish_failures, 1);
            }
            break;
        case KVB_REPLICA_TICK:
            update_outputs(aggregator, facts.now_ns);
            break;
        }
    }
    kvb_metric_set(aggregator->metrics, kvb_aggregator_echo_silences, turn->echo_silences);
    kvb_metric_add(aggregator->metrics, kvb_aggregator_turns, 1); /* for the watchdog */
    *out_now_ns = facts.now_ns;
    return had_work;
}

/* ---- The thread ---- */

/* Waits for an event or a query, a change of the connection, or the next tick. */
static void wait_for_work(struct kvb_aggregator *aggregator, bool is_work_left, uint64_t now_ns)
{
    struct pollfd fds[] = {
        { .fd = kvb_ring_fd(aggregator->intake->events), .events = POLLIN },
        { .fd = kvb_ring_fd(aggregator->queries->ring), .events = POLLIN },
        { .fd = aggregator->loop->update_fd, .events = POLLIN },
    };
    const uint64_t wait_ns = aggregator->loop->turn.next_tick_ns > now_ns
                                 ? aggregator->loop->turn.next_tick_ns - now_ns
                                 : 0;
    const int wait_ms = is_work_left ? 0 : (int)(wait_ns / KVB_NS_PER_MS);
    eventfd_t ignored = 0;

    /* Meanwhile whoever receives a query answers it, and who receives a message applies it. */
    kvb_queries_leave_index(aggregator);
    (void)poll(fds, KVB_COUNT_OF(fds), wait_ms + 1); /* + 1: wait_ms is rounded down */
    kvb_queries_enter_index(aggregator);
    if (fds[2].revents) {
        (void)eventfd_read(aggregator->loop->update_fd, &ignored); /* each turn checks it anyway */
    }
}

/* Called when idle: frees a part of the memory that cleared slots have left in the index, and
 * populates a part of the memory that it needs when it grows, so that events take no page faults.
 * True: more is left.  The caller waits at least a millisecond before the next part, because
 * without memory nothing can be freed, and retrying at once would use a whole CPU. */
static bool tidy_index(struct kvb_aggregator *aggregator)
{
    struct kvb_index_counters counters;

    if (kvb_prefix_index_reclaim(aggregator->index, reclaimed_a_turn)) {
        return true;
    }
    kvb_prefix_index_count(aggregator->index, &counters);
    size_t spare = counters.nodes / 16;
    spare = spare < min_spare_nodes ? min_spare_nodes : spare;
    spare = spare > max_spare_nodes ? max_spare_nodes : spare;
    return kvb_prefix_index_prepare(aggregator->index, spare, populated_a_turn);
}

/* Answers the queries that are left; the ring is closed and accepts no others. */
static void answer_the_rest(struct kvb_aggregator *aggregator)
{
    const uint64_t end_ns = kvb_clock_monotonic_ns() + rest_wait_ms * KVB_NS_PER_MS;

    while (kvb_queries_take(aggregator) && kvb_clock_monotonic_ns() < end_ns) {
    }
}

/* True: there were messages or queries, so another turn has to follow. */
static bool take_whole_turn(struct kvb_aggregator *aggregator, uint64_t *out_now_ns)
{
    *out_now_ns = kvb_clock_monotonic_ns();
    atomic_store_explicit(&aggregator->loop->turned_ns, *out_now_ns, memory_order_relaxed);
    const bool had_work = take_turn(aggregator, out_now_ns);
    /* By the states that the turn has left. */
    kvb_group_step(aggregator, *out_now_ns);
    return had_work;
}

/* Takes a turn in place of the index thread, which waits, with this message as the only one.  That
 * saves two thread switches.  False: that thread works, or messages wait before this one, or many
 * behind it: then that thread applies them while this one receives. */
static bool apply_at_once(
    struct kvb_aggregator *aggregator, struct received *received,
    const struct kvb_bus_message *message)
{
    uint64_t now_ns = 0;

    if (kvb_bus_waiting(message) > max_waiting || !kvb_queries_try_index(aggregator)) {
        return false;
    }
    const bool is_next = !kvb_intake_has_rest(aggregator);
    if (is_next) {
        aggregator->intake->direct = received;
        (void)take_whole_turn(aggregator, &now_ns);
    }
    const bool is_rest_left = kvb_intake_has_rest(aggregator);
    kvb_queries_give_index(aggregator);
    if (is_rest_left) {
        kvb_loop_wake(aggregator->loop);
    }
    return is_next;
}

void kvb_loop_receive(void *context, const struct kvb_bus_message *message)
{
    const struct kvb_intake_subscription *subscription = context;
    struct received *received = kvb_intake_keep(subscription, message);

    if (received && !apply_at_once(subscription->aggregator, received, message)) {
        kvb_intake_put(subscription->aggregator, received);
    }
}

void kvb_loop_wake(struct kvb_loop *loop)
{
    (void)eventfd_write(loop->update_fd, 1); /* full: it is readable anyway */
}

void *kvb_loop_run(void *context)
{
    struct kvb_aggregator *aggregator = context;
    uint64_t now_ns = 0;

    (void)pthread_setname_np(pthread_self(), "kvb-index"); /* for top -H; else unnamed */
    kvb_queries_enter_index(aggregator);
    while (!atomic_load(&aggregator->loop->is_stopping)) {
        if (!take_whole_turn(aggregator, &now_ns)) {
            wait_for_work(aggregator, tidy_index(aggregator), now_ns);
        }
    }
    answer_the_rest(aggregator);
    kvb_queries_leave_index(aggregator);
    return NULL;
}
