#include "fail_alloc.h"
#include "kvb_test.h"

#include "stream/mirror/entry_set.h"

#include <stdbool.h>
#include <stdlib.h>

/* Compares the set with an array of booleans. Numbers reach into the third level. */

enum { numbers = 300000, operations = 60000 };

struct world {
    struct kvb_entry_set set;
    bool *is_in; /* owned */
};

static struct world new_world(void)
{
    struct world world = { .is_in = calloc(numbers, sizeof *world.is_in) };

    assert_non_null(world.is_in);
    return world;
}

static void end_world(struct world *world)
{
    kvb_entry_set_done(&world->set);
    free(world->is_in);
}

static void assert_same(const struct world *world)
{
    uint32_t member = kvb_entry_set_next(&world->set, 0);

    for (uint32_t i = 0; i < numbers; i++) {
        assert_int_equal(world->is_in[i], i == member);
        member = i == member ? kvb_entry_set_next(&world->set, i + 1) : member;
    }
    assert_int_equal(member, UINT32_MAX);
}

/* Few numbers at first, so that levels of all sizes occur. */
static void change(struct world *world, unsigned *seed, int operation)
{
    const uint32_t below = 1 + (uint32_t)operation * (numbers / operations);
    const uint32_t number = (uint32_t)rand_r(seed) % below;

    if (rand_r(seed) % 2) {
        assert_ok(kvb_entry_set_add(&world->set, number));
        world->is_in[number] = true;
    } else {
        kvb_entry_set_remove(&world->set, number);
        world->is_in[number] = false;
    }
}

static void holds_what_was_added_and_not_removed(void **state)
{
    (void)state;
    struct world world = new_world();
    unsigned seed = 5;

    assert_int_equal(kvb_entry_set_next(&world.set, 0), UINT32_MAX);
    for (int i = 0; i < operations; i++) {
        change(&world, &seed, i);
        if (i % (operations / 10) == 0) {
            assert_same(&world);
        }
    }
    assert_same(&world);
    kvb_entry_set_clear(&world.set, numbers);
    assert_int_equal(kvb_entry_set_next(&world.set, 0), UINT32_MAX);
    end_world(&world);
}

static void refuses_numbers_beyond_its_levels(void **state)
{
    (void)state;
    struct kvb_entry_set set = { 0 };

    assert_int_equal(kvb_entry_set_add(&set, 1U << 24), KVB_TOO_LARGE);
    assert_ok(kvb_entry_set_add(&set, (1U << 24) - 1));
    assert_int_equal(kvb_entry_set_next(&set, 0), (1U << 24) - 1);
    kvb_entry_set_done(&set);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    struct kvb_entry_set set = { 0 };

    assert_ok(kvb_entry_set_add(&set, 7));
    for (long n = 0; n < 4; n++) {
        fail_alloc_after(n);
        assert_int_equal(kvb_entry_set_add(&set, 1U << 20), KVB_NO_MEMORY);
        fail_alloc_after(-1);
        assert_int_equal(kvb_entry_set_next(&set, 0), 7);
        assert_int_equal(kvb_entry_set_next(&set, 8), UINT32_MAX);
    }
    assert_ok(kvb_entry_set_add(&set, 1U << 20));
    assert_int_equal(kvb_entry_set_next(&set, 8), 1U << 20);
    kvb_entry_set_done(&set);
}

SUITE(entry_set)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_what_was_added_and_not_removed),
        cmocka_unit_test(refuses_numbers_beyond_its_levels),
        cmocka_unit_test(without_memory_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
