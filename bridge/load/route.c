#include "load/route.h"

#include "core/own.h"

#include <math.h>
#include <string.h>

/* clang-format off */
static const char *const names[KVB_ROUTE_POLICY_COUNT] = {
    [KVB_ROUTE_KV]             = "kv",
    [KVB_ROUTE_LEAST_REQUESTS] = "least_requests",
    [KVB_ROUTE_TTFT]           = "ttft",
    [KVB_ROUTE_ROUND_ROBIN]    = "round_robin",
};

static const struct {
    const char *name;
    const char *instead;
} gone[] = {
    { "kv_waiting",       "kv" },
    { "prefix_threshold", "kv" },
    { "weighted",         "kv" },
    { "p2c",              "least_requests" },
    { "random",           "round_robin" },
};
/* clang-format on */

const char *kvb_route_policy_name(enum kvb_route_policy policy)
{
    return (unsigned)policy < KVB_ROUTE_POLICY_COUNT ? names[policy] : "unknown";
}

kvb_status kvb_route_policy_find(const char *name, enum kvb_route_policy *out_policy)
{
    for (size_t i = 0; i < KVB_COUNT_OF(names); i++) {
        if (strcmp(names[i], name) == 0) {
            *out_policy = (enum kvb_route_policy)i;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}

const char *kvb_route_policy_instead(const char *name)
{
    for (size_t i = 0; i < KVB_COUNT_OF(gone); i++) {
        if (strcmp(gone[i].name, name) == 0) {
            return gone[i].instead;
        }
    }
    return NULL;
}

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

static uint64_t difference_of(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The blocks of other requests, without those that this request shares with them: predicted blocks
 * of its prompt are computed and stored only once. */
static double less_predicted(const struct kvb_route_candidate *candidate, uint64_t blocks)
{
    return (double)difference_of(blocks, candidate->predicted_blocks);
}

/* mean_rate: blocks/s, of the candidates that compete and have a rate; never 0. */
static double cost_of(
    const struct kvb_route_options *options, double mean_rate,
    const struct kvb_route_candidate *candidate)
{
    const double prefill = (double)kvb_route_prefill_blocks(candidate);
    const double waiting =
        (double)candidate->load.num_requests_waiting + (double)candidate->routed_requests;
    const double running =
        (double)difference_of(candidate->load.request_active_slots, candidate->ended_requests);
    const double rate = candidate->prefill_blocks_per_s;

    switch (options->policy) {
    case KVB_ROUTE_KV:
        return options->overlap_weight *
                   (prefill + less_predicted(candidate, candidate->pending_prefill_blocks)) +
               less_predicted(candidate, candidate->decode_blocks);
    case KVB_ROUTE_LEAST_REQUESTS:
        return 4 * waiting + running;
    case KVB_ROUTE_TTFT:
        return ((double)candidate->pending_prefill_blocks + prefill) /
               (rate > 0 ? rate : mean_rate);
    case KVB_ROUTE_ROUND_ROBIN: /* shown in the answer, not compared */
    case KVB_ROUTE_POLICY_COUNT:
        break;
    }
    return waiting + running;
}

/* ---- The rules ---- */

/* Preference classes of candidates; only those of the best class present compete. */
enum rank { rank_best, rank_full, rank_not_ready, rank_never };

static enum rank rank_of(const struct kvb_route_candidate *candidate)
{
    if (candidate->state == KVB_STREAM_DOWN || candidate->is_draining) {
        return rank_never;
    }
    if (candidate->is_not_ready) {
        return rank_not_ready;
    }
    return kvb_route_has_capacity(candidate) ? rank_best : rank_full;
}

/* The candidates that compete, and their costs. */
struct field {
    size_t count;
    double lowest;
    double highest;
    uint64_t most_expected; /* blocks of the prompt */
    size_t most_expected_count;
};

/* First pass: finds the candidates that compete, and the mean of their prefill rates. */
static enum rank
survey_candidates(struct kvb_route_candidate *candidates, size_t count, double *out_mean_rate)
{
    enum rank best = rank_never;
    double rates = 0;
    size_t rate_count = 0;

    for (size_t i = 0; i < count; i++) {
        const enum rank rank = rank_of(&candidates[i]);
        candidates[i].preference = (uint8_t)rank;
        if (rank < best) {
            /* a better class: those before it do not compete, so their rates do not count */
            best = rank;
            rates = 0;
            rate_count = 0;
        }
        if (rank == best && candidates[i].prefill_blocks_per_s > 0) {
            rates += candidates[i].prefill_blocks_per_s;
            rate_count++;
        }
    }
    *out_mean_rate = rate_count > 0 ? rates / (double)rate_count : 1;
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
    /* A block that is used in part is in use. */
    return tokens / of_events + (tokens % of_events > 0);
}

/* Second pass: computes the costs. */
static struct field fill_costs(
    const struct kvb_route_options *options, enum rank best, double mean_rate,
    struct kvb_route_candidate *candidates, size_t count)
{
    struct field field = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct kvb_route_candidate *candidate = &candidates[i];
        candidate->decode_blocks =
            difference_of(active_blocks_of(candidate), candidate->ended_blocks) +
            candidate->routed_blocks;
        candidate->cost = cost_of(options, mean_rate, candidate);
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

    /* The cheapest has weight 1, so the sum is never 0, however low the temperature is. */
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

kvb_status kvb_route_choose(
    const struct kvb_route_options *options, double draw, struct kvb_route_candidate *candidates,
    size_t count, size_t *out_chosen)
{
    const bool is_in_turn = options->policy == KVB_ROUTE_ROUND_ROBIN;
    double mean_rate = 1;
    size_t chosen = 0;

    const enum rank best = survey_candidates(candidates, count, &mean_rate);
    const struct field field = fill_costs(options, best, mean_rate, candidates, count);
    if (field.count == 0) {
        return KVB_NOT_FOUND;
    }
    /* Without a temperature the cheapest ones take turns; in round robin all do. */
    if (is_in_turn) {
        chosen = choose_in_turn(field.highest, candidates, count);
    } else if (options->temperature > 0) {
        chosen = choose_by_chance(options, &field, draw, candidates, count);
    } else {
        chosen = choose_in_turn(field.lowest, candidates, count);
    }
    /* A worker that alone has the most of the prompt got this request for that.  If it counted as
     * its turn, the next new prompt would avoid the worker. */
    const bool alone_has_most = field.most_expected_count == 1 &&
                                expected_blocks(&candidates[chosen]) == field.most_expected;
    candidates[chosen].is_turn = is_in_turn || !alone_has_most;
    *out_chosen = chosen;
    return KVB_OK;
}
