#include "kvb_test.h"

#include "core/random.h"
#include "load/route.h"

#include <math.h>
#include <string.h>

/* Compares the policies on random fleets with the formulas of route.h, written here a second time:
 * one candidate at a time, and each figure of the fleet computed anew, sorted or counted instead of
 * kept incrementally. */

enum { fleets = 3000, max_workers = 24 };

struct fleet {
    struct kvb_route_candidate workers[max_workers];
    size_t count;
};

/* ---- Random fleets; ties, zeros and full workers are frequent ---- */

static uint64_t pick(uint64_t *seed, uint64_t below)
{
    return kvb_random_chance(seed, 0.3) ? 0 : kvb_random_below(seed, below);
}

static enum kvb_stream_state pick_state(uint64_t *seed)
{
    return kvb_random_chance(seed, 0.6)
               ? KVB_STREAM_EXACT
               : (enum kvb_stream_state)kvb_random_below(seed, KVB_STREAM_STATE_COUNT);
}

static struct kvb_route_candidate
make_worker(uint64_t *seed, uint32_t place, uint64_t request_blocks)
{
    struct kvb_route_candidate worker = {
        .state = pick_state(seed),
        .is_draining = kvb_random_chance(seed, 0.1),
        .is_not_ready = kvb_random_chance(seed, 0.2),
        .place = place,
        .last_turn = pick(seed, 8),
        .block_size = 16,
        .request_blocks = request_blocks,
        .overlap_blocks = pick(seed, request_blocks + 1),
        .predicted_blocks = pick(seed, 6),
        .has_load = kvb_random_chance(seed, 0.9),
        .pending_prefill_blocks = pick(seed, 50),
        .prefill_blocks_per_s = kvb_random_chance(seed, 0.5) ? 0 : 1 + (double)pick(seed, 300),
    };
    if (worker.has_load) {
        worker.load = (struct kvb_load){
            .request_active_slots = pick(seed, 9),
            .request_total_slots = pick(seed, 2) * 8,
            .kv_active_blocks = pick(seed, 101),
            .kv_total_blocks = pick(seed, 2) * 100,
            .num_requests_waiting = pick(seed, 5),
            .gpu_cache_usage_perc = (float)pick(seed, 11) / 10,
        };
        worker.routed_blocks = pick(seed, 40);
        worker.routed_requests = pick(seed, 4);
    }
    return worker;
}

static struct fleet make_fleet(uint64_t *seed)
{
    struct fleet fleet = { .count = 1 + kvb_random_below(seed, max_workers) };
    const uint64_t request_blocks = kvb_random_below(seed, 20);
    const uint32_t stride = 1 + (uint32_t)kvb_random_below(seed, 5);

    for (size_t i = 0; i < fleet.count; i++) {
        /* in another order than the places, as when the best overlap comes first */
        const uint32_t place = (uint32_t)((i * 7) % 31) * stride;
        fleet.workers[i] = make_worker(seed, place, request_blocks);
    }
    return fleet;
}

static struct kvb_route_options make_options(uint64_t *seed, enum kvb_route_policy policy)
{
    return (struct kvb_route_options){
        .policy = policy,
        .overlap_weight = (double)pick(seed, 5) / 2,
        .prefix_share = (double)pick(seed, 11) / 10,
        .load_std_factor = (double)pick(seed, 5) / 2,
        .weights = { (double)pick(seed, 4), (double)pick(seed, 4), (double)pick(seed, 4) },
        .avoids_unverified = kvb_random_chance(seed, 0.5),
        .avoids_stale = kvb_random_chance(seed, 0.5),
    };
}

/* ---- The rules, written a second time ---- */

static bool may_never(const struct kvb_route_candidate *worker)
{
    return worker->state == KVB_STREAM_DOWN || worker->is_draining;
}

static bool is_full(const struct kvb_route_candidate *worker)
{
    const struct kvb_load *load = &worker->load;

    return worker->has_load &&
           ((load->request_total_slots > 0 &&
             load->request_active_slots >= load->request_total_slots) ||
            (load->kv_total_blocks > 0 && load->kv_active_blocks >= load->kv_total_blocks));
}

