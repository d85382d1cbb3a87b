#include "kvb_test.h"

#include "core/clock.h"
#include "core/random.h"
#include "stream/visits.h"

enum { slot_ms = 5, turn_ms = kvb_visit_slots * slot_ms, model_ranks = 200 };

static const uint64_t begin_ms = 1000000;

static struct kvb_visit *take(struct kvb_visits *visits, uint64_t ms)
{
    return kvb_visits_take(visits, ms * KVB_NS_PER_MS);
}

static void set(struct kvb_visits *visits, struct kvb_visit *visit, uint64_t ms)
{
    kvb_visits_set(visits, visit, ms * KVB_NS_PER_MS);
}

static void a_time_beyond_the_turn_comes_within_it(void **state)
{
    (void)state;
    struct kvb_visits visits = { 0 };
    struct kvb_visit visit = { 0 };

    (void)take(&visits, begin_ms);
    kvb_visits_set(&visits, &visit, UINT64_MAX);
    assert_null(take(&visits, begin_ms + turn_ms - UINT64_C(2) * slot_ms));
    assert_ptr_equal(take(&visits, begin_ms + turn_ms), &visit);
}

static void the_next_due_time_is_told(void **state)
{
    (void)state;
    struct kvb_visits visits = { 0 };
    struct kvb_visit soon = { 0 };
    struct kvb_visit later = { 0 };

    assert_true(kvb_visits_due_ns(&visits) == UINT64_MAX);
    (void)take(&visits, begin_ms);
    assert_true(kvb_visits_due_ns(&visits) == UINT64_MAX);
    set(&visits, &later, begin_ms + 100);
    assert_true(kvb_visits_due_ns(&visits) == (begin_ms + 100) * KVB_NS_PER_MS);
    set(&visits, &soon, begin_ms + 20);
    assert_true(kvb_visits_due_ns(&visits) == (begin_ms + 20) * KVB_NS_PER_MS);
    kvb_visits_drop(&soon);
    assert_true(kvb_visits_due_ns(&visits) == (begin_ms + 100) * KVB_NS_PER_MS);
    kvb_visits_set(&visits, &later, 0); /* a time that has passed */
    assert_true(kvb_visits_due_ns(&visits) <= begin_ms * KVB_NS_PER_MS);
}

/* The reference: an array of times. */
static void it_agrees_with_an_array_of_times(void **state)
{
    (void)state;
    static struct kvb_visit ranks[model_ranks];
    uint64_t due_ms[model_ranks] = { 0 };
    struct kvb_visits visits = { 0 };
    uint64_t rng = 1;
    uint64_t now_ms = begin_ms;

    (void)take(&visits, now_ms);
    for (size_t i = 0; i < 100000; i++) {
        const size_t at = kvb_random_below(&rng, model_ranks);
        due_ms[at] = now_ms + slot_ms * kvb_random_below(&rng, kvb_visit_slots - 1);
        set(&visits, &ranks[at], due_ms[at]);
        now_ms += slot_ms * kvb_random_below(&rng, 3);
        for (struct kvb_visit *due = take(&visits, now_ms); due; due = due->then) {
            const size_t taken = (size_t)(due - ranks);
            assert_in_range(due_ms[taken], 1, now_ms);
            due_ms[taken] = 0;
        }
        for (size_t rank = 0; rank < model_ranks; rank++) {
            assert_true(due_ms[rank] == 0 || due_ms[rank] > now_ms);
        }
    }
}

SUITE(visits)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_time_beyond_the_turn_comes_within_it),
        cmocka_unit_test(the_next_due_time_is_told),
        cmocka_unit_test(it_agrees_with_an_array_of_times),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
