#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "intake/fleet.h"
#include "intake/scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* What many bridges do on NATS, in one thread and without engines:
 *
 *     every second, each stream    its heartbeat, with the digest of what was published
 *     events_a_second              one event a message, workers in turn
 *     loads_a_second               the load figures of a worker, workers in turn
 *     on kv_sync                   the stream's whole list
 *
 * An aggregator finds every stream EXACT, and one that starts late gets all that it missed.  The
 * fleet's state is always that of the last message that was published, because whoever
 * makes messages publishes them under the same lock.
 *
 * A step that fails ends the program. */
struct bridges {
    struct scene *scene; /* both borrowed */
    struct fleet *fleet;
    pthread_mutex_t lock; /* of the fleet and of round */
    struct fleet_round round;
    _Atomic uint64_t events_a_second;
    _Atomic uint64_t loads_a_second;
    _Atomic uint64_t events; /* published so far */
    _Atomic uint64_t event_bytes;
    _Atomic uint64_t heartbeat_bytes;
    _Atomic uint64_t lists; /* sent for kv_sync */
    atomic_bool is_stopping;
    pthread_t thread;
    struct kvb_bus *bus; /* answers kv_sync */
    struct kvb_bus_subscription *requests;
    struct kvb_buf reply; /* the answering thread's */
};

/* Heartbeats begin; no events yet.  bridges_end() follows, while the scene still stands. */
void bridges_begin(struct scene *scene, struct fleet *fleet, struct bridges *out_bridges);
void bridges_end(struct bridges *bridges);

/* Each worker gets all that it can hold.  Returns when the aggregator has applied it. */
void bridges_fill(struct bridges *bridges);

/* From now on; 0: heartbeats alone. */
void bridges_set_rate(struct bridges *bridges, uint64_t events_a_second);

void bridges_set_load_rate(struct bridges *bridges, uint64_t loads_a_second);

/* Blocks that the workers hold, each worker counted. */
uint64_t bridges_copies(struct bridges *bridges);
