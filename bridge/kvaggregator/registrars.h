#pragma once

#include "wire/query/forward.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Which bridge of a component gets a registration: decides, sends nothing.
 *
 *     POST /register     the bridge that reads ranks of the worker already, where several do the
 *                        one with the most; else the bridge that reads the fewest ranks
 *     POST /unregister   each bridge that reads ranks of the worker, one after another
 *
 * Equal bridges are in the order of `bridge`, so that two aggregators with the same request choose
 * the same one, and that one refuses the second.
 *
 * Threads: the caller locks.  Times are of the monotonic clock, in ns. */

enum {
    kvb_max_registrars = 64,
    kvb_registrars_first_ms = 500, /* the longest wait for offers */
    /* After each offer, for a further one, once a bridge that reads the worker has answered.
     * Without such an offer the longest wait is due: that bridge may be busy, and two must not read
     * it. */
    kvb_registrars_next_ms = 100
};

struct kvb_registrars {
    uint64_t asked_ns;
    uint64_t newest_ns; /* when the newest offer came */
    bool has_holder;    /* some offer is of a bridge that reads the worker */
    bool has_nobody;    /* nats-server says that no bridge subscribes */
    size_t count;
    size_t left_out; /* offers beyond kvb_max_registrars: those that would be chosen last */
    struct kvb_forward_offer offers[kvb_max_registrars];
};

/* A second offer of a bridge is ignored. */
void kvb_registrars_add(
    struct kvb_registrars *registrars, const struct kvb_forward_offer *offer, uint64_t now_ns);

/* When no more offers are awaited. */
uint64_t kvb_registrars_until_ns(const struct kvb_registrars *registrars);

/* NULL: there is no offer. */
const struct kvb_forward_offer *kvb_registrars_choose(const struct kvb_registrars *registrars);

/* The first bridge from place *at on that reads ranks of the worker; *at is then the place behind
 * it.  NULL: there is none. */
const struct kvb_forward_offer *
kvb_registrars_next_holder(const struct kvb_registrars *registrars, size_t *at);
