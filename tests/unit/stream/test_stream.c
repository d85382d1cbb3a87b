#include "kvb_test.h"

#include "batch_maker.h"
#include "stream_world.h"

static void a_stream_is_down_until_the_engine_connects(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
    give(&world, KVB_INPUT_UP);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    give(&world, KVB_INPUT_DOWN);
    assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_ENGINE_AWAY);
    stream_world_end(&world);
}

static void an_engine_that_published_nothing_is_exact_from_its_first_batch_on(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 0);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    live(&world, 0, first_incarnation, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    find_live(&world, 0, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void a_replay_without_the_first_batches_is_partial(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 41, first_incarnation, 1);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    live(&world, 41, first_incarnation, 1);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    add_cleared(&world.batch);
    give_batch(&world, KVB_INPUT_LIVE, 42, first_incarnation, false);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_jump_to_the_largest_number_does_not_wrap_the_counter(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t missed = 0;

    stream_world_begin(&world, false);
    give(&world, KVB_INPUT_UP);
    for (uint64_t jump = 1; jump <= 3; jump++) {
        live(&world, 0, first_incarnation, 1); /* the number after the largest one */
        live(&world, UINT64_MAX, first_incarnation, 2);
        assert_int_equal(kvb_stream_count(world.stream)->gaps, jump);
        assert_true(kvb_stream_count(world.stream)->batches_missed > missed);
        missed = kvb_stream_count(world.stream)->batches_missed;
    }
    stream_world_end(&world);
}

/* The block has no name, so it is held but not listed. */
static void a_block_without_its_parent_makes_the_list_partial(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    add_stored(&world.batch, &(uint64_t){ 555 }, &(uint64_t){ 556 }, &(uint32_t){ 9 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 1, first_incarnation, false);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_UNROOTED);
    add_removed(&world.batch, &(uint64_t){ 556 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 2, first_incarnation, false);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* The new incarnation has a batch with our last number and batches after it. */
static void a_restart_with_higher_numbers_is_detected_by_the_bytes(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    live(&world, 3, second_incarnation, 14);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 1, second_incarnation, 12);
    assert_true(world.saw_cleared);
    assert_true(world.output.drops_replay);
    assert_int_equal(start_wanted_replay(&world), 0);
    for (uint32_t seq = 0; seq < 4; seq++) {
        replayed(&world, seq, second_incarnation, 11 + seq);
    }
    end_replay(&world, second_incarnation);
    live(&world, 3, second_incarnation, 14);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    assert_false(router_holds(&world, root(1)));
    stream_world_end(&world);
}

static void a_lost_tail_shows_within_a_second_of_silence(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE); /* no batch is known to be missing */
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4);
    end_replay(&world, first_incarnation);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

static void an_engine_is_probed_once_a_second_at_most(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    int probes = 0;

    begin_exact(&world, 3);
    for (int i = 0; i < 200; i++) {
        pass_ms(&world, 50);
        if (kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
            (void)start_wanted_replay(&world);
            replayed(&world, 2, first_incarnation, 3);
            end_replay(&world, first_incarnation);
            probes++;
        }
    }
    assert_in_range(probes, 8, 10);
    stream_world_end(&world);
}

/* Lets time pass until a probe is due, which brings `count` batches after the number `from`. */
static void probe_brings(struct stream_world *world, uint64_t from, int count)
{
    uint64_t number = 0;

    pass_ms(world, 1500);
    assert_true(kvb_stream_wants_replay(world->stream, world->now_ns, &number));
    assert_int_equal(start_wanted_replay(world), from);
    for (int i = 0; i <= count; i++) {
        replayed(world, from + i, first_incarnation, (int)from + i + 1);
    }
    end_replay(world, first_incarnation);
}

static uint64_t missed_of(const struct stream_world *world)
{
    return kvb_stream_count(world->stream)->batches_missed;
}

static void the_newest_batches_that_only_a_probe_brought_count_as_missed(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3); /* numbers 0 to 2 */
    probe_brings(&world, 2, 3);
    assert_int_equal(missed_of(&world), 0); /* they may be under way: the probe overtook them */
    live(&world, 4, first_incarnation, 5);
    assert_int_equal(missed_of(&world), 1); /* 3 was lost, 4 has come, 5 may still come */
    live(&world, 6, first_incarnation, 7);
    assert_int_equal(missed_of(&world), 2);
    probe_brings(&world, 6, 1);
    assert_int_equal(missed_of(&world), 2);
    probe_brings(&world, 7, 0); /* a silent engine: nothing came in a second */
    assert_int_equal(missed_of(&world), 3);
    probe_brings(&world, 7, 0);
    assert_int_equal(missed_of(&world), 3);
    assert_int_equal(kvb_stream_count(world.stream)->gaps, 0);
    stream_world_end(&world);
}

static void batches_that_came_live_during_a_probe_are_not_missed(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    pass_ms(&world, 1500);
    assert_int_equal(start_wanted_replay(&world), 2);
    live(&world, 4, first_incarnation, 5); /* 3 was lost */
    live(&world, 5, first_incarnation, 6);
    for (int number = 2; number <= 6; number++) {
        replayed(&world, number, first_incarnation, number + 1);
    }
    end_replay(&world, first_incarnation);
    live(&world, 6, first_incarnation, 7); /* overtaken by the probe */
    live(&world, 7, first_incarnation, 8);
    assert_int_equal(missed_of(&world), 1);
    assert_int_equal(world.held_count, 8);
    stream_world_end(&world);
}

static void an_undecodable_batch_restarts_the_list(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give_batch(&world, KVB_INPUT_LIVE, 3, first_incarnation, true);
    assert_int_equal(world.held_count, 3); /* until the replay was requested */
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, first_incarnation, 3);
    give_batch(&world, KVB_INPUT_REPLAY, 3, first_incarnation, true);
    assert_true(world.saw_cleared);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_POISON);
    live(&world, 4, first_incarnation, 5);
    assert_int_equal(world.held_count, 1);
    assert_int_equal(kvb_stream_count(world.stream)->poison, 1);
    stream_world_end(&world);
}

