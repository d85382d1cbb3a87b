#include "kvb_test.h"

#include "core/hash.h"
#include "core/line_table.h"
#include "index/index.h"

/* An attacker who knows how hashes are made can choose names that fall into one line of a table.
 * With a random key that he does not know he cannot. */

enum { chosen = 2000, same_bits = 0xfff };

/* Numbers whose hashes with the key 0 collide: used as names, or as contents below ROOT. */
static void choose(uint64_t *numbers, bool are_names)
{
    const struct kvb_hash_key key = kvb_hash_key_of(0);
    size_t count = 0;

    for (uint64_t number = 1; count < chosen; number++) {
        if ((kvb_hash_keyed(&key, number, are_names ? 0 : 1) & same_bits) == 0) {
            numbers[count++] = number;
        }
    }
}

/* Each block is a prompt of its own with a chosen name or a chosen content. Also counts the spill
 * lines of an overfull line. */
static size_t bytes_with(uint64_t hash_key, const uint64_t *numbers, bool are_names)
{
    const struct kvb_prefix_index_options options = { .max_nodes = chosen,
                                                      .max_slots = 1,
                                                      .hash_key = hash_key };
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot = { 0 };

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    for (uint64_t i = 0; i < chosen; i++) {
        const kvb_block_hash name = { are_names ? numbers[i] : i };
        const kvb_tokens_hash tokens = { are_names ? i : numbers[i] };
        const struct kvb_index_run run = { .blocks = &name, .tokens = &tokens, .count = 1 };
        assert_ok(kvb_prefix_index_store(index, slot, &run, NULL));
    }
    const size_t bytes = kvb_prefix_index_bytes(index);
    assert_int_equal(kvb_prefix_index_slot_blocks(index, slot), chosen);
    kvb_prefix_index_free(index);
    return bytes;
}

static void assert_key_parts(bool are_names)
{
    static uint64_t numbers[chosen];
    const size_t in_one_line = (size_t)chosen / kvb_line_cells * sizeof(struct kvb_table_line);

    choose(numbers, are_names);
    const size_t known = bytes_with(0, numbers, are_names);
    const size_t unknown = bytes_with(UINT64_C(0x243f6a8885a308d3), numbers, are_names);
    assert_true(known > unknown + in_one_line / 2);
}

static void chosen_names_collide_only_if_the_key_is_known(void **state)
{
    (void)state;
    assert_key_parts(true);
}

static void chosen_contents_collide_only_if_the_key_is_known(void **state)
{
    (void)state;
    assert_key_parts(false);
}

SUITE(prefix_key)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_names_collide_only_if_the_key_is_known),
        cmocka_unit_test(chosen_contents_collide_only_if_the_key_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