static bool
is_doubted(const struct kvb_route_options *options, const struct kvb_route_candidate *worker)
{
    return (options->avoids_unverified && worker->state == KVB_STREAM_UNVERIFIED) ||
           (options->avoids_stale && worker->state == KVB_STREAM_STALE);
}

/* Narrows the set of permitted candidates: those that are not full, if there are any; then those
 * that are not doubted; those that are not ready only where there are no others. */
static struct fleet
rivals_of(const struct kvb_route_options *options, const struct fleet *fleet, size_t *out_at)
{
    struct fleet rivals = { .count = 0 };

    for (int round = 0; round < 5 && rivals.count == 0; round++) {
        for (size_t i = 0; i < fleet->count; i++) {
            const struct kvb_route_candidate *worker = &fleet->workers[i];
            const bool is_of_round = !worker->is_not_ready && is_full(worker) == (round >= 2) &&
                                     is_doubted(options, worker) == (round % 2 == 1);
            if (!may_never(worker) && (round == 4 ? worker->is_not_ready : is_of_round)) {
                out_at[rivals.count] = i;
                rivals.workers[rivals.count++] = *worker;
            }
        }
    }
    return rivals;
}

/* ---- The formulas, written a second time ---- */

struct numbers {
    double request, expected, prefill, share, pending, active, total, usage, waiting, running;
};

static struct numbers numbers_of(const struct kvb_route_candidate *worker)
{
    struct numbers n = {
        .request = (double)worker->request_blocks,
        .expected = (double)(worker->overlap_blocks + worker->predicted_blocks),
        .pending = (double)worker->pending_prefill_blocks,
        .active = (double)worker->load.kv_active_blocks,
        .total = (double)worker->load.kv_total_blocks,
        .usage = (double)worker->load.gpu_cache_usage_perc,
        .waiting = (double)(worker->load.num_requests_waiting + worker->routed_requests),
        .running = (double)worker->load.request_active_slots,
    };

    n.expected = n.expected > n.request ? n.request : n.expected;
    n.prefill = n.request - n.expected;
    n.share = n.request == 0 ? 0 : n.expected / n.request;
    if (n.usage == 0 && n.total > 0) {
        n.usage = n.active / n.total;
    }
    return n;
}

static double max_waiting(const struct fleet *rivals, double sign)
{
    double most = -INFINITY;

    for (size_t i = 0; i < rivals->count; i++) {
        const double waiting = sign * numbers_of(&rivals->workers[i]).waiting;
        most = waiting > most ? waiting : most;
    }
    return sign * most;
}

static double mean_requests(const struct fleet *rivals)
{
    double sum = 0;

    for (size_t i = 0; i < rivals->count; i++) {
        const struct numbers n = numbers_of(&rivals->workers[i]);
        sum += n.waiting + n.running;
    }
    return sum / (double)rivals->count;
}

static double deviation_of_requests(const struct fleet *rivals)
{
    const double mean = mean_requests(rivals);
    double sum = 0;

    for (size_t i = 0; i < rivals->count; i++) {
        const struct numbers n = numbers_of(&rivals->workers[i]);
        sum += pow(n.waiting + n.running - mean, 2);
    }
    return sqrt(sum / (double)rivals->count);
}

static double mean_rate(const struct fleet *rivals)
{
    double sum = 0;
    double known = 0;

    for (size_t i = 0; i < rivals->count; i++) {
        sum += rivals->workers[i].prefill_blocks_per_s;
        known += rivals->workers[i].prefill_blocks_per_s > 0;
    }
    return known > 0 ? sum / known : 1;
}

/* Predicted blocks are counted for an earlier request already, so they count once. */
static double without(const struct kvb_route_candidate *worker, double blocks)
{
    return fmax(blocks - (double)worker->predicted_blocks, 0);
}

