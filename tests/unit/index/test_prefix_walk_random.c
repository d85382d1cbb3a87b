#include "kvb_test.h"

#include "index/prefix_index.h"

#include <stdbool.h>
#include <stdlib.h>

/* Walks under names that are made of the whole path, as bridges make them: what a
 * walk shows makes an equal index, by content and by name. */

enum { slots = 5, alphabet = 3, deepest = 5 };

struct world {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot[slots];
    unsigned seed;
};

static uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)rand_r(&world->seed) % below;
}

static kvb_tokens_hash tokens_of(uint8_t token)
{
    return (kvb_tokens_hash){ 1000U + token };
}

static uint64_t canonical(const uint8_t *path, size_t len)
{
    uint64_t name = 1;

    for (size_t i = 0; i < len; i++) {
        name = name * (alphabet + 1) + path[i] + 1;
    }
    return name;
}

static void store_path(struct world *world, size_t s)
{
    uint8_t path[deepest] = { 0 };
    kvb_block_hash blocks[deepest];
    kvb_tokens_hash tokens[deepest];
    const size_t len = 1 + draw(world, deepest);
    const size_t first = draw(world, (uint32_t)len);

    for (size_t i = 0; i < len; i++) {
        path[i] = (uint8_t)draw(world, alphabet);
        blocks[i].value = canonical(path, i + 1);
        tokens[i] = tokens_of(path[i]);
    }
    const struct kvb_index_run run = { .has_parent = first > 0,
                                       .parent = { canonical(path, first) },
                                       .blocks = blocks + first,
                                       .tokens = tokens + first,
                                       .count = len - first };
    assert_int_equal(kvb_prefix_index_store(world->index, world->slot[s], &run, NULL), KVB_OK);
}

static uint32_t depth_of(struct kvb_prefix_index *index, kvb_slot_ref slot, const uint8_t *query)
{
    struct kvb_match match = { 0 };
    kvb_tokens_hash hashes[deepest];
    kvb_block_hash blocks[deepest];
    uint32_t depth = 0;
    uint32_t depth_by_name = 0;

    for (size_t i = 0; i < deepest; i++) {
        hashes[i] = tokens_of(query[i]);
        blocks[i].value = canonical(query, i + 1);
    }
    assert_int_equal(kvb_prefix_index_match(index, hashes, deepest, &match), KVB_OK);
    for (size_t i = 0; i < match.level_count; i++) {
        depth = match.levels[i].slot == slot.value ? match.levels[i].depth : depth;
    }
    assert_int_equal(kvb_prefix_index_match_blocks(index, blocks, deepest, &match), KVB_OK);
    for (size_t i = 0; i < match.level_count; i++) {
        depth_by_name = match.levels[i].slot == slot.value ? match.levels[i].depth : depth_by_name;
    }
    assert_int_equal(depth, depth_by_name);
    kvb_match_done(&match);
    return depth;
}

struct copier {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot;
};

static kvb_status copy_run(void *context, const struct kvb_index_run *run)
{
    struct copier *copier = context;
    return kvb_prefix_index_store(copier->index, copier->slot, run, NULL);
}

static struct copier copy_slot(struct world *world, size_t s)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = 1 };
    struct copier copier = { 0 };

    assert_int_equal(kvb_prefix_index_new(&options, &copier.index), KVB_OK);
    assert_int_equal(kvb_prefix_index_slot_new(copier.index, &copier.slot), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_walk(world->index, world->slot[s], copy_run, &copier), KVB_OK);
    assert_int_equal(
        kvb_prefix_index_slot_blocks(copier.index, copier.slot),
        kvb_prefix_index_slot_blocks(world->index, world->slot[s]));
    return copier;
}

static void compare_copy(struct world *world, size_t s)
{
    const struct copier copier = copy_slot(world, s);
    uint8_t query[deepest] = { 0 };

    for (int i = 0; i < 20; i++) {
        for (size_t j = 0; j < deepest; j++) {
            query[j] = (uint8_t)draw(world, alphabet);
        }
        assert_int_equal(
            depth_of(copier.index, copier.slot, query),
            depth_of(world->index, world->slot[s], query));
    }
    kvb_prefix_index_free(copier.index);
}

static void remove_path(struct world *world, size_t s)
{
    uint8_t path[deepest] = { 0 };
    const size_t len = 1 + draw(world, deepest);

    for (size_t i = 0; i < len; i++) {
        path[i] = (uint8_t)draw(world, alphabet);
    }
    const kvb_block_hash block = { canonical(path, len) };
    assert_ok(kvb_prefix_index_remove(world->index, world->slot[s], &block, 1, NULL));
}

static void begin(struct world *world, unsigned seed)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = slots };

    *world = (struct world){ .seed = seed };
    assert_int_equal(kvb_prefix_index_new(&options, &world->index), KVB_OK);
    for (size_t s = 0; s < slots; s++) {
        assert_int_equal(kvb_prefix_index_slot_new(world->index, &world->slot[s]), KVB_OK);
    }
}

/* Nothing may be left when nobody holds anything. */
static void end(struct world *world)
{
    struct kvb_index_counters counters;

    for (size_t s = 0; s < slots; s++) {
        kvb_prefix_index_slot_free(world->index, world->slot[s]);
    }
    assert_false(kvb_prefix_index_tend(world->index, SIZE_MAX));
    kvb_prefix_index_count(world->index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.ghosts, 0);
    assert_int_equal(counters.orphans, 0);
    assert_int_equal(counters.memberships, 0);
    assert_int_equal(counters.stored, counters.removed);
    kvb_prefix_index_free(world->index);
}

static void a_walk_makes_an_equal_index(void **state)
{
    (void)state;
    static struct world world;

    begin(&world, 77);
    for (int i = 0; i < 4000; i++) {
        const size_t s = draw(&world, slots);
        if (draw(&world, 3) == 0) {
            store_path(&world, s);
        } else {
            remove_path(&world, s);
        }
        if (i % 10 == 0) {
            compare_copy(&world, s);
        }
    }
    end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_makes_an_equal_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
