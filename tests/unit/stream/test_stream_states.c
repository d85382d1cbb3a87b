#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
#include "stream_world.h"

/* What a stream says of itself, holds back and announces. */

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

/* ---- Held batches ---- */

static void a_batch_that_does_not_fit_the_queue_restarts_the_list(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    uint64_t seq = 5; /* 3 and 4 are missing, and the replay is slow */
    for (; kvb_stream_count(world.stream)->buffer_refused == 0; seq++) {
        live(&world, seq, first_incarnation, (uint32_t)seq + 1);
        assert_true(seq < 100000);
        if (seq == 5) {
            (void)start_wanted_replay(&world);
        }
    }
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    assert_int_equal(world.held_count, seq - 5);
    stream_world_end(&world);
}

enum { busy_events = 64, busy_batches = 1100 }; /* together more than one output may contain */

/* A batch that stores and removes one prompt again and again, and leaves one. */
static void live_busy(struct stream_world *world, uint64_t seq)
{
    const uint64_t fleeting = 800;
    const uint32_t token = 800;

    for (int i = 0; i < busy_events / 2 - 1; i++) {
        add_stored(&world->batch, NULL, &fleeting, &token, 1);
        add_removed(&world->batch, &fleeting, 1);
    }
    live(world, seq, first_incarnation, (uint32_t)seq + 1000);
}

static void begin_with_many_held(struct stream_world *world)
{
    stream_world_begin_holding(world, true, 64 << 20);
    give(world, KVB_INPUT_UP);
    (void)start_wanted_replay(world);
    for (uint64_t seq = 0; seq < busy_batches; seq++) {
        live_busy(world, seq);
    }
    assert_int_equal(world->held_count, 0);
}

