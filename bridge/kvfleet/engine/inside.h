#pragma once

#include "core/status.h"
#include "kvfleet/engine/block_pool.h"
#include "kvfleet/engine/engine.h"
#include "kvfleet/engine/request.h"

#include <stdbool.h>
#include <stdint.h>

/* The engine's inside, shared by engine.c and kvfleet/engine/step.c.
 *
 * waiting is a ring: the oldest at waiting_at.  It has room for all running
 * requests too, so that a preempted one always finds its place at the front. */
struct kvb_engine {
    struct kvb_engine_options options;
    struct kvb_block_pool *pool; /* owned */
    struct kvb_content_log log;
    struct kvb_request **running; /* owned, like waiting */
    struct kvb_request **waiting;
    uint32_t running_count;
    uint32_t waiting_at;
    uint32_t waiting_count;
    uint32_t waiting_capacity;
    const char *salt; /* of new requests; borrowed; NULL: none */
    uint64_t dice;
    uint64_t first_seq; /* since the restart */
    uint64_t next_seq;
    struct kvb_event_batch pending; /* events of the step, or handed out */
    bool is_handed;                 /* pending went out and may be forgotten */
    struct kvb_engine_stats sums;   /* the counters of it */
};

/* Forgets the batch that was handed out last. */
void kvb_engine_begin(struct kvb_engine *engine);

/* Gives all blocks back, tail first, and starts over. */
void kvb_engine_release(struct kvb_engine *engine, struct kvb_request *request);

/* Stops the youngest running request; it waits at the front of the queue. */
void kvb_engine_preempt_last(struct kvb_engine *engine);

/* The two halves of a step: what is computed, and what comes out of it. */
kvb_status kvb_engine_schedule(struct kvb_engine *engine);
void kvb_engine_run_model(struct kvb_engine *engine);
