#include "load/policies.h"

#include "core/own.h"

#include <math.h>
#include <string.h>

const struct kvb_route_options kvb_route_defaults = {
    .policy = KVB_ROUTE_KV,
    .overlap_weight = 1,
    .prefix_share = 0.5,
    .load_std_factor = 1,
    .weights = { .prefix = 3, .queue = 1, .usage = 1 },
};

/* ---- What is known of a candidate; the names are those of route.h ---- */

uint64_t kvb_route_expected_blocks(const struct kvb_route_candidate *candidate)
{
    const uint64_t expected = candidate->overlap_blocks + candidate->predicted_blocks;

    return expected < candidate->request_blocks ? expected : candidate->request_blocks;
}

uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate)
{
    return candidate->request_blocks - kvb_route_expected_blocks(candidate);
}

static double share_of(const struct kvb_route_candidate *candidate)
{
    const double expected = (double)kvb_route_expected_blocks(candidate);

    return candidate->request_blocks > 0 ? expected / (double)candidate->request_blocks : 0;
}

static double usage_of(const struct kvb_route_candidate *candidate)
{
    const struct kvb_load *load = &candidate->load;

    if (load->gpu_cache_usage_perc > 0 || load->kv_total_blocks == 0) {
        return (double)load->gpu_cache_usage_perc;
    }
    return (double)load->kv_active_blocks / (double)load->kv_total_blocks;
}

static double waiting_of(const struct kvb_route_candidate *candidate)
{
    return (double)candidate->load.num_requests_waiting + (double)candidate->routed_requests;
}

static double running_of(const struct kvb_route_candidate *candidate)
{
    return (double)candidate->load.request_active_slots;
}

static double requests_of(const struct kvb_route_candidate *candidate)
{
    return waiting_of(candidate) + running_of(candidate);
}

/* ---- What is known of those that compete ---- */

void kvb_route_sums_add(struct kvb_route_sums *sums, const struct kvb_route_candidate *candidate)
{
    const double waiting = waiting_of(candidate);
    const double requests = requests_of(candidate);

    sums->min_waiting = sums->count == 0 ? waiting : fmin(sums->min_waiting, waiting);
    sums->max_waiting = fmax(sums->max_waiting, waiting);
    sums->count++;
    sums->requests += requests;
    sums->squares += requests * requests;
    if (candidate->prefill_blocks_per_s > 0) {
        sums->rates += candidate->prefill_blocks_per_s;
        sums->rate_count++;
    }
}

struct kvb_route_fleet
kvb_route_fleet_of(const struct kvb_route_options *options, const struct kvb_route_sums *sums)
{
    const double count = sums->count > 0 ? (double)sums->count : 1;
    const double mean = sums->requests / count;
    /* Of whole numbers below 2^26, sums of squares are exact; rounding may go below 0. */
    const double variance = fmax(sums->squares / count - mean * mean, 0);

    return (struct kvb_route_fleet){
        .min_waiting = sums->min_waiting,
        .max_waiting = sums->max_waiting,
        .max_requests = mean + options->load_std_factor * sqrt(variance),
        .mean_rate = sums->rate_count > 0 ? sums->rates / (double)sums->rate_count : 1,
    };
}

/* ---- The policies ---- */

typedef double (*cost_function)(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate);

/* Blocks of other requests, without those that this one shares with them: what is predicted of its
 * prompt is computed once and stored once. */
static double less_predicted(const struct kvb_route_candidate *candidate, uint64_t blocks)
{
    return blocks > candidate->predicted_blocks ? (double)(blocks - candidate->predicted_blocks)
                                                : 0;
}

static double cost_kv(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double prefill = (double)kvb_route_prefill_blocks(candidate);
    const double pending = less_predicted(candidate, candidate->pending_prefill_blocks);

    (void)fleet;
    return options->overlap_weight * (prefill + pending) +
           less_predicted(candidate, candidate->decode_blocks);
}