static void queued_batches_are_drained_in_slices(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t seq = busy_batches;
    int slices = 1;

    begin_with_many_held(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    for (; world.output.has_more; slices++) {
        assert_false(world.saw_cleared);
        assert_in_range(world.output.events.event_count, 1, 8192);
        assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
        if (slices % 2) {
            live_busy(&world, seq++); /* it waits in the queue and causes no work */
            assert_int_equal(world.output.events.event_count, 0);
        }
        give(&world, KVB_INPUT_TICK);
    }
    assert_true(slices > 8);
    assert_false(world.saw_cleared);
    find_live(&world, seq - 1, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, seq);
    assert_int_equal(kvb_stream_count(world.stream)->batches_applied, seq);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    stream_world_end(&world);
}

static void undrained_batches_are_dropped_with_the_connection(void **state)
{
    (void)state;
    struct stream_world world;

    begin_with_many_held(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_true(world.output.has_more);
    give(&world, KVB_INPUT_DOWN);
    assert_false(world.output.has_more);
    give(&world, KVB_INPUT_UP);
    /* counted from the last two applied batches */
    const uint64_t from = start_wanted_replay(&world);
    assert_int_equal(from + 2, world.held_count);
    stream_world_end(&world);
}

static void many_queued_batches_after_a_failed_replay_are_drained_in_slices(void **state)
{
    (void)state;
    struct stream_world world;
    size_t cleared = 0;

    begin_with_many_held(&world);
    live_busy(&world, busy_batches + 5); /* a gap among them: the list restarts there */
    world.now_ns += 3 * KVB_NS_PER_S;
    give(&world, KVB_INPUT_TICK);
    while (world.output.has_more) {
        give(&world, KVB_INPUT_TICK);
        cleared += world.saw_cleared;
    }
    assert_int_equal(cleared, 1);
    assert_int_equal(world.held_count, 1);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    stream_world_end(&world);
}

/* ---- Announcements ---- */

static void note_chunk(struct kvb_router_batch *seen, const struct kvb_router_batch *chunk)
{
    for (size_t i = 0; i < chunk->event_count; i++) {
        const struct kvb_router_event *event = &chunk->events[i];
        if (seen->event_count > 0) {
            assert_true(event->event_id == seen->events[seen->event_count - 1].event_id + 1);
        }
        assert_ok(kvb_router_batch_add_event(seen, event));
        for (uint32_t b = 0; b < event->block_count; b++) {
            assert_ok(kvb_router_batch_add_block(
                seen, chunk->blocks[event->block_at + b], chunk->tokens[event->block_at + b]));
        }
    }
}

static void tell(struct stream_world *world, bool opens_epoch, struct kvb_router_batch *seen)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch chunk = { 0 };

    assert_ok(kvb_stream_list_begin(world->stream, opens_epoch));
    do {
        assert_ok(kvb_stream_list_next(world->stream, 2, &chunk));
        note_chunk(seen, &chunk);
    } while (chunk.event_count > 0);
    kvb_stream_list_end(world->stream);
}

static void an_announcement_opens_an_epoch_and_lists_everything(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_router_batch seen = { 0 };
    struct kvb_heartbeat before;
    struct kvb_heartbeat after;

    begin_exact(&world, 3);
    kvb_stream_heartbeat(world.stream, &before);
    kvb_stream_open_epoch(world.stream, 1, false);
    tell(&world, true, &seen);
    kvb_stream_heartbeat(world.stream, &after);
    assert_memory_not_equal(&before.epoch, &after.epoch, sizeof before.epoch);
    assert_int_equal(seen.events[0].kind, KVB_ROUTER_CLEARED);
    assert_true(seen.events[0].event_id == after.epoch_first_id);
    assert_true(after.epoch_first_id > before.last_id);
    assert_true(seen.events[seen.event_count - 1].event_id == after.last_id);
    assert_int_equal(seen.block_count, 3);
    kvb_router_batch_done(&seen);
    stream_world_end(&world);
}

static void a_withdrawn_stream_publishes_nothing_until_the_next_epoch(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_router_batch seen = { 0 };
    struct kvb_heartbeat beat;

    begin_exact(&world, 3);
    kvb_stream_open_epoch(world.stream, 1, true);
    tell(&world, true, &seen);
    assert_int_equal(seen.event_count, 1);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_true(beat.tiers[KVB_TIER_DEVICE].blocks == 0);
    assert_true(beat.last_id == beat.epoch_first_id);
    kvb_router_batch_reset(&seen);
    kvb_stream_open_epoch(world.stream, 1, false);
    tell(&world, true, &seen);
    assert_int_equal(seen.block_count, 3);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_true(beat.tiers[KVB_TIER_DEVICE].blocks == 3);
    kvb_router_batch_done(&seen);
    stream_world_end(&world);
}

static void a_withdrawn_stream_is_not_exact_before_it_is_announced_again(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    kvb_stream_open_epoch(world.stream, 1000 + world.now_ns / 1000, true);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    kvb_stream_open_epoch(world.stream, 1000 + world.now_ns / 1000, false);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void republishing_continues_in_the_same_epoch(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_router_batch seen = { 0 };
    struct kvb_heartbeat before;
    struct kvb_heartbeat after;

    begin_exact(&world, 3);
    kvb_stream_heartbeat(world.stream, &before);
    tell(&world, false, &seen);
    kvb_stream_heartbeat(world.stream, &after);
    assert_memory_equal(&before.epoch, &after.epoch, sizeof before.epoch);
    assert_int_equal(seen.block_count, 3);
    /* The analyzer does not know that what an assert refuses ends the test.
     * NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    assert_true(seen.events[0].event_id == before.last_id + 1);
    kvb_router_batch_done(&seen);
    stream_world_end(&world);
}

SUITE(stream_states)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_jump_to_the_largest_number_does_not_wrap_the_counter),
        cmocka_unit_test(a_batch_that_does_not_fit_the_queue_restarts_the_list),
        cmocka_unit_test(queued_batches_are_drained_in_slices),
        cmocka_unit_test(undrained_batches_are_dropped_with_the_connection),
        cmocka_unit_test(many_queued_batches_after_a_failed_replay_are_drained_in_slices),
        cmocka_unit_test(an_announcement_opens_an_epoch_and_lists_everything),
        cmocka_unit_test(a_withdrawn_stream_publishes_nothing_until_the_next_epoch),
        cmocka_unit_test(a_withdrawn_stream_is_not_exact_before_it_is_announced_again),
        cmocka_unit_test(republishing_continues_in_the_same_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
