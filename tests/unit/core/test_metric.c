#include "kvb_test.h"

#include "core/metric.h"
#include "core/own.h"

#include <pthread.h>

enum { adders = 4, adds = 20000 };

#define TEST_METRICS(X)                                                                            \
    X(batches, COUNTER, "kvb_batches_total", "", "Batches.")                                       \
    X(held, GAUGE, "kvb_held_blocks", "tier=\"device\"", "Blocks.")

enum {
#define AS_ID(id, type, name, labels, help) metric_##id,
    TEST_METRICS(AS_ID)
#undef AS_ID
        metric_count
};

static const struct kvb_metric_row rows[] = {
#define AS_ROW(id, type, name, labels, help) { name, labels, help, KVB_METRIC_##type },
    TEST_METRICS(AS_ROW)
#undef AS_ROW
};

static void *add_many(void *context)
{
    for (int i = 0; i < adds; i++) {
        kvb_metric_add(context, metric_batches, 1);
    }
    return NULL;
}

static void threads_that_count_lose_nothing(void **state)
{
    (void)state;
    _Atomic uint64_t values[metric_count] = { 0 };
    struct kvb_metrics metrics = { rows, values, KVB_COUNT_OF(rows) };
    pthread_t threads[adders];

    for (int i = 0; i < adders; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &metrics), 0);
    }
    for (int i = 0; i < adders; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(kvb_metric_get(&metrics, metric_batches), adders * adds);
}

enum { histogram_id = 1, after_histogram = histogram_id + kvb_metric_slots_HISTOGRAM };

static void a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed(void **state)
{
    (void)state;
    static const struct metric_case {
        uint64_t ns;
        size_t bucket;
    } cases[] = {
        { 0, 0 },    { 1000, 0 },      { 1001, 1 },       { 4000, 1 },
        { 4001, 2 }, { 262144000, 9 }, { 262144001, 10 }, { UINT64_MAX, 10 },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        _Atomic uint64_t values[after_histogram + 1] = { 0 };
        struct kvb_metrics metrics = { NULL, values, KVB_COUNT_OF(values) };
        kvb_metric_observe(&metrics, histogram_id, cases[i].ns, 1);
        for (size_t bucket = 0; bucket < kvb_metric_buckets; bucket++) {
            assert_int_equal(values[histogram_id + bucket], bucket == cases[i].bucket);
        }
        assert_true(values[histogram_id + kvb_metric_buckets] == cases[i].ns);
        assert_int_equal(values[0] + values[after_histogram], 0);
    }
}

static void a_duration_of_several_is_shared_evenly(void **state)
{
    (void)state;
    _Atomic uint64_t values[after_histogram] = { 0 };
    struct kvb_metrics metrics = { NULL, values, KVB_COUNT_OF(values) };

    kvb_metric_observe(&metrics, histogram_id, 30000, 10); /* 3 us each */
    kvb_metric_observe(&metrics, histogram_id, 5000, 0);   /* nothing happened */
    assert_int_equal(values[histogram_id + 1], 10);
    assert_int_equal(values[histogram_id + kvb_metric_buckets], 30000);
}

SUITE(metric)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_that_count_lose_nothing),
        cmocka_unit_test(a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed),
        cmocka_unit_test(a_duration_of_several_is_shared_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