static double cost_kv_waiting(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double waiting = fleet->max_waiting > 0 ? waiting_of(candidate) / fleet->max_waiting : 0;

    (void)options;
    return usage_of(candidate) + waiting - 2 * share_of(candidate);
}

static double cost_least_requests(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    (void)options;
    (void)fleet;
    return 4 * waiting_of(candidate) + running_of(candidate);
}

/* Below 0: worth its prefix.  The fraction, less than one token, lets the fewest requests
 * decide between equal prefixes:
 *
 *     -(expected tokens + 1 / (2 + requests))  <  0  <=  requests */
static double cost_prefix_threshold(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double requests = requests_of(candidate);
    const double tokens =
        (double)kvb_route_expected_blocks(candidate) * (double)candidate->block_size;

    if (share_of(candidate) > options->prefix_share && requests <= fleet->max_requests) {
        return -(tokens + 1 / (2 + requests));
    }
    return requests;
}

static double cost_weighted(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const struct kvb_route_weights *weights = &options->weights;
    const double width = fleet->max_waiting - fleet->min_waiting;
    const double queue = width > 0 ? (fleet->max_waiting - waiting_of(candidate)) / width : 1;

    return -(
        weights->prefix * share_of(candidate) + weights->queue * queue +
        weights->usage * (1 - usage_of(candidate)));
}

static double cost_ttft(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double blocks =
        (double)candidate->pending_prefill_blocks + (double)kvb_route_prefill_blocks(candidate);
    const double rate = candidate->prefill_blocks_per_s;

    (void)options;
    return blocks / (rate > 0 ? rate : fleet->mean_rate);
}

static double cost_requests(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    (void)options;
    (void)fleet;
    return requests_of(candidate);
}

/* clang-format off */
static const struct policy {
    const char *name;
    cost_function cost;
    bool needs_fleet;
    enum kvb_route_choice choice;
} policies[KVB_ROUTE_POLICY_COUNT] = {
    [KVB_ROUTE_KV]               = { "kv",               cost_kv,               false, KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_KV_WAITING]       = { "kv_waiting",       cost_kv_waiting,       true,  KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_LEAST_REQUESTS]   = { "least_requests",   cost_least_requests,   false, KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_PREFIX_THRESHOLD] = { "prefix_threshold", cost_prefix_threshold, true,  KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_WEIGHTED]         = { "weighted",         cost_weighted,         true,  KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_TTFT]             = { "ttft",             cost_ttft,             true,  KVB_ROUTE_CHOOSES_LOWEST },
    [KVB_ROUTE_P2C]              = { "p2c",              cost_requests,         false, KVB_ROUTE_CHOOSES_OF_TWO },
    [KVB_ROUTE_ROUND_ROBIN]      = { "round_robin",      cost_requests,         false, KVB_ROUTE_CHOOSES_NEXT },
    [KVB_ROUTE_RANDOM]           = { "random",           cost_requests,         false, KVB_ROUTE_CHOOSES_ANY },
};
/* clang-format on */

double kvb_route_cost(
    const struct kvb_route_options *options, const struct kvb_route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    return policies[options->policy].cost(options, fleet, candidate);
}

const char *kvb_route_policy_name(enum kvb_route_policy policy)
{
    return (unsigned)policy < KVB_ROUTE_POLICY_COUNT ? policies[policy].name : "unknown";
}

kvb_status kvb_route_policy_find(const char *name, enum kvb_route_policy *out_policy)
{
    for (size_t i = 0; i < KVB_COUNT_OF(policies); i++) {
        if (strcmp(policies[i].name, name) == 0) {
            *out_policy = (enum kvb_route_policy)i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

bool kvb_route_policy_needs_fleet(enum kvb_route_policy policy)
{
    return policies[policy].needs_fleet;
}

enum kvb_route_choice kvb_route_policy_choice(enum kvb_route_policy policy)
{
    return policies[policy].choice;
}
