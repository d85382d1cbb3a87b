#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "fail_alloc.h"
#include "load/history.h"

#define S KVB_NS_PER_S

enum { capacity = 900, began_s = 5000 };

/* The time this many seconds after the beginning. */
static uint64_t at(double seconds)
{
    return (began_s * S) + (uint64_t)(seconds * (double)S);
}

static struct kvb_history *history_of(size_t samples)
{
    struct kvb_history *history = NULL;

    assert_ok(kvb_history_new(samples, at(0), &history));
    return history;
}

static void add_events(struct kvb_history *history, uint64_t events_applied, double seconds)
{
    const struct kvb_history_reading reading = { .events_applied = events_applied };

    kvb_history_add(history, &reading, at(seconds));
}

static void assert_near(double value, double expected)
{
    assert_true(value > expected - 1e-6 && value < expected + 1e-6);
}

static void a_rate_is_divided_by_the_time_that_has_passed(void **state)
{
    (void)state;
    struct kvb_history *history = history_of(capacity);
    struct kvb_history_sample samples[capacity];

    add_events(history, 150, 1.5); /* a late sample: it covers the time since the beginning */
    add_events(history, 200, 2);
    add_events(history, 800, 8); /* six seconds without a sample */
    assert_int_equal(kvb_history_copy(history, 0, samples), 3);
    assert_near(samples[0].events_per_s, 100);
    assert_near(samples[1].events_per_s, 100);
    assert_near(samples[2].events_per_s, 100);
    assert_int_equal(samples[1].second, 2);
    assert_int_equal(samples[2].second, 8);
    kvb_history_free(history);
}

static void counters_become_differences_and_gauges_are_copied(void **state)
{
    (void)state;
    struct kvb_history *history = history_of(capacity);
    struct kvb_history_sample samples[capacity];
    struct kvb_history_reading reading = {
        .asked_blocks = 10,
        .hit_blocks = 4,
        .held_blocks = 1000,
        .load_avg = 0.25,
        .load_std = 0.125,
        .streams = { [KVB_STREAM_EXACT] = 7, [KVB_STREAM_DOWN] = 1 },
    };

    kvb_history_add(history, &reading, at(1));
    reading.asked_blocks += 8;
    reading.hit_blocks += 6;
    reading.held_blocks = 900;
    kvb_history_add(history, &reading, at(2));
    assert_int_equal(kvb_history_copy(history, 1, samples), 1);
    assert_int_equal(samples[0].asked_blocks, 8);
    assert_int_equal(samples[0].hit_blocks, 6);
    assert_int_equal(samples[0].held_blocks, 900);
    assert_near(samples[0].load_avg, 0.25);
    assert_near(samples[0].load_std, 0.125);
    assert_int_equal(samples[0].streams[KVB_STREAM_EXACT], 7);
    assert_int_equal(samples[0].streams[KVB_STREAM_DOWN], 1);
    assert_int_equal(samples[0].streams[KVB_STREAM_PARTIAL], 0);
    kvb_history_free(history);
}

static void has_a_ceiling(void **state)
{
    (void)state;
    struct kvb_history *history = NULL;

    assert_int_equal(kvb_history_new(0, at(0), &history), KVB_TOO_LARGE);
    assert_int_equal(kvb_history_new(kvb_max_history_samples + 1, at(0), &history), KVB_TOO_LARGE);
    assert_null(history);
}

static void survives_each_allocation_failing(void **state)
{
    (void)state;
    struct kvb_history *history = NULL;
    long n = 0;

    for (;; n++) {
        fail_alloc_after(n);
        const kvb_status status = kvb_history_new(capacity, at(0), &history);
        fail_alloc_after(-1);
        if (status == KVB_OK) {
            break;
        }
        assert_int_equal(status, KVB_NO_MEMORY);
        assert_null(history);
    }
    assert_true(n > 0);
    kvb_history_free(history);
    kvb_history_free(NULL);
}

enum { seconds = 5000, room = 37 };

/* The reference list: every second that was sampled, nothing forgotten. */
struct reference_list {
    uint64_t taken[seconds];
    size_t count;
};

/* How many of the newest `room` samples are later. */
static size_t later_than(const struct reference_list *dull, uint64_t after)
{
    const bool is_other_life = dull->count > 0 && after > dull->taken[dull->count - 1];
    size_t found = 0;

    while (found < dull->count && found < room &&
           (is_other_life || dull->taken[dull->count - 1 - found] > after)) {
        found++;
    }
    return found;
}

static void
assert_same(const struct kvb_history *history, const struct reference_list *dull, uint64_t after)
{
    struct kvb_history_sample samples[room];
    const size_t copied = kvb_history_copy(history, after, samples);

    assert_int_equal(copied, later_than(dull, after));
    for (size_t i = 0; i < copied; i++) {
        assert_int_equal(samples[i].second, dull->taken[dull->count - copied + i]);
    }
}

/* A quarter of the seconds get no sample. */
static void agrees_with_a_reference_list(void **state)
{
    (void)state;
    struct kvb_history *history = history_of(room);
    static struct reference_list dull;
    uint64_t random = 7;

    for (uint64_t second = 1; second <= seconds; second++) {
        random = (random * 6364136223846793005U) + 1442695040888963407U;
        if (random >> 62U) {
            add_events(history, second, (double)second + 0.5);
            dull.taken[dull.count++] = second;
        }
        assert_same(history, &dull, second > 20 ? second - 20 : 0);
        assert_same(history, &dull, second);
    }
    kvb_history_free(history);
}

SUITE(history)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_is_divided_by_the_time_that_has_passed),
        cmocka_unit_test(counters_become_differences_and_gauges_are_copied),
        cmocka_unit_test(has_a_ceiling),
        cmocka_unit_test(survives_each_allocation_failing),
        cmocka_unit_test(agrees_with_a_reference_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
