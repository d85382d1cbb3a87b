#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/id_table.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdlib.h>

static size_t count_of(const struct kvb_id_table *table, uint32_t hash, uint32_t id)
{
    size_t found = 0;
    size_t at = kvb_id_table_start(table, hash);

    for (uint32_t got; (got = kvb_id_table_next(table, hash, &at)) != KVB_NO_ID;) {
        found += got == id;
    }
    return found;
}

/* A table wiped at its creation would overwrite what this test writes into a free cell. */
static void an_empty_table_is_not_wiped(void **state)
{
    (void)state;
    struct kvb_id_table table = { 0 };

    kvb_id_table_clear(&table);
    assert_ok(kvb_id_table_put(&table, 7, 1));
    kvb_id_table_remove(&table, 7, 1);
    table.cells[0].hash = 99;
    kvb_id_table_clear(&table);
    assert_int_equal(table.cells[0].hash, 99);
    assert_ok(kvb_id_table_put(&table, 7, 1));
    kvb_id_table_clear(&table);
    assert_int_not_equal(table.cells[0].hash, 99);
    assert_int_equal(count_of(&table, 7, 1), 0);
    kvb_id_table_done(&table);
}

/* Few different hashes, so that runs of cells are long and wrap around the end. */
static void agrees_with_an_array(void **state)
{
    (void)state;
    enum { ids = 300, operations = 100000 };
    static uint32_t hash_of[ids];
    static bool is_in[ids];
    struct kvb_id_table table = { 0 };
    unsigned seed = 20260101;
    size_t live = 0;

    for (int i = 0; i < operations; i++) {
        const uint32_t id = (uint32_t)rand_r(&seed) % ids;
        if (is_in[id]) {
            kvb_id_table_remove(&table, hash_of[id], id);
            live--;
        } else {
            hash_of[id] = (uint32_t)rand_r(&seed) % 64 * 0x01000193U;
            assert_ok(kvb_id_table_put(&table, hash_of[id], id));
            live++;
        }
        is_in[id] = !is_in[id];
        assert_int_equal(table.count, live);
        const uint32_t other = (uint32_t)rand_r(&seed) % ids;
        assert_int_equal(count_of(&table, hash_of[other], other), is_in[other]);
    }
    kvb_id_table_clear(&table);
    assert_int_equal(count_of(&table, hash_of[0], 0), 0);
    kvb_id_table_done(&table);
}

/* Also when the run wraps around the end of the table as the table grows. */
static void ids_of_one_hash_are_found_in_the_order_of_insertion(void **state)
{
    (void)state;
    enum { ids = 400 };
    struct kvb_id_table table = { 0 };

    for (uint32_t id = 0; id < ids; id++) {
        assert_ok(kvb_id_table_put(&table, 0xfffffff0U, id));
        size_t at = kvb_id_table_start(&table, 0xfffffff0U);
        for (uint32_t i = 0; i <= id; i++) {
            assert_int_equal(kvb_id_table_next(&table, 0xfffffff0U, &at), i);
        }
    }
    kvb_id_table_done(&table);
}

static void a_failed_growth_changes_nothing(void **state)
{
    (void)state;
    struct kvb_id_table table = { 0 };

    /* 3/4 of the first 64 cells: the next one makes the table grow */
    for (uint32_t id = 0; id < 48; id++) {
        assert_ok(kvb_id_table_put(&table, id * 0x9e3779b9U, id));
    }
    fail_alloc_after(0);
    assert_int_equal(kvb_id_table_put(&table, 48 * 0x9e3779b9U, 48), KVB_NO_MEMORY);
    fail_alloc_after(-1);
    for (uint32_t id = 0; id < 48; id++) {
        assert_int_equal(count_of(&table, id * 0x9e3779b9U, id), 1);
    }
    kvb_id_table_done(&table);
}

SUITE(id_table)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_table_is_not_wiped),
        cmocka_unit_test(agrees_with_an_array),
        cmocka_unit_test(ids_of_one_hash_are_found_in_the_order_of_insertion),
        cmocka_unit_test(a_failed_growth_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
