#include "fail_alloc.h"
#include "kvb_test.h"

#include "index/prefix_index.h"

#include <stdlib.h>

/* What is remembered of where a holder holds something: workers that have the same prompts
 * lose them and store them again, over and over. */

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

/* All workers, all prompts; after one turn in `cleared_in` the worker begins anew, 0: never. */
static void rounds(const struct fleet *fleet, size_t count, uint64_t cleared_in)
{
    unsigned seed = 1;

    for (size_t round = 0; round < count; round++) {
        for (uint64_t prompt = 0; prompt < prompts; prompt++) {
            for (size_t w = 0; w < workers; w++) {
                lose_and_store(fleet, w, prompt);
                if (cleared_in > 0 && (uint64_t)rand_r(&seed) % cleared_in == 0) {
                    kvb_prefix_index_slot_clear(fleet->index, fleet->slot[w]);
                }
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
    assert_false(kvb_prefix_index_tend(fleet->index, SIZE_MAX));
    kvb_prefix_index_count(fleet->index, &counters);
    assert_int_equal(counters.nodes, 0);
    assert_int_equal(counters.memberships, 0);
    kvb_prefix_index_free(fleet->index);
}

static void takes_no_more_memory(uint64_t cleared_in)
{
    struct fleet fleet = make_fleet();

    rounds(&fleet, 8, cleared_in);
    const size_t bytes = kvb_prefix_index_bytes(fleet.index);
    rounds(&fleet, 40, cleared_in);
    assert_true(kvb_prefix_index_bytes(fleet.index) < bytes + bytes / 4);
    drop_fleet(&fleet);
}

static void what_is_lost_and_stored_again_takes_no_more_memory(void **state)
{
    (void)state;
    takes_no_more_memory(0);
}

/* The list that is passed through just then may be a cleared slot's. */
static void nor_does_it_where_a_slot_is_cleared_meanwhile(void **state)
{
    (void)state;
    takes_no_more_memory(300);
}

/* ---- A sweep that finds no memory ---- */

enum { cleared = 1, others = 4 };

/* A prompt of up to three blocks, of which the worker may call the last one otherwise. */
static void store_three(const struct fleet *fleet, size_t w, size_t count, uint64_t last_name)
{
    const kvb_block_hash blocks[] = { { 9001 }, { 9002 }, { last_name } };
    const kvb_tokens_hash tokens[] = { { 1 }, { 2 }, { 3 } };
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = count };

    assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[w], &run, NULL));
}

/* Whether the worker held it. */
static bool lose(const struct fleet *fleet, size_t w, uint64_t name)
{
    const kvb_block_hash block = { name };
    uint8_t was_held = 0;

    assert_ok(kvb_prefix_index_remove(fleet->index, fleet->slot[w], &block, 1, &was_held));
    return was_held;
}

/* So many sets of two, no two alike: they take the memory that sets have so far. */
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

/* Three workers share two blocks; the third block only one holds, by a name of its own. */
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

/* The third block comes and goes while the sweep waits for memory; whoever draws the cleared
 * holder's number has none of its names. */
static void assert_no_name_is_left(const struct fleet *fleet)
{
    const kvb_block_hash block = { 9200 };
    const kvb_tokens_hash tokens = { 10001 };
    const struct kvb_index_run run = { .blocks = &block, .tokens = &tokens, .count = 1 };

    for (int twice = 0; twice < 2; twice++) {
        fail_alloc_after(0); /* for the sweep that each change begins with */
        store_three(fleet, 2, 3, 9003);
        fail_alloc_after(0);
        assert_true(lose(fleet, 2, 9003));
    }
    fail_alloc_after(-1);
    assert_false(kvb_prefix_index_tend(fleet->index, SIZE_MAX));
    store_three(fleet, cleared, 3, 9003);
    assert_ok(kvb_prefix_index_store(fleet->index, fleet->slot[cleared], &run, NULL));
    assert_false(lose(fleet, cleared, 9100));
    assert_true(lose(fleet, cleared, 9003));
}

static void a_sweep_that_waits_for_memory_leaves_no_name_behind(void **state)
{
    size_t waits = 0;

    (void)state;
    for (size_t pairs = 1000; pairs < 1040; pairs++) {
        struct fleet fleet = make_fleet();
        make_shared_prompt(&fleet);
        make_pairs(&fleet, pairs);
        kvb_prefix_index_slot_clear(fleet.index, fleet.slot[cleared]);
        fail_alloc_after(0);
        const bool waits_now = kvb_prefix_index_tend(fleet.index, SIZE_MAX);
        fail_alloc_after(-1);
        waits += waits_now;
        if (waits_now) {
            assert_no_name_is_left(&fleet);
        }
        drop_fleet(&fleet);
    }
    assert_true(waits > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_lost_and_stored_again_takes_no_more_memory),
        cmocka_unit_test(nor_does_it_where_a_slot_is_cleared_meanwhile),
        cmocka_unit_test(a_sweep_that_waits_for_memory_leaves_no_name_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
