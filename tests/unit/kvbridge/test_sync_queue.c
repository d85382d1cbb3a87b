#include "core/clock.h"
#include "kvbridge/sync_queue.h"

#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t start_ns = 1000 * KVB_NS_PER_S;

/* ---- Requesters ---- */

static struct kvb_sync_requesters *new_requesters(void)
{
    struct kvb_sync_requesters *requesters = calloc(1, sizeof *requesters);

    assert_non_null(requesters);
    return requesters;
}

static void a_requester_that_comes_back_later_is_returning(void **state)
{
    struct kvb_sync_requesters *requesters = new_requesters();

    (void)state;
    assert_int_equal(kvb_sync_requesters_note(requesters, 7, start_ns), KVB_SYNC_NEW);
    assert_int_equal(
        kvb_sync_requesters_note(requesters, 7, start_ns + 100 * KVB_NS_PER_MS), KVB_SYNC_NEW);
    assert_int_equal(
        kvb_sync_requesters_note(requesters, 7, start_ns + 200 * KVB_NS_PER_MS),
        KVB_SYNC_RETURNING);
    assert_int_equal(
        kvb_sync_requesters_note(requesters, 8, start_ns + 200 * KVB_NS_PER_MS), KVB_SYNC_NEW);
    assert_int_equal(
        kvb_sync_requesters_note(requesters, 7, start_ns + 61 * KVB_NS_PER_S), KVB_SYNC_NEW);
    free(requesters);
}

static void a_requester_has_a_rate(void **state)
{
    struct kvb_sync_requesters *requesters = new_requesters();
    unsigned granted = 0;

    (void)state;
    for (int i = 0; i < 3000; i++) { /* within one second */
        granted +=
            kvb_sync_requesters_note(requesters, 7, start_ns + (uint64_t)i * KVB_NS_PER_S / 3000) !=
            KVB_SYNC_TOO_OFTEN;
    }
    assert_in_range(granted, 1450, 1500);
    assert_int_equal(kvb_sync_requesters_note(requesters, 8, start_ns), KVB_SYNC_NEW);
    free(requesters);
}

/* ---- Requests: each is a string that the test allocates ---- */

struct world {
    struct kvb_sync_queue queue;
    char incoming[4096];
    size_t made;
};

static kvb_status
put(struct world *world, uint64_t stream, uint64_t requester, bool is_returning, char **out_pending,
    struct kvb_sync_displaced *displaced)
{
    char *pending = &world->incoming[world->made++];
    const struct kvb_sync_entry entry = { .pending = pending,
                                          .is_returning = is_returning,
                                          .requester = requester,
                                          .worker_id = stream };

    assert_true(world->made < sizeof world->incoming);
    if (out_pending) {
        *out_pending = pending;
    }
    return kvb_sync_queue_put(&world->queue, &entry, displaced);
}

/* No other request has to be dropped for it. */
static char *put_one(struct world *world, uint64_t stream, uint64_t requester, bool is_returning)
{
    struct kvb_sync_displaced displaced = { 0 };
    char *pending = NULL;

    assert_ok(put(world, stream, requester, is_returning, &pending, &displaced));
    assert_null(displaced.pending);
    return pending;
}

static void streams_take_turns_and_then_their_requesters(void **state)
{
    struct world world = { 0 };
    unsigned of_stream[3] = { 0 };
    unsigned of_requester[11] = { 0 };

    (void)state;
    for (uint64_t requester = 1; requester <= 10; requester++) {
        (void)put_one(&world, 1, requester, true);
    }
    (void)put_one(&world, 2, 1, true);
    for (int i = 0; i < 40; i++) {
        const struct kvb_sync_entry *next = kvb_sync_queue_next(&world.queue);
        of_stream[next->worker_id]++;
        of_requester[next->worker_id == 1 ? next->requester : 0]++;
    }
    assert_int_equal(of_stream[1], 20);
    assert_int_equal(of_stream[2], 20);
    for (int requester = 1; requester <= 10; requester++) {
        assert_int_equal(of_requester[requester], 2);
    }
}

static void a_newer_request_replaces_the_older_one_of_a_requester(void **state)
{
    struct world world = { 0 };
    struct kvb_sync_displaced displaced = { 0 };
    char *newest = NULL;

    (void)state;
    char *oldest = put_one(&world, 1, 5, false);
    (void)put_one(&world, 2, 5, false); /* a request for another stream is separate */
    (void)put_one(&world, 1, 6, false);
    assert_ok(put(&world, 1, 5, true, &newest, &displaced));
    assert_ptr_equal(displaced.pending, oldest);
    assert_true(displaced.is_replaced);
    assert_int_equal(world.queue.count, 3);
    struct kvb_sync_entry *next = kvb_sync_queue_next(&world.queue);
    assert_ptr_equal(next->pending, newest);
    assert_ptr_equal(kvb_sync_queue_drop(&world.queue, next), newest);
    assert_int_equal(world.queue.count, 2);
}

