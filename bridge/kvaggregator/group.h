#pragma once

#include "bus/bus.h"
#include "core/status.h"
#include "daemon/exact_share.h"
#include "replica/readiness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_job;

/* The membership in the queue group of requests over NATS, and whether this aggregator is ready. */

enum { kvb_group_subjects = 3 }; /* kv_match, kv_route, kv_get.* */

struct kvb_group {
    struct kvb_bus_subscription *shared[kvb_group_subjects]; /* owned; the job's */
    struct kvb_bus_subscription *own[kvb_group_subjects];    /* owned: R.kv_match.{id}, ... */
    struct kvb_job *job;             /* owned; NULL: there is no queue group */
    enum kvb_group_action under_way; /* the job's */
    pthread_mutex_t lock;
    pthread_cond_t changed;       /* the state that is shown */
    enum kvb_group_action wanted; /* under the lock */
    enum kvb_group_result result; /* under the lock */
    atomic_bool is_leaving;       /* it never joins again */
    _Atomic int shown_cause;      /* the cause of readiness, for other threads */
    _Atomic int shown_state;      /* the state of the group, for other threads */
    struct kvb_exact_share share;

    /* The index thread's own. */
    struct kvb_readiness readiness;
    struct kvb_readiness_facts facts;
    uint64_t next_count_ns; /* when its streams are counted next */
    bool is_denied;         /* a vital permission is denied */
};

/* Called before all other functions of the group; done() undoes it. */
void kvb_group_init(struct kvb_aggregator *aggregator);
void kvb_group_done(struct kvb_aggregator *aggregator);

/* After the service has its id.  On failure the caller still closes. */
kvb_status kvb_group_open(struct kvb_aggregator *aggregator);
void kvb_group_close(struct kvb_aggregator *aggregator);

/* On the index thread, in each turn. */
void kvb_group_step(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* Leaves the group for good and waits, at most 3 s, until all requests that were received are in
 * the ring of queries, or of prompts.  On the main thread, while the index thread runs. */
void kvb_group_leave(struct kvb_aggregator *aggregator);

/* NULL, or why this aggregator is not ready: a constant, or in detail.  Any thread. */
const char *
kvb_aggregator_not_ready(const struct kvb_aggregator *aggregator, struct kvb_detail *detail);

/* Why /livez answers 503; NULL: the index thread makes progress.  Any thread. */
const char *kvb_aggregator_not_live(const struct kvb_aggregator *aggregator);
