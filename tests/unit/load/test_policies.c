#include "kvb_test.h"

#include "core/own.h"
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
        };
        worker.routed_blocks = pick(seed, 40);
        worker.routed_requests = pick(seed, 4);
        worker.ended_blocks = pick(seed, 2) * pick(seed, 120);
        worker.ended_requests = pick(seed, 12);
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

/* Narrows the set of permitted candidates: those that are not full, if there are any; those that
 * are not ready only where there are no others. */
static struct fleet rivals_of(const struct fleet *fleet, size_t *out_at)
{
    struct fleet rivals = { .count = 0 };

    for (int round = 0; round < 3 && rivals.count == 0; round++) {
        for (size_t i = 0; i < fleet->count; i++) {
            const struct kvb_route_candidate *worker = &fleet->workers[i];
            const bool is_of_round = !worker->is_not_ready && is_full(worker) == (round == 1);
            if (!may_never(worker) && (round == 2 ? worker->is_not_ready : is_of_round)) {
                out_at[rivals.count] = i;
                rivals.workers[rivals.count++] = *worker;
            }
        }
    }
    return rivals;
}

/* ---- The formulas, written a second time ---- */

struct numbers {
    double request, expected, prefill, pending, active, waiting, running;
};

static struct numbers numbers_of(const struct kvb_route_candidate *worker)
{
    struct numbers n = {
        .request = (double)worker->request_blocks,
        .expected = (double)(worker->overlap_blocks + worker->predicted_blocks),
        .pending = (double)worker->pending_prefill_blocks,
        .active = fmax((double)worker->load.kv_active_blocks - (double)worker->ended_blocks, 0),
        .waiting = (double)(worker->load.num_requests_waiting + worker->routed_requests),
        .running =
            fmax((double)worker->load.request_active_slots - (double)worker->ended_requests, 0),
    };

    n.expected = n.expected > n.request ? n.request : n.expected;
    n.prefill = n.request - n.expected;
    return n;
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
    const double rate =
        worker->prefill_blocks_per_s > 0 ? worker->prefill_blocks_per_s : mean_rate(rivals);

    switch (options->policy) {
    case KVB_ROUTE_KV:
        return options->overlap_weight * (n.prefill + without(worker, n.pending)) +
               without(worker, n.active + (double)worker->routed_blocks);
    case KVB_ROUTE_LEAST_REQUESTS:
        return n.waiting * 4 + n.running;
    case KVB_ROUTE_TTFT:
        return (n.pending + n.prefill) / rate;
    default:
        return n.waiting + n.running;
    }
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

static void
check_choice(const struct kvb_route_options *options, const struct fleet *rivals, size_t chosen)
{
    if (options->policy == KVB_ROUTE_ROUND_ROBIN) {
        assert_int_equal(chosen, next_in_turn(rivals));
        return;
    }
    if (options->policy != KVB_ROUTE_TTFT) {
        /* integers and halves, so that the two cannot differ by rounding */
        assert_int_equal(chosen, cheapest_in_turn(options, rivals));
        return;
    }
    for (size_t i = 0; i < rivals->count; i++) {
        const double cost = plain_cost(options, rivals, &rivals->workers[i]);
        const double best = plain_cost(options, rivals, &rivals->workers[chosen]);
        assert_true(best < cost || is_near(best, cost));
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
        assert_true(is_near(worker->cost, plain_cost(options, rivals, worker)));
    }
}

static void check_fleet(uint64_t *seed, enum kvb_route_policy policy)
{
    struct fleet fleet = make_fleet(seed);
    const struct kvb_route_options options = make_options(seed, policy);
    const double draw = kvb_random_unit(seed);
    size_t rival_at[max_workers] = { 0 };
    const struct fleet rivals = rivals_of(&fleet, rival_at);
    size_t chosen = max_workers;

    const kvb_status status = kvb_route_choose(&options, draw, fleet.workers, fleet.count, &chosen);
    assert_int_equal(status, rivals.count > 0 ? KVB_OK : KVB_NOT_FOUND);
    check_costs(&options, &fleet, &rivals, rival_at);
    if (status != KVB_OK) {
        return;
    }
    size_t rival = 0;
    while (rival < rivals.count && rival_at[rival] != chosen) {
        rival++;
    }
    /* never DOWN or draining; full only if there is no other */
    assert_true(rival < rivals.count);
    check_choice(&options, &rivals, rival);
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
        for (uint64_t round = 0; round < 100; round++) {
            uint64_t seed = round * 1000 + (uint64_t)policy;
            struct fleet fleet = make_fleet(&seed);
            struct kvb_route_options options = make_options(&seed, (enum kvb_route_policy)policy);
            options.temperature = 5;
            size_t at[max_workers] = { 0 };
            const struct fleet rivals = rivals_of(&fleet, at);
            bool is_chosen[max_workers] = { 0 };
            size_t chosen = 0;
            size_t reached = 0;

            for (size_t i = 0; rivals.count > 0 && i < 200; i++) {
                const double draw = ((double)i + 0.5) / 200;
                assert_ok(kvb_route_choose(&options, draw, fleet.workers, fleet.count, &chosen));
                assert_true(fleet.workers[chosen].competes);
                if (fleet.workers[chosen].is_turn) {
                    fleet.workers[chosen].last_turn = 8 + i;
                }
                reached += !is_chosen[chosen];
                is_chosen[chosen] = true;
            }
            assert_int_equal(reached, rivals.count);
        }
    }
}

/* ---- Single cases of the formulas ---- */

static void a_policy_that_is_gone_names_one_that_is_there(void **state)
{
    (void)state;
    static const char *const gone[] = { "kv_waiting", "prefix_threshold", "weighted", "p2c",
                                        "random" };
    enum kvb_route_policy policy = KVB_ROUTE_POLICY_COUNT;

    for (size_t i = 0; i < KVB_COUNT_OF(gone); i++) {
        assert_int_equal(kvb_route_policy_find(gone[i], &policy), KVB_NOT_FOUND);
        const char *instead = kvb_route_policy_instead(gone[i]);
        assert_non_null(instead);
        assert_ok(kvb_route_policy_find(instead, &policy));
    }
    assert_null(kvb_route_policy_instead("kv"));
    assert_null(kvb_route_policy_instead("best"));
}

SUITE(policies)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_policy_chooses_by_its_formula),
        cmocka_unit_test(a_temperature_reaches_all_that_compete_and_no_other),
        cmocka_unit_test(a_policy_that_is_gone_names_one_that_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
