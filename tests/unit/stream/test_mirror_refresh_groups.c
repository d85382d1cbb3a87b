#include "kvb_test.h"

#include "refresh_scene.h"

#include <stdlib.h>
#include <string.h>

/* Refreshes of models with several full-attention groups: names leave the list although entries of
 * one group stay. */

static const struct groups two_groups = { 2, { KVB_GROUP_FULL, KVB_GROUP_FULL } };
static const struct groups three_groups = { 3, { KVB_GROUP_FULL, KVB_GROUP_FULL, KVB_GROUP_FULL } };

static void plant_in(struct world *world, size_t group, int n, bool is_alias)
{
    add_to_group(world, group, n, is_alias);
    apply(world);
}

static void pick_from(struct world *world, size_t group, int n, bool is_alias)
{
    add_removed(&world->batch, &(uint64_t){ engine_name(n, is_alias) }, 1);
    last_event(&world->batch)->has_group = true;
    last_event(&world->batch)->group = (uint32_t)group;
    apply(world);
}

/* Nodes 0 - 1 are one prompt; 2 and 3 are one prompt each. Both groups hold 0, 1 and 3; entries of
 * 2 are free. */
static struct world *planted_in_two(void)
{
    static const int parents[] = { -1, 0, -1, -1 };
    struct world *world = malloc(sizeof *world);

    assert_non_null(world);
    begin_world(world, &(struct life){ 1, false, KVB_HASHES_CANONICAL, two_groups });
    for (int n = 0; n < 4; n++) {
        place_node(world, parents[n], n);
    }
    for (size_t group = 0; group < 2; group++) {
        plant_in(world, group, 2, false);
    }
    for (int n = 0; n < 4; n++) {
        for (size_t group = 0; group < 2 && n != 2; group++) {
            plant_in(world, group, n, false);
        }
    }
    for (size_t group = 0; group < 2; group++) {
        pick_from(world, group, 2, false);
    }
    return world;
}

static void begin_late(struct world *world)
{
    memset(&world->late, 0, sizeof world->late);
    look_up_truth(world);
    begin_refresh(world);
    assert_false(step(world, 2, 1000));
    assert_true(world->late.has[0] && world->late.has[1] && !world->late.has[3]);
}

/* The block stays in one group all the time, and returns to the other before its parent does. */
static void a_block_kept_by_one_group_only_is_published_again(void **state)
{
    (void)state;
    struct world *world = planted_in_two();

    begin_late(world);
    pick_from(world, 0, 0, false);
    pick_from(world, 1, 1, false);
    assert_false(world->late.has[0] || world->late.has[1]);
    plant_in(world, 1, 1, false);
    assert_int_equal(world->late.ignored, 1);
    plant_in(world, 0, 0, false);
    assert_true(world->late.has[0] && !world->late.has[1]);
    assert_true(step(world, 100, 1000));
    assert_true(world->late.has[1] && world->late.has[3]);
    uproot(world);
}

/* The same, but meanwhile another entry of the same name was the published one. */
static void a_block_published_by_another_entry_is_published_again(void **state)
{
    (void)state;
    struct world *world = planted_in_two();

    begin_late(world);
    plant_in(world, 0, 1, true);
    pick_from(world, 0, 0, false);
    pick_from(world, 1, 1, false);
    pick_from(world, 0, 1, true);
    plant_in(world, 0, 2, false); /* uses the free entry before the published one */
    plant_in(world, 1, 1, false);
    assert_int_equal(world->late.ignored, 1);
    plant_in(world, 0, 0, false);
    assert_true(step(world, 100, 1000));
    assert_true(world->late.has[0] && world->late.has[1] && world->late.has[3]);
    uproot(world);
}

/* Blocks that the new group does not hold are removed from the list, published or not. */
static void a_group_that_appears_during_a_refresh_empties_the_list(void **state)
{
    (void)state;
    struct world *world = planted_in_two();

    begin_late(world);
    world->groups = three_groups;
    plant_in(world, 2, 0, false);
    assert_true(world->late.has[0] && !world->late.has[1]);
    assert_true(step(world, 100, 1000));
    assert_false(world->late.has[1] || world->late.has[3]);
    plant_in(world, 2, 1, false);
    plant_in(world, 2, 3, false);
    assert_true(world->late.has[1] && world->late.has[3]);
    assert_memory_equal(world->late.has, world->truth.has, sizeof world->truth.has);
    uproot(world);
}

SUITE(mirror_refresh_groups)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_kept_by_one_group_only_is_published_again),
        cmocka_unit_test(a_block_published_by_another_entry_is_published_again),
        cmocka_unit_test(a_group_that_appears_during_a_refresh_empties_the_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
