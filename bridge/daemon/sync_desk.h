#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "core/ring.h"
#include "core/status.h"
#include "stream/stream.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Requests on P.kv_sync.{worker_id}.{dp_rank}, from nats.c's thread to the thread that
 * owns the streams, and their answers, a slice at a time.
 *
 *     nats.c --> token buckets --> ring --> jobs --> chunks --> reply subject
 *                   | empty          | full
 *                   +-----> BUSY <---+
 *
 * Each asker has a bucket of its own, by the stem of its reply subject: a flood of
 * requests costs the flooder, not the others, and never the engines.
 *
 * Threads: hear() on nats.c's; the rest on the owner's. */
enum { kvb_sync_jobs = 16, kvb_sync_askers = 64 };

struct kvb_sync_ask;

/* Borrowed; NULL: not ours. */
typedef const struct kvb_stream *(*kvb_sync_find)(
    void *context, uint64_t worker_id, uint32_t dp_rank);

/* All of an answer was sent. */
typedef void (*kvb_sync_answered)(void *context, uint64_t worker_id, uint32_t dp_rank);

struct kvb_sync_asker {
    uint64_t key;
    uint64_t tokens;
    uint64_t filled_ns;
};

struct kvb_sync_desk {
    struct kvb_bus *bus; /* borrowed */
    kvb_sync_find find;
    kvb_sync_answered answered;
    void *context;
    struct kvb_ring *asks; /* owned */
    pthread_mutex_t lock;  /* askers */
    struct kvb_sync_asker askers[kvb_sync_askers];

    struct kvb_sync_ask *jobs[kvb_sync_jobs]; /* owned; under way */
    size_t next_job;
    struct kvb_router_batch events; /* owned: the chunk being made */
    struct kvb_buf buf;

    _Atomic uint64_t requests;
    _Atomic uint64_t busy;
    _Atomic uint64_t refused; /* no request, or no place for the answer */
    _Atomic uint64_t failures;
    uint64_t chunks;
};

/* KVB_NO_MEMORY, KVB_IO. */
kvb_status kvb_sync_desk_init(struct kvb_sync_desk *desk);
void kvb_sync_desk_done(struct kvb_sync_desk *desk);

/* A kvb_bus_handler; context is the desk. */
void kvb_sync_desk_hear(void *context, const struct kvb_bus_message *message);

/* Readable while requests wait.  Borrowed. */
int kvb_sync_desk_fd(const struct kvb_sync_desk *desk);

/* Works for about budget_ns; true when there is more to do. */
bool kvb_sync_desk_work(struct kvb_sync_desk *desk, uint64_t now_ns, uint64_t budget_ns);
