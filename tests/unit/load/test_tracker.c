#include "kvb_test.h"

#include "core/clock.h"
#include "fail_alloc.h"
#include "load/tracker.h"

#define S KVB_NS_PER_S

static struct kvb_load_tracker *tracker_of(enum kvb_load_statistic statistic)
{
    const struct kvb_load_options options = {
        .max_endpoints = 4,
        .expire_ms = 3000,
        .forget_ms = 60000,
        .statistic = statistic,
    };
    struct kvb_load_tracker *tracker = NULL;

    assert_ok(kvb_load_tracker_new(&options, &tracker));
    return tracker;
}

static struct kvb_stream_id worker(uint64_t worker_id)
{
    return (struct kvb_stream_id){ .name_space = "dynamo",
                                   .component = "VllmWorker",
                                   .worker_id = worker_id };
}

static kvb_status report(
    struct kvb_load_tracker *tracker, uint64_t worker_id, uint64_t active, uint64_t total,
    uint64_t now_ns)
{
    const struct kvb_stream_id id = worker(worker_id);
    const struct kvb_load_report report = {
        .worker_id = worker_id,
        .endpoint_name = "generate",
        .load = { .kv_active_blocks = active, .kv_total_blocks = total },
    };

    return kvb_load_tracker_report(tracker, &id, &report, now_ns);
}

static void assert_near(double value, double expected)
{
    assert_true(value > expected - 1e-9 && value < expected + 1e-9);
}

static void load_is_active_by_total_and_zero_without_a_total(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_USAGE);

    assert_ok(report(tracker, 1, 25, 100, S));
    assert_ok(report(tracker, 2, 7, 0, S));
    const struct kvb_stream_id one = worker(1);
    const struct kvb_stream_id two = worker(2);
    assert_near(kvb_load_value(tracker, kvb_load_tracker_find(tracker, &one)), 0.25);
    assert_near(kvb_load_value(tracker, kvb_load_tracker_find(tracker, &two)), 0);
    kvb_load_tracker_free(tracker);
}

static void the_deviation_is_that_of_a_sample(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_USAGE);
    struct kvb_load_stats stats;

    kvb_load_tracker_stats(tracker, &stats);
    assert_near(stats.avg, 0);
    assert_ok(report(tracker, 1, 20, 100, S));
    kvb_load_tracker_stats(tracker, &stats);
    assert_near(stats.avg, 0.2);
    assert_near(stats.std, 0); /* a single endpoint has no deviation */
    assert_ok(report(tracker, 2, 40, 100, S));
    kvb_load_tracker_stats(tracker, &stats);
    assert_near(stats.avg, 0.3);
    assert_near(stats.std * stats.std, 0.02); /* (0.1^2 + 0.1^2) / (2 - 1) */
    assert_int_equal(stats.endpoint_count, 2);
    kvb_load_tracker_free(tracker);
}

static void active_blocks_statistic_deviates_as_a_population(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_ACTIVE_BLOCKS);
    struct kvb_load_stats stats;

    assert_ok(report(tracker, 1, 20, 100, S));
    assert_ok(report(tracker, 2, 40, 100, S));
    kvb_load_tracker_stats(tracker, &stats);
    assert_near(stats.avg, 30);
    assert_near(stats.std, 10);
    kvb_load_tracker_free(tracker);
}

static void silent_endpoints_are_listed_but_leave_the_statistics(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_USAGE);
    struct kvb_load_stats stats;
    const struct kvb_stream_id one = worker(1);

    assert_ok(report(tracker, 1, 90, 100, 1 * S));
    assert_ok(report(tracker, 2, 10, 100, 3 * S));
    assert_false(kvb_load_tracker_expire(tracker, (4 * S) - 1));
    assert_true(kvb_load_tracker_expire(tracker, 4 * S));
    assert_false(kvb_load_tracker_expire(tracker, 4 * S));
    kvb_load_tracker_stats(tracker, &stats);
    assert_near(stats.avg, 0.1);
    assert_int_equal(stats.stale_count, 1);
    assert_true(kvb_load_tracker_find(tracker, &one)->is_stale);
    assert_ok(report(tracker, 1, 50, 100, 5 * S));
    assert_false(kvb_load_tracker_find(tracker, &one)->is_stale);
    kvb_load_tracker_free(tracker);
}

static void endpoints_that_are_silent_for_long_are_forgotten(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_USAGE);
    const struct kvb_stream_id one = worker(1);

    assert_ok(report(tracker, 1, 90, 100, S));
    assert_true(kvb_load_tracker_expire(tracker, 60 * S));
    assert_non_null(kvb_load_tracker_find(tracker, &one));
    assert_true(kvb_load_tracker_expire(tracker, 61 * S));
    assert_null(kvb_load_tracker_find(tracker, &one));
    kvb_load_tracker_free(tracker);
}

static void refuses_an_endpoint_above_the_ceiling(void **state)
{
    (void)state;
    struct kvb_load_tracker *tracker = tracker_of(KVB_LOAD_USAGE);

    for (uint64_t i = 0; i < 4; i++) {
        assert_ok(report(tracker, i, 1, 2, S));
    }
    assert_int_equal(report(tracker, 4, 1, 2, S), KVB_TOO_LARGE);
    assert_ok(report(tracker, 3, 2, 2, S));
    kvb_load_tracker_free(tracker);
}

static void survives_every_failing_allocation(void **state)
{
    (void)state;
    const struct kvb_load_options options = { .max_endpoints = 4, .expire_ms = 1 };

    for (long n = 0;; n++) {
        struct kvb_load_tracker *tracker = NULL;
        fail_alloc_after(n);
        kvb_status status = kvb_load_tracker_new(&options, &tracker);
        if (status == KVB_OK) {
            status = report(tracker, 1, 1, 2, S);
        }
        fail_alloc_after(-1);
        kvb_load_tracker_free(tracker);
        if (status == KVB_OK) {
            break;
        }
        assert_int_equal(status, KVB_NO_MEMORY);
    }
}

SUITE(tracker)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_is_active_by_total_and_zero_without_a_total),
        cmocka_unit_test(the_deviation_is_that_of_a_sample),
        cmocka_unit_test(active_blocks_statistic_deviates_as_a_population),
        cmocka_unit_test(silent_endpoints_are_listed_but_leave_the_statistics),
        cmocka_unit_test(endpoints_that_are_silent_for_long_are_forgotten),
        cmocka_unit_test(refuses_an_endpoint_above_the_ceiling),
        cmocka_unit_test(survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
