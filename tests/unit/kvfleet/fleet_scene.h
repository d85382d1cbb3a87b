#pragma once

#include "core/buf.h"
#include "kvfleet/fleet.h"

#include <stdint.h>

/* A small fleet for tests, and what tests do with it. */

enum { workers = 2, ranks = 2 };

struct fixture {
    struct kvb_trace *trace;
    struct kvb_fleet *fleet;
    struct kvb_buf said; /* all answers of one command */
    struct kvb_buf out;
    uint64_t now_ns;
};

/* The whole answer of the side door as a string; borrowed until the next one. */
const char *say(struct fixture *fixture, const char *command);

/* Everything but the fleet itself: that is for the caller to make. */
struct kvb_fleet_options begin_set_up(struct fixture *fixture);
void set_up_with(
    struct fixture *fixture, uint64_t max_requests, uint32_t count, uint32_t log_changes);
void set_up(struct fixture *fixture, uint64_t max_requests);
void tear_down(struct fixture *fixture);

/* Steps of 20 ms each, on a clock of its own. */
void tick(struct fixture *fixture, unsigned times);
struct kvb_fleet_totals totals_of(const struct fixture *fixture);
struct kvb_fleet_rank_state state_of(const struct fixture *fixture, size_t at);
