#include "kvb_test.h"

#include "core/ring.h"
#include "fail_alloc.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

static void a_closed_ring_gives_out_the_rest_and_takes_no_more(void **state)
{
    (void)state;
    struct kvb_ring *ring = NULL;
    int item = 0;
    void *got = NULL;

    assert_ok(kvb_ring_new(2, NULL, &ring));
    assert_ok(kvb_ring_put(ring, &item));
    kvb_ring_close(ring);
    kvb_ring_close(ring);
    assert_int_equal(kvb_ring_put(ring, &item), KVB_CLOSED);
    assert_int_equal(kvb_ring_put_wait(ring, &item), KVB_CLOSED);
    assert_ok(kvb_ring_take(ring, &got));
    assert_int_equal(kvb_ring_take(ring, &got), KVB_CLOSED);
    kvb_ring_free(ring);
}

static void frees_the_items_that_are_left(void **state)
{
    (void)state;
    struct kvb_ring *ring = NULL;

    assert_ok(kvb_ring_new(4, free, &ring)); /* the sanitizers find what is not freed */
    for (int i = 0; i < 3; i++) {
        assert_ok(kvb_ring_put(ring, malloc(10)));
    }
    kvb_ring_free(ring);
    kvb_ring_free(NULL);
}

static void refuses_capacities_out_of_range(void **state)
{
    (void)state;
    struct kvb_ring *ring = NULL;

    assert_int_equal(kvb_ring_new(0, NULL, &ring), KVB_TOO_LARGE);
    assert_int_equal(kvb_ring_new((1 << 20) + 1, NULL, &ring), KVB_TOO_LARGE);
    assert_null(ring);
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_ring *ring = NULL;
        fail_alloc_after(n);
        status = kvb_ring_new(8, NULL, &ring);
        fail_alloc_after(-1);
        kvb_ring_free(ring);
        assert_true(n < 10);
    }
    assert_ok(status);
}

/* ---- Two producers that wait, one consumer ------------------------------------------ */

enum { producers = 2, items_each = 20000 };

struct item {
    int producer;
    int number;
};

struct producer {
    struct kvb_ring *ring;
    struct item items[items_each];
    kvb_status last;
};

static void *produce(void *context)
{
    struct producer *producer = context;

    producer->last = KVB_OK;
    for (int i = 0; i < items_each && producer->last == KVB_OK; i++) {
        producer->last = kvb_ring_put_wait(producer->ring, &producer->items[i]);
    }
    return NULL;
}

static void *take_waiting(struct kvb_ring *ring)
{
    void *got = NULL;

    for (;;) {
        const kvb_status status = kvb_ring_take(ring, &got);
        if (status != KVB_AGAIN) {
            assert_ok(status);
            return got;
        }
        struct pollfd look = { .fd = kvb_ring_fd(ring), .events = POLLIN };
        assert_int_equal(poll(&look, 1, 10000), 1); /* otherwise a wake-up was lost */
    }
}

static void start(struct producer *all, struct kvb_ring *ring, pthread_t threads[producers])
{
    for (int p = 0; p < producers; p++) {
        all[p].ring = ring;
        for (int i = 0; i < items_each; i++) {
            all[p].items[i] = (struct item){ p, i };
        }
        assert_int_equal(pthread_create(&threads[p], NULL, produce, &all[p]), 0);
    }
}

static void loses_nothing_between_threads_that_wait(void **state)
{
    (void)state;
    struct kvb_ring *ring = NULL;
    struct producer *all = calloc(producers, sizeof *all);
    pthread_t threads[producers];
    int next[producers] = { 0 };

    assert_non_null(all);
    assert_ok(kvb_ring_new(7, NULL, &ring));
    start(all, ring, threads);
    for (int i = 0; i < producers * items_each; i++) {
        const struct item *item = take_waiting(ring);
        assert_int_equal(item->number, next[item->producer]);
        next[item->producer]++;
    }
    for (int p = 0; p < producers; p++) {
        assert_int_equal(pthread_join(threads[p], NULL), 0);
        assert_ok(all[p].last);
    }
    kvb_ring_free(ring);
    free(all);
}

static void closing_wakes_waiting_threads(void **state)
{
    (void)state;
    struct kvb_ring *ring = NULL;
    struct producer *all = calloc(producers, sizeof *all);
    pthread_t threads[producers];

    assert_non_null(all);
    assert_ok(kvb_ring_new(1, NULL, &ring));
    start(all, ring, threads);
    (void)take_waiting(ring); /* at least one producer has started */
    kvb_ring_close(ring);
    for (int p = 0; p < producers; p++) {
        assert_int_equal(pthread_join(threads[p], NULL), 0);
        assert_int_equal(all[p].last, KVB_CLOSED);
    }
    kvb_ring_free(ring);
    free(all);
}

/* ---- The reference model: an array whose items are shifted ---------------------------- */

static void agrees_with_an_array(void **state)
{
    (void)state;
    enum { capacity = 5, steps = 200000 };
    struct kvb_ring *ring = NULL;
    char items[16];
    void *model[capacity];
    size_t count = 0;
    unsigned seed = 7;

    assert_ok(kvb_ring_new(capacity, NULL, &ring));
    for (int i = 0; i < steps; i++) {
        void *item = &items[rand_r(&seed) % 16];
        void *got = NULL;
        if (rand_r(&seed) % 2 == 0) {
            assert_int_equal(kvb_ring_put(ring, item), count < capacity ? KVB_OK : KVB_AGAIN);
            if (count < capacity) {
                model[count++] = item;
            }
        } else {
            assert_int_equal(kvb_ring_take(ring, &got), count > 0 ? KVB_OK : KVB_AGAIN);
            if (count > 0) {
                assert_ptr_equal(got, model[0]);
                count--;
                for (size_t at = 0; at < count; at++) {
                    model[at] = model[at + 1];
                }
            }
        }
        assert_int_equal(kvb_ring_count(ring), count);
    }
    kvb_ring_free(ring);
}

SUITE(ring)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_ring_gives_out_the_rest_and_takes_no_more),
        cmocka_unit_test(frees_the_items_that_are_left),
        cmocka_unit_test(refuses_capacities_out_of_range),
        cmocka_unit_test(survives_every_allocation_failing),
        cmocka_unit_test(loses_nothing_between_threads_that_wait),
        cmocka_unit_test(closing_wakes_waiting_threads),
        cmocka_unit_test(agrees_with_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
