#include "kvb_test.h"

#include "core/own.h"
#include "load/worker_load.h"

static struct kvb_rank_load rank_of(uint64_t worker_id, uint32_t dp_rank, uint64_t active)
{
    return (struct kvb_rank_load){ .worker_id = worker_id,
                                   .dp_rank = dp_rank,
                                   .was_received = true,
                                   .is_fresh = true,
                                   .load = { .request_active_slots = 1,
                                             .request_total_slots = 8,
                                             .kv_active_blocks = active,
                                             .kv_total_blocks = 100,
                                             .num_requests_waiting = 2,
                                             .gpu_cache_usage_perc = (float)active / 100,
                                             .gpu_prefix_cache_hit_rate = 0.5F } };
}

static void a_worker_of_one_rank_keeps_its_load_and_rank(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(7, 3, 33) };
    struct kvb_worker_load worker;

    ranks[0].load.gpu_cache_usage_perc = 0.3F;
    assert_int_equal(kvb_worker_loads(ranks, 1, &worker), 1);
    assert_true(worker.has_load && worker.has_rank);
    assert_int_equal(worker.dp_rank, 3);
    assert_int_equal(worker.load.kv_active_blocks, 33);
    assert_true(worker.load.gpu_cache_usage_perc == 0.3F);
}

static void ranks_of_a_worker_are_summed_in_any_order(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(9, 1, 40), rank_of(7, 0, 1), rank_of(9, 0, 20) };
    struct kvb_worker_load workers[3];

    ranks[2].load.kv_total_blocks = 300; /* three times the weight */
    ranks[2].load.gpu_prefix_cache_hit_rate = 1;
    assert_int_equal(kvb_worker_loads(ranks, 3, workers), 2);
    assert_int_equal(workers[0].worker_id, 7);
    assert_int_equal(workers[1].worker_id, 9);
    assert_true(workers[1].has_load && !workers[1].has_rank);
    assert_int_equal(workers[1].load.request_active_slots, 2);
    assert_int_equal(workers[1].load.request_total_slots, 16);
    assert_int_equal(workers[1].load.kv_active_blocks, 60);
    assert_int_equal(workers[1].load.kv_total_blocks, 400);
    assert_int_equal(workers[1].load.num_requests_waiting, 4);
    assert_true(workers[1].load.gpu_cache_usage_perc == 0.25F);
    assert_true(workers[1].load.gpu_prefix_cache_hit_rate == 0.75F);
}

static void shares_are_unweighted_where_no_rank_names_a_total(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(9, 0, 25), rank_of(9, 1, 75) };
    struct kvb_worker_load worker;

    ranks[0].load.kv_total_blocks = 0;
    ranks[1].load.kv_total_blocks = 0;
    assert_int_equal(kvb_worker_loads(ranks, 2, &worker), 1);
    assert_true(worker.load.gpu_cache_usage_perc == 0.5F);
}

static void a_worker_has_no_load_before_the_first_report(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { { .worker_id = 1 }, { .worker_id = 1, .dp_rank = 1 } };
    struct kvb_worker_load worker;

    assert_int_equal(kvb_worker_loads(ranks, 2, &worker), 1);
    assert_false(worker.has_load);
    assert_int_equal(kvb_worker_loads(ranks, 0, &worker), 0);
}

static void a_load_source_without_ranks_stands_for_all(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(1, 0, 20), { .worker_id = 1, .dp_rank = 1 } };
    struct kvb_worker_load worker;

    assert_int_equal(kvb_worker_loads(ranks, 2, &worker), 1);
    assert_true(worker.has_load);
    assert_int_equal(worker.load.kv_total_blocks, 100);
    assert_true(worker.load.gpu_cache_usage_perc == 0.2F);
    assert_true(worker.load.gpu_prefix_cache_hit_rate == 0.5F);
}

static void one_silent_rank_leaves_the_worker_without_load(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(1, 0, 20), rank_of(1, 1, 99) };
    struct kvb_worker_load worker;

    ranks[1].is_fresh = false;
    assert_int_equal(kvb_worker_loads(ranks, 2, &worker), 1);
    assert_false(worker.has_load);
    assert_int_equal(worker.load.kv_active_blocks, 0);
}

static void sums_stay_at_the_largest_number(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(1, 0, 20), rank_of(1, 1, 30) };
    struct kvb_worker_load worker;

    ranks[0].load.kv_active_blocks = UINT64_MAX - 1;
    assert_int_equal(kvb_worker_loads(ranks, 2, &worker), 1);
    assert_true(worker.load.kv_active_blocks == UINT64_MAX);
}

static void ids_that_readers_cannot_parse_are_left_out(void **state)
{
    (void)state;
    struct kvb_rank_load ranks[] = { rank_of(UINT64_MAX, 0, 1), rank_of(INT64_MAX, 0, 2),
                                     rank_of((uint64_t)INT64_MAX + 1, 0, 3) };
    struct kvb_worker_load workers[3];

    assert_int_equal(kvb_worker_loads(ranks, 3, workers), 1);
    assert_true(workers[0].worker_id == INT64_MAX);
}

SUITE(worker_load)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_of_one_rank_keeps_its_load_and_rank),
        cmocka_unit_test(ranks_of_a_worker_are_summed_in_any_order),
        cmocka_unit_test(shares_are_unweighted_where_no_rank_names_a_total),
        cmocka_unit_test(a_worker_has_no_load_before_the_first_report),
        cmocka_unit_test(a_load_source_without_ranks_stands_for_all),
        cmocka_unit_test(one_silent_rank_leaves_the_worker_without_load),
        cmocka_unit_test(sums_stay_at_the_largest_number),
        cmocka_unit_test(ids_that_readers_cannot_parse_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
