#include "kvb_test.h"

#include "batch_maker.h"
#include "stream_world.h"

/* With sparse traffic the answer to a probe may contain the batch that is being published at that
 * moment. */
static void a_probe_that_overtakes_a_live_batch_costs_no_state(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(world.output.is_changed);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(start_wanted_replay(&world), 3); /* END also follows a cut reply */
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    live(&world, 3, first_incarnation, 4);
    replayed(&world, 3, first_incarnation, 4);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    assert_int_equal(world.held_count, 4);
    /* including the one of begin_exact() */
    assert_int_equal(kvb_stream_count(world.stream)->duplicates, 2);
    stream_world_end(&world);
}

/* So many batches do not overtake: they were lost, and the list is outdated until they are applied.
 */
static void a_probe_that_brings_a_long_tail_is_a_loss(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t seq = 3;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    (void)start_wanted_replay(&world);
    replayed(&world, 2, first_incarnation, 3);
    for (; seq < 3 + 17; seq++) {
        assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        replayed(&world, seq, first_incarnation, (uint32_t)seq + 1);
    }
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), seq - 1);
    replayed(&world, seq - 1, first_incarnation, (uint32_t)seq);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, seq);
    stream_world_end(&world);
}

static bool wants_after_live(struct stream_world *world, uint64_t seq)
{
    uint64_t from = 0;

    live(world, seq, first_incarnation, (uint32_t)seq + 1);
    pass_ms(world, 50);
    return kvb_stream_wants_replay(world->stream, world->now_ns, &from);
}

static void an_engine_that_may_have_restarted_is_probed_once_although_it_publishes(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_false(wants_after_live(&world, 3));
    kvb_stream_suspect_restart(world.stream);
    assert_true(wants_after_live(&world, 4));
    assert_int_equal(start_wanted_replay(&world), 4);
    replayed(&world, 4, first_incarnation, 5);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(wants_after_live(&world, 5));
    stream_world_end(&world);
}

/* ---- Silence ---- */

enum { tick_ms = 50, first_pause_ms = 1000, max_pause_ms = 60000 };

/* Passes time until a probe is wanted, and starts it; returns the pause before it. */
static uint64_t wait_for_probe(struct stream_world *world)
{
    uint64_t from = 0;
    uint64_t pause_ms = 0;

    for (; !kvb_stream_wants_replay(world->stream, world->now_ns, &from); pause_ms += tick_ms) {
        assert_true(pause_ms <= max_pause_ms);
        pass_ms(world, tick_ms);
    }
    (void)start_wanted_replay(world);
    return pause_ms;
}

/* The probe shows that the engine has published nothing since batch seq. */
static void answer_nothing_new(struct stream_world *world, uint64_t seq)
{
    replayed(world, seq, first_incarnation, (uint32_t)seq + 1);
    give(world, KVB_INPUT_REPLAY_END);
    assert_state(world, KVB_STREAM_EXACT, KVB_REASON_NONE);
}

/* The engine has been silent for silent_ms, and stays so; answers each probe until until_ms, and
 * returns the longest pause. */
static uint64_t
be_silent(struct stream_world *world, uint64_t seq, uint64_t silent_ms, uint64_t until_ms)
{
    uint64_t max_ms = 0;

    while (silent_ms < until_ms) {
        const uint64_t pause_ms = wait_for_probe(world);
        const uint64_t longest_ms =
            silent_ms < UINT64_C(4) * first_pause_ms ? first_pause_ms : silent_ms / 4;
        assert_true(pause_ms <= longest_ms + tick_ms);
        answer_nothing_new(world, seq);
        silent_ms += pause_ms;
        max_ms = pause_ms > max_ms ? pause_ms : max_ms;
    }
    return max_ms;
}

static void probes_of_a_silent_engine_pause_a_quarter_of_its_silence(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_int_equal(be_silent(&world, 2, 0, 5000), first_pause_ms);
    assert_int_equal(wait_for_probe(&world), 1250);
    stream_world_end(&world);
}

static void probes_of_a_silent_engine_pause_a_minute_at_most(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_int_equal(be_silent(&world, 2, 0, 600000), max_pause_ms);
    assert_true(kvb_stream_count(world.stream)->replays_requested < 40);
    stream_world_end(&world);
}

