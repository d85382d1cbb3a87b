#pragma once

#include "bus/bus.h"
#include "core/status.h"
#include "model/stream.h"
#include "wire/router/bridge_status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A component speaks one profile: one message that a router cannot decode stops
 * some of them for good.  So a bridge listens to its component's bridge_status
 * for 1.5 s before its first publish, and ever after, and publishes nothing while
 * another bridge has the right to another profile:
 *
 *     the other publishes, we do not      the other: a new bridge never stops a component
 *     we publish, the other does not      we
 *     both, or neither (started at once)  the bridge with the smaller bridge_id
 *
 * Threads: any thread. */
struct kvb_profile_guard {
    pthread_mutex_t lock;
    const char *bridge_id; /* borrowed: ours */
    enum kvb_profile profile;
    uint64_t open_ns;                 /* when the first listening is over; 0 = not connected yet */
    uint64_t received_ns;             /* the newest status of one that we yield to; 0 = none */
    bool is_publishing;               /* what was answered last */
    uint64_t echoes;                  /* statuses of our own */
    struct kvb_bridge_identity other; /* who sent it */
};

void kvb_profile_guard_init(
    struct kvb_profile_guard *guard, const char *bridge_id, enum kvb_profile profile);
void kvb_profile_guard_done(struct kvb_profile_guard *guard);

/* A handler for P.bridge_status; context is the guard. */
void kvb_profile_guard_receive(void *context, const struct kvb_bus_message *message);

/* How often our own status came back to us. */
uint64_t kvb_profile_guard_echoes(struct kvb_profile_guard *guard);

/* NATS is connected: the first time, the listening period begins. */
void kvb_profile_guard_begin(struct kvb_profile_guard *guard, uint64_t now_ns);

/* May events be published?  If not, detail says why. */
bool kvb_profile_guard_allows(
    struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail);
