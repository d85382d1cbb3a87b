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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_that_overtakes_a_live_batch_costs_no_state),
        cmocka_unit_test(a_probe_that_brings_a_long_tail_is_a_loss),
        cmocka_unit_test(an_engine_that_may_have_restarted_is_probed_once_although_it_publishes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
