#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/hash.h"
#include "core/line_table.h"

#include <stdlib.h>

/* The table is compared with an array of its items. Items are numbers; their hashes are drawn from
 * few or from many values, so that long chains and large tables both occur. */

enum { things = 20000 };

static uint64_t spread(uint64_t number)
{
    static const struct kvb_hash_key key = { { 1, UINT64_C(0x9e3779b97f4a7c15) } };
    return kvb_hash_keyed(&key, number, 0);
}

struct world {
    struct kvb_line_table table;
    uint64_t hash[things];
    bool is_in[things];
    size_t count;
};

static uint64_t hash_of(const void *context, uint32_t id)
{
    const struct world *world = context;
    return world->hash[id];
}

static struct world *make_world(unsigned seed, uint64_t hashes)
{
    struct world *world = calloc(1, sizeof *world);

    assert_non_null(world);
    for (size_t i = 0; i < things; i++) {
        world->hash[i] = spread((uint64_t)rand_r(&seed) % hashes);
    }
    assert_ok(kvb_line_table_open(&world->table, things, kvb_line_roomy, hash_of, world));
    return world;
}

static void drop_world(struct world *world)
{
    kvb_line_table_close(&world->table);
    free(world);
}

static size_t times_found(const struct world *world, uint32_t id)
{
    struct kvb_line_probe probe = kvb_line_table_probe(&world->table, world->hash[id]);
    size_t times = 0;

    for (uint32_t found; (found = kvb_line_probe_next(&world->table, &probe)) != KVB_NO_LINE_ID;) {
        assert_true(world->is_in[found]); /* nothing that was removed */
        times += found == id;
    }
    return times;
}

static void turn(struct world *world, uint32_t id)
{
    if (world->is_in[id]) {
        kvb_line_table_remove(&world->table, world->hash[id], id);
        world->count--;
    } else {
        assert_ok(kvb_line_table_put(&world->table, world->hash[id], id));
        world->count++;
    }
    world->is_in[id] = !world->is_in[id];
    assert_int_equal(world->table.count, world->count);
}

static void compare(const struct world *world)
{
    for (uint32_t id = 0; id < things; id++) {
        assert_int_equal(times_found(world, id), world->is_in[id]);
    }
}

static void one_incarnation(unsigned seed, uint64_t hashes, int operations)
{
    struct world *world = make_world(seed, hashes);

    for (int i = 0; i < operations; i++) {
        const uint32_t id = (uint32_t)rand_r(&seed) % things;
        turn(world, id);
        assert_int_equal(times_found(world, id), world->is_in[id]);
    }
    compare(world);
    for (uint32_t id = 0; id < things; id++) {
        if (world->is_in[id]) {
            turn(world, id);
        }
    }
    assert_int_equal(world->table.count, 0);
    drop_world(world);
}

static void finds_its_items_and_nothing_else(void **state)
{
    (void)state;
    one_incarnation(1, UINT64_MAX, 100000);
}

/* Two hundred items of each hash: lines of one chain, with equal tags. */
static void finds_all_of_many_that_share_a_hash(void **state)
{
    (void)state;
    one_incarnation(2, things / 200, 20000);
}

static void grows_a_line_at_a_time(void **state)
{
    (void)state;
    struct world *world = make_world(3, UINT64_MAX);

    for (uint32_t id = 0; id < things; id++) {
        const size_t lines = world->table.line_count;
        turn(world, id);
        assert_true(world->table.line_count - lines <= 1);
    }
    assert_true(world->table.line_count * kvb_line_roomy >= (size_t)things * 10);
    assert_true(kvb_line_table_bytes(&world->table) < (size_t)things * 19);
    compare(world);
    drop_world(world);
}

/* A put that fails for lack of memory changes nothing, and succeeds when it is repeated. */
static void survives_the_failure_of_each_growth(void **state)
{
    (void)state;
    struct world *world = make_world(4, things / 50);
    size_t failures = 0;

    for (uint32_t id = 0; id < things; id++) {
        fail_alloc_after(0);
        const kvb_status status = kvb_line_table_put(&world->table, world->hash[id], id);
        fail_alloc_after(-1);
        if (status != KVB_OK) {
            failures++;
            assert_int_equal(status, KVB_NO_MEMORY);
            assert_int_equal(times_found(world, id), 0);
            assert_ok(kvb_line_table_put(&world->table, world->hash[id], id));
        }
        world->is_in[id] = true;
        world->count++;
    }
    assert_true(failures > 0);
    compare(world);
    drop_world(world);
}

