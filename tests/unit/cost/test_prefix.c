#include "kvb_test.h"

#include "cost/steps.h"
#include "index/block_set.h"
#include "index/index.h"

/* The cost of a store or a removal depends on the number of changes alone, whatever else waits or
 * is held, and whoever chose the numbers. */

struct world {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot;
};

static struct world new_world(uint64_t secret)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 200000,
                                                      .max_slots = 2,
                                                      .hash_key = secret };
    struct world world = { 0 };

    assert_ok(kvb_prefix_index_new(&options, &world.index));
    assert_ok(kvb_prefix_index_slot_new(world.index, &world.slot));
    return world;
}

static void end_world(struct world *world)
{
    kvb_prefix_index_free(world->index);
}

enum { no_parent = 0 };

/* Returns the steps that it took. */
static uint64_t store(struct world *world, uint64_t parent, uint64_t name, uint64_t content)
{
    const kvb_block_hash block = { name };
    const kvb_tokens_hash tokens = { content };
    const struct kvb_index_run run = { .has_parent = parent != no_parent,
                                       .parent = { parent },
                                       .blocks = &block,
                                       .tokens = &tokens,
                                       .count = 1 };
    const uint64_t before = steps_so_far();

    assert_ok(kvb_prefix_index_store(world->index, world->slot, &run, NULL));
    return steps_so_far() - before;
}

static uint64_t remove_one(struct world *world, uint64_t name)
{
    const kvb_block_hash block = { name };
    const uint64_t before = steps_so_far();

    assert_ok(kvb_prefix_index_remove(world->index, world->slot, &block, 1, NULL));
    return steps_so_far() - before;
}

/* ---- Names ---- */

static uint64_t names_of_one_block(size_t count)
{
    struct world world = new_world(1);
    uint64_t steps = 0;

    for (size_t i = 1; i <= count; i++) {
        steps += store(&world, no_parent, i, 7);
    }
    for (size_t i = 1; i <= count; i++) {
        steps += remove_one(&world, i);
    }
    end_world(&world);
    return steps;
}

static void names_of_one_block_cost_the_same_each(void **state)
{
    (void)state;
    assert_linear(names_of_one_block);
}

/* ---- Orphans ---- */

enum { nobody = 1, chain_names = 1000, other_names = 1000000 };

/* Stores a chain below a name that nobody stores. The last block's name is chain_names + length. */
static void store_orphan_chain(struct world *world, size_t length)
{
    (void)store(world, nobody, chain_names + 1, 1);
    for (size_t i = 2; i <= length; i++) {
        (void)store(world, chain_names + i - 1, chain_names + i, i);
    }
}

/* Stores, a hundred times, an orphan and then its parent, below the end of the chain. */
static uint64_t joined_below_a_chain(size_t length)
{
    struct world world = new_world(1);
    uint64_t steps = 0;

    store_orphan_chain(&world, length);
    for (size_t i = 0; i < 100; i++) {
        const uint64_t name = other_names + 2 * i;
        steps += store(&world, name, name + 1, i);
        steps += store(&world, chain_names + length, name, i);
    }
    end_world(&world);
    return steps;
}

/* Stores, a hundred times, the name that the chain waits for at the chain's own end, and removes
 * it. */
static uint64_t circle_of_a_chain(size_t length)
{
    struct world world = new_world(1);
    uint64_t steps = 0;

    store_orphan_chain(&world, length);
    for (size_t i = 0; i < 100; i++) {
        steps += store(&world, chain_names + length, nobody, 7);
        steps += remove_one(&world, nobody);
    }
    end_world(&world);
    return steps;
}

static void joining_orphans_does_not_depend_on_the_chain_above(void **state)
{
    (void)state;
    assert_constant(joined_below_a_chain);
    assert_constant(circle_of_a_chain);
}

/* An orphan with many children or names joins one of equal content with few; the parent of the
 * second gets the name that the first one waits for. */
static uint64_t merges_of_orphans(size_t children, bool are_names)
{
    struct world world = new_world(1);
    uint64_t steps = 0;
    uint64_t top = 10;

    (void)store(&world, top, 500, 7);
    for (size_t i = 0; i < children; i++) {
        (void)store(&world, are_names ? top : 500, other_names + i, are_names ? 7 : i);
    }
    for (uint64_t i = 0; i < 10; i++, top++) {
        uint64_t above = 600 + 20 * i;
        steps += store(&world, top + 1, above, 8); /* the existing path, from the beginning on */
        for (uint64_t depth = 0; depth < i; depth++, above++) {
            steps += store(&world, above, above + 1, 8);
        }
        steps += store(&world, above, above + 1, 7);
        steps += store(&world, top + 1, top, 8); /* another name for the path's first block */
    }
    end_world(&world);
    return steps;
}

static uint64_t merges_of_children(size_t count)
{
    return merges_of_orphans(count, false);
}

static uint64_t merges_of_names(size_t count)
{
    return merges_of_orphans(count, true);
}

static void orphans_merge_at_the_cost_of_the_smaller(void **state)
{
    (void)state;
    assert_constant(merges_of_children);
    assert_constant(merges_of_names);
}

/* ---- Numbers chosen by an attacker ---- */

static uint64_t as_names(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(secret);
    uint64_t steps = 0;

    for (size_t i = 0; i < count; i++) {
        steps += store(&world, no_parent, numbers[i], i);
    }
    end_world(&world);
    return steps;
}

static uint64_t as_contents(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(secret);
    uint64_t steps = 0;

    for (size_t i = 0; i < count; i++) {
        steps += store(&world, no_parent, other_names + i, numbers[i]);
    }
    end_world(&world);
    return steps;
}

static uint64_t as_names_of_orphans(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(secret);
    uint64_t steps = 0;

    for (size_t i = 0; i < count; i++) {
        steps += store(&world, nobody, numbers[i], i);
    }
    end_world(&world);
    return steps;
}

/* The placeholder is the forest's node 0. */
static uint64_t as_contents_of_orphans(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(secret);
    uint64_t steps = 0;

    for (size_t i = 0; i < count; i++) {
        steps += store(&world, nobody, other_names + i, numbers[i]);
    }
    end_world(&world);
    return steps;
}

static uint64_t as_parents(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(secret);
    uint64_t steps = 0;

    for (size_t i = 0; i < count; i++) {
        steps += store(&world, numbers[i], UINT64_MAX - i, i);
    }
    end_world(&world);
    return steps;
}

static uint64_t in_a_set(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct kvb_block_set set;

    kvb_block_set_init(&set, count, secret);
    const uint64_t before = steps_so_far();
    for (size_t i = 0; i < count; i++) {
        assert_ok(kvb_block_set_add(&set, (kvb_block_hash){ numbers[i] }, NULL));
    }
    const uint64_t steps = steps_so_far() - before;
    kvb_block_set_clear(&set);
    return steps;
}

static void numbers_collide_only_if_the_key_is_known(void **state)
{
    (void)state;
    assert_keyed(as_names, 0);
    assert_keyed(as_contents, 1);
    assert_keyed(as_names_of_orphans, 0);
    assert_keyed(as_contents_of_orphans, 0);
    assert_keyed(as_parents, 0);
    assert_keyed(in_a_set, 0);
}

SUITE(prefix)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_one_block_cost_the_same_each),
        cmocka_unit_test(joining_orphans_does_not_depend_on_the_chain_above),
        cmocka_unit_test(orphans_merge_at_the_cost_of_the_smaller),
        cmocka_unit_test(numbers_collide_only_if_the_key_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
