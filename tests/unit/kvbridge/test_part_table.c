#include "kvb_test.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvbridge/part_table.h"

#include <stdio.h>

enum { ids = 6, ranks = 3, max_parts = ids * (ranks + 1) };

/* One part of each kind that the table may have, made once. */
static struct kvb_parts parts_of(uint64_t id)
{
    struct kvb_worker_spec spec;
    struct kvb_worker_spec *worker = NULL;
    struct kvb_parts parts = { 0 };
    char events[64];

    kvb_worker_spec_init(&spec);
    (void)snprintf(events, sizeof events, "tcp://10.0.0.%u:5557", (unsigned)id);
    spec.id = id;
    spec.events = events;
    spec.ranks = ranks;
    spec.load.zmq = "tcp://10.0.0.1:1";
    assert_ok(kvb_worker_spec_new(&spec, &worker));
    assert_ok(kvb_parts_of_spec(worker, &parts));
    kvb_worker_spec_unref(worker);
    return parts;
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return *seed >> 33;
}

/* Every part is found by each of its keys exactly while it is in the table. */
static void
check_keys(const struct kvb_part_table *table, const struct kvb_part *part, uint32_t number)
{
    size_t at = kvb_part_table_start(table, part->id);
    bool is_walked = false;

    assert_int_equal(
        kvb_part_table_find(table, part->kind, part->id, part->dp_rank, KVB_ANY_SOURCE), number);
    assert_int_equal(kvb_part_table_find(table, part->kind, part->id, part->dp_rank, 2), KVB_NO_ID);
    for (uint32_t found; (found = kvb_part_table_next(table, part->id, &at)) != KVB_NO_ID;) {
        assert_true(table->slots[found].part->id == part->id);
        is_walked |= found == number;
    }
    if (part->kind == KVB_PART_RANK) {
        assert_int_equal(is_walked, number != KVB_NO_ID);
        assert_int_equal(kvb_part_table_find_reader(table, part->events, 1), number);
        assert_int_equal(kvb_part_table_find_reader(table, part->events, 0), KVB_NO_ID);
    }
}

static void parts_are_found_by_each_key_while_they_run(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table table = { 0 };
    struct kvb_parts all[ids];
    uint32_t numbers[max_parts];
    uint64_t seed = 1;
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < ids; i++) {
        all[i] = parts_of(i);
    }
    for (size_t i = 0; i < max_parts; i++) {
        numbers[i] = KVB_NO_ID;
    }
    for (size_t turn = 0; turn < 20000; turn++) {
        const size_t at = next_random(&seed) % max_parts;
        struct kvb_part *part = all[at / (ranks + 1)].items[at % (ranks + 1)];
        if (numbers[at] == KVB_NO_ID) {
            assert_ok(kvb_part_table_put(&table, part, 1, &numbers[at], &numbers[at]));
            assert_ptr_equal(table.slots[numbers[at]].owner, &numbers[at]);
            count++;
        } else {
            kvb_part_table_remove(&table, numbers[at]);
            numbers[at] = KVB_NO_ID;
            count--;
        }
        check_keys(&table, part, numbers[at]);
        assert_int_equal(table.count, count);
        assert_true(table.slot_count <= max_parts); /* numbers are used again */
    }
    for (size_t i = 0; i < ids; i++) {
        kvb_parts_done(&all[i]);
    }
}

static void without_memory_nothing_is_put(void **state)
{
    KVB_OWN(kvb_part_table_done) struct kvb_part_table table = { 0 };
    struct kvb_parts parts = parts_of(7);
    uint32_t number = 0;
    kvb_status status = KVB_NO_MEMORY;

    (void)state;
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        fail_alloc_after(n);
        status = kvb_part_table_put(&table, parts.items[0], 1, NULL, &number);
        fail_alloc_after(-1);
        assert_int_equal(table.count, status == KVB_OK);
        check_keys(&table, parts.items[0], status == KVB_OK ? number : KVB_NO_ID);
        assert_true(n < 8);
    }
    assert_ok(status);
    kvb_parts_done(&parts);
}

SUITE(part_table)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_found_by_each_key_while_they_run),
        cmocka_unit_test(without_memory_nothing_is_put),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
