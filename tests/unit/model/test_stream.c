#include "kvb_test.h"
#include "model/stream.h"

/* Which streams count for the share that must be EXACT. */
static void a_stream_that_waits_for_its_engine_is_not_counted(void **state)
{
    (void)state;
    assert_true(kvb_stream_is_counted(KVB_STREAM_EXACT, KVB_REASON_NONE));
    assert_true(kvb_stream_is_counted(KVB_STREAM_SYNCING, KVB_REASON_REPLAYING));
    assert_true(kvb_stream_is_counted(KVB_STREAM_STALE, KVB_REASON_NATS_AWAY));
    assert_true(kvb_stream_is_counted(KVB_STREAM_PARTIAL, KVB_REASON_NO_BASE)); /* it has worked */
    assert_false(kvb_stream_is_counted(KVB_STREAM_DOWN, KVB_REASON_ENGINE_AWAY));
    for (unsigned i = 0; i < KVB_REASON_COUNT; i++) {
        const enum kvb_stream_reason reason = (enum kvb_stream_reason)i;
        const bool waits = reason == KVB_REASON_NO_BASE || reason == KVB_REASON_ASLEEP ||
                           reason == KVB_REASON_CACHING_OFF ||
                           reason == KVB_REASON_NO_REMOVALS || /* a store never becomes EXACT */
                           reason == KVB_REASON_SPECULATION;   /* only an operator knows */
        assert_int_equal(kvb_stream_is_counted(KVB_STREAM_UNVERIFIED, reason), !waits);
    }
}

SUITE(stream)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_that_waits_for_its_engine_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
