#pragma once

#include "bus/bus.h"
#include "core/buf.h"
#include "intake/fleet.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What many bridges do on NATS, without engines.  A step that fails ends the program. */

struct kvb_bus *connect_to_nats(const char *url, const char *name, bool sends_at_once);

/* Sleeps until then; returns at once when that time is past. */
void wait_until_ns(uint64_t then_ns);

void send_round(struct kvb_bus *bus, const struct fleet_round *round);
void send_heartbeats(struct kvb_bus *bus, const struct fleet *fleet);

/* ---- A script: messages made before, each published at its time ----
 *
 * `rate` block operations a second, `burst` of them at once, and a heartbeat every millisecond,
 * workers in turn. */
struct talker {
    struct kvb_bus *bus; /* both borrowed */
    struct fleet *fleet;
    uint64_t rate;
    uint64_t burst;
    double seconds;
    struct kvb_buf bytes;
    struct utterance *script; /* owned */
    size_t count, capacity;
    pthread_t thread;
};

/* Makes the script, which needs as much processor time as sending it, and begins. */
void talker_begin(struct talker *talker);

/* Waits for the end of the script. */
void talker_end(struct talker *talker);

/* ---- All that bridges do, for as long as it takes ----
 *
 *     every second, each stream    its heartbeat, with the digest of what was published
 *     events_a_second              one event a message, workers in turn
 *     loads_a_second               the load figures of a worker, workers in turn
 *     on kv_sync                   the stream's whole list
 *
 * An aggregator finds every stream EXACT, and one that starts late gets all that it missed.  The
 * fleet's state is always that of the last message that was published, because whoever makes
 * messages publishes them under the same lock. */
struct bridges {
    const char *url; /* of NATS; borrowed, like the next two */
    struct kvb_bus *bus;
    struct fleet *fleet;
    pthread_mutex_t lock; /* of the fleet and of round */
    struct fleet_round round;
    _Atomic uint64_t events_a_second; /* 0: heartbeats alone, like the next */
    _Atomic uint64_t loads_a_second;
    _Atomic uint64_t events; /* published so far, like the next two */
    _Atomic uint64_t event_bytes;
    _Atomic uint64_t heartbeat_bytes;
    _Atomic uint64_t lists; /* sent for kv_sync */
    pthread_t thread;
    struct kvb_bus *answers; /* to kv_sync */
    struct kvb_buf reply;    /* the answering thread's */
};

/* Heartbeats begin; no events yet.  They end with the program. */
void bridges_begin(struct bridges *bridges);

/* Publishes some of what workers can hold.  False when they hold all of it. */
bool bridges_fill(struct bridges *bridges);

/* Blocks that the workers hold, each worker counted. */
uint64_t bridges_copies(struct bridges *bridges);
