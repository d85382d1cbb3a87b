#pragma once

#include "load/route.h"

/* The table of route policies, for route.c alone. */

/* What costs refer to, over the candidates that compete. */
struct kvb_route_fleet {
    double min_waiting;
    double max_waiting;
    double max_requests; /* that a prefix is worth: mean + load_std_factor * deviation */
    double mean_rate;    /* of prefill, over those that have one; blocks/s; never 0 */
};

/* Sums over the candidates that compete, added one by one.  {0} to begin with. */
struct kvb_route_sums {
    size_t count;
    double min_waiting;
    double max_waiting;
    double requests;
    double squares; /* of the requests */
    double rates;
    size_t rate_count;
};

/* False: its cost does not look at the others. */
bool kvb_route_policy_needs_fleet(enum kvb_route_policy policy);

void kvb_route_sums_add(struct kvb_route_sums *sums, const struct kvb_route_candidate *candidate);

struct kvb_route_fleet
kvb_route_fleet_of(const struct kvb_route_options *options, const struct kvb_route_sums *sums);

/* By the options' policy; lower is better.  decode_blocks is filled. */
double kvb_route_cost(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate);
