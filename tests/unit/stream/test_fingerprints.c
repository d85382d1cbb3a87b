#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/random.h"
#include "stream/fingerprints.h"

#include <stdlib.h>

/* Compares the table with one of full capacity from the start. */

enum { operations = 20000 };

struct reference {
    struct kvb_fingerprint slots[kvb_fingerprints];
};

static struct kvb_hash128 hash_of(uint64_t seq)
{
    return (struct kvb_hash128){ .low = seq * 3, .high = ~seq };
}

static void reference_put(struct reference *reference, uint64_t seq, bool is_live)
{
    reference->slots[seq % kvb_fingerprints] =
        (struct kvb_fingerprint){ .is_set = true, .is_live = is_live, .seq = seq };
}

static void assert_equal(const struct kvb_fingerprint_ring *ring, const struct reference *reference)
{
    for (size_t i = 0; i < kvb_fingerprints; i++) {
        const struct kvb_fingerprint *want = &reference->slots[i];
        const struct kvb_fingerprint *have = kvb_fingerprints_at(ring, i);

        assert_int_equal(have != NULL, want->is_set);
        if (have) {
            assert_int_equal(have->seq, want->seq);
            assert_int_equal(kvb_fingerprints_is_live(ring, have->seq), want->is_live);
            assert_true(kvb_fingerprints_match(ring, have->seq, hash_of(have->seq)));
            assert_false(kvb_fingerprints_match(ring, have->seq, hash_of(have->seq + 1)));
            assert_false(kvb_fingerprints_has(ring, have->seq + kvb_fingerprints));
        }
    }
}

/* Mostly consecutive numbers, some repeated, some far away. */
static uint64_t next_seq(uint64_t seq, uint64_t *random)
{
    const uint64_t kind = kvb_random_below(random, 100);

    if (kind < 90) {
        return seq + 1;
    }
    return kind < 98 ? seq - kvb_random_below(random, 20) : kvb_random_next(random) >> 2;
}

static void remembers_as_much_as_a_table_of_full_capacity(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct kvb_fingerprint_ring ring = { 0 };
        struct reference reference = { 0 };
        uint64_t seq = 1 << 20;
        uint64_t random = seed;

        for (size_t i = 0; i < operations / seed; i++) {
            const bool is_live = kvb_random_chance(&random, 0.5);
            kvb_fingerprints_put(&ring, seq, hash_of(seq), is_live);
            reference_put(&reference, seq, is_live);
            if (i % 97 == 0 || i < 64) {
                assert_equal(&ring, &reference);
            }
            seq = next_seq(seq, &random);
        }
        assert_equal(&ring, &reference);
        kvb_fingerprints_clear(&ring);
    }
}

static void a_few_batches_take_few_slots_and_none_take_none(void **state)
{
    struct kvb_fingerprint_ring ring = { 0 };

    (void)state;
    assert_false(kvb_fingerprints_has(&ring, 0));
    assert_null(kvb_fingerprints_at(&ring, 0));
    kvb_fingerprints_reconnect(&ring);
    for (uint64_t seq = 1000; seq < 1016; seq++) {
        kvb_fingerprints_put(&ring, seq, hash_of(seq), true);
    }
    assert_int_equal(ring.capacity, 16);
    kvb_fingerprints_reconnect(&ring);
    assert_true(kvb_fingerprints_has(&ring, 1000));
    assert_false(kvb_fingerprints_is_live(&ring, 1000));
    for (uint64_t seq = 0; seq < UINT64_C(100) * kvb_fingerprints; seq++) {
        kvb_fingerprints_put(&ring, seq, hash_of(seq), true);
    }
    assert_int_equal(ring.capacity, kvb_fingerprints);
    kvb_fingerprints_clear(&ring);
    assert_int_equal(ring.capacity, 0);
    assert_null(ring.slots);
}

static void without_memory_the_newest_batch_of_a_slot_stays(void **state)
{
    struct kvb_fingerprint_ring ring = { 0 };

    (void)state;
    fail_alloc_after(0);
    kvb_fingerprints_put(&ring, 1, hash_of(1), true);
    fail_alloc_after(-1);
    assert_false(kvb_fingerprints_has(&ring, 1));
    kvb_fingerprints_put(&ring, 1, hash_of(1), true);
    fail_alloc_after(0);
    kvb_fingerprints_put(&ring, 17, hash_of(17), true);
    fail_alloc_after(-1);
    assert_false(kvb_fingerprints_has(&ring, 1));
    assert_true(kvb_fingerprints_match(&ring, 17, hash_of(17)));
    kvb_fingerprints_clear(&ring);
}

SUITE(fingerprints)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(remembers_as_much_as_a_table_of_full_capacity),
        cmocka_unit_test(a_few_batches_take_few_slots_and_none_take_none),
        cmocka_unit_test(without_memory_the_newest_batch_of_a_slot_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
