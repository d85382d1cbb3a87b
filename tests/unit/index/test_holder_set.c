#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/own.h"
#include "index/holder_set.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Compares sets with arrays of bools. Each "node" has a set; random nodes are changed. */

enum { nodes = 60, holders = 3 * kvb_leaf_bits };

struct world {
    struct kvb_holder_sets sets;
    kvb_set_id set[nodes];
    bool has[nodes][holders];
    uint32_t spread; /* number of leaves that holders are drawn from */
    unsigned seed;
};

static struct world *make_world(unsigned seed, uint32_t spread)
{
    const struct kvb_hash_key key = kvb_hash_key_of(seed);
    struct world *world = calloc(1, sizeof *world);

    assert_non_null(world);
    world->seed = seed;
    world->spread = spread;
    assert_ok(kvb_holder_sets_open(&world->sets, 1000, &key));
    return world;
}

static uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)rand_r(&world->seed) % below;
}

static uint32_t draw_holder(struct world *world)
{
    return draw(world, world->spread) * kvb_leaf_bits + draw(world, 20) * 25;
}

/* These leaves lie in both halves of all leaves. */
static uint32_t number_of(uint32_t holder)
{
    static const uint32_t leaves[holders / kvb_leaf_bits] = { 1, 63, kvb_max_leaves - 1 };
    return leaves[holder / kvb_leaf_bits] * kvb_leaf_bits + holder % kvb_leaf_bits;
}

static bool is_in(const struct world *world, uint32_t node, uint32_t holder)
{
    return kvb_set_has(&world->sets, world->set[node], number_of(holder));
}

static kvb_status turn(struct world *world, uint32_t node, uint32_t holder)
{
    kvb_set_id *set = &world->set[node];
    const uint32_t number = number_of(holder);
    const kvb_status status = world->has[node][holder]
                                  ? kvb_holder_sets_without(&world->sets, *set, number, set)
                                  : kvb_holder_sets_with(&world->sets, *set, number, set);

    world->has[node][holder] ^= status == KVB_OK;
    return status;
}

/* A node takes over the set of another, as the next block of a run does. */
static void copy(struct world *world, uint32_t from, uint32_t to)
{
    kvb_set_keep(&world->sets, world->set[from]);
    kvb_set_drop(&world->sets, world->set[to]);
    world->set[to] = world->set[from];
    memcpy(world->has[to], world->has[from], sizeof world->has[to]);
}

/* Returns how many nodes, from `node` up or down, were edited. */
static uint32_t edit(struct world *world, uint32_t node, uint32_t holder, bool is_added)
{
    const kvb_set_id *ids = &world->set[node];
    const uint32_t number = number_of(holder);
    const uint32_t edited = is_added
                                ? kvb_holder_sets_edit_with(&world->sets, ids, nodes - node, number)
                                : kvb_holder_sets_edit_without(&world->sets, ids, node + 1, number);

    for (uint32_t i = 0; i < edited; i++) {
        bool *has = &world->has[is_added ? node + i : node - i][holder];
        assert_true(*has != is_added);
        *has = is_added;
    }
    return edited;
}

/* Equal sets must have equal numbers and different sets different numbers, so that each set is
 * stored once. */
static void compare(const struct world *world)
{
    for (uint32_t node = 0; node < nodes; node++) {
        for (uint32_t holder = 0; holder < holders; holder++) {
            assert_int_equal(is_in(world, node, holder), world->has[node][holder]);
        }
        for (uint32_t other = 0; other < node; other++) {
            assert_int_equal(
                world->set[node] == world->set[other],
                memcmp(world->has[node], world->has[other], sizeof world->has[node]) == 0);
        }
    }
}

static void empty(struct world *world)
{
    for (uint32_t node = 0; node < nodes; node++) {
        for (uint32_t holder = 0; holder < holders; holder++) {
            if (world->has[node][holder]) {
                assert_ok(turn(world, node, holder));
            }
        }
        assert_int_equal(world->set[node], 0);
    }
    assert_int_equal(world->sets.interned.count, 0);
    kvb_holder_sets_close(&world->sets);
    free(world);
}

static void one_incarnation(unsigned seed, uint32_t spread)
{
    struct world *world = make_world(seed, spread);
    uint32_t edited = 0;

    for (int i = 0; i < 60000; i++) {
        if (draw(world, 10) == 0) {
            copy(world, draw(world, nodes), draw(world, nodes));
        }
        edited += edit(world, draw(world, nodes), draw_holder(world), draw(world, 2) == 0);
        assert_ok(turn(world, draw(world, nodes), draw_holder(world)));
        if (i % 3000 == 0) {
            compare(world);
        }
    }
    assert_true(edited > 0);
    compare(world);
    empty(world);
}

static void agrees_with_arrays_of_bools(void **state)
{
    (void)state;
    one_incarnation(1, 1);
    one_incarnation(2, 3);
}

/* When there is no memory for a new set, the old one must stay as it was. */
static void survives_the_failure_of_each_growth(void **state)
{
    (void)state;
    struct world *world = make_world(4, 3);
    size_t failures = 0;

    for (int i = 0; i < 30000; i++) {
        const uint32_t node = draw(world, nodes);
        const uint32_t holder = draw_holder(world);
        fail_alloc_after(0);
        const kvb_status status = turn(world, node, holder);
        fail_alloc_after(-1);
        if (status != KVB_OK) {
            assert_int_equal(status, KVB_NO_MEMORY);
            failures++;
            assert_int_equal(is_in(world, node, holder), world->has[node][holder]);
            assert_ok(turn(world, node, holder));
        }
    }
    assert_true(failures > 0);
    compare(world);
    empty(world);
}

/* A note about two sets is valid until one of them changes or its number is given to another set.
 */
static void a_note_ends_when_either_set_changes(void **state)
{
    (void)state;
    struct world *world = make_world(6, 1);

    for (uint32_t holder = 0; holder < 5; holder++) {
        assert_ok(turn(world, 0, holder));
        assert_ok(holder < 4 ? turn(world, 1, holder) : KVB_OK);
    }
    for (int changed = 0; changed < 2; changed++) {
        struct kvb_holder_set *before = kvb_holder_set_at(&world->sets, world->set[0]);
        struct kvb_holder_set *after = kvb_holder_set_at(&world->sets, world->set[1]);
        assert_false(kvb_set_is_noted(after, before));
        kvb_set_note(after, before, 4);
        assert_true(kvb_set_is_noted(after, before));
        assert_ok(turn(world, (uint32_t)changed, 7));
        assert_ok(turn(world, (uint32_t)changed, 7)); /* the same set again, and a different one */
    }
    struct kvb_holder_set *after = kvb_holder_set_at(&world->sets, world->set[1]);
    assert_false(kvb_set_is_noted(after, kvb_holder_set_at(&world->sets, world->set[0])));
    empty(world);
}

SUITE(holder_set)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_arrays_of_bools),
        cmocka_unit_test(survives_the_failure_of_each_growth),
        cmocka_unit_test(a_note_ends_when_either_set_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
