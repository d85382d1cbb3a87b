#pragma once

#include "core/thread.h"
#include "replica/turn.h"

#include <stdatomic.h>
#include <stdint.h>

struct kvb_aggregator;

/* The index thread: it carries out the actions of replica/turn.h, and requests missing data from
 * bridges. */

struct kvb_loop {
    struct kvb_thread thread;
    int update_fd; /* owned; readable when the connection changed */
    atomic_bool is_stopping;
    _Atomic uint64_t turned_ns;   /* when the newest turn began; read by HTTP threads */
    struct kvb_replica_turn turn; /* the index thread's own, as queries->index_lock says */
};

/* The thread's own function; its context is the aggregator. */
void *kvb_loop_run(void *context);
