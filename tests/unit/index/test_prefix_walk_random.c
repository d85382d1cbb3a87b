#include "kvb_test.h"

#include "core/own.h"
#include "index/index.h"

#include <stdbool.h>
#include <stdlib.h>

/* Walks with names that are made from the whole path, as bridges make them. Storing what a walk
 * shows must give an equal index, by content and by name. */

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

/* The budget of each step; SIZE_MAX: all at once. */
static kvb_status walk_in_steps(
    struct kvb_prefix_index *index, kvb_slot_ref slot, size_t budget, kvb_index_visitor visit,
    void *context)
{
    struct kvb_index_walk *walk = NULL;
    kvb_status status = KVB_AGAIN;

    assert_ok(kvb_index_walk_new(index, slot, &walk));
    for (size_t steps = 0; status == KVB_AGAIN; steps++) {
        assert_true(steps < 100000);
        status = kvb_index_walk_step(walk, budget, visit, context);
    }
    kvb_index_walk_free(walk);
    return status;
}

static struct copier copy_slot(struct world *world, size_t s)
{
    static const size_t budgets[] = { SIZE_MAX, 1, 7, 50, 300 };

    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = 1 };
    struct copier copier = { 0 };

    assert_int_equal(kvb_prefix_index_new(&options, &copier.index), KVB_OK);
    assert_int_equal(kvb_prefix_index_slot_new(copier.index, &copier.slot), KVB_OK);
    assert_int_equal(
        walk_in_steps(
            world->index, world->slot[s], budgets[draw(world, KVB_COUNT_OF(budgets))], copy_run,
            &copier),
        KVB_OK);
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

