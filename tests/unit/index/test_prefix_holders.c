#include "fail_alloc.h"
#include "kvb_test.h"

#include "index/index.h"

#include <stdbool.h>

/* The index's notes about which extents a holder is in, under workers that lose and store the same
 * prompts again and again. */

enum { workers = 52, prompts = 100, prompt_blocks = 16, max_nodes = 10000 };

struct fleet {
    struct kvb_prefix_index *index; /* owned */
    kvb_slot_ref slot[workers];
};

static struct fleet make_fleet(void)
{
    const struct kvb_prefix_index_options options = { .max_nodes = max_nodes,
                                                      .max_slots = workers };
    struct fleet fleet = { 0 };

    assert_ok(kvb_prefix_index_new(&options, &fleet.index));
    for (size_t w = 0; w < workers; w++) {
        assert_ok(kvb_prefix_index_slot_new(fleet.index, &fleet.slot[w]));
    }
    return fleet;
}

static void lose_and_store(const struct fleet *fleet, size_t w, uint64_t prompt)
{
    kvb_block_hash blocks[prompt_blocks];
    kvb_tokens_hash tokens[prompt_blocks];

    for (uint64_t i = 0; i < prompt_blocks; i++) {
        blocks[i].value = tokens[i].value = prompt * 1000 + i + 1;
    }
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = prompt_blocks };
    assert_ok(kvb_prefix_index_remove(fleet->index, fleet->slot[w], blocks, prompt_blocks, NULL));
    assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[w], &run, NULL));
}

static void rounds(const struct fleet *fleet, size_t count)
{
    for (size_t round = 0; round < count; round++) {
        for (uint64_t prompt = 0; prompt < prompts; prompt++) {
            for (size_t w = 0; w < workers; w++) {
                lose_and_store(fleet, w, prompt);
            }
        }
    }
}

static void drop_fleet(struct fleet *fleet)
{
    struct kvb_index_counters counters;

    for (size_t w = 0; w < workers; w++) {
        kvb_prefix_index_slot_clear(fleet->index, fleet->slot[w]);
    }
    assert_false(kvb_prefix_index_reclaim(fleet->index, SIZE_MAX));
    kvb_prefix_index_count(fleet->index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.memberships, 0);
    kvb_prefix_index_free(fleet->index);
}

static void storing_again_takes_no_more_memory(void **state)
{
    struct fleet fleet = make_fleet();

    (void)state;
    rounds(&fleet, 4);
    const size_t bytes = kvb_prefix_index_bytes(fleet.index);
    rounds(&fleet, 16);
    assert_true(kvb_prefix_index_bytes(fleet.index) < bytes + bytes / 4);
    drop_fleet(&fleet);
}

/* The pass that removes repeats from a worker's list is half done when the worker is cleared. A
 * reclaim of everything must then leave nothing to do. */
static void a_clear_ends_the_pass_over_a_workers_list(void **state)
{
    struct fleet fleet = make_fleet();

    (void)state;
    for (uint64_t turn = 0; turn < 70; turn++) {
        lose_and_store(&fleet, 0, turn % 10);
    }
    kvb_prefix_index_slot_clear(fleet.index, fleet.slot[0]);
    assert_false(kvb_prefix_index_reclaim(fleet.index, SIZE_MAX));
    for (uint64_t prompt = 0; prompt < 50; prompt++) {
        lose_and_store(&fleet, 0, prompt);
    }
    drop_fleet(&fleet);
}

/* ---- A reclaim that finds no memory ---- */

enum { cleared = 1, others = 4 };

/* Stores a prompt of up to three blocks; the worker may have another name for the last one. */
static void store_three(const struct fleet *fleet, size_t w, size_t count, uint64_t last_name)
{
    const kvb_block_hash blocks[] = { { 9001 }, { 9002 }, { last_name } };
    const kvb_tokens_hash tokens[] = { { 1 }, { 2 }, { 3 } };
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = count };

    assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[w], &run, NULL));
}

/* Returns whether the worker held the block. */
static bool lose(const struct fleet *fleet, size_t w, uint64_t name)
{
    const kvb_block_hash block = { name };
    uint8_t was_held = 0;

    assert_ok(kvb_prefix_index_remove(fleet->index, fleet->slot[w], &block, 1, &was_held));
    return was_held;
}

/* Makes this many different sets of two holders, so that the sets use up their memory. */
static void make_pairs(const struct fleet *fleet, size_t count)
{
    for (size_t a = others; a < workers; a++) {
        for (size_t b = others; b < a && count > 0; b++, count--) {
            const kvb_block_hash block = { 10000 + count };
            const kvb_tokens_hash tokens = { 10000 + count };
            const struct kvb_index_run run = { .blocks = &block, .tokens = &tokens, .count = 1 };
            assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[a], &run, NULL));
            assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[b], &run, NULL));
        }
    }
}

/* Three workers share two blocks; one of them alone holds a third, under a name of its own. */
static void make_shared_prompt(const struct fleet *fleet)
{
    store_three(fleet, 0, 3, 9003);
    store_three(fleet, cleared, 3, 9100);
    store_three(fleet, 2, 2, 0);
    store_three(fleet, 3, 2, 0);
    assert_true(lose(fleet, 0, 9003));
    assert_true(lose(fleet, 0, 9002));
    assert_true(lose(fleet, 0, 9001));
}

/* The third block is removed and stored while the reclaim waits for memory. A worker that gets the
 * cleared holder's number must have none of its names. */
static void assert_no_name_is_left(const struct fleet *fleet)
{
    const kvb_block_hash block = { 9200 };
    const kvb_tokens_hash tokens = { 10001 };
    const struct kvb_index_run run = { .blocks = &block, .tokens = &tokens, .count = 1 };

    for (int twice = 0; twice < 2; twice++) {
        fail_alloc_after(0); /* for the reclaim that begins each change */
        store_three(fleet, 2, 3, 9003);
        fail_alloc_after(0);
        assert_true(lose(fleet, 2, 9003));
    }
    fail_alloc_after(-1);
    assert_false(kvb_prefix_index_reclaim(fleet->index, SIZE_MAX));
    store_three(fleet, cleared, 3, 9003);
    assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[cleared], &run, NULL));
    assert_false(lose(fleet, cleared, 9100));
    assert_true(lose(fleet, cleared, 9003));
}

static void a_reclaim_that_waits_for_memory_leaves_no_name_behind(void **state)
{
    size_t waits = 0;

    (void)state;
    for (size_t pairs = 1010; pairs < 1030; pairs++) {
        struct fleet fleet = make_fleet();
        make_shared_prompt(&fleet);
        make_pairs(&fleet, pairs);
        kvb_prefix_index_slot_clear(fleet.index, fleet.slot[cleared]);
        fail_alloc_after(0);
        const bool waits_now = kvb_prefix_index_reclaim(fleet.index, SIZE_MAX);
        fail_alloc_after(-1);
        waits += waits_now;
        if (waits_now) {
            assert_no_name_is_left(&fleet);
        }
        drop_fleet(&fleet);
    }
    assert_true(waits > 0);
}

SUITE(prefix_holders)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storing_again_takes_no_more_memory),
        cmocka_unit_test(a_clear_ends_the_pass_over_a_workers_list),
        cmocka_unit_test(a_reclaim_that_waits_for_memory_leaves_no_name_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