static double plain_cost(
    const struct kvb_route_options *options, const struct fleet *rivals,
    const struct kvb_route_candidate *worker)
{
    const struct numbers n = numbers_of(worker);
    const double most = max_waiting(rivals, 1);
    const double least = max_waiting(rivals, -1);
    const double rate =
        worker->prefill_blocks_per_s > 0 ? worker->prefill_blocks_per_s : mean_rate(rivals);

    switch (options->policy) {
    case KVB_ROUTE_KV:
        return options->overlap_weight * (n.prefill + without(worker, n.pending)) +
               without(worker, n.active + (double)worker->routed_blocks);
    case KVB_ROUTE_KV_WAITING:
        return -(2 * n.share - n.usage - (most > 0 ? n.waiting / most : 0));
    case KVB_ROUTE_LEAST_REQUESTS:
        return n.waiting * 4 + n.running;
    case KVB_ROUTE_WEIGHTED:
        return -(
            options->weights.prefix * n.share +
            options->weights.queue * (most > least ? (most - n.waiting) / (most - least) : 1) +
            options->weights.usage * (1 - n.usage));
    case KVB_ROUTE_TTFT:
        return (n.pending + n.prefill) / rate;
    default:
        return n.waiting + n.running;
    }
}

/* prefix_threshold as AIBrix's gateway computes it, in two steps. */
static bool is_prefix_choice(
    const struct kvb_route_options *options, const struct fleet *rivals,
    const struct kvb_route_candidate *chosen)
{
    const double limit =
        mean_requests(rivals) + options->load_std_factor * deviation_of_requests(rivals) + 1e-9;
    const struct numbers c = numbers_of(chosen);
    double longest = -1;
    double fewest = INFINITY; /* fewest requests, among those with the longest prefix */
    double fewest_of_all = INFINITY;

    for (size_t i = 0; i < rivals->count; i++) {
        const struct numbers n = numbers_of(&rivals->workers[i]);
        const double requests = n.waiting + n.running;
        fewest_of_all = fmin(fewest_of_all, requests);
        if (n.share <= options->prefix_share || requests > limit || n.expected < longest) {
            continue;
        }
        fewest = n.expected > longest ? requests : fmin(fewest, requests);
        longest = n.expected;
    }
    if (longest < 0) {
        return c.waiting + c.running == fewest_of_all;
    }
    return c.expected == longest && c.waiting + c.running == fewest;
}

/* ---- The choices, written a second time ---- */

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fmax(fabs(a), fabs(b)));
}

/* A number that orders all turns: the last turn, then the place. */
static double turn_order(const struct kvb_route_candidate *worker)
{
    return (double)worker->last_turn * 1000 + (double)worker->place;
}

/* The one of the given candidates whose turn it is. */
static size_t first_in_turn(const struct fleet *rivals, const size_t *at, size_t count)
{
    size_t first = at[0];

    for (size_t i = 1; i < count; i++) {
        if (turn_order(&rivals->workers[at[i]]) < turn_order(&rivals->workers[first])) {
            first = at[i];
        }
    }
    return first;
}

static size_t next_in_turn(const struct fleet *rivals)
{
    size_t all[max_workers] = { 0 };

    for (size_t i = 0; i < rivals->count; i++) {
        all[i] = i;
    }
    return first_in_turn(rivals, all, rivals->count);
}

static size_t of_two(
    const struct kvb_route_options *options, const struct fleet *rivals,
    struct kvb_route_random random)
{
    size_t others[max_workers];
    size_t other_count = 0;
    const size_t one = (size_t)(random.draw * (double)rivals->count);

    for (size_t i = 0; i < rivals->count; i++) {
        others[other_count] = i;
        other_count += i != one;
    }
    if (other_count == 0) {
        return one;
    }
    const size_t other = others[(size_t)(random.second_draw * (double)other_count)];
    const double cost = plain_cost(options, rivals, &rivals->workers[one]);
    return plain_cost(options, rivals, &rivals->workers[other]) < cost ? other : one;
}

