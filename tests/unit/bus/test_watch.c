#include "bus/watch.h"
#include "core/clock.h"

#include "kvb_test.h"

static const uint64_t ms = KVB_NS_PER_MS;
static const uint64_t start_ns = 5 * KVB_NS_PER_S;

/* Checks as the connection manager does, up to and at until_ns. Returns the first step other than
 * REST, or REST. */
static enum kvb_bus_watch_step
look_until(struct kvb_bus_watch *watch, uint64_t *now_ns, uint64_t until_ns)
{
    while (*now_ns < until_ns) {
        *now_ns = kvb_bus_watch_due_ns(watch);
        const enum kvb_bus_watch_step step = kvb_bus_watch_look(watch, *now_ns);
        if (step != KVB_BUS_WATCH_REST) {
            return step;
        }
    }
    return KVB_BUS_WATCH_REST;
}

static void pings_a_second_after_the_last_ping(void **state)
{
    struct kvb_bus_watch watch;
    uint64_t now_ns = start_ns;

    (void)state;
    kvb_bus_watch_begin(&watch, start_ns);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 999 * ms), KVB_BUS_WATCH_PING);
    assert_int_equal(now_ns, start_ns + 1000 * ms);
    kvb_bus_watch_pinged(&watch, now_ns);
    kvb_bus_watch_answered(&watch);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 1500 * ms), KVB_BUS_WATCH_REST);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 2000 * ms), KVB_BUS_WATCH_PING);
    assert_int_equal(now_ns, start_ns + 2000 * ms);
}

static void repeated_pings_do_not_postpone_the_close(void **state)
{
    struct kvb_bus_watch watch;
    uint64_t now_ns = start_ns;

    (void)state;
    kvb_bus_watch_begin(&watch, start_ns);
    for (int i = 0; i < 3; i++) {
        kvb_bus_watch_pinged(&watch, now_ns);
        now_ns += kvb_bus_look_ms * ms;
        assert_int_equal(kvb_bus_watch_look(&watch, now_ns), KVB_BUS_WATCH_REST);
    }
    kvb_bus_watch_pinged(&watch, now_ns);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 2000 * ms), KVB_BUS_WATCH_CLOSE);
}

/* After a stopped process or a paused machine, the PONG may be waiting in the socket. */
static void time_without_a_check_is_no_silence(void **state)
{
    struct kvb_bus_watch watch;
    uint64_t now_ns = start_ns;

    (void)state;
    kvb_bus_watch_begin(&watch, start_ns);
    kvb_bus_watch_pinged(&watch, start_ns);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 1000 * ms), KVB_BUS_WATCH_REST);
    now_ns += 10 * KVB_NS_PER_S;
    assert_int_equal(kvb_bus_watch_look(&watch, now_ns), KVB_BUS_WATCH_REST);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 11500 * ms), KVB_BUS_WATCH_REST);
    assert_int_equal(look_until(&watch, &now_ns, start_ns + 12000 * ms), KVB_BUS_WATCH_CLOSE);
}

static void a_ping_later_than_the_last_check_is_valid(void **state)
{
    struct kvb_bus_watch watch;
    const uint64_t woken_ns = start_ns + 10 * KVB_NS_PER_S;

    (void)state;
    kvb_bus_watch_begin(&watch, start_ns);
    /* another thread sent it before the connection manager's next check */
    kvb_bus_watch_pinged(&watch, woken_ns);
    uint64_t now_ns = woken_ns;
    assert_int_equal(kvb_bus_watch_look(&watch, now_ns), KVB_BUS_WATCH_REST);
    assert_int_equal(look_until(&watch, &now_ns, woken_ns + 2000 * ms), KVB_BUS_WATCH_CLOSE);
    assert_int_equal(now_ns, woken_ns + 2000 * ms);
}

SUITE(watch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pings_a_second_after_the_last_ping),
        cmocka_unit_test(repeated_pings_do_not_postpone_the_close),
        cmocka_unit_test(time_without_a_check_is_no_silence),
        cmocka_unit_test(a_ping_later_than_the_last_check_is_valid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
