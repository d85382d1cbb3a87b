#pragma once

#include "core/span.h"
#include "core/status.h"
#include "fleet/dialects/dialect.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The two sockets of one rank, and the one thread that serves both, as in vLLM:
 * while it answers a replay it publishes nothing.
 *
 *     fleet's thread -> [ queue ] -> thread -> PUB     topic | seq, 8 bytes | payload
 *                                       |
 *                              replay buffer -> ROUTER <- ["", start seq]
 *
 * There is no ROUTER when the layout is KVB_REPLAY_NEVER.  It keeps 1,000 messages a peer
 * and drops the rest of a replay silently; END still comes.  A request of any other
 * shape is ignored.
 *
 * Threads: one of its own; the calls are for the thread that started it, the
 *          counts for any.
 * Memory:  the queue, the replay buffer, and what libzmq keeps for slow peers. */
struct kvb_publisher;

struct kvb_publisher_options {
    void *zmq_context;   /* borrowed until _stop() */
    const char *address; /* "127.0.0.1"; borrowed until _stop(), like topic */
    kvb_span topic;
    uint16_t events_port;
    uint16_t replay_port;
    enum kvb_replay_layout layout;
    size_t queue_batches;
    size_t replay_batches;
    size_t replay_bytes;
};

/* KVB_AGAIN  a port is in use: try others
 * KVB_BAD_CONFIG  the address cannot be bound: detail says why
 * KVB_NO_MEMORY, KVB_TOO_LARGE, KVB_IO */
kvb_status kvb_publisher_start(
    const struct kvb_publisher_options *options, struct kvb_detail *detail,
    struct kvb_publisher **out_publisher);

/* Publishes what is queued, then ends the thread.  NULL is fine. */
void kvb_publisher_stop(struct kvb_publisher *publisher);

/* Queues one batch; copies it.  Waits while the queue is full, as an engine does.
 * is_live false: it goes into the replay buffer only, and so leaves a gap.
 * KVB_NO_MEMORY */
kvb_status
kvb_publisher_send(struct kvb_publisher *publisher, uint64_t seq, kvb_span payload, bool is_live);

/* The engine process ends and starts again: after what is queued both sockets are
 * closed and bound anew, the replay buffer is empty.  KVB_NO_MEMORY */
kvb_status kvb_publisher_restart(struct kvb_publisher *publisher);

/* Everything queued so far was handled. */
bool kvb_publisher_is_drained(const struct kvb_publisher *publisher);

struct kvb_publisher_counts {
    uint64_t published;
    uint64_t withheld;     /* is_live was false */
    uint64_t replays;      /* requests answered */
    uint64_t full_replays; /* since the last restart: those that took the whole buffer of several */
    uint64_t replayed;     /* batches sent in replays */
    uint64_t ignored;      /* requests of another shape */
    uint64_t failures;     /* restarts that could not bind again, batches that could not be kept */
};

void kvb_publisher_counts(
    const struct kvb_publisher *publisher, struct kvb_publisher_counts *out_counts);
