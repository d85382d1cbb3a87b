#include "kvb_test.h"

#include "cost/steps.h"
#include "stream/batch_maker.h"
#include "stream/mirror/mirror.h"

#include <stdio.h>

/* The cost of an event depends on the number of its changes alone, whatever else is held, and
 * whoever chose the numbers. */

struct world {
    struct kvb_mirror *mirror;
    struct kvb_event_batch batch;
    struct kvb_router_batch out;
    uint64_t steps; /* steps of the events so far */
};

static struct world new_world(enum kvb_hashes hashes, uint64_t secret)
{
    const struct kvb_mirror_options options = { .hashes = hashes,
                                                .max_blocks = 100000,
                                                .tiers = (1U << KVB_TIER_COUNT) - 1,
                                                .hash_key = secret };
    const struct kvb_digest_key key = { .seed = 1 };
    struct world world = { 0 };

    assert_ok(kvb_mirror_new(&options, &world.mirror));
    kvb_mirror_begin_digest(world.mirror, &key);
    return world;
}

static void end_world(struct world *world)
{
    kvb_mirror_free(world->mirror);
    kvb_event_batch_done(&world->batch);
    kvb_router_batch_done(&world->out);
}

/* Applies the events collected so far as one batch. */
static void apply(struct world *world)
{
    const uint64_t before = steps_so_far();

    kvb_router_batch_reset(&world->out);
    kvb_mirror_begin_batch(world->mirror, &world->out);
    for (size_t at = 0; at < world->batch.event_count; at++) {
        assert_ok(apply_event(world->mirror, &world->batch, at, UINT64_MAX, &world->out));
    }
    world->steps += steps_so_far() - before;
    kvb_event_batch_reset(&world->batch);
}

static const uint64_t *no_parent = NULL;

static void store(struct world *world, const uint64_t *parent, uint64_t hash, uint32_t token)
{
    add_stored(&world->batch, parent, &hash, &token, 1);
}

static void store_salted(struct world *world, const uint64_t *parent, uint64_t hash, size_t salt)
{
    char text[24];
    const int len = snprintf(text, sizeof text, "salt %zu", salt);
    const kvb_span bytes = { .data = (const uint8_t *)text, .len = (size_t)len };

    store(world, parent, hash, (uint32_t)hash);
    assert_ok(kvb_event_batch_add_text(&world->batch, bytes, &last_event(&world->batch)->salt));
}

static void remove_one(struct world *world, uint64_t hash)
{
    add_removed(&world->batch, &hash, 1);
}

static void clear_tier(struct world *world, enum kvb_tier tier)
{
    add_cleared(&world->batch);
    last_event(&world->batch)->all_tiers = false;
    last_event(&world->batch)->tier = tier;
}

/* Stores this many prompts of one block on the device. */
static void fill(struct world *world, size_t blocks)
{
    for (size_t i = 0; i < blocks; i++) {
        store(world, no_parent, 1000 + i, (uint32_t)i);
    }
    apply(world);
    world->steps = 0;
}

/* ---- Clears ---- */

static uint64_t empty_tier_cleared(size_t blocks)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    fill(&world, blocks);
    for (size_t i = 0; i < 100; i++) {
        clear_tier(&world, KVB_TIER_HOST);
    }
    apply(&world);
    end_world(&world);
    return world.steps;
}

/* The last block held is stored in the tier and cleared with it. */
static uint64_t tier_of_one_cleared(size_t blocks)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    fill(&world, blocks);
    for (size_t i = 0; i < 100; i++) {
        store(&world, no_parent, 7, 7);
        last_event(&world.batch)->tier = KVB_TIER_HOST;
        clear_tier(&world, KVB_TIER_HOST);
    }
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_HOST], 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], blocks);
    end_world(&world);
    return world.steps;
}

static void the_cost_of_a_tiers_clear_depends_on_its_blocks_only(void **state)
{
    (void)state;
    assert_constant(empty_tier_cleared);
    assert_constant(tier_of_one_cleared);
}

/* Makes the mirror's tables large: salts create contexts, and unknown parents create waiting lists.
 */
static uint64_t little_cleared(size_t blocks)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < blocks; i++) {
        const uint64_t parent = 1 + i;
        store_salted(&world, i % 2 ? &parent : no_parent, 100000 + i, i);
    }
    add_cleared(&world.batch);
    apply(&world);
    world.steps = 0;
    for (size_t i = 0; i < 100; i++) {
        const uint64_t parent = 1;
        store_salted(&world, no_parent, 7, 7);
        store_salted(&world, &parent, 8, 8);
        add_cleared(&world.batch);
    }
    apply(&world);
    end_world(&world);
    return world.steps;
}

static void the_cost_of_a_clear_does_not_depend_on_what_was_held_before(void **state)
{
    (void)state;
    assert_constant(little_cleared);
}

/* ---- Children ---- */

static const uint64_t parent = 7;

static uint64_t children_come_and_are_named(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < count; i++) {
        store(&world, &parent, 1000 + i, (uint32_t)i);
    }
    store(&world, no_parent, parent, 7);
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], count + 1);
    end_world(&world);
    return world.steps;
}

