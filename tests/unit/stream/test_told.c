#include "fail_alloc.h"
#include "kvb_test.h"

#include "stream/told.h"

#include <stdbool.h>
#include <stdlib.h>

enum { names = 64 };

static const uint64_t s = 1000ULL * 1000 * 1000;

static void note_in(
    struct kvb_told *told, enum kvb_tier tier, enum kvb_router_kind kind, uint64_t name,
    uint64_t now_ns)
{
    const struct kvb_router_event event = { .kind = kind, .tier = tier };
    struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_batch_add_event(&batch, &event));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ name }, (kvb_tokens_hash){ 0 }));
    assert_ok(kvb_told_note(told, &batch, now_ns));
    kvb_router_batch_done(&batch);
}

static void note(struct kvb_told *told, enum kvb_router_kind kind, uint64_t name, uint64_t now_ns)
{
    note_in(told, KVB_TIER_DEVICE, kind, name, now_ns);
}

/* Which names a clear would remove. */
static void list(const struct kvb_told *told, bool out_listed[names])
{
    struct kvb_router_batch batch = { 0 };
    size_t listed = 0;

    for (size_t i = 0; i < names; i++) {
        out_listed[i] = false;
    }
    for (size_t at = 0; at < kvb_told_count(told); at += listed) {
        kvb_router_batch_reset(&batch);
        assert_ok(kvb_told_list(told, at, 3, &batch, &listed));
        assert_in_range(listed, 1, 3);
        for (size_t i = 0; i < batch.block_count; i++) {
            assert_false(out_listed[batch.blocks[i].value]); /* each once */
            out_listed[batch.blocks[i].value] = true;
        }
    }
    kvb_router_batch_done(&batch);
}

static void a_removed_name_stays_until_a_loss_would_have_been_noticed(void **state)
{
    (void)state;
    struct kvb_told *told = NULL;

    assert_ok(kvb_told_new(names, &told));
    note(told, KVB_ROUTER_STORED, 1, 100 * s);
    note(told, KVB_ROUTER_STORED, 2, 100 * s);
    note(told, KVB_ROUTER_REMOVED, 1, 101 * s);
    note(told, KVB_ROUTER_REMOVED, 9, 101 * s); /* never told: nothing to take back */
    kvb_told_forget(told, 110 * s);
    assert_int_equal(kvb_told_count(told), 2);
    kvb_told_forget(told, 121 * s);
    assert_int_equal(kvb_told_count(told), 1);
    kvb_told_free(told);
}

static void a_name_that_is_stored_again_stays(void **state)
{
    (void)state;
    struct kvb_told *told = NULL;

    assert_ok(kvb_told_new(names, &told));
    note(told, KVB_ROUTER_STORED, 1, 100 * s);
    note(told, KVB_ROUTER_REMOVED, 1, 101 * s);
    note(told, KVB_ROUTER_STORED, 1, 102 * s);
    kvb_told_forget(told, 200 * s);
    assert_int_equal(kvb_told_count(told), 1);
    kvb_told_free(told);
}

static void refuses_more_names_than_its_ceiling(void **state)
{
    (void)state;
    struct kvb_told *told = NULL;
    struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_told_new(1, &told));
    note(told, KVB_ROUTER_STORED, 1, s);
    assert_ok(kvb_router_batch_add_event(
        &batch, &(struct kvb_router_event){ .kind = KVB_ROUTER_STORED }));
    assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ 2 }, (kvb_tokens_hash){ 0 }));
    assert_int_equal(kvb_told_note(told, &batch, s), KVB_TOO_LARGE);
    assert_int_equal(kvb_told_count(told), 1);
    kvb_router_batch_done(&batch);
    kvb_told_free(told);
}

/* A plain array remembers when each name was last stored and removed. */
static void agrees_with_a_plain_array(void **state)
{
    (void)state;
    struct kvb_told *told = NULL;
    bool is_kept[names] = { false };
    uint64_t left[names] = { 0 };
    uint64_t swept = 0;
    uint64_t now = 100 * s;
    unsigned seed = 20260202;

    assert_ok(kvb_told_new(names, &told));
    for (int i = 0; i < 20000; i++) {
        const size_t name = (size_t)rand_r(&seed) % names;
        now += (uint64_t)(rand_r(&seed) % 1000) * (s / 1000);
        if (rand_r(&seed) % 2) {
            note(told, KVB_ROUTER_STORED, name, now);
            is_kept[name] = true;
            left[name] = 0;
        } else {
            note(told, KVB_ROUTER_REMOVED, name, now);
            left[name] = is_kept[name] ? now : 0;
        }
        kvb_told_forget(told, now);
        if (now >= swept + kvb_told_leave_ns) {
            swept = now;
            for (size_t n = 0; n < names; n++) {
                is_kept[n] &= left[n] == 0 || now < left[n] + kvb_told_leave_ns;
            }
        }
        bool listed[names];
        list(told, listed);
        assert_memory_equal(listed, is_kept, sizeof listed);
    }
    kvb_told_free(told);
}

/* Readers without `cleared` hear of the device alone. */
static void other_lists_are_passed_over(void **state)
{
    (void)state;
    struct kvb_told *told = NULL;

    assert_ok(kvb_told_new(names, &told));
    for (int list = KVB_TIER_DEVICE; list < KVB_LIST_COUNT; list++) {
        struct kvb_router_batch batch = { 0 };
        assert_ok(kvb_router_batch_add_event(
            &batch,
            &(struct kvb_router_event){ .kind = KVB_ROUTER_STORED, .tier = (enum kvb_tier)list }));
        assert_ok(kvb_router_batch_add_block(
            &batch, (kvb_block_hash){ (uint64_t)list }, (kvb_tokens_hash){ 0 }));
        assert_ok(kvb_told_note(told, &batch, s));
        kvb_router_batch_done(&batch);
    }
    assert_int_equal(kvb_told_count(told), 1);
    assert_int_equal(kvb_told_at(told, 0).value, KVB_TIER_DEVICE);
    kvb_told_free(told);
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
        struct kvb_told *told = NULL;
        fail_alloc_after(n);
        status = kvb_told_new(names, &told);
        if (status == KVB_OK) {
            status = kvb_told_note(told, &batch, s);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || status == KVB_NO_MEMORY);
        kvb_told_free(told);
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
        cmocka_unit_test(agrees_with_a_plain_array),
        cmocka_unit_test(other_lists_are_passed_over),
        cmocka_unit_test(survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
