#include "kvaggregator/group.h"

#include "bus/bus.h"
#include "control/control.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/metric.h"
#include "kvaggregator/config.h"
#include "kvaggregator/doors/doors.h"
#include "kvaggregator/intake.h"
#include "kvaggregator/loop.h"
#include "kvaggregator/metrics.h"
#include "kvaggregator/parts.h"
#include "kvaggregator/permissions.h"
#include "kvaggregator/service.h"
#include "model/liveness.h"
#include "replica/follower.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

/* Requests reach an aggregator on two kinds of subject:
 *
 *     R.kv_match       for one member of the queue group: subscribed only by members
 *     R.kv_match.{id}  for this aggregator: always subscribed
 *
 * replica/readiness.h decides about the membership on the index thread.  Subscribing, waiting for
 * nats-server's PONG and draining may take seconds, so a job of the control thread has them done on
 * a thread that ends with them:
 *
 *     index thread -- wanted --> job: join or leave -- result --> index thread
 *
 * Without a queue group there is nothing to join, and all requests are subscribed from the start.
 */

enum {
    join_wait_ms = 2000,
    leave_wait_ms = 2000,
    stop_wait_s = 3,
    count_streams_ms = 100,
    retry_ms = 100
};

static const struct {
    enum kvb_contract_subject shared;
    enum kvb_contract_subject own;
} subjects[kvb_group_subjects] = {
    { KVB_SUBJECT_MATCH, KVB_SUBJECT_MATCH_OF_ONE },
    { KVB_SUBJECT_ROUTE, KVB_SUBJECT_ROUTE_OF_ONE },
    { KVB_SUBJECT_GET, KVB_SUBJECT_GET_OF_ONE },
};

/* ---- Subscriptions ---- */

static kvb_status listen_on(
    struct kvb_aggregator *aggregator, enum kvb_contract_subject subject, const char *group,
    struct kvb_bus_subscription **out_subscription)
{
    struct kvb_subject_names names = *aggregator->names;
    char made[kvb_subject_bytes];

    names.id = aggregator->service->identity.id;
    KVB_TRY(kvb_contract_subject_make(subject, &names, made));
    return kvb_bus_subscribe_queue(
        aggregator->bus, made, group, kvb_door_receive_nats, aggregator, out_subscription);
}

static kvb_status subscribe_shared(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;

    for (size_t i = 0; i < kvb_group_subjects; i++) {
        KVB_TRY(listen_on(
            aggregator, subjects[i].shared, aggregator->config->router.queue_group,
            &group->shared[i]));
    }
    return KVB_OK;
}

static void unsubscribe_shared(struct kvb_group *group)
{
    for (size_t i = 0; i < kvb_group_subjects; i++) {
        kvb_bus_unsubscribe(group->shared[i]);
        group->shared[i] = NULL;
    }
}

static kvb_status subscribe_own(struct kvb_aggregator *aggregator)
{
    for (size_t i = 0; i < kvb_group_subjects; i++) {
        KVB_TRY(listen_on(aggregator, subjects[i].own, NULL, &aggregator->group->own[i]));
    }
    return KVB_OK;
}

/* ---- The job ---- */

/* The PONG shows that the server knows the subscriptions. */
static enum kvb_group_result join_group(struct kvb_aggregator *aggregator)
{
    if (subscribe_shared(aggregator) == KVB_OK &&
        kvb_bus_flush(aggregator->bus, join_wait_ms) == KVB_OK) {
        kvb_metric_add(aggregator->metrics, kvb_aggregator_group_joins, 1);
        return KVB_GROUP_DONE;
    }
    unsubscribe_shared(aggregator->group);
    kvb_metric_add(aggregator->metrics, kvb_aggregator_group_failures, 1);
    return KVB_GROUP_FAILED;
}

