#include "fail_alloc.h"
#include "kvb_test.h"

#include "core/own.h"
#include "model/event_log.h"

#include <stdlib.h>

/* Event `id` has id % 5 blocks, numbered from id * 10, and a parent when id is odd. Every seventh
 * event is a removal. */
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

static void add_batch(struct kvb_event_log *log, const struct kvb_router_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        kvb_event_log_add_event(log, batch, &batch->events[i]);
    }
}

static void add(struct kvb_event_log *log, uint64_t from, uint64_t to)
{
    struct kvb_router_batch batch = { 0 };

    for (uint64_t id = from; id <= to; id++) {
        make_event(&batch, id);
    }
    add_batch(log, &batch);
    kvb_router_batch_done(&batch);
}

/* At least one event, from id on, as make_event() makes them.  Their blocks begin anywhere, and lie
 * side by side. */
static void assert_events(const struct kvb_router_batch *got, uint64_t id)
{
    size_t at = got->events[0].block_at;

    for (size_t i = 0; i < got->event_count; i++, id++) {
        const struct kvb_router_event *event = &got->events[i];
        assert_true(event->event_id == id);
        assert_int_equal(event->kind, id % 7 == 0 ? KVB_ROUTER_REMOVED : KVB_ROUTER_STORED);
        assert_int_equal(event->tier, KVB_TIER_HOST);
        assert_int_equal(event->has_parent, id % 2 == 1);
        assert_true(event->parent.value == id);
        assert_int_equal(event->block_at, at);
        assert_int_equal(event->block_count, id % 5);
        for (uint64_t block = 0; block < id % 5; block++, at++) {
            assert_true(got->blocks[at].value == id * 10 + block);
            assert_true(got->tokens[at].value == id + block);
        }
    }
    assert_int_equal(got->block_count, at - got->events[0].block_at);
}

static void assert_reads(
    const struct kvb_event_log *log, uint64_t from, uint64_t to, size_t max_blocks, uint64_t next)
{
    struct kvb_router_batch got = { 0 };
    uint64_t got_next = 0;

    assert_ok(kvb_event_log_read(log, from, to, max_blocks, &got, &got_next));
    assert_true(got_next == next);
    assert_true(got.event_count == next - from);
    assert_events(&got, from);
    kvb_router_batch_done(&got);
}

static void assert_range(const struct kvb_event_log *log, uint64_t first, uint64_t last)
{
    uint64_t got_first = 0;
    uint64_t got_last = 0;

    assert_true(kvb_event_log_range(log, &got_first, &got_last));
    assert_true(got_first == first);
    assert_true(got_last == last);
}

static struct kvb_event_log *log_of(size_t max_blocks)
{
    struct kvb_event_log *log = NULL;

    assert_ok(kvb_event_log_new(max_blocks, &log));
    return log;
}

static void reads_whole_events_up_to_the_wanted_number_of_blocks(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(1000);

    /* events of 4 0 1 2 3 4 0 blocks; each counts as one block more */
    add(log, 104, 110);
    assert_reads(log, 104, 110, 1, 105); /* at least one event */
    assert_reads(log, 104, 110, 6, 106);
    assert_reads(log, 105, 110, 3, 107);
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
        add_batch(log, &batch);
        fail_alloc_after(-1);
        uint64_t first = 0;
        uint64_t last = 0;
        if (kvb_event_log_range(log, &first, &last)) {
            assert_true(last == 400); /* the newest event is there, whatever was forgotten */
            assert_reads(log, first, last, 2000, 401);
        }
        assert_true(n < 100);
    } while (n < 40);
    assert_range(log, 1, 400);
    kvb_router_batch_done(&batch);
    kvb_event_log_free(log);
}

/* ---- Lending ---- */

/* The parts are the events in order, whatever the place in the rings where they begin. */
static void lends_events_in_parts_that_are_batches(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(64);
    uint64_t id = 1;

    for (size_t count = 1; count < 400; count++) {
        const size_t events = 1 + count % 16;
        add(log, id, id + events - 1);
        uint64_t number = kvb_event_log_end(log) - events;
        for (size_t left = events, lent = 0; left > 0; left -= lent, number += lent) {
            struct kvb_router_batch part = { .worker_id = 7 };
            lent = kvb_event_log_lend(log, number, left, &part);
            assert_in_range(lent, 1, left);
            assert_int_equal(part.worker_id, 7);
            assert_int_equal(part.event_count, lent);
            assert_events(&part, id);
            id += lent;
        }
    }
    kvb_event_log_free(log);
}

