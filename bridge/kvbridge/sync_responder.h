#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "core/ring.h"
#include "core/status.h"
#include "kvbridge/sync_queue.h"
#include "stream/stream.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Answers the sync requests of aggregators, on P.kv_sync.{worker_id}.{dp_rank}.  nats.c's thread
 * receives them; the thread that owns the streams sends the answers, a chunk at a time.
 *
 *     nats.c --> token buckets --> ring --> queue --> chunks --> reply subject
 *                   | empty          | full    | full
 *                   +-----> BUSY <---+---------+
 *
 * The queue (sync_queue.h) is fair between streams, then between requesters.  A flood from ever
 * new inboxes delays neither known requesters nor the engines.
 *
 * Threads: kvb_sync_responder_receive() on nats.c's thread; the rest on the owner's. */

/* The stream of a rank, borrowed; NULL: this bridge does not have it. */
typedef const struct kvb_stream *(*kvb_sync_find)(
    void *context, uint64_t worker_id, uint32_t dp_rank);

/* Called when the last chunk of an answer was sent. */
typedef void (*kvb_sync_answered)(void *context, uint64_t worker_id, uint32_t dp_rank);

struct kvb_sync_responder {
    struct kvb_bus *bus; /* borrowed */
    kvb_sync_find find;
    kvb_sync_answered answered;
    void *context;
    struct kvb_ring *incoming; /* owned */
    pthread_mutex_t lock;      /* protects requesters */
    struct kvb_sync_requesters requesters;
    uint64_t secret; /* seeds the hashes of requesters, so that nobody can construct collisions */

    struct kvb_sync_queue queue;    /* the requests being answered; owns their kvb_pending_sync */
    struct kvb_router_batch events; /* owned: the chunk being made */
    struct kvb_buf buf;

    _Atomic uint64_t requests;
    _Atomic uint64_t busy;
    _Atomic uint64_t refused; /* malformed, or without a usable reply subject */
    _Atomic uint64_t failures;
    uint64_t chunks;
};

/* KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_sync_responder_init(struct kvb_sync_responder *responder);
void kvb_sync_responder_done(struct kvb_sync_responder *responder);

/* A kvb_bus_handler; context is the responder. */
void kvb_sync_responder_receive(void *context, const struct kvb_bus_message *message);

/* Readable while requests wait.  Borrowed. */
int kvb_sync_responder_fd(const struct kvb_sync_responder *responder);

/* Sends chunks for about budget_ns.  True: more are to be sent. */
bool kvb_sync_responder_work(
    struct kvb_sync_responder *responder, uint64_t now_ns, uint64_t budget_ns);
