#pragma once

#include "core/buf.h"
#include "fleet/fleet.h"

#include <stdint.h>

/* A small fleet, and what tests do with it. */

enum { workers = 2, ranks = 2 };

struct fixture {
    struct kvb_trace *trace;
    struct kvb_fleet *fleet;
    struct kvb_buf said; /* all answers to one command */
    struct kvb_buf out;
    uint64_t now_ns;
};

/* The whole answer of the control socket as a string, valid until the next one. */
const char *say(struct fixture *fixture, const char *command);

/* Prepares everything but the fleet itself, which the caller makes. */
struct kvb_fleet_options begin_set_up(struct fixture *fixture);
void set_up_with(
    struct fixture *fixture, uint64_t max_requests, uint32_t count, uint32_t log_changes);
void set_up(struct fixture *fixture, uint64_t max_requests);
void tear_down(struct fixture *fixture);

/* Steps of 20 ms each, on a simulated clock. */
void tick(struct fixture *fixture, unsigned times);
struct kvb_fleet_totals totals_of(const struct fixture *fixture);
struct kvb_fleet_rank_state state_of(const struct fixture *fixture, size_t at);
