#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/line_table.h"
#include "index/block_set.h"

#include <stdlib.h>

static struct kvb_block_set set_of(size_t max_blocks)
{
    struct kvb_block_set set;

    kvb_block_set_init(&set, max_blocks, 0);
    return set;
}

static kvb_block_hash block(uint64_t value)
{
    return (kvb_block_hash){ value };
}

/* ---- Against a plain array ---- */

enum { names = 400, operations = 200000 };

struct reference {
    kvb_block_hash blocks[names];
    bool is_in[names];
    size_t count;
};

/* Hashes with few home cells, so that runs are long and wrap around the end of the table. */
static void choose_blocks(struct reference *reference)
{
    const struct kvb_hash_key key = kvb_hash_key_of(0);
    uint64_t value = 1;

    reference->blocks[0] = block(0);
    for (size_t i = 1; i < names; value++) {
        const uint64_t home = kvb_hash_keyed(&key, value, 0) & 1023;
        if (home % 64 == 0 || home >= 1020) {
            reference->blocks[i++] = block(value);
        }
    }
}

static void count_visited(void *context, kvb_block_hash visited)
{
    struct reference *reference = context;

    for (size_t i = 0; i < names; i++) {
        if (reference->blocks[i].value == visited.value) {
            assert_true(reference->is_in[i]);
            reference->count--;
            return;
        }
    }
    fail_msg("visited an item that was never added");
}

static void change(struct reference *reference, struct kvb_block_set *set, size_t at)
{
    bool is_new = false;

    if (reference->is_in[at]) {
        assert_true(kvb_block_set_remove(set, reference->blocks[at]));
        assert_false(kvb_block_set_remove(set, reference->blocks[at]));
    } else {
        assert_ok(kvb_block_set_add(set, reference->blocks[at], &is_new));
        assert_true(is_new);
    }
    reference->count += reference->is_in[at] ? SIZE_MAX : 1;
    reference->is_in[at] = !reference->is_in[at];
}

static void agrees_with_an_array(void **state)
{
    (void)state;
    static struct reference reference;
    struct kvb_block_set set = set_of(names);
    unsigned seed = 20261122;

    choose_blocks(&reference);
    for (int i = 0; i < operations; i++) {
        change(&reference, &set, (size_t)rand_r(&seed) % names);
        assert_int_equal(set.count, reference.count);
        const size_t other = (size_t)rand_r(&seed) % names;
        assert_int_equal(kvb_block_set_has(&set, reference.blocks[other]), reference.is_in[other]);
    }
    kvb_block_set_each(&set, count_visited, &reference);
    assert_int_equal(reference.count, 0);
    kvb_block_set_clear(&set);
    assert_false(kvb_block_set_has(&set, reference.blocks[0]));
}

/* ---- Ceilings ---- */

static void a_full_set_refuses_and_stays_as_it_is(void **state)
{
    (void)state;
    struct kvb_block_set set = set_of(3);

    for (uint64_t i = 0; i < 3; i++) {
        assert_ok(kvb_block_set_add(&set, block(i), NULL));
    }
    assert_int_equal(kvb_block_set_add(&set, block(3), NULL), KVB_TOO_LARGE);
    assert_ok(kvb_block_set_add(&set, block(2), NULL)); /* a block that is already in the set */
    assert_int_equal(set.count, 3);
    assert_false(kvb_block_set_has(&set, block(3)));
    assert_true(kvb_block_set_remove(&set, block(0)));
    assert_ok(kvb_block_set_add(&set, block(3), NULL));
    kvb_block_set_clear(&set);
}

static void a_failed_growth_changes_nothing(void **state)
{
    (void)state;
    struct kvb_block_set set = set_of(1000);
    uint64_t refused = 0;

    for (uint64_t i = 1; i <= 500; i++) {
        fail_alloc_after(0);
        kvb_status status = kvb_block_set_add(&set, block(i), NULL);
        fail_alloc_after(-1);
        if (status == KVB_NO_MEMORY) {
            refused++;
            assert_int_equal(set.count, i - 1);
            assert_false(kvb_block_set_has(&set, block(i)));
            assert_int_equal(kvb_block_set_has(&set, block(i - 1)), i > 1);
            status = kvb_block_set_add(&set, block(i), NULL);
        }
        assert_ok(status);
    }
    assert_int_equal(refused, 7); /* the table grows at 16 cells, 32, ... 1024 */
    kvb_block_set_clear(&set);
}

SUITE(block_set)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_an_array),
        cmocka_unit_test(a_full_set_refuses_and_stays_as_it_is),
        cmocka_unit_test(a_failed_growth_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
