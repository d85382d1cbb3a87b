#include "core/limits.h"
#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "kvbridge/config.h"
#include "kvbridge/membership.h"
#include "kvbridge/parts.h"
#include "kvbridge/rank.h"
#include "kvbridge/shown.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* The metrics page of a bridge that has ranks and values but no sockets. */

enum { max_page_bytes = 44000000 };

static const struct kvb_bridge_config config = { .limits = { .max_stream_blocks = 12345 } };

static struct kvb_bridge *bridge_of(size_t ranks)
{
    struct kvb_bridge *bridge = calloc(1, sizeof *bridge);

    assert_non_null(bridge);
    bridge->config = &config;
    bridge->shown = calloc(1, sizeof *bridge->shown);
    bridge->membership = calloc(1, sizeof *bridge->membership);
    assert_non_null(bridge->shown);
    assert_non_null(bridge->membership);
    bridge->shown->metrics = (struct kvb_metrics){ .rows = kvb_bridge_metric_rows,
                                                   .values = bridge->shown->values,
                                                   .count = kvb_bridge_metric_count };
    bridge->membership->ranks = calloc(ranks, sizeof(struct bridge_rank *));
    assert_non_null(bridge->membership->ranks);
    bridge->membership->rank_count = ranks;
    for (size_t i = 0; i < ranks; i++) {
        bridge->membership->ranks[i] = calloc(1, sizeof *bridge->membership->ranks[i]);
        assert_non_null(bridge->membership->ranks[i]);
        bridge->membership->ranks[i]->worker_id = (uint64_t)INT64_MAX - i / kvb_max_ranks;
        bridge->membership->ranks[i]->dp_rank = (uint32_t)(i % kvb_max_ranks);
        kvb_bridge_begin_stats(bridge->membership->ranks[i]);
    }
    return bridge;
}

static void drop_bridge(struct kvb_bridge **owned)
{
    struct kvb_bridge *bridge = *owned;

    kvb_bridge_close_stats(bridge->shown);
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        free(bridge->membership->ranks[i]);
    }
    free((void *)bridge->membership->ranks);
    free(bridge->membership);
    free(bridge->shown);
    free(bridge);
}

static bool says(const struct kvb_buf *page, const char *line)
{
    return memmem(page->data, page->len, line, strlen(line)) != NULL;
}

/* Every label and every value has its maximum length. */
static void the_largest_page_fits_an_answer_and_counts_what_it_leaves_out(void **state)
{
    KVB_OWN(drop_bridge) struct kvb_bridge *bridge = bridge_of(kvb_max_metric_ranks + 5);
    KVB_OWN(kvb_buf_done) struct kvb_buf page = { 0 };

    (void)state;
    assert_ok(kvb_bridge_open_stats(bridge));
    for (size_t i = 0; i < bridge->membership->rank_count; i++) {
        kvb_bridge_list_stats(bridge, i);
        for (size_t id = 0; id < kvb_rank_metric_count; id++) {
            kvb_metric_set(&bridge->membership->ranks[i]->metrics, id, UINT64_MAX - 1 - i);
        }
    }
    kvb_buf_init(&page, kvb_max_answer_bytes);
    assert_ok(kvb_bridge_metrics_page(bridge->shown, &page));
    assert_in_range(page.len, max_page_bytes / 2, max_page_bytes);
    assert_true(says(&page, "\nkvb_streams_unlisted 5\n"));
}

static void *wait_for_readers(void *lock)
{
    assert_int_equal(pthread_rwlock_wrlock(lock), 0);
    assert_int_equal(pthread_rwlock_unlock(lock), 0);
    return NULL;
}

static void a_page_that_comes_later_does_not_keep_the_ingest_thread_waiting(void **state)
{
    KVB_OWN(drop_bridge) struct kvb_bridge *bridge = bridge_of(1);
    pthread_rwlock_t *lock = &bridge->shown->sets_lock;
    pthread_t ingest;
    int found = 0;

    (void)state;
    assert_ok(kvb_bridge_open_stats(bridge));
    assert_int_equal(pthread_rwlock_rdlock(lock), 0); /* a page is being written */
    assert_int_equal(pthread_create(&ingest, NULL, wait_for_readers, lock), 0);
    for (int i = 0; i < 5000 && (found = pthread_rwlock_tryrdlock(lock)) == 0; i++) {
        assert_int_equal(pthread_rwlock_unlock(lock), 0);
        (void)poll(NULL, 0, 1); /* the thread does not wait yet */
    }
    assert_int_equal(found, EBUSY);
    assert_int_equal(pthread_rwlock_unlock(lock), 0);
    (void)pthread_join(ingest, NULL);
}

static void without_memory_nothing_is_opened(void **state)
{
    KVB_OWN(drop_bridge) struct kvb_bridge *bridge = bridge_of(1);

    (void)state;
    fail_alloc_after(0);
    const kvb_status status = kvb_bridge_open_stats(bridge);
    fail_alloc_after(-1);
    assert_int_equal(status, KVB_NO_MEMORY);
}

SUITE(stats)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_page_fits_an_answer_and_counts_what_it_leaves_out),
        cmocka_unit_test(a_page_that_comes_later_does_not_keep_the_ingest_thread_waiting),
        cmocka_unit_test(without_memory_nothing_is_opened),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
