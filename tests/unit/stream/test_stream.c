#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "stream_world.h"

enum { first_life = 1, second_life = 2 };

/* A batch that stores one root block with this token, engine hash 900 + token. */
static void stored_root(struct stream_world *world, uint32_t token)
{
    add_stored(&world->batch, NULL, &(uint64_t){ 900 + token }, &token, 1);
}

static kvb_block_hash root(uint32_t token)
{
    return name_of(&token, 1);
}

static void live(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token)
{
    stored_root(world, token);
    give_batch(world, KVB_INPUT_LIVE, seq, life, false);
}

static void replayed(struct stream_world *world, uint64_t seq, uint64_t life, uint32_t token)
{
    stored_root(world, token);
    give_batch(world, KVB_INPUT_REPLAY, seq, life, false);
}

/* Connected, history replayed from 0: batches 0 .. count-1, token = seq + 1. */
static void begin_exact(struct stream_world *world, uint64_t count)
{
    stream_world_begin(world, true);
    give(world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(world), 0);
    for (uint64_t seq = 0; seq < count; seq++) {
        replayed(world, seq, first_life, (uint32_t)seq + 1);
    }
    end_replay(world, first_life);
    assert_state(world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world->held_count, count);
}

static void is_down_until_the_engine_is_there(void **state)
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

static void a_history_from_the_beginning_is_exact(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 3, first_life, 4);
    assert_true(router_holds(&world, root(4)));
    stream_world_end(&world);
}

static void an_engine_that_published_nothing_is_exact_and_empty(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 0);
    live(&world, 0, first_life, 1);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void live_batches_wait_while_a_replay_runs(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    live(&world, 2, first_life, 3);
    assert_int_equal(world.held_count, 0);
    replayed(&world, 0, first_life, 1);
    replayed(&world, 1, first_life, 2);
    end_replay(&world, first_life);
    assert_int_equal(world.held_count, 3);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_beginning_that_the_engine_forgot_is_partial(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 41, first_life, 1);
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    add_cleared(&world.batch);
    give_batch(&world, KVB_INPUT_LIVE, 42, first_life, false);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_gap_is_filled_before_what_follows_is_applied(void **state)
{
    (void)state;
    struct stream_world world;
    const uint64_t stored_first = 905;

    begin_exact(&world, 3);
    add_removed(&world.batch, &stored_first, 1); /* seq 5 removes what seq 4 stored */
    give_batch(&world, KVB_INPUT_LIVE, 5, first_life, false);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 2); /* inclusive */
    replayed(&world, 2, first_life, 3);
    replayed(&world, 3, first_life, 4);
    replayed(&world, 4, first_life, 5);
    end_replay(&world, first_life);
    assert_false(world.saw_cleared); /* the same epoch */
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_true(router_holds(&world, root(4)));
    assert_false(router_holds(&world, root(5)));
    assert_int_equal(kvb_stream_count(world.stream)->gaps, 1);
    assert_int_equal(kvb_stream_count(world.stream)->batches_missed, 2);
    stream_world_end(&world);
}

static void a_duplicate_is_dropped(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 1, first_life, 2);
    assert_int_equal(world.output.events.event_count, 0);
    assert_int_equal(kvb_stream_count(world.stream)->duplicates, 1);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

static void a_restart_clears_and_is_followed_from_its_beginning(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 0, second_life, 11);
    assert_int_equal(start_wanted_replay(&world), 2);
    give(&world, KVB_INPUT_REPLAY_END); /* it has no batch 2 */
    assert_true(world.saw_cleared);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, second_life, 11);
    end_replay(&world, second_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 1);
    assert_true(router_holds(&world, root(11)));
    stream_world_end(&world);
}

/* The new life has a batch of our last number, and of the numbers after it. */
static void a_restart_that_overtook_us_is_found_by_its_bytes(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    live(&world, 3, second_life, 14);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, second_life, 13);
    assert_true(world.saw_cleared);
    assert_true(world.output.drops_replay);
    assert_int_equal(start_wanted_replay(&world), 0);
    for (uint32_t seq = 0; seq < 4; seq++) {
        replayed(&world, seq, second_life, 11 + seq);
    }
    end_replay(&world, second_life);
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
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE); /* nothing is known to be missing */
    replayed(&world, 2, first_life, 3);
    replayed(&world, 3, first_life, 4);
    end_replay(&world, first_life);
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
            replayed(&world, 2, first_life, 3);
            end_replay(&world, first_life);
            probes++;
        }
    }
    assert_in_range(probes, 8, 10);
    stream_world_end(&world);
}

static void a_replay_that_was_cut_is_asked_again_from_the_hole(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    live(&world, 9, first_life, 10);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_life, 1);
    replayed(&world, 1, first_life, 2);
    replayed(&world, 4, first_life, 5); /* 2 and 3 were dropped on the way */
    assert_true(world.output.drops_replay);
    assert_int_equal(start_wanted_replay(&world), 1);
    for (uint32_t seq = 1; seq < 6; seq++) {
        replayed(&world, seq, first_life, seq + 1);
    }
    give(&world, KVB_INPUT_REPLAY_END); /* 6 .. 8 were dropped, and END still came */
    assert_int_equal(start_wanted_replay(&world), 5);
    for (uint32_t seq = 5; seq < 10; seq++) {
        replayed(&world, seq, first_life, seq + 1);
    }
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(world.saw_cleared);
    assert_int_equal(world.held_count, 10);
    stream_world_end(&world);
}