/* ---- Large tables: the hash of an item is its number, with the bits mixed ---- */

enum { many = 1000000, lines_of_tags = 1 << 16 };

static size_t asked; /* how often the table asked for the hash of an item */

static uint64_t hash_of_number(const void *context, uint32_t id)
{
    (void)context;
    asked++;
    return spread(id);
}

static bool has_number(const struct kvb_line_table *table, uint32_t id)
{
    struct kvb_line_probe probe = kvb_line_table_probe(table, spread(id));

    for (uint32_t found; (found = kvb_line_probe_next(table, &probe)) != KVB_NO_LINE_ID;) {
        if (found == id) {
            return true;
        }
    }
    return false;
}

/* A table that asked for hashes would read every item again at each doubling. */
static void large_tables_split_lines_by_their_tags(void **state)
{
    (void)state;
    struct kvb_line_table table = { 0 };
    size_t asked_before = 0;

    assert_ok(kvb_line_table_open(&table, many, kvb_line_dense, hash_of_number, NULL));
    for (uint32_t id = 0; id < many; id++) {
        assert_ok(kvb_line_table_put(&table, spread(id), id));
        if (table.line_count <= lines_of_tags) {
            asked_before = asked;
        }
    }
    assert_true(table.line_count > 2 * (size_t)lines_of_tags);
    assert_true(asked_before > lines_of_tags);
    assert_true(asked - asked_before < many / 1000);
    for (uint32_t id = 0; id < many; id++) {
        assert_true(has_number(&table, id));
    }
    assert_false(has_number(&table, many));
    kvb_line_table_close(&table);
}

static void fill(struct kvb_line_table *table, uint32_t count)
{
    for (uint32_t id = 0; id < count; id++) {
        assert_ok(kvb_line_table_put(table, spread(id), id));
    }
}

static void an_emptied_table_holds_nothing_and_need_not_grow_again(void **state)
{
    enum { few = 1000 };
    (void)state;
    struct kvb_line_table table = { 0 };

    assert_ok(kvb_line_table_open(&table, many, kvb_line_dense, hash_of_number, NULL));
    fill(&table, few);
    const size_t bytes = kvb_line_table_bytes(&table);
    kvb_line_table_empty(&table);
    for (uint32_t id = 0; id < few; id++) {
        assert_false(has_number(&table, id));
    }
    assert_int_equal(table.count, 0);

    asked = 0;
    fill(&table, few);
    assert_int_equal(asked, 0);
    assert_true(kvb_line_table_bytes(&table) <= bytes); /* spill lines are reused too */
    for (uint32_t id = 0; id < few; id++) {
        assert_true(has_number(&table, id));
    }
    kvb_line_table_close(&table);
}

/* The table must not wipe its memory: a stream that never holds a block would cost 4 MiB. A wipe
 * would overwrite what this test writes into a free cell. */
static void an_empty_table_is_not_wiped(void **state)
{
    (void)state;
    struct kvb_line_table table = { 0 };

    assert_ok(kvb_line_table_open(&table, many, kvb_line_roomy, hash_of_number, NULL));
    struct kvb_table_line *line = (void *)table.lines.base;
    line->ids[0] = 7;
    kvb_line_table_empty(&table);
    assert_int_equal(line->ids[0], 7);
    assert_ok(kvb_line_table_put(&table, spread(1), 1));
    kvb_line_table_empty(&table);
    assert_int_equal(line->ids[0], 0);
    assert_false(has_number(&table, 1));
    kvb_line_table_close(&table);
}

static void a_large_table_that_is_emptied_frees_its_memory(void **state)
{
    (void)state;
    struct kvb_line_table table = { 0 };

    kvb_line_table_empty(&table); /* a table that was never opened */
    assert_int_equal(table.line_count, 0);
    assert_ok(kvb_line_table_open(&table, many, kvb_line_dense, hash_of_number, NULL));
    fill(&table, many);
    kvb_line_table_empty(&table);
    assert_null(table.lines.base);
    assert_int_equal(table.line_count, 0);
}

SUITE(line_table)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_its_items_and_nothing_else),
        cmocka_unit_test(finds_all_of_many_that_share_a_hash),
        cmocka_unit_test(grows_a_line_at_a_time),
        cmocka_unit_test(survives_the_failure_of_each_growth),
        cmocka_unit_test(large_tables_split_lines_by_their_tags),
        cmocka_unit_test(an_emptied_table_holds_nothing_and_need_not_grow_again),
        cmocka_unit_test(an_empty_table_is_not_wiped),
        cmocka_unit_test(a_large_table_that_is_emptied_frees_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
