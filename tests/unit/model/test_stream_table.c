#include "kvb_test.h"

#include "fail_alloc.h"
#include "model/stream_table.h"

#include <stdlib.h>
#include <string.h>

static struct kvb_stream_id id_of(unsigned worker, unsigned rank, const char *component)
{
    struct kvb_stream_id id = { .name_space = "dynamo", .worker_id = worker, .dp_rank = rank };

    memcpy(id.component, component, strlen(component));
    return id;
}

static void finds_by_keys_made_for_this_table_another_table_and_another_hash_key(void **state)
{
    (void)state;
    struct kvb_stream_table table;
    struct kvb_stream_table other;
    const struct kvb_stream_id id = id_of(1, 0, "a");
    const struct kvb_stream_id absent = id_of(2, 0, "a");
    uint32_t number = 99;
    uint32_t place = 98;

    kvb_stream_table_init(&table, 10, 1);
    kvb_stream_table_init(&other, 10, 1);
    assert_ok(kvb_stream_table_add(&table, &id, &number));
    assert_ok(kvb_stream_table_add(&other, &absent, &place));
    assert_ok(kvb_stream_table_add(&other, &id, &place));
    const struct kvb_stream_key keys[] = { kvb_stream_table_key(&table, number),
                                           kvb_stream_table_key(&other, place),
                                           kvb_stream_key_of(&id, 1), kvb_stream_key_of(&id, 2) };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t found = 97;
        assert_ok(kvb_stream_table_find_key(&table, &keys[i], &found));
        assert_int_equal(found, number);
    }
    for (uint64_t hash_key = 1; hash_key <= 2; hash_key++) {
        const struct kvb_stream_key key = kvb_stream_key_of(&absent, hash_key);
        assert_int_equal(kvb_stream_table_find_key(&table, &key, &number), KVB_NOT_FOUND);
    }
    kvb_stream_table_done(&table);
    kvb_stream_table_done(&other);
}

static void refuses_a_stream_above_the_ceiling(void **state)
{
    (void)state;
    struct kvb_stream_table table;
    const struct kvb_stream_id ids[3] = { id_of(1, 0, "a"), id_of(2, 0, "a"), id_of(3, 0, "a") };
    uint32_t number = 0;

    kvb_stream_table_init(&table, 2, 1);
    assert_ok(kvb_stream_table_add(&table, &ids[0], &number));
    assert_ok(kvb_stream_table_add(&table, &ids[1], &number));
    assert_int_equal(kvb_stream_table_add(&table, &ids[2], &number), KVB_TOO_LARGE);
    kvb_stream_table_remove(&table, number);
    assert_ok(kvb_stream_table_add(&table, &ids[2], &number));
    assert_int_equal(number, 1);
    assert_null(kvb_stream_table_id(&table, 2));
    kvb_stream_table_done(&table);
}

enum { model_ids = 300, model_steps = 200000 };

/* The reference model: which of 300 ids are in the table, and with which number. */
static void agrees_with_an_array_over_random_adds_and_removes(void **state)
{
    (void)state;
    struct kvb_stream_table table;
    long numbers[model_ids];
    uint64_t seed = 42;

    kvb_stream_table_init(&table, model_ids, 1);
    for (size_t i = 0; i < model_ids; i++) {
        numbers[i] = -1;
    }
    for (size_t step = 0; step < model_steps; step++) {
        seed = (seed * UINT64_C(6364136223846793005)) + 1442695040888963407U;
        const unsigned at = (unsigned)(seed >> 33U) % model_ids;
        const struct kvb_stream_id id = id_of(at / 3, at % 3, "c");
        uint32_t number = 0;
        const kvb_status found = kvb_stream_table_find(&table, &id, &number);
        assert_int_equal(found, numbers[at] < 0 ? KVB_NOT_FOUND : KVB_OK);
        if (found == KVB_OK) {
            assert_int_equal(number, numbers[at]);
            kvb_stream_table_remove(&table, number);
            numbers[at] = -1;
        } else {
            assert_ok(kvb_stream_table_add(&table, &id, &number));
            numbers[at] = (long)number;
            assert_int_equal(kvb_stream_table_id(&table, number)->worker_id, id.worker_id);
            assert_int_equal(kvb_stream_table_id(&table, number)->dp_rank, id.dp_rank);
        }
    }
    kvb_stream_table_done(&table);
}

static void survives_every_failing_allocation(void **state)
{
    (void)state;

    for (long n = 0;; n++) {
        struct kvb_stream_table table;
        kvb_status status = KVB_OK;
        kvb_stream_table_init(&table, 100, 1);
        fail_alloc_after(n);
        for (unsigned i = 0; i < 50 && status == KVB_OK; i++) {
            const struct kvb_stream_id id = id_of(i, 0, "a");
            uint32_t number = 0;
            status = kvb_stream_table_add(&table, &id, &number);
            assert_int_equal(table.count, status == KVB_OK ? i + 1 : i);
        }
        fail_alloc_after(-1);
        kvb_stream_table_done(&table);
        if (status == KVB_OK) {
            break;
        }
        assert_int_equal(status, KVB_NO_MEMORY);
    }
}

/* An attacker who chooses the names of streams must not be able to predict collisions. */
static void each_key_gives_different_hashes(void **state)
{
    (void)state;
    struct kvb_stream_table one;
    struct kvb_stream_table other;
    uint32_t number = 0;

    kvb_stream_table_init(&one, 1, 1);
    kvb_stream_table_init(&other, 1, 2);
    const struct kvb_stream_id id = { .worker_id = 7, .name_space = "n", .component = "c" };
    assert_ok(kvb_stream_table_add(&one, &id, &number));
    assert_ok(kvb_stream_table_add(&other, &id, &number));
    assert_int_not_equal(one.entries[0].hash, other.entries[0].hash);
    kvb_stream_table_done(&one);
    kvb_stream_table_done(&other);
}

SUITE(stream_table)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_key_gives_different_hashes),
        cmocka_unit_test(finds_by_keys_made_for_this_table_another_table_and_another_hash_key),
        cmocka_unit_test(refuses_a_stream_above_the_ceiling),
        cmocka_unit_test(agrees_with_an_array_over_random_adds_and_removes),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
