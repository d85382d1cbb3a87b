#pragma once

#include "core/status.h"
#include "kvaggregator/byte_budget.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_job;
struct kvb_pending_query;
struct kvb_ring;
struct kvb_tokenizer;

/* Who answers a query, and when; pending.h has its way.
 *
 * The index belongs to the index thread while that takes turns.  A query that finds it waiting is
 * answered by the thread that has received it, which saves two thread switches.  Any other goes
 * through the ring:
 *
 *     index thread    turn | waits .......................... | turn ...
 *     index_lock      held |      | HTTP: answers |           | held
 *     NATS, meanwhile                 lock taken: ring ->       answered in this turn
 *
 * A message that no other follows is treated likewise: the thread that has received it takes a turn
 * in place of the index thread.  Nobody but the index thread waits for the lock.  So it waits for
 * one short answer or one turn at most, and no query sees a part of an event, because messages are
 * applied in turns only. */

enum { kvb_aggregator_shapes = 16 };

struct kvb_queries {
    struct kvb_ring *ring;    /* owned: the queries that wait for the index thread */
    size_t limit;             /* of new ones in it; it has room for those that come again */
    struct kvb_ring *prompts; /* owned: long ones over NATS, not read yet */
    struct kvb_job *reader;   /* owned, under reader_lock: has these read; NULL: no longer */
    pthread_mutex_t reader_lock;
    struct kvb_byte_budget bytes;   /* of all that wait */
    _Atomic unsigned large_answers; /* in the making */
    _Atomic size_t texts_waiting;   /* at the tokenizer */

    pthread_mutex_t index_lock;  /* the index thread holds it, except while it waits for work */
    atomic_bool is_index_idle;   /* the index thread waits for work; set under index_lock */
    atomic_bool is_index_wanted; /* the index thread waits for the lock: nobody else takes it */

    /* The shapes of newest queries, by a hash of the model's name, for those who hash long prompts:
     * block size << 32 | lookahead; 0: none yet. */
    _Atomic uint64_t shapes[kvb_aggregator_shapes];

    /* Under index_lock. */
    struct kvb_tokenizer *tokenizer; /* owned; NULL: off */
    size_t next_engine;              /* where the search for one that tokenizes begins */
    bool has_several_models;         /* and grpc.model names none: as the newest call found */
};

/* Called before all other functions; done() undoes it. */
void kvb_queries_init(struct kvb_queries *queries);
void kvb_queries_done(struct kvb_queries *queries);

/* Makes the rings.  KVB_NO_MEMORY, KVB_IO: the caller still closes. */
kvb_status kvb_queries_open(struct kvb_aggregator *aggregator);

/* After all threads have ended, while the bus is open: refuses what is left. */
void kvb_queries_close(struct kvb_aggregator *aggregator);

/* Answers a query that was read, when the index is idle, else puts it into the ring.  Any thread
 * that receives queries.  NULL: it has ended; else as kvb_pending_queue(). */
struct kvb_pending_query *kvb_queries_submit(struct kvb_pending_query *pending);

/* A text has become a query of the tokens that are known: answers it when the index is idle, else
 * puts it into the ring once more.  On the control thread. */
void kvb_queries_resume(struct kvb_pending_query *pending);

/* On the index thread, in each turn: answers at least one query if any waits, and further ones only
 * for a bounded time: meanwhile the event ring could fill, and NATS would disconnect us as a slow
 * consumer.  True: there was one. */
bool kvb_queries_take(struct kvb_aggregator *aggregator);

/* True: the index thread waits and has nothing to do, so the caller owns the index until it calls
 * kvb_queries_give_index().  Any thread; does not wait. */
bool kvb_queries_try_index(struct kvb_aggregator *aggregator);
void kvb_queries_give_index(struct kvb_aggregator *aggregator);

/* On the index thread: takes index_lock, and lets it go while the thread waits, or for good. */
void kvb_queries_enter_index(struct kvb_aggregator *aggregator);
void kvb_queries_leave_index(struct kvb_aggregator *aggregator);
