#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/own.h"
#include "refresh_scene.h"

#include <stdlib.h>
#include <string.h>

enum {
    first_changes = 1500,
    seeds = 100,
    busy_steps = 200, /* small enough that they end before the rounds do */
    max_steps = 20000
};

/* clang-format off */
static const struct groups models[] = {
    { 1, { KVB_GROUP_FULL } },
    { 2, { KVB_GROUP_FULL, KVB_GROUP_FULL } },
    { 2, { KVB_GROUP_FULL, KVB_GROUP_WINDOW } },
    { 3, { KVB_GROUP_FULL, KVB_GROUP_FULL, KVB_GROUP_FULL } },
    { 3, { KVB_GROUP_FULL, KVB_GROUP_WINDOW, KVB_GROUP_FULL } },
};
/* clang-format on */

static const struct groups one_group = { 1, { KVB_GROUP_FULL } };

/* ---- What the engine does ---- */

/* Draws a second entry of the same content, which exists with canonical names only. */
static bool draws_alias(struct world *world)
{
    return world->hashes == KVB_HASHES_CANONICAL && draw(world, 4) == 0;
}

/* Whether the engine holds the node in the group, under either name. */
static bool has_copies(const struct world *world, size_t group, int n)
{
    return world->copies[group][0][n] + world->copies[group][1][n] > 0;
}

/* Second copies are drawn rarely: with many of them hardly a block is ever removed. */
static bool may_store(struct world *world, size_t group, int n, bool is_alias)
{
    const int parent = world->nodes[n].parent;

    return (!world->is_orderly || parent < 0 || has_copies(world, group, parent)) &&
           (world->copies[group][is_alias][n] == 0 || draw(world, 4) == 0);
}

/* Most often in all groups, as engines do. */
static void store(struct world *world, int n)
{
    const size_t count = world->groups.count;
    const size_t only = draw(world, 4) == 0 ? draw(world, (uint32_t)count) : count;
    const bool is_alias = draws_alias(world);

    for (size_t group = 0; group < count; group++) {
        if ((only == count || only == group) && may_store(world, group, n, is_alias)) {
            add_to_group(world, group, n, is_alias);
        }
    }
    apply(world);
}

static bool has_children(const struct world *world, size_t group, int n)
{
    for (int i = n + 1; i < max_nodes; i++) {
        if (world->nodes[i].parent == n && has_copies(world, group, i)) {
            return true;
        }
    }
    return false;
}

static void remove_node(struct world *world, int n)
{
    const bool is_alias = draws_alias(world);
    const size_t group = draw(world, (uint32_t)world->groups.count);

    if (world->is_orderly && has_children(world, group, n)) {
        return;
    }
    add_removed(&world->batch, &(uint64_t){ engine_name(n, is_alias) }, 1);
    last_event(&world->batch)->has_group = world->groups.count > 1;
    last_event(&world->batch)->group = (uint32_t)group;
    world->copies[group][is_alias][n] -= world->copies[group][is_alias][n] > 0;
    apply(world);
}

/* Half the time a favourite node or its parent, so that effects of their order show soon. */
static int draw_node(struct world *world)
{
    const int parent = world->nodes[world->favourite].parent;

    if (draw(world, 2) == 0) {
        return (int)draw(world, max_nodes);
    }
    return parent >= 0 && draw(world, 2) == 0 ? parent : world->favourite;
}

static void change(struct world *world)
{
    const int n = draw_node(world);

    if (draw(world, 3000) == 0) {
        add_cleared(&world->batch);
        memset(world->copies, 0, sizeof world->copies);
        apply(world);
    } else if (draw(world, 3) > 0) {
        store(world, n);
    } else {
        remove_node(world, n);
    }
}

/* ---- Refreshes ---- */

static bool is_reachable(const struct world *world, int n)
{
    for (; n >= 0; n = world->nodes[n].parent) {
        if (!world->truth.has[n]) {
            return false;
        }
    }
    return true;
}

static void check(const struct world *world, const struct reader *reader)
{
    for (int n = 0; n < max_nodes; n++) {
        if (world->is_orderly) {
            assert_int_equal(reader->has[n], world->truth.has[n]);
        } else {
            assert_true(!reader->has[n] || world->truth.has[n]);
            assert_true(reader->has[n] || !is_reachable(world, n));
        }
    }
}

static void refresh(struct world *world)
{
    int steps = 0;

    memset(&world->late, 0, sizeof world->late);
    world->favourite = (int)draw(world, max_nodes);
    look_up_truth(world);
    begin_refresh(world);
    while (!step(world, 1 + draw(world, 9), 1 + draw(world, 6))) {
        steps++;
        for (uint32_t i = draw(world, 4); steps < busy_steps && i > 0; i--) {
            change(world);
        }
        assert_true(steps < max_steps);
    }
    kvb_picture_end(&world->picture);
    check(world, &world->late);
}

