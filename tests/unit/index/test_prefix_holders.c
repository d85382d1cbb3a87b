#include "kvb_test.h"

#include "index/prefix_index.h"

#include <stdlib.h>

/* What is remembered of where a holder holds something: workers that have the same prompts
 * lose them and store them again, over and over. */

enum { workers = 32, prompts = 100, prompt_blocks = 16, max_nodes = 10000 };

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_lost_and_stored_again_takes_no_more_memory),
        cmocka_unit_test(nor_does_it_where_a_slot_is_cleared_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