static void an_undecodable_batch_is_requested_once_more(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give_batch(&world, KVB_INPUT_LIVE, 3, second_incarnation, true); /* now with other bytes */
    live(&world, 4, first_incarnation, 5);
    (void)start_wanted_replay(&world);
    for (uint32_t seq = 2; seq < 5; seq++) {
        replayed(&world, seq, first_incarnation, seq + 1);
        assert_false(world.saw_cleared);
    }
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 5);
    assert_int_equal(kvb_stream_count(world.stream)->poison, 0);
    stream_world_end(&world);
}

/* It arrived after the request of another replay. */
static void a_broken_batch_that_the_engine_did_not_keep_is_abandoned(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    (void)start_wanted_replay(&world);
    give_batch(&world, KVB_INPUT_LIVE, 3, first_incarnation, true);
    end_replay(&world, first_incarnation); /* neither reply contains it */
    assert_true(world.saw_cleared);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_POISON);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

static void batches_that_arrive_while_disconnected_wait_for_the_replay(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    live(&world, 3, first_incarnation, 4); /* it may belong to the next incarnation */
    assert_int_equal(world.held_count, 3);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 1, first_incarnation, 2);
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

SUITE(stream)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_down_until_the_engine_connects),
        cmocka_unit_test(an_engine_that_published_nothing_is_exact_from_its_first_batch_on),
        cmocka_unit_test(a_replay_without_the_first_batches_is_partial),
        cmocka_unit_test(a_jump_to_the_largest_number_does_not_wrap_the_counter),
        cmocka_unit_test(a_block_without_its_parent_makes_the_list_partial),
        cmocka_unit_test(a_restart_with_higher_numbers_is_detected_by_the_bytes),
        cmocka_unit_test(a_lost_tail_shows_within_a_second_of_silence),
        cmocka_unit_test(an_engine_is_probed_once_a_second_at_most),
        cmocka_unit_test(the_newest_batches_that_only_a_probe_brought_count_as_missed),
        cmocka_unit_test(batches_that_came_live_during_a_probe_are_not_missed),
        cmocka_unit_test(an_undecodable_batch_restarts_the_list),
        cmocka_unit_test(an_undecodable_batch_is_requested_once_more),
        cmocka_unit_test(a_broken_batch_that_the_engine_did_not_keep_is_abandoned),
        cmocka_unit_test(batches_that_arrive_while_disconnected_wait_for_the_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
