#pragma once

#include "bus/bus.h"
#include "bus/subject.h"
#include "core/log.h"
#include "core/status.h"
#include "kvaggregator/byte_budget.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "wire/router/json.h"
#include "wire/router/sync.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvb_aggregator;
struct kvb_replica_facts;
struct kvb_ring;
struct received; /* intake.c */

/* From NATS to followers and load tracker: nats.c's thread puts messages into a bounded ring, the
 * index thread applies them.
 *
 *     nats.c's thread                       index thread
 *       kvb_loop_receive() ----> [ ring ] --> kvb_intake_take()
 *                           full: dropped and counted; then all lists lag
 *
 * A lone message that finds the index thread waiting is applied by nats.c's thread, in a turn that
 * it takes in place of that thread.
 *
 * Memory: the ring, and the messages in it, bounded in number and bytes. */

/* What is applied, a subscription each. */
enum kvb_intake_kind {
    KVB_INTAKE_EVENTS,
    KVB_INTAKE_EVENTS_PB,
    KVB_INTAKE_WINDOW_EVENTS,
    KVB_INTAKE_HEARTBEATS,
    KVB_INTAKE_LOAD,
    KVB_INTAKE_ANSWERS,
    KVB_INTAKE_ROUTED,      /* of the books that aggregators share */
    KVB_INTAKE_FINISHED,    /* of the books */
    KVB_INTAKE_FIRST_TOKEN, /* of the books */
    KVB_INTAKE_STATUS,      /* of the books */
    KVB_INTAKE_ECHO,
    KVB_INTAKE_COUNT
};

struct kvb_intake_subscription {
    struct kvb_aggregator *aggregator;         /* borrowed */
    struct kvb_bus_subscription *subscription; /* owned */
    enum kvb_intake_kind kind;
    char subject[kvb_subject_bytes];
};

/* What an aggregator sends itself: see loop.c. */
struct kvb_echo {
    uint64_t connects; /* of the connection that it was sent on */
    uint64_t number;
};

enum { kvb_intake_applied_messages = 64 };

/* Items of the event ring that can be used again.  An item that was applied is freed with others,
 * together with its message of nats.c. */
struct kvb_intake_pool {
    pthread_mutex_t lock;
    struct received *spare; /* owned list */
    size_t spare_count;
    struct received *applied[kvb_intake_applied_messages]; /* owned; the index thread's own */
    size_t applied_count;
    size_t applied_bytes; /* of the budget, not given back yet */
};

struct kvb_intake {
    struct kvb_intake_subscription subscriptions[KVB_INTAKE_COUNT];
    char inbox[2 * 16 + 1];               /* answers of bridges: {prefix}.{inbox}.{token in hex} */
    struct kvb_ring *events;              /* owned */
    struct kvb_byte_budget bytes;         /* of the messages in it */
    struct kvb_intake_pool pool;          /* owned */
    _Atomic uint64_t lost;                /* messages that found no room, or no memory, so far */
    _Atomic uint64_t echo_returned;       /* the number of the newest echo that has */
    _Atomic uint64_t connects_subscribed; /* the connection that returned our message */

    /* Of the index thread, or of who has queries->index_lock while that waits. */
    struct received *direct;       /* owned: the message that its receiver takes a turn for */
    uint64_t echo_applied;         /* the newest echo that came out of the ring */
    uint64_t lost_seen;            /* of `lost`, as the followers know */
    struct kvb_router_batch batch; /* owned: the message that is applied in slices */
    struct kvb_stream_id batch_id; /* the stream of its events */
    size_t next_event;             /* next event of the batch to apply */
    uint64_t batch_arrived_ns;
    struct kvb_prompt_event prompt;           /* owned scratch space for decoding */
    struct kvb_sync_reply_parts answer_parts; /* owned scratch space for decoding */
    struct kvb_log_limit refusals;
};

/* Makes the ring.  KVB_NO_MEMORY, KVB_IO: the caller still calls done(). */
kvb_status kvb_intake_init(struct kvb_intake *intake, size_t ring_items);
/* After all threads have ended. */
void kvb_intake_done(struct kvb_intake *intake);

/* Draws a random inbox name, so that other clients cannot guess where answers are sent.  KVB_IO. */
kvb_status kvb_intake_name_inbox(struct kvb_intake *intake);

/* Subscribes to all that the index thread applies.  The handler's context is a struct
 * kvb_intake_subscription.  On failure the caller still closes. */
kvb_status kvb_intake_open(struct kvb_aggregator *aggregator, kvb_bus_handler handler);
void kvb_intake_close(struct kvb_aggregator *aggregator);

/* On nats.c's thread: the message with what is known of it, owned by the caller.  NULL: it is none
 * of ours, or refused and counted. */
struct received *kvb_intake_keep(
    const struct kvb_intake_subscription *subscription, const struct kvb_bus_message *message);
/* Takes it, and puts it into the ring; without room it is dropped and counted.  The same thread. */
void kvb_intake_put(struct kvb_aggregator *aggregator, struct received *received);

/* A message is applied in part, and its rest comes next.  Under queries->index_lock. */
bool kvb_intake_has_rest(const struct kvb_aggregator *aggregator);

/* On the index thread: applies the next message, or a part of it; false: there is none. */
bool kvb_intake_take(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* The same for at least one message, and others until then.  False: there was none. */
bool kvb_intake_take_until(struct kvb_aggregator *aggregator, uint64_t now_ns, uint64_t until_ns);

/* For how long the oldest message has waited here. */
uint64_t kvb_intake_lag_ns(struct kvb_aggregator *aggregator, uint64_t now_ns);

/* For replica/turn.h, what is known of NATS; the facts of messages are not in it.  Any thread. */
void kvb_intake_read_nats(
    const struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts);

/* On the index thread: the time, and the facts of messages. */
void kvb_intake_read_messages(
    struct kvb_aggregator *aggregator, struct kvb_replica_facts *out_facts);
