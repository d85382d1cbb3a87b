#include "load/route.h"

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

bool kvb_route_has_capacity(const struct kvb_route_candidate *candidate)
{
    const struct kvb_load *load = &candidate->load;

    if (!candidate->has_load) {
        return true;
    }
    const bool has_slot =
        load->request_total_slots == 0 || load->request_active_slots < load->request_total_slots;
    const bool has_block =
        load->kv_total_blocks == 0 || load->kv_active_blocks < load->kv_total_blocks;
    return has_slot && has_block;
}

/* ---- Values of one candidate, with the names of route.h ---- */

/* Blocks of the request that the worker has, or is expected to have soon. */
static uint64_t expected_blocks(const struct kvb_route_candidate *candidate)
{
    const uint64_t expected = candidate->overlap_blocks + candidate->predicted_blocks;

    return expected < candidate->request_blocks ? expected : candidate->request_blocks;
}

uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate)
{
    return candidate->request_blocks - expected_blocks(candidate);
}

static double share_of(const struct kvb_route_candidate *candidate)
{
    const double expected = (double)expected_blocks(candidate);

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

/* ---- Values of all candidates that compete ---- */

/* The values of all candidates that compete, which costs refer to. */
struct route_fleet {
    double min_waiting;
    double max_waiting;
    double max_requests; /* limit for a choice by prefix: mean + load_std_factor * deviation */
    double mean_rate;    /* mean prefill rate of the candidates that have one; blocks/s; never 0 */
};

/* Sums over the candidates that compete, added one by one.  {0} to begin with. */
struct route_sums {
    size_t count;
    double min_waiting;
    double max_waiting;
    double requests;
    double squares; /* of the requests */
    double rates;
    size_t rate_count;
};

static void add_to_sums(struct route_sums *sums, const struct kvb_route_candidate *candidate)
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

static struct route_fleet
fleet_of(const struct kvb_route_options *options, const struct route_sums *sums)
{
    const double count = sums->count > 0 ? (double)sums->count : 1;
    const double mean = sums->requests / count;
    /* The sums of squares of whole numbers below 2^26 are exact.  Rounding may give a value below
     * 0. */
    const double variance = fmax(sums->squares / count - mean * mean, 0);

    return (struct route_fleet){
        .min_waiting = sums->min_waiting,
        .max_waiting = sums->max_waiting,
        .max_requests = mean + options->load_std_factor * sqrt(variance),
        .mean_rate = sums->rate_count > 0 ? sums->rates / (double)sums->rate_count : 1,
    };
}

/* ---- The policies ---- */

typedef double (*cost_function)(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate);

/* The blocks of other requests, without those that this request shares with them: predicted blocks
 * of its prompt are computed and stored only once. */
static double less_predicted(const struct kvb_route_candidate *candidate, uint64_t blocks)
{
    return blocks > candidate->predicted_blocks ? (double)(blocks - candidate->predicted_blocks)
                                                : 0;
}

static double cost_kv(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double prefill = (double)kvb_route_prefill_blocks(candidate);
    const double pending = less_predicted(candidate, candidate->pending_prefill_blocks);

    (void)fleet;
    return options->overlap_weight * (prefill + pending) +
           less_predicted(candidate, candidate->decode_blocks);
}

static double cost_kv_waiting(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double waiting = fleet->max_waiting > 0 ? waiting_of(candidate) / fleet->max_waiting : 0;

    (void)options;
    return usage_of(candidate) + waiting - 2 * share_of(candidate);
}

static double cost_least_requests(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    (void)options;
    (void)fleet;
    return 4 * waiting_of(candidate) + running_of(candidate);
}

/* Below 0: chosen for its prefix.  The fraction is less than one token, so among equal prefixes the
 * fewest requests decide:
 *
 *     -(expected tokens + 1 / (2 + requests))  <  0  <=  requests */
static double cost_prefix_threshold(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double requests = requests_of(candidate);
    const double tokens = (double)expected_blocks(candidate) * (double)candidate->block_size;

    if (share_of(candidate) > options->prefix_share && requests <= fleet->max_requests) {
        return -(tokens + 1 / (2 + requests));
    }
    return requests;
}

static double cost_weighted(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
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
    const struct kvb_route_options *options, const struct route_fleet *fleet,
    const struct kvb_route_candidate *candidate)
{
    const double blocks =
        (double)candidate->pending_prefill_blocks + (double)kvb_route_prefill_blocks(candidate);
    const double rate = candidate->prefill_blocks_per_s;

    (void)options;
    return blocks / (rate > 0 ? rate : fleet->mean_rate);
}

static double cost_requests(
    const struct kvb_route_options *options, const struct route_fleet *fleet,
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

enum kvb_route_choice kvb_route_policy_choice(enum kvb_route_policy policy)
{
    return policies[policy].choice;
}

/* ---- The rules ---- */

/* Preference classes of candidates; only those of the best class present compete. */
enum rank { rank_best, rank_doubted, rank_full, rank_full_doubted, rank_not_ready, rank_never };

static enum rank
candidate_rank(const struct kvb_route_options *options, const struct kvb_route_candidate *candidate)
{
    if (candidate->state == KVB_STREAM_DOWN || candidate->is_draining) {
        return rank_never;
    }
    if (candidate->is_not_ready) {
        return rank_not_ready;
    }
    const bool is_doubted =
        (candidate->state == KVB_STREAM_UNVERIFIED && options->avoids_unverified) ||
        (candidate->state == KVB_STREAM_STALE && options->avoids_stale);
    if (kvb_route_has_capacity(candidate)) {
        return is_doubted ? rank_doubted : rank_best;
    }
    return is_doubted ? rank_full_doubted : rank_full;
}

/* The candidates that compete, and their costs. */
struct field {
    size_t count;
    double lowest;
    double highest;
    uint64_t most_expected; /* blocks of the prompt */
    size_t most_expected_count;
};

/* First pass: finds the candidates that compete, and the values that their costs refer to. */
static enum rank survey_candidates(
    const struct kvb_route_options *options, struct kvb_route_candidate *candidates, size_t count,
    struct route_sums *out_sums)
{
    const bool needs_fleet = policies[options->policy].needs_fleet;
    enum rank best = rank_never;

    *out_sums = (struct route_sums){ 0 };
    for (size_t i = 0; i < count; i++) {
        const enum rank rank = candidate_rank(options, &candidates[i]);
        candidates[i].preference = (uint8_t)rank;
        if (rank < best) {
            best = rank;
            *out_sums = (struct route_sums){ 0 };
        }
        if (needs_fleet && rank == best && rank != rank_never) {
            add_to_sums(out_sums, &candidates[i]);
        }
    }
    return best;
}

static void note_competing(struct field *field, const struct kvb_route_candidate *candidate)
{
    const double cost = candidate->cost;
    const uint64_t expected = expected_blocks(candidate);

    if (field->count == 0 || expected > field->most_expected) {
        field->most_expected = expected;
        field->most_expected_count = 0;
    }
    field->most_expected_count += expected == field->most_expected;
    field->lowest = field->count == 0 ? cost : fmin(field->lowest, cost);
    field->highest = field->count == 0 ? cost : fmax(field->highest, cost);
    field->count++;
}

/* An engine's page may count blocks of another size than its events: both hold the same tokens. */
static uint64_t active_blocks_of(const struct kvb_route_candidate *candidate)
{
    const uint64_t active = candidate->has_load ? candidate->load.kv_active_blocks : 0;
    const uint32_t of_load = candidate->load_block_size;
    const uint32_t of_events = candidate->block_size;
    uint64_t tokens = 0;

    if (of_load == 0 || of_events == 0 || of_load == of_events ||
        __builtin_mul_overflow(active, of_load, &tokens)) {
        return active;
    }
    return tokens / of_events + (tokens % of_events > 0);
}

/* Second pass: computes the costs. */
static struct field fill_costs(
    const struct kvb_route_options *options, enum rank best, const struct route_sums *sums,
    struct kvb_route_candidate *candidates, size_t count)
{
    const struct route_fleet fleet = fleet_of(options, sums);
    struct field field = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct kvb_route_candidate *candidate = &candidates[i];
        candidate->decode_blocks = active_blocks_of(candidate) + candidate->routed_blocks;
        candidate->cost = policies[options->policy].cost(options, &fleet, candidate);
        candidate->competes = best != rank_never && candidate->preference == best;
        if (candidate->competes) {
            note_competing(&field, candidate);
        }
    }
    return field;
}

/* ---- Third pass: the choice among the candidates that compete ---- */

static bool has_earlier_turn(
    const struct kvb_route_candidate *candidate, const struct kvb_route_candidate *other)
{
    return candidate->last_turn != other->last_turn ? candidate->last_turn < other->last_turn
                                                    : candidate->place < other->place;
}

/* The one whose turn it is, of those that compete and cost at most max_cost. */
static size_t
choose_in_turn(double max_cost, const struct kvb_route_candidate *candidates, size_t count)
{
    size_t chosen = count;

    for (size_t i = 0; i < count; i++) {
        if (candidates[i].competes && candidates[i].cost <= max_cost &&
            (chosen == count || has_earlier_turn(&candidates[i], &candidates[chosen]))) {
            chosen = i;
        }
    }
    return chosen;
}

static double weight_of(
    const struct kvb_route_options *options, const struct field *field,
    const struct kvb_route_candidate *candidate)
{
    if (!candidate->competes) {
        return 0;
    }
    const double width = field->highest - field->lowest;
    const double above = width > 0 ? (candidate->cost - field->lowest) / width : 0;
    return exp(-above / options->temperature);
}

static size_t choose_by_chance(
    const struct kvb_route_options *options, const struct field *field, double draw,
    const struct kvb_route_candidate *candidates, size_t count)
{
    double total = 0;
    size_t chosen = 0;

    for (size_t i = 0; i < count; i++) {
        total += weight_of(options, field, &candidates[i]);
    }
    double left = draw * total;
    for (size_t i = 0; i < count; i++) {
        const double weight = weight_of(options, field, &candidates[i]);
        if (weight <= 0) {
            continue;
        }
        chosen = i; /* the last one with weight, if rounding runs past the end */
        if (left < weight) {
            break;
        }
        left -= weight;
    }
    return chosen;
}

/* The candidate with this number among those that compete. */
static size_t
find_competing(size_t number, const struct kvb_route_candidate *candidates, size_t count)
{
    size_t found = 0;

    for (size_t i = 0; i < count; i++) {
        if (!candidates[i].competes) {
            continue;
        }
        found = i;
        if (number-- == 0) {
            break;
        }
    }
    return found;
}

static size_t draw_below(double draw, size_t count)
{
    const size_t number = (size_t)(draw * (double)count);

    return number < count ? number : count - 1;
}

/* Chooses from two random candidates, which differ if there are at least two. */
static size_t choose_of_two(
    const struct field *field, struct kvb_route_random random,
    const struct kvb_route_candidate *candidates, size_t count)
{
    const size_t first = draw_below(random.draw, field->count);
    const size_t one = find_competing(first, candidates, count);

    if (field->count < 2) {
        return one;
    }
    const size_t second = draw_below(random.second_draw, field->count - 1);
    const size_t other = find_competing(second + (second >= first), candidates, count);
    return candidates[other].cost < candidates[one].cost ? other : one;
}

static size_t choose_candidate(
    const struct kvb_route_options *options, const struct field *field,
    struct kvb_route_random random, const struct kvb_route_candidate *candidates, size_t count)
{
    switch (kvb_route_policy_choice(options->policy)) {
    case KVB_ROUTE_CHOOSES_OF_TWO:
        return choose_of_two(field, random, candidates, count);
    case KVB_ROUTE_CHOOSES_NEXT:
        return choose_in_turn(field->highest, candidates, count);
    case KVB_ROUTE_CHOOSES_ANY:
        return find_competing(draw_below(random.draw, field->count), candidates, count);
    case KVB_ROUTE_CHOOSES_LOWEST:
        break;
    }
    return options->temperature > 0
               ? choose_by_chance(options, field, random.draw, candidates, count)
               : choose_in_turn(field->lowest, candidates, count);
}

static bool is_turn(
    const struct kvb_route_options *options, const struct field *field,
    const struct kvb_route_candidate *chosen)
{
    const bool has_most =
        field->most_expected_count == 1 && expected_blocks(chosen) == field->most_expected;

    return kvb_route_policy_choice(options->policy) == KVB_ROUTE_CHOOSES_NEXT || !has_most;
}

kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen)
{
    struct route_sums sums;

    const enum rank best = survey_candidates(options, candidates, count, &sums);
    const struct field field = fill_costs(options, best, &sums, candidates, count);
    if (field.count == 0) {
        return KVB_NOT_FOUND;
    }
    const size_t chosen = choose_candidate(options, &field, random, candidates, count);
    candidates[chosen].is_turn = is_turn(options, &field, &candidates[chosen]);
    *out_chosen = chosen;
    return KVB_OK;
}