/* The one of the cheapest candidates whose turn it is. */
static size_t cheapest_in_turn(const struct kvb_route_options *options, const struct fleet *rivals)
{
    size_t cheapest[max_workers] = { 0 };
    size_t count = 0;
    double lowest = INFINITY;

    for (size_t i = 0; i < rivals->count; i++) {
        lowest = fmin(lowest, plain_cost(options, rivals, &rivals->workers[i]));
    }
    for (size_t i = 0; i < rivals->count; i++) {
        if (plain_cost(options, rivals, &rivals->workers[i]) == lowest) {
            cheapest[count++] = i;
        }
    }
    assert_true(count > 0);
    return first_in_turn(rivals, cheapest, count);
}

static void check_choice(
    const struct kvb_route_options *options, const struct fleet *rivals,
    struct kvb_route_random random, size_t chosen)
{
    const struct kvb_route_candidate *worker = &rivals->workers[chosen];

    switch (options->policy) {
    case KVB_ROUTE_PREFIX_THRESHOLD:
        assert_true(is_prefix_choice(options, rivals, worker));
        return;
    case KVB_ROUTE_P2C:
        assert_int_equal(chosen, of_two(options, rivals, random));
        return;
    case KVB_ROUTE_ROUND_ROBIN:
        assert_int_equal(chosen, next_in_turn(rivals));
        return;
    case KVB_ROUTE_RANDOM:
        assert_int_equal(chosen, (size_t)(random.draw * (double)rivals->count));
        return;
    case KVB_ROUTE_KV:
    /* integers and halves, so that the two cannot differ by rounding */
    case KVB_ROUTE_LEAST_REQUESTS:
        assert_int_equal(chosen, cheapest_in_turn(options, rivals));
        return;
    default:
        for (size_t i = 0; i < rivals->count; i++) {
            const double cost = plain_cost(options, rivals, &rivals->workers[i]);
            const double best = plain_cost(options, rivals, worker);
            assert_true(best < cost || is_near(best, cost));
        }
    }
}

static void check_costs(
    const struct kvb_route_options *options, const struct fleet *fleet, const struct fleet *rivals,
    const size_t *rival_at)
{
    size_t competing = 0;

    for (size_t i = 0; i < fleet->count; i++) {
        competing += fleet->workers[i].competes;
    }
    assert_int_equal(competing, rivals->count);
    for (size_t i = 0; i < rivals->count; i++) {
        const struct kvb_route_candidate *worker = &fleet->workers[rival_at[i]];
        assert_true(worker->competes);
        if (options->policy != KVB_ROUTE_PREFIX_THRESHOLD) {
            assert_true(is_near(worker->cost, plain_cost(options, rivals, worker)));
        }
    }
}

static void check_fleet(uint64_t *seed, enum kvb_route_policy policy)
{
    struct fleet fleet = make_fleet(seed);
    const struct kvb_route_options options = make_options(seed, policy);
    const struct kvb_route_random random = {
        .draw = kvb_random_unit(seed),
        .second_draw = kvb_random_unit(seed),
    };
    size_t rival_at[max_workers] = { 0 };
    const struct fleet rivals = rivals_of(&options, &fleet, rival_at);
    size_t chosen = max_workers;

    const kvb_status status =
        kvb_route_choose(&options, random, fleet.workers, fleet.count, &chosen);
    assert_int_equal(status, rivals.count > 0 ? KVB_OK : KVB_NOT_FOUND);
    check_costs(&options, &fleet, &rivals, rival_at);
    if (status != KVB_OK) {
        return;
    }
    size_t rival = 0;
    while (rival < rivals.count && rival_at[rival] != chosen) {
        rival++;
    }
    /* never DOWN or draining; full or doubted only if there is no other */
    assert_true(rival < rivals.count);
    check_choice(&options, &rivals, random, rival);
}