/* Drains the subscriptions: requests that the server has already delivered are answered. */
static enum kvb_group_result leave_group(struct kvb_aggregator *aggregator)
{
    for (size_t i = 0; i < kvb_group_subjects; i++) {
        /* fails without a connection; then no requests can come */
        (void)kvb_bus_drain(aggregator->group->shared[i], leave_wait_ms);
    }
    unsubscribe_shared(aggregator->group);
    kvb_metric_add(aggregator->metrics, kvb_aggregator_group_leaves, 1);
    return KVB_GROUP_DONE;
}

static void give_result(struct kvb_aggregator *aggregator, enum kvb_group_result result)
{
    struct kvb_group *group = aggregator->group;

    (void)pthread_mutex_lock(&group->lock);
    group->result = result;
    (void)pthread_mutex_unlock(&group->lock);
    kvb_loop_wake(aggregator->loop);
}

/* On a thread of its own. */
static void carry_out(void *context)
{
    struct kvb_aggregator *aggregator = context;

    give_result(
        aggregator, aggregator->group->under_way == KVB_GROUP_JOIN ? join_group(aggregator)
                                                                   : leave_group(aggregator));
}

/* On the control thread: when something is wanted, and when it is done. */
static uint64_t look_for_action(void *context, uint64_t now_ns)
{
    const struct kvb_aggregator *aggregator = context;
    struct kvb_group *group = aggregator->group;

    if (kvb_job_is_working(group->job)) {
        return UINT64_MAX;
    }
    (void)pthread_mutex_lock(&group->lock);
    group->under_way = group->wanted;
    group->wanted = KVB_GROUP_NOTHING;
    (void)pthread_mutex_unlock(&group->lock);
    if (group->under_way == KVB_GROUP_NOTHING || kvb_job_work(group->job, carry_out) == KVB_OK) {
        return UINT64_MAX;
    }
    /* The system has no more threads.  Nothing else was wanted meanwhile, because the index thread
     * waits for the result. */
    (void)pthread_mutex_lock(&group->lock);
    group->wanted = group->under_way;
    (void)pthread_mutex_unlock(&group->lock);
    return now_ns + retry_ms * KVB_NS_PER_MS;
}

/* ---- What NATS permits, on any thread ---- */

/* True: the aggregator is not ready without this permission. */
static bool is_vital(const void *context, const struct kvb_denial *denial)
{
    const struct kvb_aggregator *aggregator = context;

    return kvb_permissions_is_vital(aggregator->permissions, denial);
}

/* True when our own message came back on this connection. */
static bool is_subscribed(const struct kvb_aggregator *aggregator)
{
    return atomic_load_explicit(&aggregator->intake->connects_subscribed, memory_order_relaxed) ==
           kvb_bus_connects(aggregator->bus);
}

/* ---- On the index thread ---- */

static void count_streams(struct kvb_aggregator *aggregator)
{
    struct kvb_readiness_facts *facts = &aggregator->group->facts;

    facts->streams = 0;
    facts->exact = 0;
    facts->incomplete = 0;
    for (size_t i = 0; i < kvb_followers_limit(aggregator->followers); i++) {
        const struct kvb_follower *follower = kvb_followers_at(aggregator->followers, i);
        if (follower && kvb_stream_is_counted(follower->state, follower->reason)) {
            facts->streams++;
            facts->exact += follower->state == KVB_STREAM_EXACT;
            /* Incomplete is what this aggregator still fetches from the bridge.  A stream whose
             * bridge itself still connects or replays is not: no aggregator has a better list. */
            facts->incomplete += follower->state == KVB_STREAM_SYNCING &&
                                 follower->reason != KVB_REASON_CONNECTING &&
                                 follower->reason != KVB_REASON_REPLAYING;
        }
    }
    kvb_exact_share_set(
        &aggregator->group->share, (uint32_t)facts->exact, (uint32_t)facts->streams);
}

