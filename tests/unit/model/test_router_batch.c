#include "kvb_test.h"

#include "core/limits.h"
#include "fail_alloc.h"
#include "model/router_batch.h"

/* Events 0, 1, 2 ... have 0, 1, 2 ... blocks. */
static kvb_status fill(struct kvb_router_batch *batch, uint32_t events)
{
    for (uint32_t i = 0; i < events; i++) {
        const struct kvb_router_event event = {
            .kind = KVB_ROUTER_STORED, .event_id = i, .block_at = 77, .block_count = 77
        };
        KVB_TRY(kvb_router_batch_add_event(batch, &event));
        for (uint32_t block = 0; block < i; block++) {
            KVB_TRY(kvb_router_batch_add_block(
                batch, (kvb_block_hash){ 1000 * i + block }, (kvb_tokens_hash){ block }));
        }
    }
    return KVB_OK;
}

static void assert_filled(const struct kvb_router_batch *batch, uint32_t events)
{
    uint32_t at = 0;

    assert_int_equal(batch->event_count, events);
    for (uint32_t i = 0; i < events; i++) {
        assert_int_equal(batch->events[i].event_id, i);
        assert_int_equal(batch->events[i].block_at, at);
        assert_int_equal(batch->events[i].block_count, i);
        for (uint32_t block = 0; block < i; block++, at++) {
            assert_int_equal(batch->blocks[at].value, 1000 * i + block);
            assert_int_equal(batch->tokens[at].value, block);
        }
    }
    assert_int_equal(batch->block_count, at);
}

static void a_reset_batch_keeps_stream_and_memory_but_no_epoch(void **state)
{
    (void)state;
    struct kvb_router_batch batch = { .worker_id = 7, .dp_rank = 1, .has_epoch = true };

    assert_ok(fill(&batch, 100));
    kvb_router_batch_reset(&batch);
    assert_int_equal(batch.worker_id, 7);
    assert_false(batch.has_epoch);
    fail_alloc_after(0);
    assert_ok(fill(&batch, 100));
    fail_alloc_after(-1);
    assert_filled(&batch, 100);
    kvb_router_batch_done(&batch);
}

static void refuses_events_and_blocks_above_the_ceiling(void **state)
{
    (void)state;
    struct kvb_router_batch batch = { 0 };
    const struct kvb_router_event event = { .kind = KVB_ROUTER_REMOVED };

    for (size_t i = 0; i < kvb_max_router_events; i++) {
        assert_ok(kvb_router_batch_add_event(&batch, &event));
    }
    assert_int_equal(kvb_router_batch_add_event(&batch, &event), KVB_TOO_LARGE);
    assert_int_equal(batch.event_count, kvb_max_router_events);
    for (size_t i = 0; i < kvb_max_router_blocks; i++) {
        assert_ok(
            kvb_router_batch_add_block(&batch, (kvb_block_hash){ i }, (kvb_tokens_hash){ 0 }));
    }
    assert_int_equal(
        kvb_router_batch_add_block(&batch, (kvb_block_hash){ 1 }, (kvb_tokens_hash){ 0 }),
        KVB_TOO_LARGE);
    assert_int_equal(batch.block_count, kvb_max_router_blocks);
    assert_int_equal(batch.events[batch.event_count - 1].block_count, kvb_max_router_blocks);
    kvb_router_batch_done(&batch);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_router_batch batch = { 0 };
        size_t blocks = 0;
        fail_alloc_after(n);
        status = fill(&batch, 100);
        fail_alloc_after(-1);
        for (size_t i = 0; i < batch.event_count; i++) {
            blocks += batch.events[i].block_count;
        }
        assert_int_equal(batch.block_count, blocks); /* a failed block is counted nowhere */
        kvb_router_batch_done(&batch);
        assert_true(n < 100);
    }
    assert_ok(status);
}

SUITE(router_batch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_batch_keeps_stream_and_memory_but_no_epoch),
        cmocka_unit_test(refuses_events_and_blocks_above_the_ceiling),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
