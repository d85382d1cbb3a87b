#pragma once

#include "bus/bus.h"
#include "core/thread.h"
#include "replica/turn.h"

#include <stdatomic.h>
#include <stdint.h>

struct kvb_aggregator;

/* The index thread: it carries out the actions of replica/turn.h, and requests missing data from
 * bridges. */

struct kvb_loop {
    struct kvb_thread thread;
    int update_fd; /* owned; readable after kvb_loop_wake() */
    atomic_bool is_stopping;
    _Atomic uint64_t turned_ns;   /* when the newest turn began; read by HTTP threads */
    struct kvb_replica_turn turn; /* under queries->index_lock, as all that a turn uses */
};

/* On nats.c's thread, the handler of the intake's subscriptions: takes a turn for a lone message
 * that finds the index thread waiting, and puts any other into the ring. */
void kvb_loop_receive(void *context, const struct kvb_bus_message *message);

/* The index thread takes a turn soon: the connection has changed, or a message has a rest.  Any
 * thread. */
void kvb_loop_wake(struct kvb_loop *loop);

/* The thread's own function; its context is the aggregator. */
void *kvb_loop_run(void *context);
