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

static void counts_up_and_is_set(void **state)
{
    (void)state;
    _Atomic uint64_t values[metric_count] = { 0 };
    struct kvb_metrics metrics = { rows, values, KVB_COUNT_OF(rows) };

    kvb_metric_add(&metrics, metric_batches, 2);
    kvb_metric_add(&metrics, metric_batches, UINT64_C(1) << 40U);
    kvb_metric_set(&metrics, metric_held, 9);
    kvb_metric_set(&metrics, metric_held, 4);
    assert_true(kvb_metric_get(&metrics, metric_batches) == (UINT64_C(1) << 40U) + 2);
    assert_int_equal(kvb_metric_get(&metrics, metric_held), 4);
}

static void *add_many(void *context)
{
    for (int i = 0; i < adds; i++) {
        kvb_metric_add(context, metric_batches, 1);
    }
    return NULL;
}

static void loses_no_count_between_threads(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_up_and_is_set),
        cmocka_unit_test(loses_no_count_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
