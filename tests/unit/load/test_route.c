#include "kvb_test.h"

#include "core/own.h"
#include "load/route.h"

static const struct kvb_route_options plain = { .policy = KVB_ROUTE_KV, .overlap_weight = 1 };

/* request blocks, overlap, active blocks; no worker is full */
static struct kvb_route_candidate
candidate(uint64_t request_blocks, uint64_t overlap_blocks, uint64_t active_blocks)
{
    return (struct kvb_route_candidate){
        .state = KVB_STREAM_EXACT,
        .request_blocks = request_blocks,
        .overlap_blocks = overlap_blocks,
        .has_load = true,
        .load = { .kv_active_blocks = active_blocks,
                  .kv_total_blocks = 1000,
                  .request_total_slots = 10 },
    };
}

static size_t choose(
    const struct kvb_route_options *options, double draw, struct kvb_route_candidate *candidates,
    size_t count)
{
    size_t chosen = 99;

    assert_ok(kvb_route_choose(options, draw, candidates, count, &chosen));
    return chosen;
}

/* A page may count blocks of another size than the events. */
static void load_and_overlap_are_compared_in_tokens(void **state)
{
    (void)state;
    static const struct {
        uint32_t of_load;
        uint32_t of_events;
        uint64_t active;
        uint64_t decode;
    } rows[] = { { 64, 16, 7, 28 }, { 16, 64, 7, 2 }, { 16, 16, 7, 7 },
                 { 0, 16, 7, 7 },   { 64, 0, 7, 7 },  { 64, 16, UINT64_MAX, UINT64_MAX } };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        struct kvb_route_candidate one = candidate(10, 4, rows[i].active);
        one.load_block_size = rows[i].of_load;
        one.block_size = rows[i].of_events;
        assert_int_equal(choose(&plain, 0, &one, 1), 0);
        assert_true(one.decode_blocks == rows[i].decode);
    }
}

/* Decides as the router does: the number of the decision becomes the last turn of the chosen
 * worker. */
static size_t choose_number(
    uint64_t number, const struct kvb_route_options *options,
    struct kvb_route_candidate *candidates, size_t count)
{
    const size_t chosen = choose(options, 0, candidates, count);

    if (candidates[chosen].is_turn) {
        candidates[chosen].last_turn = number;
        candidates[chosen].is_turn = false;
    }
    return chosen;
}

/* Every second request goes to worker 0 for its prefix. That is not a turn. */
static void hits_between_new_prompts_do_not_shift_the_turns(void **state)
{
    (void)state;
    struct kvb_route_candidate two[2] = { candidate(10, 0, 5), candidate(10, 0, 5) };
    size_t new_prompts[2] = { 0 };

    two[1].place = 1;
    for (uint64_t number = 1; number <= 16; number += 2) {
        new_prompts[choose_number(number, &plain, two, 2)]++;
        two[0].overlap_blocks = 10;
        assert_int_equal(choose_number(number + 1, &plain, two, 2), 0);
        two[0].overlap_blocks = 0;
    }
    assert_int_equal(new_prompts[0], 4);
    assert_int_equal(new_prompts[1], 4);
}

/* Costs 0, 5, 10: normalised 0, 0.5, 1; at temperature 0.5 the weights are
 * 1, e^-1, e^-2, so the shares are 0.665, 0.245, 0.090. */
static void temperature_draws_by_softmax_over_the_normalised_cost(void **state)
{
    (void)state;
    const struct kvb_route_options warm = { .overlap_weight = 1, .temperature = 0.5 };
    struct kvb_route_candidate three[3] = { candidate(10, 10, 0), candidate(10, 5, 0),
                                            candidate(10, 0, 0) };
    size_t hits[3] = { 0 };

    for (size_t i = 0; i < 10000; i++) {
        const double draw = (double)i / 10000;
        hits[choose(&warm, draw, three, 3)]++;
    }
    assert_in_range(hits[0], 6650, 6655);
    assert_in_range(hits[1], 2446, 2449);
    assert_in_range(hits[2], 899, 902);
}

SUITE(route)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_and_overlap_are_compared_in_tokens),
        cmocka_unit_test(hits_between_new_prompts_do_not_shift_the_turns),
        cmocka_unit_test(temperature_draws_by_softmax_over_the_normalised_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
