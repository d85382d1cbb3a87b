#include "kvb_test.h"

#include "index/line_table.h"
#include "index/prefix_index.h"

/* Who knows how hashes are made can choose names that meet in one line of a table.  With a
 * key that he does not know he cannot. */

enum { chosen = 2000, same_bits = 0xfff };

/* Names whose hashes, without a key, end alike. */
static void choose(kvb_block_hash *names)
{
    size_t count = 0;

    for (uint64_t name = 1; count < chosen; name++) {
        if ((kvb_line_mix(name) & same_bits) == 0) {
            names[count++].value = name;
        }
    }
}

/* Each is a prompt of one block.  Spill lines of a line that many meet in are counted too. */
static size_t bytes_with(uint64_t hash_key, const kvb_block_hash *names)
{
    const struct kvb_prefix_index_options options = { .max_nodes = chosen,
                                                      .max_slots = 1,
                                                      .hash_key = hash_key };
    struct kvb_prefix_index *index = NULL;
    kvb_slot_ref slot = { 0 };

    assert_ok(kvb_prefix_index_new(&options, &index));
    assert_ok(kvb_prefix_index_slot_new(index, &slot));
    for (uint64_t i = 0; i < chosen; i++) {
        const kvb_tokens_hash tokens = { i };
        const struct kvb_index_run run = { .blocks = &names[i], .tokens = &tokens, .count = 1 };
        assert_ok(kvb_prefix_index_store(index, slot, &run, NULL));
    }
    const size_t bytes = kvb_prefix_index_bytes(index);
    assert_int_equal(kvb_prefix_index_slot_blocks(index, slot), chosen);
    kvb_prefix_index_free(index);
    return bytes;
}

static void chosen_names_meet_only_where_the_key_is_known(void **state)
{
    (void)state;
    kvb_block_hash names[chosen];
    const size_t in_one_line = (size_t)chosen / kvb_line_cells * sizeof(struct kvb_table_line);

    choose(names);
    const size_t known = bytes_with(0, names);
    const size_t unknown = bytes_with(UINT64_C(0x243f6a8885a308d3), names);
    assert_true(known > unknown + in_one_line / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_names_meet_only_where_the_key_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
