#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "stream_world.h"

/* After a reconnection the engine may be another incarnation. The list must not be used before its
 * last batches have shown that it is not. */

static void begin_connected_again(struct stream_world *world, uint64_t count)
{
    begin_exact(world, count);
    give(world, KVB_INPUT_DOWN);
    assert_state(world, KVB_STREAM_DOWN, KVB_REASON_ENGINE_AWAY);
    give(world, KVB_INPUT_UP);
}

static bool wants_replay(const struct stream_world *world)
{
    uint64_t from = 0;

    return kvb_stream_wants_replay(world->stream, world->now_ns, &from);
}

static void a_list_is_not_used_until_the_engine_proves_its_incarnation(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    pass_ms(&world, 3000); /* a thousand other engines are served before it */
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
    assert_int_equal(kvb_stream_replay_need(world.stream), KVB_REPLAY_PROOF);
    assert_int_equal(start_wanted_replay(&world), 1);
    live(&world, 3, first_incarnation, 4); /* batches of an unknown incarnation */
    replayed(&world, 1, first_incarnation, 2);
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
    replayed(&world, 2, first_incarnation, 3);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(kvb_stream_replay_need(world.stream), KVB_REPLAY_MISSING);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

static void another_incarnation_is_used_from_its_first_reply_without_the_old_list(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    (void)start_wanted_replay(&world);
    replayed(&world, 1, second_incarnation, 12);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 0);
    stream_world_end(&world);
}

static void an_end_alone_clears_the_old_list_before_it_is_used(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    stream_world_end(&world);
}

/* The buffer has wrapped, but no batch was lost. */
static void the_last_batch_alone_is_a_proof_if_the_buffer_begins_with_it(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 2, first_incarnation, 3);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    replayed(&world, 3, first_incarnation, 4);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

static void a_different_batch_at_the_buffers_beginning_means_another_list(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    (void)start_wanted_replay(&world);
    replayed(&world, 2, second_incarnation, 13);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void a_proof_that_does_not_arrive_clears_the_list(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 3);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 1900);
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
    pass_ms(&world, 200);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

static void a_gap_on_the_same_connection_keeps_the_list_in_use(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 5, first_incarnation, 6);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(kvb_stream_replay_need(world.stream), KVB_REPLAY_MISSING);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 1000);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(world.held_count, 3);
    stream_world_end(&world);
}

/* At a first connection there is no list that could be wrong. */
static void a_stream_without_a_list_has_nothing_to_prove(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(kvb_stream_replay_need(world.stream), KVB_REPLAY_HISTORY);
    stream_world_end(&world);
}

/* Heartbeats of a busy engine came too late. It is the same process, and answers already. */
static void a_lost_connection_does_not_reset_the_limit_of_full_replays(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    pass_ms(&world, 1000);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_false(wants_replay(&world));
    live(&world, 7, first_incarnation, 8); /* arriving batches are listed meanwhile */
    pass_ms(&world, 100);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    assert_int_equal(world.held_count, 1);
    for (int i = 0; i < 178 && !wants_replay(&world); i++) { /* 8.9 s */
        pass_ms(&world, 50);
    }
    assert_int_equal(start_wanted_replay(&world), 7); /* a probe, not a full replay */
    stream_world_end(&world);
}

static void a_new_incarnation_has_its_own_limit_of_full_replays(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    replayed(&world, 1, first_incarnation, 2);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0); /* two batches are needed for the proof */
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(start_wanted_replay(&world), 0);
    stream_world_end(&world);
}

/* Only its first batch was known, so the replay requested as a proof is the whole history. */
static void a_first_reply_that_begins_another_incarnation_is_not_requested_again(void **state)
{
    (void)state;
    struct stream_world world;

    begin_connected_again(&world, 1);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, second_incarnation, 11);
    assert_false(wants_replay(&world));
    replayed(&world, 1, second_incarnation, 12);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(start_wanted_replay(&world), 1); /* the second round, which confirms the end */
    replayed(&world, 1, second_incarnation, 12);
    give(&world, KVB_INPUT_REPLAY_END);
    live(&world, 1, second_incarnation, 12);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 2);
    assert_int_equal(kvb_stream_count(world.stream)->restarts, 1);
    stream_world_end(&world);
}

SUITE(stream_life)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_not_used_until_the_engine_proves_its_incarnation),
        cmocka_unit_test(another_incarnation_is_used_from_its_first_reply_without_the_old_list),
        cmocka_unit_test(an_end_alone_clears_the_old_list_before_it_is_used),
        cmocka_unit_test(the_last_batch_alone_is_a_proof_if_the_buffer_begins_with_it),
        cmocka_unit_test(a_different_batch_at_the_buffers_beginning_means_another_list),
        cmocka_unit_test(a_proof_that_does_not_arrive_clears_the_list),
        cmocka_unit_test(a_gap_on_the_same_connection_keeps_the_list_in_use),
        cmocka_unit_test(a_stream_without_a_list_has_nothing_to_prove),
        cmocka_unit_test(a_lost_connection_does_not_reset_the_limit_of_full_replays),
        cmocka_unit_test(a_new_incarnation_has_its_own_limit_of_full_replays),
        cmocka_unit_test(a_first_reply_that_begins_another_incarnation_is_not_requested_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
