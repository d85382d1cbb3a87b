#include "fleet/engine/content_log.h"

#include "fail_alloc.h"
#include "kvb_test.h"

static const uint32_t tokens[] = { 5, 6, 7, 8, 9, 10 };

static kvb_engine_hash hash_of(uint64_t value)
{
    return (kvb_engine_hash){ value };
}

static void
store(struct kvb_content_log *log, uint64_t hash, uint64_t parent, const uint32_t *own_tokens)
{
    const struct kvb_block_content content = { .hash = hash_of(hash),
                                               .tokens = own_tokens,
                                               .salt = hash % 2 == 0 ? "even" : NULL };

    kvb_content_log_stored(log, &content, hash_of(parent));
}

static void forgets_the_oldest_when_full(void **state)
{
    (void)state;
    struct kvb_content_log log = { 0 };

    assert_ok(kvb_content_log_init(&log, 3, 2));
    for (uint64_t i = 0; i < 10; i++) {
        store(&log, i, i, tokens + i % 5);
    }
    assert_int_equal(log.next, 10);
    assert_int_equal(kvb_content_log_first(&log), 7);
    for (uint64_t i = 7; i < 10; i++) {
        assert_int_equal(kvb_content_log_at(&log, i)->hash.value, i);
        assert_memory_equal(kvb_content_log_tokens(&log, i), tokens + i % 5, 2 * sizeof *tokens);
    }
    kvb_content_log_done(&log);
}

static void survives_each_failing_allocation(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long fail_at = 0; status == KVB_NO_MEMORY; fail_at++) {
        struct kvb_content_log log = { 0 };
        fail_alloc_after(fail_at);
        status = kvb_content_log_init(&log, 3, 2);
        fail_alloc_after(-1);
        kvb_content_log_done(&log);
    }
    assert_ok(status);
}

SUITE(content_log)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forgets_the_oldest_when_full),
        cmocka_unit_test(survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