static void each_policy_chooses_by_its_formula(void **state)
{
    (void)state;
    for (int policy = 0; policy < KVB_ROUTE_POLICY_COUNT; policy++) {
        for (uint64_t i = 0; i < fleets; i++) {
            uint64_t seed = i * 1000 + (uint64_t)policy;
            check_fleet(&seed, (enum kvb_route_policy)policy);
        }
    }
}

/* Even with a temperature only the competing candidates are chosen, and each of them at some time.
 */
static void a_temperature_reaches_all_that_compete_and_no_other(void **state)
{
    (void)state;
    for (int policy = 0; policy < KVB_ROUTE_POLICY_COUNT; policy++) {
        for (uint64_t i = 0; i < 100; i++) {
            uint64_t seed = i * 1000 + (uint64_t)policy;
            struct fleet fleet = make_fleet(&seed);
            struct kvb_route_options options = make_options(&seed, (enum kvb_route_policy)policy);
            options.temperature = 5;
            size_t at[max_workers] = { 0 };
            const struct fleet rivals = rivals_of(&options, &fleet, at);
            bool is_chosen[max_workers] = { 0 };
            size_t chosen = 0;
            size_t reached = 0;

            for (size_t draw = 0; rivals.count > 0 && draw < 200; draw++) {
                const struct kvb_route_random random = {
                    .draw = ((double)draw + 0.5) / 200,
                    .second_draw = fmod((double)draw * 0.37, 1),
                };
                assert_ok(kvb_route_choose(&options, random, fleet.workers, fleet.count, &chosen));
                assert_true(fleet.workers[chosen].competes);
                if (fleet.workers[chosen].is_turn) {
                    fleet.workers[chosen].last_turn = 8 + draw;
                }
                reached += !is_chosen[chosen];
                is_chosen[chosen] = true;
            }
            if (policy != KVB_ROUTE_P2C) { /* a policy that never chooses the busiest */
                assert_int_equal(reached, rivals.count);
            }
        }
    }
}

/* ---- Single cases of the formulas ---- */

static struct kvb_route_candidate idle(uint32_t place, uint64_t overlap_blocks)
{
    return (struct kvb_route_candidate){ .state = KVB_STREAM_EXACT,
                                         .place = place,
                                         .block_size = 16,
                                         .request_blocks = 10,
                                         .overlap_blocks = overlap_blocks,
                                         .has_load = true };
}

static size_t choose(
    enum kvb_route_policy policy, struct kvb_route_random random,
    struct kvb_route_candidate *candidates, size_t count)
{
    struct kvb_route_options options = kvb_route_defaults;
    size_t chosen = 99;

    options.policy = policy;
    assert_ok(kvb_route_choose(&options, random, candidates, count, &chosen));
    return chosen;
}

static void blocks_expected_soon_count_as_held_and_pending_ones_as_to_be_computed(void **state)
{
    (void)state;
    struct kvb_route_candidate two[2] = { idle(0, 0), idle(1, 4) };

    two[0].predicted_blocks = 20;
    assert_int_equal(choose(KVB_ROUTE_KV, (struct kvb_route_random){ 0 }, two, 2), 0);
    assert_true(two[0].cost == 0 && two[1].cost == 6);
    two[0].pending_prefill_blocks = 20; /* the same blocks: computed once */
    assert_int_equal(choose(KVB_ROUTE_KV, (struct kvb_route_random){ 0 }, two, 2), 0);
    two[0].pending_prefill_blocks = 27;
    assert_int_equal(choose(KVB_ROUTE_KV, (struct kvb_route_random){ 0 }, two, 2), 1);
    assert_true(two[0].cost == 7);
}

static void half_of_the_prompt_is_not_above_the_threshold(void **state)
{
    (void)state;
    struct kvb_route_candidate two[2] = { idle(0, 5), idle(1, 0) };

    two[0].load.request_active_slots = 1;
    assert_int_equal(choose(KVB_ROUTE_PREFIX_THRESHOLD, (struct kvb_route_random){ 0 }, two, 2), 1);
    two[0].overlap_blocks = 6;
    assert_int_equal(choose(KVB_ROUTE_PREFIX_THRESHOLD, (struct kvb_route_random){ 0 }, two, 2), 0);
}

