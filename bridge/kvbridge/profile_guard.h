#pragma once

#include "bus/bus.h"
#include "core/status.h"
#include "model/stream.h"
#include "wire/router/bridge_status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A component has one profile, because some routers stop for good at one message that they cannot
 * decode.  Therefore a bridge listens to the bridge_status of its component, for 1.5 s before its
 * first publish and always after that.  It publishes nothing while another bridge has precedence
 * with another profile:
 *
 *     the other publishes, we do not      the other has: a new bridge never stops a component
 *     we publish, the other does not      we have
 *     both, or neither (started at once)  the bridge with the smaller bridge_id has
 *
 * Threads: any thread. */
struct kvb_profile_guard {
    pthread_mutex_t lock;
    const char *bridge_id; /* borrowed: our own id */
    enum kvb_profile profile;
    uint64_t open_ns;     /* end of the first listening period; 0: not connected yet */
    uint64_t received_ns; /* when a bridge with precedence last sent a status; 0: never */
    bool is_publishing;   /* the newest answer */
    uint64_t echoes;      /* how many own statuses were received */
    struct kvb_bridge_identity other;   /* the sender of that status */
    bool has_seen;                      /* a status of another profile came */
    struct kvb_bridge_identity seen;    /* the sender of the newest of them */
    char said[kvb_bridge_id_bytes + 1]; /* whom kvb_profile_guard_take_conflict() named last */
};

void kvb_profile_guard_init(
    struct kvb_profile_guard *guard, const char *bridge_id, enum kvb_profile profile);
void kvb_profile_guard_done(struct kvb_profile_guard *guard);

/* A handler for P.bridge_status; context is the guard. */
void kvb_profile_guard_receive(void *context, const struct kvb_bus_message *message);

/* How many of our own statuses NATS has delivered back to us. */
uint64_t kvb_profile_guard_echoes(struct kvb_profile_guard *guard);

/* True, once for each other bridge: it has another profile.  Detail names both bridges, and says
 * which of them publishes; the log of both says it. */
bool kvb_profile_guard_take_conflict(
    struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail);

/* NATS is connected: the first call begins the listening period. */
void kvb_profile_guard_begin(struct kvb_profile_guard *guard, uint64_t now_ns);

/* True: events may be published.  Otherwise detail says why not. */
bool kvb_profile_guard_allows(
    struct kvb_profile_guard *guard, uint64_t now_ns, struct kvb_detail *detail);