/* Publishes the state for other threads: /readyz, kvb_group_leave(). */
static void show_membership(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;
    const enum kvb_group_state state = group->readiness.group;

    atomic_store_explicit(&group->shown_cause, (int)group->readiness.cause, memory_order_relaxed);
    if ((int)state == atomic_load_explicit(&group->shown_state, memory_order_relaxed)) {
        return;
    }
    if (group->job) { /* without a queue group it is given all requests */
        const bool is_member = state == KVB_GROUP_MEMBER;
        kvb_metric_set(aggregator->metrics, kvb_aggregator_group_member, is_member);
    }
    (void)pthread_mutex_lock(&group->lock);
    atomic_store_explicit(&group->shown_state, (int)state, memory_order_relaxed);
    (void)pthread_cond_broadcast(&group->changed);
    (void)pthread_mutex_unlock(&group->lock);
}

static void log_change(struct kvb_aggregator *aggregator, enum kvb_group_state before)
{
    const struct kvb_readiness *readiness = &aggregator->group->readiness;

    if (readiness->group == KVB_GROUP_MEMBER && before != KVB_GROUP_MEMBER) {
        kvb_log_write(
            aggregator->log, KVB_LOG_INFO, "aggregator", "joined the queue group of requests",
            "queue_group", aggregator->config->router.queue_group, NULL);
    } else if (readiness->group == KVB_GROUP_LEAVING && before != KVB_GROUP_LEAVING) {
        kvb_log_write(
            aggregator->log,
            readiness->cause == KVB_UNREADY_STOPPING ? KVB_LOG_INFO : KVB_LOG_WARNING, "aggregator",
            "leaving the queue group of requests", "why",
            kvb_readiness_cause_text(readiness->cause), NULL);
    }
}

void kvb_group_step(struct kvb_aggregator *aggregator, uint64_t now_ns)
{
    struct kvb_group *group = aggregator->group;
    struct kvb_detail ignored;

    if (now_ns >= group->next_count_ns) { /* the rest costs little and is done in each turn */
        group->next_count_ns = now_ns + count_streams_ms * KVB_NS_PER_MS;
        group->is_denied = kvb_bus_is_denied(aggregator->bus, is_vital, aggregator, &ignored);
        count_streams(aggregator);
    }
    group->facts.is_stopping = atomic_load(&group->is_leaving);
    group->facts.is_connected = kvb_bus_is_connected(aggregator->bus);
    group->facts.is_subscribed = is_subscribed(aggregator) && !group->is_denied;
    (void)pthread_mutex_lock(&group->lock);
    const enum kvb_group_result result = group->result;
    group->result = KVB_GROUP_UNDECIDED;
    (void)pthread_mutex_unlock(&group->lock);
    const enum kvb_group_state before = group->readiness.group;
    const enum kvb_group_action action =
        kvb_readiness_step(&group->readiness, &group->facts, result, now_ns);
    if (action != KVB_GROUP_NOTHING) {
        (void)pthread_mutex_lock(&group->lock);
        group->wanted = action;
        (void)pthread_mutex_unlock(&group->lock);
        if (group->job) { /* without a queue group there is nothing to join or leave */
            kvb_job_wake(group->job);
        }
    }
    log_change(aggregator, before);
    show_membership(aggregator);
}

/* ---- Liveness and readiness, on any thread ---- */

const char *kvb_aggregator_not_live(const struct kvb_aggregator *aggregator)
{
    const uint64_t turned_ns =
        atomic_load_explicit(&aggregator->loop->turned_ns, memory_order_relaxed);

    return kvb_liveness_cause(turned_ns, kvb_clock_monotonic_ns());
}

/* Explains the cause with the numbers of the newest count. */
static const char *explain_share(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    uint32_t exact = 0;
    uint32_t streams = 0;

    kvb_exact_share_get(&aggregator->group->share, &exact, &streams);
    kvb_detail_set(
        detail,
        "%" PRIu32 " of %" PRIu32 " streams are EXACT; router.ready_exact requires a share of %g",
        exact, streams, aggregator->config->router.ready_exact);
    return detail->text;
}

