#include "fail_alloc.h"
#include "kvb_test.h"

#include "model/event_log.h"

#include <stdlib.h>

/* Event `id` has id % 5 blocks, named id * 10 and on, with a parent when id is odd;
 * every seventh is a removal. */
static void make_event(struct kvb_router_batch *batch, uint64_t id)
{
    const struct kvb_router_event event = {
        .kind = id % 7 == 0 ? KVB_ROUTER_REMOVED : KVB_ROUTER_STORED,
        .tier = KVB_TIER_HOST,
        .has_parent = id % 2 == 1,
        .parent = { id },
        .event_id = id,
    };

    assert_ok(kvb_router_batch_add_event(batch, &event));
    for (uint64_t i = 0; i < id % 5; i++) {
        assert_ok(kvb_router_batch_add_block(
            batch, (kvb_block_hash){ id * 10 + i }, (kvb_tokens_hash){ id + i }));
    }
}

static void add(struct kvb_event_log *log, uint64_t from, uint64_t to)
{
    struct kvb_router_batch batch = { 0 };

    for (uint64_t id = from; id <= to; id++) {
        make_event(&batch, id);
    }
    kvb_event_log_add(log, &batch);
    kvb_router_batch_done(&batch);
}

static void
assert_same_events(const struct kvb_router_batch *got, const struct kvb_router_batch *expected)
{
    assert_int_equal(got->event_count, expected->event_count);
    assert_int_equal(got->block_count, expected->block_count);
    for (size_t i = 0; i < got->event_count; i++) {
        assert_memory_equal(&got->events[i], &expected->events[i], sizeof got->events[i]);
    }
    for (size_t i = 0; i < got->block_count; i++) {
        assert_true(got->blocks[i].value == expected->blocks[i].value);
        assert_true(got->tokens[i].value == expected->tokens[i].value);
    }
}

static void assert_reads(
    const struct kvb_event_log *log, uint64_t from, uint64_t to, size_t max_blocks, uint64_t next)
{
    struct kvb_router_batch got = { 0 };
    struct kvb_router_batch expected = { 0 };
    uint64_t got_next = 0;

    assert_ok(kvb_event_log_read(log, from, to, max_blocks, &got, &got_next));
    assert_true(got_next == next);
    for (uint64_t id = from; id < next; id++) {
        make_event(&expected, id);
    }
    assert_same_events(&got, &expected);
    kvb_router_batch_done(&got);
    kvb_router_batch_done(&expected);
}

static void assert_range(const struct kvb_event_log *log, uint64_t first, uint64_t last)
{
    uint64_t got_first = 0;
    uint64_t got_last = 0;

    assert_true(kvb_event_log_range(log, &got_first, &got_last));
    assert_true(got_first == first);
    assert_true(got_last == last);
}

static bool is_empty(const struct kvb_event_log *log)
{
    uint64_t first = 0;
    uint64_t last = 0;

    return !kvb_event_log_range(log, &first, &last);
}

static struct kvb_event_log *log_of(size_t max_blocks)
{
    struct kvb_event_log *log = NULL;

    assert_ok(kvb_event_log_new(max_blocks, &log));
    return log;
}

static void reads_back_what_was_added(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(1000);

    assert_true(is_empty(log));
    add(log, 100, 150);
    add(log, 151, 152);
    assert_range(log, 100, 152);
    assert_reads(log, 100, 152, 1000, 153);
    assert_reads(log, 120, 121, 1000, 122);
    kvb_event_log_free(log);
}

static void reads_whole_events_up_to_the_blocks_that_are_wanted(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(1000);

    add(log, 104, 110);                  /* 4 0 1 2 3 4 0 blocks, and one more for each event */
    assert_reads(log, 104, 110, 1, 105); /* one at least */
    assert_reads(log, 104, 110, 6, 106);
    assert_reads(log, 105, 110, 3, 107);
    kvb_event_log_free(log);
}

static void forgets_the_oldest_first(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(10);

    add(log, 100, 200);
    assert_range(log, 195, 200); /* 0 1 2 3 4 0 blocks */
    assert_reads(log, 195, 200, 100, 201);
    kvb_event_log_free(log);
}

static void ids_that_do_not_follow_begin_it_anew(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(100);

    add(log, 100, 105);
    add(log, 107, 109);
    assert_range(log, 107, 109);
    add(log, 50, 51);
    assert_range(log, 50, 51);
    kvb_event_log_free(log);
}

static void an_event_larger_than_the_log_empties_it(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(3);

    add(log, 100, 102);
    add(log, 103, 104); /* 104 has four */
    assert_true(is_empty(log));
    add(log, 105, 105);
    assert_range(log, 105, 105);
    kvb_event_log_free(log);
}

static void survives_each_allocation_failing(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(1000);
    struct kvb_router_batch batch = { 0 };
    long n = 0;

    for (uint64_t id = 1; id <= 400; id++) {
        make_event(&batch, id);
    }
    do {
        kvb_event_log_free(log);
        log = log_of(1000);
        fail_alloc_after(n++);
        kvb_event_log_add(log, &batch);
        fail_alloc_after(-1);
        uint64_t first = 0;
        uint64_t last = 0;
        if (kvb_event_log_range(log, &first, &last)) {
            assert_true(last == 400); /* whatever it forgot, it has the newest */
            assert_reads(log, first, last, 2000, 401);
        }
        assert_true(n < 100);
    } while (n < 40);
    assert_range(log, 1, 400);
    kvb_router_batch_done(&batch);
    kvb_event_log_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back_what_was_added),
        cmocka_unit_test(reads_whole_events_up_to_the_blocks_that_are_wanted),
        cmocka_unit_test(forgets_the_oldest_first),
        cmocka_unit_test(ids_that_do_not_follow_begin_it_anew),
        cmocka_unit_test(an_event_larger_than_the_log_empties_it),
        cmocka_unit_test(survives_each_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