static void live_one_life(const struct life *life)
{
    struct world *world = malloc(sizeof *world);

    assert_non_null(world);
    begin_world(world, life);
    for (int i = 0; i < first_changes; i++) {
        change(world);
    }
    refresh(world);
    refresh(world);
    check(world, &world->early);
    assert_memory_equal(
        world->early.has_in_window, world->truth.has_in_window, sizeof world->truth.has_in_window);
    end_world(world);
    free(world);
}

static void live_all_lives(bool is_orderly)
{
    for (unsigned seed = 1; seed <= seeds; seed++) {
        live_one_life(&(struct life){ .seed = seed,
                                      .is_orderly = is_orderly,
                                      .hashes = seed % 2 ? KVB_HASHES_CANONICAL : KVB_HASHES_ENGINE,
                                      .groups = models[seed / 2 % KVB_COUNT_OF(models)] });
    }
}

static void a_late_reader_has_exactly_the_held_blocks(void **state)
{
    (void)state;
    live_all_lives(true);
}

/* Parents are removed before their children and stored after them. */
static void a_late_reader_has_all_blocks_that_a_query_finds(void **state)
{
    (void)state;
    live_all_lives(false);
}

/* ---- By hand ---- */

static void plant(struct world *world, int parent, int n)
{
    place_node(world, parent, n);
    add_to_group(world, 0, n, false);
    apply(world);
}

static struct world *planted(void)
{
    struct world *world = malloc(sizeof *world);

    assert_non_null(world);
    begin_world(world, &(struct life){ 1, true, KVB_HASHES_CANONICAL, one_group });
    return world;
}

static void add_named(struct world *world, int parent, int n)
{
    const uint64_t name = engine_name(parent, false);

    add_stored(
        &world->batch, parent >= 0 ? &name : NULL, &(uint64_t){ engine_name(n, false) },
        &(uint32_t){ (uint32_t)n }, 1);
}

static void a_refresh_ends_in_a_circle_of_blocks(void **state)
{
    (void)state;
    struct world *world = malloc(sizeof *world);

    assert_non_null(world);
    begin_world(world, &(struct life){ 1, false, KVB_HASHES_ENGINE, one_group });
    for (int n = 0; n < 3; n++) { /* 0 -> 2 -> 1 -> 0, and 3 below it */
        add_named(world, (n + 2) % 3, n);
    }
    add_named(world, 1, 3);
    apply(world);
    memset(&world->late, 0, sizeof world->late);
    look_up_truth(world);
    begin_refresh(world);
    assert_true(step(world, 100, 1000));
    assert_false(world->late.has[0] || world->late.has[3]);
    uproot(world);
}

/* A stored event in every round must not keep the refresh from ending. */
static void a_refresh_ends_under_endless_changes(void **state)
{
    (void)state;
    struct world *world = planted();
    int steps = 0;

    for (int n = 0; n < 30; n++) {
        plant(world, -1, n);
    }
    look_up_truth(world);
    begin_refresh(world);
    while (!step(world, 100, 1)) {
        add_removed(&world->batch, &(uint64_t){ engine_name(7, false) }, 1);
        apply(world);
        plant(world, -1, 7);
        assert_true(++steps < 1000);
    }
    uproot(world);
}

/* Every allocation fails once: the refresh reports it, and the mirror is unchanged. */
static void without_memory_a_refresh_reports_it(void **state)
{
    (void)state;
    const struct kvb_picture_part part = { .max_blocks = 1000, .max_looks = 1000 };
    struct world *world = planted();
    bool has_failed = true;

    for (int n = 0; n < 100; n++) {
        plant(world, n % 30 - 1, n);
    }
    look_up_truth(world);
    for (long at = 0; has_failed; at++) {
        struct kvb_router_batch advertised = { 0 };
        bool is_done = false;
        fail_alloc_after(at);
        kvb_status status = kvb_picture_begin(
            &world->picture, world->mirror, KVB_PICTURE_FROM_ROOTS, 1U << KVB_TIER_DEVICE);
        while (status == KVB_OK && !is_done) {
            status = kvb_picture_step(&world->picture, world->mirror, &part, &advertised, &is_done);
        }
        fail_alloc_after(-1);
        has_failed = status != KVB_OK;
        assert_true(!has_failed || status == KVB_NO_MEMORY);
        assert_true(has_failed || advertised.block_count == 100);
        kvb_picture_end(&world->picture);
        kvb_router_batch_done(&advertised);
        assert_true(at < 100);
    }
    uproot(world);
}

SUITE(mirror_refresh)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_reader_has_exactly_the_held_blocks),
        cmocka_unit_test(a_late_reader_has_all_blocks_that_a_query_finds),
        cmocka_unit_test(a_refresh_ends_in_a_circle_of_blocks),
        cmocka_unit_test(a_refresh_ends_under_endless_changes),
        cmocka_unit_test(without_memory_a_refresh_reports_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