static void lends_nothing_of_what_it_has_dropped(void **state)
{
    (void)state;
    struct kvb_event_log *log = log_of(10);
    struct kvb_router_batch part = { 0 };

    add(log, 100, 104);
    assert_int_equal(kvb_event_log_end(log), 5);
    assert_int_equal(kvb_event_log_lend(log, 4, 2, &part), 0); /* the second is not there yet */
    add(log, 105, 120);
    assert_int_equal(kvb_event_log_lend(log, 4, 2, &part), 0);
    kvb_event_log_clear(log);
    assert_int_equal(kvb_event_log_end(log), 21);
    assert_int_equal(kvb_event_log_lend(log, 20, 1, &part), 0);
    add(log, 121, 121);
    assert_int_equal(kvb_event_log_lend(log, 20, 1, &part), 0);
    assert_int_equal(kvb_event_log_lend(log, 21, 1, &part), 1);
    kvb_event_log_free(log);
}

/* ---- Epochs ---- */

/* The reference model: the ids of all events that were ever added, and where the range begins. */
struct all_events {
    uint64_t ids[20000];
    size_t count, range_at;
};

enum { max_event_blocks = 4 };

static size_t blocks_of(uint64_t id)
{
    return id % 5;
}

/* The newest events that fit into so many blocks, as the model has them. */
static size_t fitting(const struct all_events *all, size_t max_blocks)
{
    size_t events = 0;
    size_t blocks = 0;

    while (events < all->count && events < max_blocks) {
        blocks += blocks_of(all->ids[all->count - 1 - events]);
        if (blocks > max_blocks) {
            break;
        }
        events++;
    }
    return events;
}

/* How many of the newest events the log has. */
static size_t count_kept(const struct kvb_event_log *log, size_t most)
{
    struct kvb_router_batch lent = { 0 };
    size_t kept = most;

    while (kept > 0 && kvb_event_log_lend(log, kvb_event_log_end(log) - kept, kept, &lent) == 0) {
        kept--;
    }
    return kept;
}

static void
assert_like_all(const struct kvb_event_log *log, const struct all_events *all, size_t max_blocks)
{
    const size_t unused = max_blocks > max_event_blocks ? max_event_blocks : max_blocks;
    const size_t kept = count_kept(log, fitting(all, max_blocks));
    const size_t first = all->count - kept;
    const size_t range_at = all->range_at > first ? all->range_at : first;
    uint64_t first_id = 0;
    uint64_t last_id = 0;

    assert_true(kept >= fitting(all, max_blocks - unused));
    assert_int_equal(kvb_event_log_range(log, &first_id, &last_id), range_at < all->count);
    if (range_at < all->count) {
        assert_true(first_id == all->ids[range_at]);
        assert_true(last_id == all->ids[all->count - 1]);
        assert_reads(log, first_id, last_id, SIZE_MAX, last_id + 1);
    }
}

/* Random epochs of random lengths, with few blocks and with many. */
static void keeps_the_newest_events_of_all_epochs(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1, 4, 17, 64, 300 };
    static struct all_events all;
    uint64_t seed = 7;

    for (size_t s = 0; s < KVB_COUNT_OF(sizes); s++) {
        struct kvb_event_log *log = log_of(sizes[s]);
        uint64_t id = 1;
        all.count = all.range_at = 0;
        while (all.count + 1 < KVB_COUNT_OF(all.ids) / 10) {
            seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
            if (seed >> 60 == 0) {
                id += 1 + (seed >> 40) % 1000;
                kvb_event_log_begin_range(log);
                all.range_at = all.count;
            }
            id += blocks_of(id) > sizes[s] ? 5 - id % 5 : 0; /* such an event would empty it */
            if (all.range_at < all.count && id != all.ids[all.count - 1] + 1) {
                kvb_event_log_begin_range(log);
                all.range_at = all.count;
            }
            add(log, id, id);
            all.ids[all.count++] = id++;
            assert_like_all(log, &all, sizes[s]);
        }
        kvb_event_log_free(log);
    }
}

SUITE(event_log)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_whole_events_up_to_the_wanted_number_of_blocks),
        cmocka_unit_test(survives_each_allocation_failing),
        cmocka_unit_test(lends_events_in_parts_that_are_batches),
        cmocka_unit_test(lends_nothing_of_what_it_has_dropped),
        cmocka_unit_test(keeps_the_newest_events_of_all_epochs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
