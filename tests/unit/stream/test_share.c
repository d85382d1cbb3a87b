#include "kvb_test.h"

#include "core/clock.h"
#include "stream/share.h"

/* One stream, checked every 50 ms. */
struct loop {
    struct kvb_share share;
    uint64_t now_ns;
    uint64_t others;
};

static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;

/* The stream uses this much of the thread's time until the verdict changes or the time is over,
 * with or without others being served. */
static enum kvb_share_verdict
run(struct loop *loop, unsigned percent, bool others_are_served, uint64_t seconds)
{
    const uint64_t end_ns = loop->now_ns + seconds * KVB_NS_PER_S;

    while (loop->now_ns < end_ns) {
        loop->now_ns += tick_ns;
        kvb_share_use(&loop->share, tick_ns * percent / 100);
        loop->others += others_are_served;
        const enum kvb_share_verdict verdict =
            kvb_share_classify(&loop->share, loop->now_ns, loop->others);
        if (verdict != KVB_SHARE_GO_ON) {
            return verdict;
        }
    }
    return KVB_SHARE_GO_ON;
}

static struct loop begin(void)
{
    return (struct loop){ .now_ns = KVB_NS_PER_S };
}

/* Seconds from the quarantine to the release. */
static uint64_t wait_for_release(struct loop *loop)
{
    const uint64_t from_ns = loop->now_ns;

    assert_true(kvb_share_is_quarantined(&loop->share));
    assert_int_equal(run(loop, 0, true, 40), KVB_SHARE_RELEASE);
    assert_false(kvb_share_is_quarantined(&loop->share));
    return (loop->now_ns - from_ns) / KVB_NS_PER_S;
}

static void a_stream_within_its_share_is_served_for_ever(void **state)
{
    (void)state;
    struct loop loop = begin();

    assert_int_equal(run(&loop, 49, true, 600), KVB_SHARE_GO_ON);
}

static void a_stream_alone_on_the_thread_may_use_it_fully(void **state)
{
    (void)state;
    struct loop loop = begin();

    assert_int_equal(run(&loop, 100, false, 600), KVB_SHARE_GO_ON);
}

static void a_stream_above_its_share_for_ten_seconds_is_quarantined(void **state)
{
    (void)state;
    struct loop loop = begin();

    assert_int_equal(run(&loop, 90, true, 9), KVB_SHARE_GO_ON);
    assert_int_equal(run(&loop, 90, true, 2), KVB_SHARE_QUARANTINE);
    assert_int_equal(wait_for_release(&loop), 1);
}

/* A long prompt or a restart of the engine is no reason for a quarantine. */
static void a_pause_within_ten_seconds_prevents_a_quarantine(void **state)
{
    (void)state;
    struct loop loop = begin();

    for (int i = 0; i < 20; i++) {
        assert_int_equal(run(&loop, 90, true, 8), KVB_SHARE_GO_ON);
        assert_int_equal(run(&loop, 10, true, 2), KVB_SHARE_GO_ON);
    }
}

static void the_wait_doubles_up_to_thirty_seconds(void **state)
{
    (void)state;
    struct loop loop = begin();
    static const uint64_t waits_s[] = { 1, 2, 4, 8, 16, 30, 30, 30 };

    assert_int_equal(run(&loop, 90, true, 11), KVB_SHARE_QUARANTINE);
    for (size_t i = 0; i < sizeof waits_s / sizeof waits_s[0]; i++) {
        assert_int_equal(wait_for_release(&loop), waits_s[i]);
        const uint64_t from_ns = loop.now_ns;
        assert_int_equal(run(&loop, 90, true, 11), KVB_SHARE_QUARANTINE);
        /* the time above the share that is tolerated is shorter than at first */
        assert_true(loop.now_ns - from_ns < 3 * KVB_NS_PER_S);
    }
}

static void half_a_minute_within_the_share_resets_the_wait(void **state)
{
    (void)state;
    struct loop loop = begin();

    for (int i = 0; i < 4; i++) {
        assert_int_equal(run(&loop, 90, true, 11), KVB_SHARE_QUARANTINE);
        (void)wait_for_release(&loop);
    }
    assert_int_equal(run(&loop, 20, true, 32), KVB_SHARE_GO_ON);
    assert_int_equal(run(&loop, 90, true, 9), KVB_SHARE_GO_ON);
    assert_int_equal(run(&loop, 90, true, 2), KVB_SHARE_QUARANTINE);
    assert_int_equal(wait_for_release(&loop), 1);
}

SUITE(share)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_within_its_share_is_served_for_ever),
        cmocka_unit_test(a_stream_alone_on_the_thread_may_use_it_fully),
        cmocka_unit_test(a_stream_above_its_share_for_ten_seconds_is_quarantined),
        cmocka_unit_test(a_pause_within_ten_seconds_prevents_a_quarantine),
        cmocka_unit_test(the_wait_doubles_up_to_thirty_seconds),
        cmocka_unit_test(half_a_minute_within_the_share_resets_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