/* Why this aggregator receives no requests; NULL: it receives them. */
static const char *
why_not_member(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const struct kvb_group *group = aggregator->group;
    const int cause = atomic_load_explicit(&group->shown_cause, memory_order_relaxed);
    const int state = atomic_load_explicit(&group->shown_state, memory_order_relaxed);

    if (cause == KVB_UNREADY_SHARE) {
        return explain_share(aggregator, detail);
    }
    if (cause != KVB_READY) {
        return kvb_readiness_cause_text((enum kvb_readiness_cause)cause);
    }
    return group->job && state != KVB_GROUP_MEMBER
               ? "not a member of the queue group of requests yet (router.queue_group)"
               : NULL;
}

const char *
kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator, struct kvb_detail *detail)
{
    const char *cause = kvb_aggregator_not_live(aggregator);

    if (cause) {
        return cause;
    }
    if (!kvb_bus_is_connected(aggregator->bus)) {
        kvb_bus_explain_absence(aggregator->bus, detail);
        return detail->text;
    }
    if (kvb_bus_is_denied(aggregator->bus, is_vital, aggregator, detail)) {
        return detail->text;
    }
    if (!is_subscribed(aggregator)) {
        return kvb_readiness_cause_text(KVB_UNREADY_NOT_SUBSCRIBED);
    }
    return why_not_member(aggregator, detail);
}

/* ---- Start and end ---- */

void kvb_group_init(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;

    (void)pthread_mutex_init(&group->lock, NULL); /* cannot fail without attributes */
    kvb_cond_init_monotonic(&group->changed);
    group->readiness =
        (struct kvb_readiness){ .min_exact_share = aggregator->config->router.ready_exact };
    group->share.keeps = true;
    atomic_init(&group->shown_cause, KVB_UNREADY_NOT_CONNECTED);
}

kvb_status kvb_group_open(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;

    /* Requests to this aggregator alone are answered whether it is ready or not. */
    KVB_TRY(subscribe_own(aggregator));
    kvb_log_write(
        aggregator->log, KVB_LOG_INFO, "aggregator", "answers requests", "id",
        aggregator->service->identity.id, "queue_group", aggregator->config->router.queue_group,
        NULL);
    if (aggregator->config->router.queue_group[0] == '\0') {
        kvb_metric_set(aggregator->metrics, kvb_aggregator_group_member, 1);
        return subscribe_shared(aggregator);
    }
    const struct kvb_job_options job = { .turn = look_for_action, .context = aggregator };
    return kvb_job_add(aggregator->control, &job, &group->job);
}

void kvb_group_leave(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;
    struct timespec deadline;
    bool is_late = false;

    /* The index thread sees it in its next turn, and has the job leave; it shows when that is done.
     */
    atomic_store(&group->is_leaving, true);
    if (!aggregator->loop->thread.is_running || !group->job) {
        return;
    }
    kvb_loop_wake(aggregator->loop);
    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += stop_wait_s;
    (void)pthread_mutex_lock(&group->lock);
    while (atomic_load(&group->shown_state) != KVB_GROUP_OUTSIDE && !is_late) {
        is_late = pthread_cond_timedwait(&group->changed, &group->lock, &deadline) != 0;
    }
    (void)pthread_mutex_unlock(&group->lock);
}

void kvb_group_close(struct kvb_aggregator *aggregator)
{
    struct kvb_group *group = aggregator->group;

    kvb_job_remove(group->job); /* and what it does is done */
    group->job = NULL;
    unsubscribe_shared(group);
    for (size_t i = 0; i < kvb_group_subjects; i++) {
        kvb_bus_unsubscribe(group->own[i]);
    }
}

void kvb_group_done(struct kvb_aggregator *aggregator)
{
    (void)pthread_cond_destroy(&aggregator->group->changed);
    (void)pthread_mutex_destroy(&aggregator->group->lock);
}
