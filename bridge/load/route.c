#include "load/route.h"

#include "load/policies.h"

#include <math.h>

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

/* ---- The rules ---- */

/* Preference classes of candidates; only those of the best class present compete. */
enum rank { rank_best, rank_doubted, rank_full, rank_full_doubted, rank_never };

static enum rank
candidate_rank(const struct kvb_route_options *options, const struct kvb_route_candidate *candidate)
{
    if (candidate->state == KVB_STREAM_DOWN || candidate->is_draining) {
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

/* Those that compete, and their costs. */
struct field {
    size_t count;
    double lowest;
    double highest;
    size_t lowest_count;
};

/* First pass: who competes, and what their costs refer to. */
static enum rank survey_candidates(
    const struct kvb_route_options *options, struct kvb_route_candidate *candidates, size_t count,
    struct kvb_route_sums *out_sums)
{
    const bool needs_fleet = kvb_route_policy_needs_fleet(options->policy);
    enum rank best = rank_never;

    *out_sums = (struct kvb_route_sums){ 0 };
    for (size_t i = 0; i < count; i++) {
        const enum rank rank = candidate_rank(options, &candidates[i]);
        candidates[i].preference = (uint8_t)rank;
        if (rank < best) {
            best = rank;
            *out_sums = (struct kvb_route_sums){ 0 };
        }
        if (needs_fleet && rank == best && rank != rank_never) {
            kvb_route_sums_add(out_sums, &candidates[i]);
        }
    }
    return best;
}

static void note_cost(struct field *field, double cost)
{
    if (field->count == 0 || cost < field->lowest) {
        field->lowest = cost;
        field->lowest_count = 0;
    }
    field->lowest_count += cost == field->lowest;
    field->highest = field->count == 0 ? cost : fmax(field->highest, cost);
    field->count++;
}

/* Second pass. */
static struct field fill_costs(
    const struct kvb_route_options *options, enum rank best, const struct kvb_route_sums *sums,
    struct kvb_route_candidate *candidates, size_t count)
{
    const struct kvb_route_fleet fleet = kvb_route_fleet_of(options, sums);
    struct field field = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct kvb_route_candidate *candidate = &candidates[i];
        const uint64_t active = candidate->has_load ? candidate->load.kv_active_blocks : 0;
        candidate->decode_blocks = active + candidate->routed_blocks;
        candidate->cost = kvb_route_cost(options, &fleet, candidate);
        candidate->competes = best != rank_never && candidate->preference == best;
        if (candidate->competes) {
            note_cost(&field, candidate->cost);
        }
    }
    return field;
}

/* ---- The choices, among those that compete: the third pass ---- */

static size_t choose_lowest(
    const struct field *field, uint64_t turn, const struct kvb_route_candidate *candidates,
    size_t count)
{
    size_t skip = (size_t)(turn % field->lowest_count);

    for (size_t i = 0; i < count; i++) {
        if (candidates[i].competes && candidates[i].cost == field->lowest && skip-- == 0) {
            return i;
        }
    }
    return 0; /* not reached: there are lowest_count of them */
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

/* Two different ones, where there are two. */
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

/* The lowest place from next_place on; behind the last place the first follows. */
static size_t
choose_next(uint32_t next_place, const struct kvb_route_candidate *candidates, size_t count)
{
    uint32_t nearest = UINT32_MAX;
    size_t chosen = count;

    for (size_t i = 0; i < count; i++) {
        const uint32_t distance = candidates[i].place - next_place; /* modulo 2^32 */
        if (candidates[i].competes && (chosen == count || distance < nearest)) {
            nearest = distance;
            chosen = i;
        }
    }
    return chosen;
}

static size_t choose_candidate(
    const struct kvb_route_options *options, const struct field *field,
    struct kvb_route_random random, const struct kvb_route_candidate *candidates, size_t count)
{
    switch (kvb_route_policy_choice(options->policy)) {
    case KVB_ROUTE_CHOOSES_OF_TWO:
        return choose_of_two(field, random, candidates, count);
    case KVB_ROUTE_CHOOSES_NEXT:
        return choose_next(random.next_place, candidates, count);
    case KVB_ROUTE_CHOOSES_ANY:
        return find_competing(draw_below(random.draw, field->count), candidates, count);
    case KVB_ROUTE_CHOOSES_LOWEST:
        break;
    }
    return options->temperature > 0
               ? choose_by_chance(options, field, random.draw, candidates, count)
               : choose_lowest(field, random.turn, candidates, count);
}

kvb_status kvb_route_choose(
    const struct kvb_route_options *options, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count, size_t *out_chosen)
{
    struct kvb_route_sums sums;

    const enum rank best = survey_candidates(options, candidates, count, &sums);
    const struct field field = fill_costs(options, best, &sums, candidates, count);
    if (field.count == 0) {
        return KVB_NOT_FOUND;
    }
    *out_chosen = choose_candidate(options, &field, random, candidates, count);
    return KVB_OK;
}