/* 0, 0, 0 and 12 requests: mean 3, deviation 5.2, so the last one is above 8.2. */
static void a_long_prefix_on_a_busy_worker_is_passed_over(void **state)
{
    (void)state;
    struct kvb_route_candidate four[4] = { idle(0, 0), idle(1, 6), idle(2, 0), idle(3, 10) };

    four[3].load.num_requests_waiting = 12;
    assert_int_equal(
        choose(KVB_ROUTE_PREFIX_THRESHOLD, (struct kvb_route_random){ 0 }, four, 4), 1);
}

static void routed_requests_count_as_waiting(void **state)
{
    (void)state;
    struct kvb_route_candidate two[2] = { idle(0, 0), idle(1, 0) };

    two[0].routed_requests = 1;
    two[1].load.request_active_slots = 3;
    assert_int_equal(choose(KVB_ROUTE_LEAST_REQUESTS, (struct kvb_route_random){ 0 }, two, 2), 1);
    two[1].load.request_active_slots = 5;
    assert_int_equal(choose(KVB_ROUTE_LEAST_REQUESTS, (struct kvb_route_random){ 0 }, two, 2), 0);
}

static void round_robin_skips_nobody_whatever_the_order_of_the_candidates(void **state)
{
    (void)state;
    struct kvb_route_candidate three[3] = { idle(8, 9), idle(2, 3), idle(5, 0) };
    const uint32_t expected[] = { 2, 5, 8, 2, 5, 8 };

    for (size_t i = 0; i < 6; i++) {
        const struct kvb_route_random random = { 0 };
        const size_t chosen = choose(KVB_ROUTE_ROUND_ROBIN, random, three, 3);
        assert_int_equal(three[chosen].place, expected[i]);
        assert_true(three[chosen].is_turn);
        three[chosen].last_turn = i + 1;
        /* another prompt, so another order of candidates */
        const struct kvb_route_candidate first = three[0];
        memmove(three, three + 1, 2 * sizeof *three);
        three[2] = first;
    }
}

static void a_worker_of_unknown_rate_counts_as_the_mean(void **state)
{
    (void)state;
    struct kvb_route_candidate three[3] = { idle(0, 0), idle(1, 0), idle(2, 0) };

    three[0].prefill_blocks_per_s = 10;
    three[1].prefill_blocks_per_s = 30;
    assert_int_equal(choose(KVB_ROUTE_TTFT, (struct kvb_route_random){ 0 }, three, 3), 1);
    assert_true(three[0].cost == 1.0 && three[2].cost == 0.5);
}

static void each_policy_is_found_by_its_name(void **state)
{
    (void)state;
    for (int i = 0; i < KVB_ROUTE_POLICY_COUNT; i++) {
        enum kvb_route_policy policy = KVB_ROUTE_POLICY_COUNT;
        assert_ok(kvb_route_policy_find(kvb_route_policy_name((enum kvb_route_policy)i), &policy));
        assert_int_equal(policy, i);
    }
    assert_string_equal(kvb_route_policy_name(KVB_ROUTE_POLICY_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_policy_chooses_by_its_formula),
        cmocka_unit_test(a_temperature_reaches_all_that_compete_and_no_other),
        cmocka_unit_test(blocks_expected_soon_count_as_held_and_pending_ones_as_to_be_computed),
        cmocka_unit_test(half_of_the_prompt_is_not_above_the_threshold),
        cmocka_unit_test(a_long_prefix_on_a_busy_worker_is_passed_over),
        cmocka_unit_test(routed_requests_count_as_waiting),
        cmocka_unit_test(round_robin_skips_nobody_whatever_the_order_of_the_candidates),
        cmocka_unit_test(a_worker_of_unknown_rate_counts_as_the_mean),
        cmocka_unit_test(each_policy_is_found_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
