#include "fail_alloc.h"
#include "kvb_test.h"

#include "stream/advertised_names.h"

#include <stdbool.h>
#include <stdlib.h>

enum { names = 64 };

static const uint64_t s = 1000ULL * 1000 * 1000;

static void note_in(
    struct kvb_advertised_names *advertised, enum kvb_tier tier, enum kvb_router_kind kind,
    uint64_t name, uint64_t now_ns)
{
    const struct kvb_router_event event = { .kind = kind, .tier = tier };
    struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_batch_add_event(&batch, &event));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ name }, (kvb_tokens_hash){ 0 }));
    assert_ok(kvb_advertised_note(advertised, &batch, now_ns));
    kvb_router_batch_done(&batch);
}

static void note(
    struct kvb_advertised_names *advertised, enum kvb_router_kind kind, uint64_t name,
    uint64_t now_ns)
{
    note_in(advertised, KVB_TIER_DEVICE, kind, name, now_ns);
}

/* The names that a clear would remove. */
static void list(const struct kvb_advertised_names *advertised, bool out_listed[names])
{
    struct kvb_router_batch batch = { 0 };
    size_t listed = 0;

    for (size_t i = 0; i < names; i++) {
        out_listed[i] = false;
    }
    for (size_t at = 0; at < kvb_advertised_count(advertised); at += listed) {
        kvb_router_batch_reset(&batch);
        assert_ok(kvb_advertised_list(advertised, at, 3, &batch, &listed));
        assert_in_range(listed, 1, 3);
        for (size_t i = 0; i < batch.block_count; i++) {
            assert_false(out_listed[batch.blocks[i].value]); /* each name once */
            out_listed[batch.blocks[i].value] = true;
        }
    }
    kvb_router_batch_done(&batch);
}

static void a_removed_name_stays_until_a_loss_would_have_been_noticed(void **state)
{
    (void)state;
    struct kvb_advertised_names *advertised = NULL;

    assert_ok(kvb_advertised_new(names, 1, &advertised));
    note(advertised, KVB_ROUTER_STORED, 1, 100 * s);
    note(advertised, KVB_ROUTER_STORED, 2, 100 * s);
    note(advertised, KVB_ROUTER_REMOVED, 1, 101 * s);
    /* never advertised, so there is nothing to withdraw */
    note(advertised, KVB_ROUTER_REMOVED, 9, 101 * s);
    kvb_advertised_forget(advertised, 110 * s);
    assert_int_equal(kvb_advertised_count(advertised), 2);
    kvb_advertised_forget(advertised, 121 * s);
    assert_int_equal(kvb_advertised_count(advertised), 1);
    kvb_advertised_free(advertised);
}

static void a_name_that_is_stored_again_stays(void **state)
{
    (void)state;
    struct kvb_advertised_names *advertised = NULL;

    assert_ok(kvb_advertised_new(names, 1, &advertised));
    note(advertised, KVB_ROUTER_STORED, 1, 100 * s);
    note(advertised, KVB_ROUTER_REMOVED, 1, 101 * s);
    note(advertised, KVB_ROUTER_STORED, 1, 102 * s);
    kvb_advertised_forget(advertised, 200 * s);
    assert_int_equal(kvb_advertised_count(advertised), 1);
    kvb_advertised_free(advertised);
}

static void refuses_more_names_than_its_ceiling(void **state)
{
    (void)state;
    struct kvb_advertised_names *advertised = NULL;
    struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_advertised_new(1, 1, &advertised));
    note(advertised, KVB_ROUTER_STORED, 1, s);
    assert_ok(kvb_router_batch_add_event(
        &batch, &(struct kvb_router_event){ .kind = KVB_ROUTER_STORED }));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 2 }, (kvb_tokens_hash){ 0 }));
    assert_int_equal(kvb_advertised_note(advertised, &batch, s), KVB_TOO_LARGE);
    assert_int_equal(kvb_advertised_count(advertised), 1);
    kvb_router_batch_done(&batch);
    kvb_advertised_free(advertised);
}

/* The reference is an array of the times at which each name was last stored and removed. */
static void agrees_with_an_array(void **state)
{
    (void)state;
    struct kvb_advertised_names *advertised = NULL;
    bool is_kept[names] = { false };
    uint64_t left[names] = { 0 };
    uint64_t swept = 0;
    uint64_t now = 100 * s;
    unsigned seed = 20260202;

    assert_ok(kvb_advertised_new(names, 1, &advertised));
    for (int i = 0; i < 20000; i++) {
        const size_t name = (size_t)rand_r(&seed) % names;
        now += (uint64_t)(rand_r(&seed) % 1000) * (s / 1000);
        if (rand_r(&seed) % 2) {
            note(advertised, KVB_ROUTER_STORED, name, now);
            is_kept[name] = true;
            left[name] = 0;
        } else {
            note(advertised, KVB_ROUTER_REMOVED, name, now);
            left[name] = is_kept[name] ? now : 0;
        }
        kvb_advertised_forget(advertised, now);
        if (now >= swept + kvb_advertised_leave_ns) {
            swept = now;
            for (size_t n = 0; n < names; n++) {
                is_kept[n] &= left[n] == 0 || now < left[n] + kvb_advertised_leave_ns;
            }
        }
        bool listed[names];
        list(advertised, listed);
        assert_memory_equal(listed, is_kept, sizeof listed);
    }
    kvb_advertised_free(advertised);
}

/* Readers without `cleared` receive only the device tier. */
static void other_lists_are_ignored(void **state)
{
    (void)state;
    struct kvb_advertised_names *advertised = NULL;

    assert_ok(kvb_advertised_new(names, 1, &advertised));
    for (int list = KVB_TIER_DEVICE; list < KVB_LIST_COUNT; list++) {
        struct kvb_router_batch batch = { 0 };
        assert_ok(kvb_router_batch_add_event(
            &batch,
            &(struct kvb_router_event){ .kind = KVB_ROUTER_STORED, .tier = (enum kvb_tier)list }));
        assert_ok(kvb_router_batch_add_block(
            &batch, (kvb_block_hash){ (uint64_t)list }, (kvb_tokens_hash){ 0 }));
        assert_ok(kvb_advertised_note(advertised, &batch, s));
        kvb_router_batch_done(&batch);
    }
    assert_int_equal(kvb_advertised_count(advertised), 1);
    assert_int_equal(kvb_advertised_at(advertised, 0).value, KVB_TIER_DEVICE);
    kvb_advertised_free(advertised);
}

static void survives_each_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;
    struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_batch_add_event(
        &batch, &(struct kvb_router_event){ .kind = KVB_ROUTER_STORED }));
    for (uint64_t name = 0; name < names; name++) {
        assert_ok(
            kvb_router_batch_add_block(&batch, (kvb_block_hash){ name }, (kvb_tokens_hash){ 0 }));
    }
    for (long n = 0; status != KVB_OK; n++) {
        struct kvb_advertised_names *advertised = NULL;
        fail_alloc_after(n);
        status = kvb_advertised_new(names, 1, &advertised);
        if (status == KVB_OK) {
            status = kvb_advertised_note(advertised, &batch, s);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_advertised_free(advertised);
        assert_true(n < 100);
    }
    kvb_router_batch_done(&batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_removed_name_stays_until_a_loss_would_have_been_noticed),
        cmocka_unit_test(a_name_that_is_stored_again_stays),
        cmocka_unit_test(refuses_more_names_than_its_ceiling),
        cmocka_unit_test(agrees_with_an_array),
        cmocka_unit_test(other_lists_are_ignored),
        cmocka_unit_test(survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
