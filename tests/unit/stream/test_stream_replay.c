#include "kvb_test.h"

#include "stream_world.h"

static void a_cut_replay_is_requested_again_from_the_gap(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    live(&world, 9, first_incarnation, 10);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    replayed(&world, 1, first_incarnation, 2);
    replayed(&world, 4, first_incarnation, 5); /* 2 and 3 were dropped in transit */
    assert_true(world.output.drops_replay);
    assert_int_equal(start_wanted_replay(&world), 1);
    for (uint32_t seq = 1; seq < 6; seq++) {
        replayed(&world, seq, first_incarnation, seq + 1);
    }
    give(&world, KVB_INPUT_REPLAY_END); /* 6 to 8 were dropped, and END arrived nevertheless */
    assert_int_equal(start_wanted_replay(&world), 5);
    for (uint32_t seq = 5; seq < 10; seq++) {
        replayed(&world, seq, first_incarnation, seq + 1);
    }
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(world.saw_cleared);
    assert_int_equal(world.held_count, 10);
    stream_world_end(&world);
}

/* Replies above the engine's high-water mark are dropped, and END arrives nevertheless. */
static void an_end_counts_only_when_nothing_follows(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 0, first_incarnation, 1);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    replayed(&world, 1, first_incarnation, 2); /* the reply was cut */
    end_replay(&world, first_incarnation);
    live(&world, 1, first_incarnation, 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 2);
    stream_world_end(&world);
}

/* The same before anything was applied, when no fingerprint can distinguish incarnations. */
static void batches_of_a_lost_connection_do_not_follow_the_first_replay(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    give(&world, KVB_INPUT_DOWN);
    live(&world, 2, first_incarnation, 3);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, second_incarnation, 11);
    replayed(&world, 1, second_incarnation, 12);
    end_replay(&world, second_incarnation);
    assert_false(router_holds(&world, root(3)));
    assert_int_equal(world.held_count, 2);
    stream_world_end(&world);
}

static void a_failed_replay_does_not_prove_an_empty_engine(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 0);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    stream_world_end(&world);
}

static void without_a_replay_a_reconnection_restarts_the_list(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, false);
    give(&world, KVB_INPUT_UP);
    live(&world, 0, first_incarnation, 1);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

/* 3 and 4 are missing, and their content is unknown. */
static void gap_without_answer(struct stream_world *world)
{
    begin_exact(world, 3);
    live(world, 5, first_incarnation, 6);
    (void)start_wanted_replay(world);
    pass_ms(world, 2100);
}

static void a_replay_that_never_answers_ends_at_its_deadline(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    gap_without_answer(&world);
    assert_true(world.held_count == 1 && router_holds(&world, root(6)));
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from)); /* backs off */
    pass_ms(&world, 2100);
    assert_true(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

/* The listed blocks stay, but batches may have been missed. */
static void an_unanswered_probe_leaves_the_list_unverified(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    pass_ms(&world, 2100);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_REPLAY_FAILED);
    assert_int_equal(world.held_count, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, first_incarnation, 3);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* An engine that repeats old batches must not cause a request each time. */
static void batches_that_arrive_before_the_next_request_are_not_lost(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    live(&world, 3, first_incarnation, 4);
    live(&world, 1, second_incarnation, 12); /* checked at once */
    assert_int_equal(start_wanted_replay(&world), 3);
    replayed(&world, 3, first_incarnation, 4);
    give(&world, KVB_INPUT_REPLAY_END);
    live(&world, 1, second_incarnation, 12); /* the next request waits for a second */
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    live(&world, 4, first_incarnation, 5);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 3);
    replayed(&world, 3, first_incarnation, 4);
    end_replay(&world, first_incarnation);
    assert_true(router_holds(&world, root(5)));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* The list came only from answers, which may be another engine's. A live batch is certainly this
 * engine's. */
static void a_live_batch_outweighs_unproven_answers(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    live(&world, 1, second_incarnation, 12);
    for (int round = 0; round < 8 && !world.saw_cleared; round++) {
        pass_ms(&world, 1100);
        if (!world.saw_cleared && kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
            (void)start_wanted_replay(&world);
            replayed(&world, 2, first_incarnation, 3);
            give(&world, KVB_INPUT_REPLAY_END);
        }
    }
    assert_true(world.saw_cleared);
    assert_true(router_holds(&world, root(12)));
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void batches_left_out_by_an_unanswered_replay_are_requested_again(void **state)
{
    (void)state;
    struct stream_world world;

    gap_without_answer(&world);
    pass_ms(&world, 10000);
    assert_int_equal(start_wanted_replay(&world), 5);
    replayed(&world, 5, first_incarnation, 6);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(start_wanted_replay(&world), 0);
    for (uint32_t seq = 0; seq < 6; seq++) {
        replayed(&world, seq, first_incarnation, seq + 1);
    }
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 6);
    stream_world_end(&world);
}

/* Another engine answers, and its answers use up the limit of full replays. */
static void a_replay_that_is_not_permitted_soon_is_left_out_for_now(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    live(&world, 5, first_incarnation, 6); /* 3 and 4 are missing */
    (void)start_wanted_replay(&world);
    replayed(&world, 2, second_incarnation, 9);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 40, second_incarnation, 9);
    replayed(&world, 7, second_incarnation, 9); /* another incarnation again: no request for 10 s */
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    live(&world, 6, first_incarnation, 7);
    pass_ms(&world, 50);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    assert_true(world.held_count == 1 && router_holds(&world, root(7)));
    live(&world, 7, first_incarnation, 8); /* no request is under way */
    assert_int_equal(world.held_count, 2);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

SUITE(stream_replay)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_replay_is_requested_again_from_the_gap),
        cmocka_unit_test(an_end_counts_only_when_nothing_follows),
        cmocka_unit_test(batches_of_a_lost_connection_do_not_follow_the_first_replay),
        cmocka_unit_test(a_failed_replay_does_not_prove_an_empty_engine),
        cmocka_unit_test(without_a_replay_a_reconnection_restarts_the_list),
        cmocka_unit_test(a_replay_that_never_answers_ends_at_its_deadline),
        cmocka_unit_test(an_unanswered_probe_leaves_the_list_unverified),
        cmocka_unit_test(batches_that_arrive_before_the_next_request_are_not_lost),
        cmocka_unit_test(a_live_batch_outweighs_unproven_answers),
        cmocka_unit_test(batches_left_out_by_an_unanswered_replay_are_requested_again),
        cmocka_unit_test(a_replay_that_is_not_permitted_soon_is_left_out_for_now),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
