#include "load/route.h"

#include "core/own.h"

#include <math.h>
#include <string.h>

typedef double (*cost_function)(
    const struct kvb_route_options *options, const struct kvb_route_candidate *candidate);

struct policy {
    const char *name;
    cost_function cost; /* lower is better */
};

static double
cost_kv(const struct kvb_route_options *options, const struct kvb_route_candidate *candidate)
{
    const double prefill = (double)kvb_route_prefill_blocks(candidate);

    return options->overlap_weight * prefill + (double)candidate->decode_blocks;
}

/* clang-format off */
static const struct policy policies[KVB_ROUTE_POLICY_COUNT] = {
    [KVB_ROUTE_KV] = { "kv", cost_kv },
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

uint64_t kvb_route_prefill_blocks(const struct kvb_route_candidate *candidate)
{
    return candidate->request_blocks > candidate->overlap_blocks
               ? candidate->request_blocks - candidate->overlap_blocks
               : 0;
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

/* Preference classes of candidates; only those of the best class present compete. */
enum rank { rank_best, rank_doubted, rank_full, rank_full_doubted, rank_never };

static enum rank
candidate_rank(const struct kvb_route_options *options, const struct kvb_route_candidate *candidate)
{
    if (candidate->state == KVB_STREAM_DOWN) {
        return rank_never;
    }
    const bool is_doubted =
        (candidate->state == KVB_STREAM_UNVERIFIED && options->avoids_unverified) ||
        (candidate->state == KVB_STREAM_STALE && options->avoids_stale);
    if (kvb_route_has_capacity(candidate)) {
        return is_doubted ? rank_doubted : rank_best;
    }
    return is_doubted ? rank_full_doubted : rank_full;
}

struct field {
    enum rank rank;
    double lowest;
    double highest;
    size_t lowest_count;
};

static struct field survey_candidates(
    const struct kvb_route_options *options, const struct kvb_route_candidate *candidates,
    size_t count)
{
    struct field field = { .rank = rank_never };

    for (size_t i = 0; i < count; i++) {
        const enum rank rank = candidate_rank(options, &candidates[i]);
        const double cost = candidates[i].cost;
        if (rank < field.rank) {
            field = (struct field){ .rank = rank, .lowest = cost, .highest = cost };
        }
        if (rank != field.rank) {
            continue;
        }
        if (cost < field.lowest) {
            field.lowest = cost;
            field.lowest_count = 0;
        }
        field.lowest_count += cost == field.lowest;
        field.highest = fmax(field.highest, cost);
    }
    return field;
}

static size_t choose_lowest(
    const struct kvb_route_options *options, const struct field *field, uint64_t turn,
    const struct kvb_route_candidate *candidates, size_t count)
{
    size_t skip = (size_t)(turn % field->lowest_count);

    for (size_t i = 0; i < count; i++) {
        const bool is_equal = candidates[i].cost == field->lowest &&
                              candidate_rank(options, &candidates[i]) == field->rank;
        if (is_equal && skip-- == 0) {
            return i;
        }
    }
    return 0; /* not reached: the survey found lowest_count of them */
}

static double weight_of(
    const struct kvb_route_options *options, const struct field *field,
    const struct kvb_route_candidate *candidate)
{
    if (candidate_rank(options, candidate) != field->rank) {
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

static void fill_costs(
    const struct kvb_route_options *options, struct kvb_route_candidate *candidates, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct kvb_route_candidate *candidate = &candidates[i];
        const uint64_t active = candidate->has_load ? candidate->load.kv_active_blocks : 0;
        candidate->decode_blocks = active + candidate->routed_blocks;
        candidate->cost = policies[options->policy].cost(options, candidate);
    }
}

kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen)
{
    fill_costs(options, candidates, count);
    const struct field field = survey_candidates(options, candidates, count);
    if (field.rank == rank_never) {
        return KVB_NOT_FOUND;
    }
    *out_chosen = options->temperature > 0
                      ? choose_by_chance(options, &field, random.draw, candidates, count)
                      : choose_lowest(options, &field, random.turn, candidates, count);
    return KVB_OK;
}