/* In order, in reverse, and from the middle. */
static uint64_t children_come_and_go(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < count; i++) {
        store(&world, &parent, 1000 + i, (uint32_t)i);
    }
    for (size_t i = 0; i < count / 4; i++) {
        remove_one(&world, 1000 + i);
        remove_one(&world, 1000 + count - 1 - i);
    }
    for (size_t i = 0; i < count / 2; i++) {
        remove_one(&world, 1000 + count / 4 + i * 7919 % (count / 2));
    }
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    end_world(&world);
    return world.steps;
}

static void children_of_one_unknown_parent_cost_the_same_each(void **state)
{
    (void)state;
    assert_linear(children_come_and_are_named);
    assert_linear(children_come_and_go);
}

/* Blocks that wait under the parent's hash without being its children: their salt differs. */
static uint64_t parent_of_strangers(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < count; i++) {
        store_salted(&world, &parent, 1000 + i, i);
    }
    apply(&world);
    world.steps = 0;
    for (size_t i = 0; i < 100; i++) {
        store(&world, no_parent, parent, 7);
        remove_one(&world, parent);
    }
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, count);
    end_world(&world);
    return world.steps;
}

static void a_parent_costs_nothing_for_waiting_blocks_that_are_not_its_children(void **state)
{
    (void)state;
    assert_constant(parent_of_strangers);
}

static kvb_status look_away(void *context, struct kvb_router_batch *chunk)
{
    (void)context;
    (void)chunk;
    return KVB_OK;
}

static uint64_t siblings_shown(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    store(&world, no_parent, parent, 7);
    for (size_t i = 0; i < count; i++) {
        store(&world, &parent, 1000 + i, (uint32_t)i);
    }
    apply(&world);
    const uint64_t before = steps_so_far();
    assert_ok(show_all(world.mirror, 1000, look_away, NULL));
    const uint64_t steps = steps_so_far() - before;
    end_world(&world);
    return steps;
}

static void a_picture_costs_the_same_for_each_sibling(void **state)
{
    (void)state;
    assert_linear(siblings_shown);
}

/* ---- Names ---- */

static uint64_t one_content_under_many_hashes(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < count; i++) {
        store(&world, no_parent, 1000 + i, 7);
    }
    for (size_t i = 0; i < count; i++) {
        remove_one(&world, 1000 + i);
    }
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->names_refused, count - 16);
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], 0);
    end_world(&world);
    return world.steps;
}

/* They have no name before their parent arrives. */
static uint64_t children_of_one_content(size_t count)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, 1);

    for (size_t i = 0; i < count; i++) {
        store(&world, &parent, 1000 + i, 7);
    }
    store(&world, no_parent, parent, 7);
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->names_refused, count - 16);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, 0);
    assert_int_equal(kvb_mirror_count(world.mirror)->held[KVB_TIER_DEVICE], 2);
    end_world(&world);
    return world.steps;
}

static void one_content_under_many_hashes_costs_the_same_each(void **state)
{
    (void)state;
    assert_linear(one_content_under_many_hashes);
    assert_linear(children_of_one_content);
}

/* ---- Numbers chosen by an attacker ---- */

static uint64_t as_hashes(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, secret);

    for (size_t i = 0; i < count; i++) {
        store(&world, no_parent, numbers[i], (uint32_t)i);
    }
    for (size_t i = 0; i < count; i++) {
        remove_one(&world, numbers[i]);
    }
    apply(&world);
    end_world(&world);
    return world.steps;
}

static uint64_t as_names(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(KVB_HASHES_ENGINE, secret);

    for (size_t i = 0; i < count; i++) {
        store(&world, no_parent, numbers[i], (uint32_t)i);
    }
    apply(&world);
    end_world(&world);
    return world.steps;
}

static uint64_t as_parents(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, secret);

    for (size_t i = 0; i < count; i++) {
        store(&world, &numbers[i], UINT64_MAX - i, (uint32_t)i);
    }
    apply(&world);
    assert_int_equal(kvb_mirror_count(world.mirror)->unrooted, count);
    end_world(&world);
    return world.steps;
}

static uint64_t as_keys(const uint64_t *numbers, size_t count, uint64_t secret)
{
    struct world world = new_world(KVB_HASHES_CANONICAL, secret);

    for (size_t i = 0; i < count; i++) {
        store(&world, no_parent, 1000 + i, (uint32_t)i);
        last_event(&world.batch)->key = numbers[i];
    }
    apply(&world);
    end_world(&world);
    return world.steps;
}

static void numbers_collide_only_if_the_key_is_known(void **state)
{
    (void)state;
    assert_keyed(as_hashes, 0);
    assert_keyed(as_names, UINT64_MAX);
    assert_keyed(as_parents, 0);
    assert_keyed(as_keys, 0);
}

SUITE(mirror)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cost_of_a_tiers_clear_depends_on_its_blocks_only),
        cmocka_unit_test(the_cost_of_a_clear_does_not_depend_on_what_was_held_before),
        cmocka_unit_test(children_of_one_unknown_parent_cost_the_same_each),
        cmocka_unit_test(a_parent_costs_nothing_for_waiting_blocks_that_are_not_its_children),
        cmocka_unit_test(a_picture_costs_the_same_for_each_sibling),
        cmocka_unit_test(one_content_under_many_hashes_costs_the_same_each),
        cmocka_unit_test(numbers_collide_only_if_the_key_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