/* Otherwise repeated requests would move it to the end of the queue for ever. */
static void a_requester_keeps_its_turn_when_it_repeats(void **state)
{
    struct world world = { 0 };
    struct kvb_sync_displaced displaced = { 0 };

    (void)state;
    (void)put_one(&world, 1, 5, true);
    (void)put_one(&world, 1, 6, true);
    (void)kvb_sync_queue_next(&world.queue); /* one of the two requests */
    const uint64_t waits = world.queue.entries[0].turn == 0 ? 5 : 6;
    assert_ok(put(&world, 1, waits, true, NULL, &displaced));
    assert_int_equal(kvb_sync_queue_next(&world.queue)->requester, waits);
}

static void returning_requesters_go_before_new_ones(void **state)
{
    struct world world = { 0 };

    (void)state;
    (void)put_one(&world, 1, 5, false);
    (void)put_one(&world, 2, 6, true);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(kvb_sync_queue_next(&world.queue)->requester, 6);
    }
}

static void a_flood_of_new_inboxes_fills_one_stream_and_no_more(void **state)
{
    struct world world = { 0 };
    struct kvb_sync_displaced displaced = { 0 };
    unsigned busy = 0;

    (void)state;
    for (uint64_t requester = 100; requester < 2100; requester++) {
        busy += put(&world, 1, requester, false, NULL, &displaced) == KVB_AGAIN;
        assert_null(displaced.pending);
    }
    assert_int_equal(busy, 2000 - kvb_sync_stream_entries);
    (void)put_one(&world, 2, 9, false); /* a requester of another stream has a place */
    assert_int_equal(put(&world, 1, 5, false, NULL, &displaced), KVB_AGAIN);
    assert_ok(put(&world, 1, 5, true, NULL, &displaced)); /* it returns */
    assert_non_null(displaced.pending);
    assert_false(displaced.is_replaced);
    assert_int_equal(kvb_sync_queue_next(&world.queue)->requester, 5);
}

static void a_flood_over_all_streams_leaves_room_for_returning_requesters(void **state)
{
    struct world world = { 0 };
    struct kvb_sync_displaced displaced = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 2000; i++) {
        (void)put(&world, i, 100 + i, false, NULL, &displaced);
        assert_null(displaced.pending);
    }
    assert_int_equal(world.queue.count, kvb_sync_entries);
    assert_int_equal(put(&world, 3, 5, false, NULL, &displaced), KVB_AGAIN);
    assert_ok(put(&world, 5000, 5, true, NULL, &displaced));
    assert_non_null(displaced.pending);
    assert_int_equal(world.queue.count, kvb_sync_entries);
    assert_int_equal(kvb_sync_queue_next(&world.queue)->requester, 5);
}

/* Four aggregators that request everything at once do not exclude a fifth. */
static void the_requester_with_the_most_requests_makes_room(void **state)
{
    struct world world = { 0 };
    struct kvb_sync_displaced displaced = { 0 };

    (void)state;
    for (uint64_t stream = 0; stream < kvb_sync_entries; stream++) {
        (void)put_one(&world, stream, stream < 80 ? 1 : 2, true);
    }
    assert_ok(put(&world, 0, 3, true, NULL, &displaced));
    assert_non_null(displaced.pending);
    /* a request of requester 1 */
    assert_in_range((char *)displaced.pending - world.incoming, 0, 79);
    assert_int_equal(put(&world, 1000, 1, true, NULL, &displaced), KVB_AGAIN);
}

SUITE(sync_queue)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_requester_that_comes_back_later_is_returning),
        cmocka_unit_test(a_requester_has_a_rate),
        cmocka_unit_test(streams_take_turns_and_then_their_requesters),
        cmocka_unit_test(a_newer_request_replaces_the_older_one_of_a_requester),
        cmocka_unit_test(a_requester_keeps_its_turn_when_it_repeats),
        cmocka_unit_test(returning_requesters_go_before_new_ones),
        cmocka_unit_test(a_flood_of_new_inboxes_fills_one_stream_and_no_more),
        cmocka_unit_test(a_flood_over_all_streams_leaves_room_for_returning_requesters),
        cmocka_unit_test(the_requester_with_the_most_requests_makes_room),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
