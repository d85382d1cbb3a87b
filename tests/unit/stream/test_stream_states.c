#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "stream_world.h"

struct skip_case {
    enum kvb_skip skip;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    size_t held;
};

static void a_skipped_event_costs_what_it_may_hide(void **state)
{
    (void)state;
    const struct skip_case cases[] = {
        { KVB_SKIP_BAD_STORED, KVB_STREAM_PARTIAL, KVB_REASON_SKIPPED, 3 },
        { KVB_SKIP_BAD_REMOVED, KVB_STREAM_PARTIAL, KVB_REASON_POISON, 0 },
        { KVB_SKIP_UNKNOWN_EVENT, KVB_STREAM_UNVERIFIED, KVB_REASON_UNKNOWN_EVENT, 3 },
        { KVB_SKIP_NOT_PREFIX, KVB_STREAM_EXACT, KVB_REASON_NONE, 3 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stream_world world;
        begin_exact(&world, 3);
        add_skipped(&world.batch, cases[i].skip);
        give_batch(&world, KVB_INPUT_LIVE, 3, first_life, false);
        assert_state(&world, cases[i].state, cases[i].reason);
        assert_int_equal(world.held_count, cases[i].held);
        assert_int_equal(kvb_stream_count(world.stream)->skipped[cases[i].skip], 1);
        add_cleared(&world.batch);
        give_batch(&world, KVB_INPUT_LIVE, 4, first_life, false);
        assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        stream_world_end(&world);
    }
}

static void without_a_replay_endpoint_nothing_is_ever_exact(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    stream_world_begin(&world, false);
    give(&world, KVB_INPUT_UP);
    live(&world, 0, first_life, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REPLAY);
    live(&world, 5, first_life, 6); /* a gap: what may be gone is cleared */
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 1);
    live(&world, 0, second_life, 11); /* a restart */
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 1);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

static void a_whole_buffer_is_asked_for_once_in_ten_seconds_at_most(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100); /* never answered */
    int full = 0;
    for (int i = 0; i < 400; i++) { /* 20 s */
        pass_ms(&world, 50);
        if (kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
            (void)start_wanted_replay(&world);
            full++;
        }
    }
    assert_in_range(full, 1, 2);
    stream_world_end(&world);
}

static void what_does_not_fit_the_waiting_room_begins_the_list_again(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    uint64_t seq = 5; /* 3 and 4 are missing, and the replay is slow */
    for (; kvb_stream_count(world.stream)->held_refused == 0; seq++) {
        live(&world, seq, first_life, (uint32_t)seq + 1);
        assert_true(seq < 100000);
        if (seq == 5) {
            (void)start_wanted_replay(&world);
        }
    }
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    assert_int_equal(world.held_count, seq - 5);
    stream_world_end(&world);
}

static kvb_status note_chunk(void *context, const struct kvb_router_batch *chunk)
{
    struct kvb_router_batch *seen = context;

    for (size_t i = 0; i < chunk->event_count; i++) {
        const struct kvb_router_event *event = &chunk->events[i];
        if (seen->event_count > 0) {
            assert_true(event->event_id == seen->events[seen->event_count - 1].event_id + 1);
        }
        KVB_TRY(kvb_router_batch_add_event(seen, event));
        for (uint32_t b = 0; b < event->block_count; b++) {
            KVB_TRY(kvb_router_batch_add_block(
                seen, chunk->blocks[event->block_at + b], chunk->tokens[event->block_at + b]));
        }
    }
    return KVB_OK;
}

static void announcing_opens_an_epoch_and_lists_everything(void **state)
{
    (void)state;
    struct stream_world world;
    struct kvb_router_batch seen = { 0 };
    struct kvb_heartbeat before;
    struct kvb_heartbeat after;

    begin_exact(&world, 3);
    kvb_stream_heartbeat(world.stream, &before);
    assert_ok(kvb_stream_announce(world.stream, 1, 2, note_chunk, &seen));
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

static void a_counted_total_proves_the_list_whole(void **state)
{
    (void)state;
    const struct kvb_stream_options options = {
        .has_replay = true,
        .total_blocks = 2,
        .max_held_bytes = 1 << 20,
        .mirror = { .max_blocks = 16, .tiers = 1U << KVB_TIER_DEVICE },
    };
    struct stream_world world = { .now_ns = KVB_NS_PER_S };
    struct kvb_heartbeat beat;

    assert_ok(kvb_stream_new(&options, &world.stream));
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 41, first_life, 1);
    end_replay(&world, first_life);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_int_equal(beat.state, KVB_STREAM_PARTIAL);
    assert_true(beat.has_missing_at_most && beat.missing_at_most == 1);
    add_stored(&world.batch, &(uint64_t){ 555 }, &(uint64_t){ 556 }, &(uint32_t){ 9 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 42, first_life, false);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_int_equal(beat.state, KVB_STREAM_PARTIAL); /* two are proven, one is not listed */
    assert_true(beat.missing_at_most == 1);
    add_removed(&world.batch, &(uint64_t){ 556 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 43, first_life, false);
    live(&world, 44, first_life, 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_skipped_event_costs_what_it_may_hide),
        cmocka_unit_test(without_a_replay_endpoint_nothing_is_ever_exact),
        cmocka_unit_test(a_whole_buffer_is_asked_for_once_in_ten_seconds_at_most),
        cmocka_unit_test(what_does_not_fit_the_waiting_room_begins_the_list_again),
        cmocka_unit_test(announcing_opens_an_epoch_and_lists_everything),
        cmocka_unit_test(a_counted_total_proves_the_list_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
