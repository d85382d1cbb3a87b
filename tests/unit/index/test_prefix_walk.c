#include "kvb_test.h"

#include "core/own.h"
#include "index/index.h"
#include "index/whole_walk.h"

#include <stdbool.h>
#include <stdlib.h>

/* Walks and pages of an index that changes between two of their steps.  What they show of one that
 * does not change, the differential test compares. */

enum { slots = 2 };

struct world {
    struct kvb_prefix_index *index;
    kvb_slot_ref slot[slots];
};

static void begin(struct world *world)
{
    const struct kvb_prefix_index_options options = { .max_nodes = 100000, .max_slots = slots };

    *world = (struct world){ .index = NULL };
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
    begin(&world);
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
    begin(&world);
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
    assert_ok(whole_walk(world.index, world.slot[0], 100, note_run, &walked));
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
    begin(&world);
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
    begin(&world);
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

SUITE(prefix_walk)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_extents_are_shown_in_pages_in_any_order_of_their_numbers),
        cmocka_unit_test(an_extent_left_and_entered_again_is_shown_once),
        cmocka_unit_test(blocks_that_stay_are_shown_whatever_else_changes),
        cmocka_unit_test(a_walk_ends_when_its_slot_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