/* The bound that readers rely on: a quarter of the silence, then 1 s again. */
static void a_tail_lost_in_a_long_silence_is_found_by_the_next_probe(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_true(be_silent(&world, 2, 0, 40000) <= 10000);
    assert_true(wait_for_probe(&world) <= 12000);
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4); /* its live copy was lost */
    give(&world, KVB_INPUT_REPLAY_END);
    (void)start_wanted_replay(&world);
    answer_nothing_new(&world, 3);
    assert_true(router_holds(&world, root(4)));
    assert_int_equal(wait_for_probe(&world), first_pause_ms);
    stream_world_end(&world);
}

static void a_batch_or_a_connection_ends_the_silence(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    assert_true(be_silent(&world, 2, 0, 40000) > 8000);
    live(&world, 3, first_incarnation, 4);
    assert_int_equal(wait_for_probe(&world), first_pause_ms);
    answer_nothing_new(&world, 3);
    assert_true(be_silent(&world, 3, 1000, 40000) > 8000);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world); /* the last two batches, then the tail */
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4);
    give(&world, KVB_INPUT_REPLAY_END);
    (void)start_wanted_replay(&world);
    answer_nothing_new(&world, 3);
    assert_int_equal(wait_for_probe(&world), first_pause_ms);
    stream_world_end(&world);
}

/* ---- Pauses of this process ---- */

static void after_a_pause_the_list_is_not_exact_until_a_replay_shows_its_tail(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_PAUSE);
    assert_true(world.output.is_changed); /* a heartbeat says it at once */
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    live(&world, 3, first_incarnation, 4); /* others may wait behind it */
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    pass_ms(&world, 50);
    assert_int_equal(start_wanted_replay(&world), 3);
    replayed(&world, 3, first_incarnation, 4);
    replayed(&world, 4, first_incarnation, 5);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 4); /* END also follows a cut reply */
    answer_nothing_new(&world, 4);
    assert_int_equal(world.held_count, 5);
    stream_world_end(&world);
}

static void replies_that_came_before_a_pause_ended_prove_nothing(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    (void)wait_for_probe(&world);
    replayed(&world, 2, first_incarnation, 3);
    give(&world, KVB_INPUT_PAUSE);
    assert_true(world.output.drops_replay);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 2);
    answer_nothing_new(&world, 2);
    stream_world_end(&world);
}

static void an_engine_that_restarted_during_a_pause_is_recognised(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_PAUSE); /* the monitor has not reported yet that the engine has gone */
    pass_ms(&world, 50);
    (void)start_wanted_replay(&world);
    replayed(&world, 0, second_incarnation, 9);
    assert_true(world.held_count <= 1);
    assert_false(router_holds(&world, root(1)));
    stream_world_end(&world);
}

static void a_pause_that_no_replay_ends_leaves_the_list_unverified(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_PAUSE);
    pass_ms(&world, 50);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_REPLAY_FAILED);
    (void)wait_for_probe(&world);
    replayed(&world, 2, first_incarnation, 3);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

SUITE(stream_probe)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_that_overtakes_a_live_batch_costs_no_state),
        cmocka_unit_test(a_probe_that_brings_a_long_tail_is_a_loss),
        cmocka_unit_test(probes_of_a_silent_engine_pause_a_quarter_of_its_silence),
        cmocka_unit_test(probes_of_a_silent_engine_pause_a_minute_at_most),
        cmocka_unit_test(a_tail_lost_in_a_long_silence_is_found_by_the_next_probe),
        cmocka_unit_test(a_batch_or_a_connection_ends_the_silence),
        cmocka_unit_test(after_a_pause_the_list_is_not_exact_until_a_replay_shows_its_tail),
        cmocka_unit_test(replies_that_came_before_a_pause_ended_prove_nothing),
        cmocka_unit_test(an_engine_that_restarted_during_a_pause_is_recognised),
        cmocka_unit_test(a_pause_that_no_replay_ends_leaves_the_list_unverified),
        cmocka_unit_test(an_engine_that_may_have_restarted_is_probed_once_although_it_publishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