/* The index must be empty when no slot holds a block. */
static void end(struct world *world)
{
    struct kvb_index_counters counters;

    for (size_t s = 0; s < slots; s++) {
        kvb_prefix_index_slot_free(world->index, world->slot[s]);
    }
    assert_false(kvb_prefix_index_reclaim(world->index, SIZE_MAX));
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

/* ---- Pages, and changes between pages ---- */

enum { max_seen = 1 << 16 };

/* Names that were shown, including repeats. */
struct seen {
    uint64_t names[max_seen];
    size_t count;
};

static void note(void *context, kvb_block_hash block)
{
    struct seen *seen = context;

    assert_true(seen->count < max_seen);
    seen->names[seen->count++] = block.value;
}

static kvb_status note_run(void *context, const struct kvb_index_run *run)
{
    for (size_t i = 0; i < run->count; i++) {
        note(context, run->blocks[i]);
    }
    return KVB_OK;
}

static size_t times_seen(const struct seen *seen, uint64_t name)
{
    size_t times = 0;

    for (size_t i = 0; i < seen->count; i++) {
        times += seen->names[i] == name;
    }
    return times;
}

static void pages_of_any_size_show_each_block_once(void **state)
{
    static struct world world;
    static struct seen all;
    static struct seen paged;

    (void)state;
    begin(&world, 78);
    for (int i = 0; i < 2000; i++) {
        const size_t s = draw(&world, slots);
        uint64_t place = 0;
        if (draw(&world, 3) == 0) {
            store_path(&world, s);
        } else {
            remove_path(&world, s);
        }
        all.count = paged.count = 0;
        const size_t page = 1 + draw(&world, 40);
        for (size_t pages = 0; place != KVB_INDEX_PLACE_END; pages++) {
            const size_t before = paged.count;
            assert_true(pages < 1000);
            kvb_prefix_index_page(world.index, world.slot[s], &place, page, note, &paged);
            /* a page may exceed its budget by the rest of an extent */
            assert_true(paged.count - before < page + (size_t)32);
        }
        /* counted afterwards, because the walk removes repeats from the list of extents */
        kvb_prefix_index_each_block(world.index, world.slot[s], note, &all);
        assert_int_equal(paged.count, all.count);
        for (size_t at = 0; at < all.count; at++) {
            assert_int_equal(times_seen(&paged, all.names[at]), 1);
        }
    }
    end(&world);
}

/* Each block is a prompt of its own, so it has an extent of its own. These are more extents than a
 * page visits. */
static void store_prompts(struct world *world, size_t s, uint64_t first, uint64_t last)
{
    for (uint64_t name = first; name != last; name += first < last ? 1 : -UINT64_C(1)) {
        const kvb_block_hash block = { name };
        const kvb_tokens_hash tokens = { name };
        const struct kvb_index_run run = { .blocks = &block, .tokens = &tokens, .count = 1 };
        assert_ok(kvb_prefix_index_store(world->index, world->slot[s], &run, NULL));
    }
}

static void
remove_prompts(struct world *world, size_t s, uint64_t first, uint64_t last, uint64_t every)
{
    for (uint64_t name = first; name < last; name += every) {
        const kvb_block_hash block = { name };
        assert_ok(kvb_prefix_index_remove(world->index, world->slot[s], &block, 1, NULL));
    }
}

/* Freed extents are reused in reverse order. */
static void many_extents_are_shown_in_pages_in_any_order_of_their_numbers(void **state)
{
    enum { all = 3000 };
    static struct world world;
    static struct seen paged;
    uint64_t place = 0;

    (void)state;
    begin(&world, 79);
    paged.count = 0;
    store_prompts(&world, 0, 1, all + 1);
    remove_prompts(&world, 0, 1, all + 1, 2);
    store_prompts(&world, 0, all, 0);
    for (size_t pages = 0; place != KVB_INDEX_PLACE_END; pages++) {
        assert_true(pages < 100);
        kvb_prefix_index_page(world.index, world.slot[0], &place, 700, note, &paged);
    }
    assert_int_equal(paged.count, all);
    for (uint64_t name = 1; name <= all; name++) {
        assert_int_equal(times_seen(&paged, name), 1);
    }
    end(&world);
}

/* Another slot keeps the extent in use. A slot that leaves it and comes back notes it a second
 * time. */
static void an_extent_left_and_entered_again_is_shown_once(void **state)
{
    static struct world world;
    static struct seen paged;
    static struct seen walked;
    uint64_t place = 0;

    (void)state;
    begin(&world, 82);
    paged.count = walked.count = 0;
    store_prompts(&world, 1, 1, 20);
    for (int i = 0; i < 3; i++) {
        store_prompts(&world, 0, 1, 20);
        remove_prompts(&world, 0, 1, 20, 1);
    }
    store_prompts(&world, 0, 1, 20);
    while (place != KVB_INDEX_PLACE_END) {
        kvb_prefix_index_page(world.index, world.slot[0], &place, 700, note, &paged);
    }
    assert_ok(walk_in_steps(world.index, world.slot[0], 100, note_run, &walked));
    assert_int_equal(paged.count, 19);
    assert_int_equal(walked.count, 19);
    end(&world);
}

/* A block that is held throughout must be shown; one that was never held must not. */
static void blocks_that_stay_are_shown_whatever_else_changes(void **state)
{
    enum { stays = 2000, goes = 4000, comes = 6000 };
    static struct world world;
    static struct seen shown;
    static struct seen walked;
    struct kvb_index_walk *walk = NULL;
    uint64_t place = 0;
    kvb_status status = KVB_AGAIN;

    (void)state;
    begin(&world, 80);
    shown.count = walked.count = 0;
    store_prompts(&world, 0, 1, goes);
    assert_ok(kvb_index_walk_new(world.index, world.slot[0], &walk));
    for (uint64_t at = 0; place != KVB_INDEX_PLACE_END || status == KVB_AGAIN; at++) {
        if (place != KVB_INDEX_PLACE_END) {
            kvb_prefix_index_page(world.index, world.slot[0], &place, 50, note, &shown);
        }
        if (status == KVB_AGAIN) {
            status = kvb_index_walk_step(walk, 1000, note_run, &walked);
        }
        if (stays + 40 * at + 40 < goes) {
            remove_prompts(&world, 0, stays + 40 * at, stays + 40 * at + 40, 1);
            store_prompts(&world, 0, goes + 40 * at, goes + 40 * at + 40);
            /* stored in freed extents */
            store_prompts(&world, 1, stays + 40 * at, stays + 40 * at + 40);
        }
    }
    assert_ok(status);
    kvb_index_walk_free(walk);
    for (uint64_t name = 1; name < stays; name++) {
        assert_in_range(times_seen(&shown, name), 1, 2);
        assert_in_range(times_seen(&walked, name), 1, 2);
    }
    for (size_t i = 0; i < shown.count; i++) {
        assert_true(shown.names[i] < comes);
    }
    for (size_t i = 0; i < walked.count; i++) {
        assert_true(walked.names[i] < comes);
    }
    end(&world);
}

/* The walk of a slot must not show what another slot, which got its number, holds. */
static void a_walk_ends_when_its_slot_is_cleared(void **state)
{
    static struct world world;
    static struct seen walked;
    struct kvb_index_walk *walk = NULL;

    (void)state;
    begin(&world, 81);
    walked.count = 0;
    store_prompts(&world, 0, 1, 2000);
    assert_ok(kvb_index_walk_new(world.index, world.slot[0], &walk));
    while (walked.count == 0) {
        assert_int_equal(kvb_index_walk_step(walk, 1000, note_run, &walked), KVB_AGAIN);
    }
    kvb_prefix_index_slot_clear(world.index, world.slot[0]); /* not reclaimed yet */
    store_prompts(&world, 0, 8000, 8001);
    assert_ok(kvb_index_walk_step(walk, SIZE_MAX, note_run, &walked));
    kvb_index_walk_free(walk);
    assert_true(walked.count < 100);
    for (size_t i = 0; i < walked.count; i++) {
        assert_true(walked.names[i] < 2000);
    }
    end(&world);
}

SUITE(prefix_walk_random)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_makes_an_equal_index),
        cmocka_unit_test(pages_of_any_size_show_each_block_once),
        cmocka_unit_test(many_extents_are_shown_in_pages_in_any_order_of_their_numbers),
        cmocka_unit_test(an_extent_left_and_entered_again_is_shown_once),
        cmocka_unit_test(blocks_that_stay_are_shown_whatever_else_changes),
        cmocka_unit_test(a_walk_ends_when_its_slot_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