/* Replies behind the engine's high-water mark are dropped, and END still comes. */
static void an_end_is_not_believed_until_nothing_follows(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 0, first_life, 1);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_life, 1);
    replayed(&world, 1, first_life, 2); /* it was cut */
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 2);
    stream_world_end(&world);
}

/* What was received of the life before must not be applied on top of the new one. */
static void batches_of_a_former_life_are_not_held_over(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    live(&world, 5, first_life, 6); /* of the run that came before the loss */
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 2);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(start_wanted_replay(&world), 0);
    for (uint32_t seq = 0; seq < 5; seq++) {
        replayed(&world, seq, second_life, 11 + seq);
    }
    end_replay(&world, second_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_false(router_holds(&world, root(6)));
    assert_int_equal(world.held_count, 5);
    stream_world_end(&world);
}

static void a_failed_replay_proves_no_empty_engine(void **state)
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

static void without_a_replay_a_reconnection_begins_the_list_again(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, false);
    give(&world, KVB_INPUT_UP);
    live(&world, 0, first_life, 1);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

/* All replies behind the engine's high-water mark are dropped, END among them. */
static void a_replay_that_loses_its_end_is_asked_to_go_on(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 0, first_life, 1);
    replayed(&world, 1, first_life, 2);
    pass_ms(&world, 600);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 1, first_life, 2);
    replayed(&world, 2, first_life, 3);
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 3);
    assert_int_equal(kvb_stream_count(world.stream)->replays_failed, 0);
    stream_world_end(&world);
}

static void a_batch_that_no_replay_has_is_a_hole(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 4, first_life, 5);
    (void)start_wanted_replay(&world);
    replayed(&world, 2, first_life, 3);
    replayed(&world, 4, first_life, 5); /* asked from 2, given 4: 3 is nowhere */
    assert_true(world.saw_cleared);
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_HOLE);
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

static void a_replay_that_never_answers_ends_at_its_deadline(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    live(&world, 5, first_life, 6);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100);
    assert_true(world.held_count == 1 && router_holds(&world, root(6)));
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from)); /* backs off */
    pass_ms(&world, 2100);
    assert_true(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

/* The engine answers again: all of its history is asked for, and the list is whole. */
static void what_an_unanswered_replay_left_out_is_asked_for_again(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 5, first_life, 6);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100);
    pass_ms(&world, 10000);
    assert_int_equal(start_wanted_replay(&world), 5);
    replayed(&world, 5, first_life, 6);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_int_equal(start_wanted_replay(&world), 0);
    for (uint32_t seq = 0; seq < 6; seq++) {
        replayed(&world, seq, first_life, seq + 1);
    }
    end_replay(&world, first_life);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 6);
    stream_world_end(&world);
}

static void a_batch_that_cannot_be_read_begins_the_list_again(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give_batch(&world, KVB_INPUT_LIVE, 3, first_life, true);
    assert_true(world.saw_cleared);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_POISON);
    live(&world, 4, first_life, 5);
    assert_int_equal(world.held_count, 1);
    assert_int_equal(kvb_stream_count(world.stream)->poison, 1);
    stream_world_end(&world);
}

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
        cmocka_unit_test(is_down_until_the_engine_is_there),
        cmocka_unit_test(a_history_from_the_beginning_is_exact),
        cmocka_unit_test(an_engine_that_published_nothing_is_exact_and_empty),
        cmocka_unit_test(live_batches_wait_while_a_replay_runs),
        cmocka_unit_test(a_beginning_that_the_engine_forgot_is_partial),
        cmocka_unit_test(a_gap_is_filled_before_what_follows_is_applied),
        cmocka_unit_test(a_duplicate_is_dropped),
        cmocka_unit_test(a_restart_clears_and_is_followed_from_its_beginning),
        cmocka_unit_test(a_restart_that_overtook_us_is_found_by_its_bytes),
        cmocka_unit_test(a_lost_tail_shows_within_a_second_of_silence),
        cmocka_unit_test(an_engine_is_probed_once_a_second_at_most),
        cmocka_unit_test(a_replay_that_was_cut_is_asked_again_from_the_hole),
        cmocka_unit_test(an_end_is_not_believed_until_nothing_follows),
        cmocka_unit_test(batches_of_a_former_life_are_not_held_over),
        cmocka_unit_test(a_failed_replay_proves_no_empty_engine),
        cmocka_unit_test(without_a_replay_a_reconnection_begins_the_list_again),
        cmocka_unit_test(a_replay_that_loses_its_end_is_asked_to_go_on),
        cmocka_unit_test(a_batch_that_no_replay_has_is_a_hole),
        cmocka_unit_test(a_replay_that_never_answers_ends_at_its_deadline),
        cmocka_unit_test(what_an_unanswered_replay_left_out_is_asked_for_again),
        cmocka_unit_test(a_batch_that_cannot_be_read_begins_the_list_again),
        cmocka_unit_test(a_skipped_event_costs_what_it_may_hide),
        cmocka_unit_test(without_a_replay_endpoint_nothing_is_ever_exact),
        cmocka_unit_test(a_whole_buffer_is_asked_for_once_in_ten_seconds_at_most),
        cmocka_unit_test(what_does_not_fit_the_waiting_room_begins_the_list_again),
        cmocka_unit_test(announcing_opens_an_epoch_and_lists_everything),
        cmocka_unit_test(a_counted_total_proves_the_list_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
