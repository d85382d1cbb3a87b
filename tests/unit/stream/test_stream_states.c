#include "kvb_test.h"

#include "batch_maker.h"
#include "core/clock.h"
#include "core/own.h"
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
        { KVB_SKIP_UNMATCHABLE, KVB_STREAM_EXACT, KVB_REASON_NONE, 3 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct stream_world world;
        begin_exact(&world, 3);
        add_skipped(&world.batch, cases[i].skip);
        give_batch(&world, KVB_INPUT_LIVE, 3, first_incarnation, false);
        assert_state(&world, cases[i].state, cases[i].reason);
        assert_int_equal(world.held_count, cases[i].held);
        assert_int_equal(kvb_stream_count(world.stream)->skipped[cases[i].skip], 1);
        add_cleared(&world.batch);
        give_batch(&world, KVB_INPUT_LIVE, 4, first_incarnation, false);
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
    live(&world, 0, first_incarnation, 1);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_REPLAY);
    live(&world, 5, first_incarnation, 6); /* a gap: blocks that may be gone are cleared */
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 1);
    live(&world, 0, second_incarnation, 11); /* a restart */
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 1);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

static void a_whole_buffer_is_requested_at_most_once_in_ten_seconds(void **state)
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

/* Its buffer has size zero: every request is answered with END alone. */
static void an_engine_without_a_buffer_is_unverified_and_loses_nothing(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_REPLAY_FAILED);
    assert_int_equal(world.held_count, 3);
    live(&world, 3, first_incarnation, 4);
    assert_int_equal(world.held_count, 4);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_REPLAY_FAILED);
    stream_world_end(&world);
}

/* After a lost connection the same END means another incarnation. */
static void
an_engine_that_forgot_everything_after_a_reconnection_is_another_incarnation(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 1);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

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

/* A replay has a maximum size. What arrived is kept, and the rest is requested again. */
static void a_replay_cut_by_its_bound_continues_from_the_last_applied_batch(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    replayed(&world, 1, first_incarnation, 2);
    give(&world, KVB_INPUT_REPLAY_CUT);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 1); /* at once, because it is no full replay */
    replayed(&world, 1, first_incarnation, 2);
    replayed(&world, 2, first_incarnation, 3);
    end_replay(&world, first_incarnation);
    live(&world, 2, first_incarnation, 3);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 3);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    give(&world, KVB_INPUT_REPLAY_CUT); /* late, so it is ignored */
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* A batch whose fingerprint is no longer kept arrives again from a running engine. */
static void a_late_repeated_batch_costs_one_request_and_nothing_else(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_exact(&world, 3);
    for (uint64_t seq = 3; seq < 1500; seq++) {
        live(&world, seq, first_incarnation, (uint32_t)seq + 1);
    }
    live(&world, 7, first_incarnation, 8);
    for (uint64_t seq = 1500; seq < 1503; seq++) { /* before the request is sent */
        live(&world, seq, first_incarnation, (uint32_t)seq + 1);
    }
    assert_int_equal(start_wanted_replay(&world), 1499);
    replayed(&world, 1499, first_incarnation, 1500);
    replayed(&world, 1500, first_incarnation, 1501);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 1503);
    /* including the one of begin_exact() */
    assert_int_equal(kvb_stream_count(world.stream)->duplicates, 3);
    assert_int_equal(kvb_stream_count(world.stream)->restarts, 0);

    live(&world, 9, first_incarnation, 10); /* the next request waits for its second */
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    pass_ms(&world, 1000);
    assert_int_equal(start_wanted_replay(&world), 1502);
    replayed(&world, 1502, first_incarnation, 1503);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* Live batches prove nothing about missed ones, so the request is repeated for a busy engine too.
 */
static void a_failed_replay_is_repeated_under_load(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    uint64_t seq = 5; /* 3 and 4 are missing */

    begin_exact(&world, 3);
    live(&world, seq, first_incarnation, 6);
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100); /* never answered */
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);
    for (int i = 0; i < 15 && !kvb_stream_wants_replay(world.stream, world.now_ns, &from); i++) {
        live(&world, seq + 1, first_incarnation, (uint32_t)seq + 2);
        seq++;
        pass_ms(&world, 100);
    }
    assert_true(kvb_stream_wants_replay(world.stream, world.now_ns, &from));
    stream_world_end(&world);
}

/* Another engine answers every request on the replay endpoint. */
static void answers_of_ever_new_incarnations_are_requested_less_and_less_often(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    unsigned asked = 0;

    begin_exact(&world, 3);
    live(&world, 5, first_incarnation, 6);
    for (int i = 0; i < 1000; i++) { /* 10 s */
        if (kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
            (void)start_wanted_replay(&world);
            replayed(&world, 0, 100 + (uint64_t)i, 50);
            replayed(&world, 1, 100 + (uint64_t)i, 51);
            give(&world, KVB_INPUT_REPLAY_END);
            asked++;
        }
        live(&world, 6 + (uint64_t)i, first_incarnation, (uint32_t)i);
        pass_ms(&world, 10);
    }
    assert_in_range(asked, 2, 20);
    stream_world_end(&world);
}

/* It would occupy one of the few places for replays for ever. */
static void a_replay_that_only_repeats_itself_ends(void **state)
{
    (void)state;
    struct stream_world world;

    stream_world_begin(&world, true);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 0, first_incarnation, 1);
    for (int i = 0; i < 100 && kvb_stream_is_replaying(world.stream); i++) {
        replayed(&world, 0, first_incarnation, 1);
        pass_ms(&world, 100);
    }
    assert_false(kvb_stream_is_replaying(world.stream));
    assert_int_equal(start_wanted_replay(&world), 0); /* the batches so far are kept */
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

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

/* The requests after an unanswered replay, while a batch arrives every 50 ms. */
static void ask_in_between(struct stream_world *world, uint64_t *seq)
{
    uint64_t from = 0;

    for (int i = 0; i < 300 && !kvb_stream_wants_replay(world->stream, world->now_ns, &from); i++) {
        pass_ms(world, 50);
        live(world, *seq, first_incarnation, (uint32_t)*seq + 1);
        ++*seq;
    }
}

static void an_unanswered_replay_is_requested_again_from_a_busy_engine_too(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t seq = 6;

    begin_exact(&world, 3);
    live(&world, 5, first_incarnation, 6); /* 3 and 4 are missing */
    (void)start_wanted_replay(&world);
    pass_ms(&world, 2100);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_REPLAY_FAILED);

    ask_in_between(&world, &seq);
    assert_int_equal(start_wanted_replay(&world), seq - 1);
    replayed(&world, seq - 1, first_incarnation, (uint32_t)seq);
    give(&world, KVB_INPUT_REPLAY_END);
    ask_in_between(&world, &seq);
    assert_int_equal(start_wanted_replay(&world), 0); /* the whole buffer a second time */
    for (uint64_t at = 0; at < seq; at++) {
        replayed(&world, at, first_incarnation, (uint32_t)at + 1);
    }
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, seq);
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
    assert_true(seen.events[0].event_id == before.last_id + 1);
    assert_int_equal(seen.block_count, 3);
    kvb_router_batch_done(&seen);
    stream_world_end(&world);
}

static void a_reported_total_proves_that_the_list_is_complete(void **state)
{
    (void)state;
    const struct kvb_stream_options options = {
        .has_replay = true,
        .total_blocks = 2,
        .max_held_bytes = 1 << 20,
        .mirror = { .max_blocks = 16, .tiers = 1U << KVB_TIER_DEVICE | 1U << KVB_TIER_HOST },
    };
    struct stream_world world = { .now_ns = KVB_NS_PER_S };
    struct kvb_heartbeat beat;

    assert_ok(kvb_stream_new(&options, &world.stream));
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 41, first_incarnation, 1);
    end_replay(&world, first_incarnation);
    live(&world, 41, first_incarnation, 1);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_int_equal(beat.state, KVB_STREAM_PARTIAL);
    assert_true(beat.has_missing_at_most && beat.missing_at_most == 1);
    add_stored(&world.batch, &(uint64_t){ 555 }, &(uint64_t){ 556 }, &(uint32_t){ 9 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 42, first_incarnation, false);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_int_equal(beat.state, KVB_STREAM_PARTIAL); /* two are proven, one is not listed */
    assert_true(beat.missing_at_most == 1);
    add_removed(&world.batch, &(uint64_t){ 556 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 43, first_incarnation, false);
    live(&world, 44, first_incarnation, 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    add_stored(&world.batch, NULL, &(uint64_t){ 903 }, &(uint32_t){ 3 }, 1);
    last_event(&world.batch)->tier = KVB_TIER_HOST; /* nobody counts these tiers */
    give_batch(&world, KVB_INPUT_LIVE, 45, first_incarnation, false);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    stream_world_end(&world);
}

/* The total was configured for an engine with less memory. */
static void a_total_that_the_engine_exceeded_proves_nothing(void **state)
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
    for (uint64_t seq = 41; seq <= 43; seq++) {
        replayed(&world, seq, first_incarnation, (uint32_t)seq);
    }
    end_replay(&world, first_incarnation);
    live(&world, 43, first_incarnation, 43);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    kvb_stream_heartbeat(world.stream, &beat);
    assert_false(beat.has_missing_at_most);
    add_removed(&world.batch, &(uint64_t){ 943 }, 1);
    give_batch(&world, KVB_INPUT_LIVE, 44, first_incarnation, false);
    assert_int_equal(kvb_stream_mirror_count(world.stream)->proven_copies, 2);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE); /* there may be further blocks */
    stream_world_end(&world);
}

SUITE(stream_states)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_repeated_batch_costs_one_request_and_nothing_else),
        cmocka_unit_test(a_failed_replay_is_repeated_under_load),
        cmocka_unit_test(answers_of_ever_new_incarnations_are_requested_less_and_less_often),
        cmocka_unit_test(a_skipped_event_costs_what_it_may_hide),
        cmocka_unit_test(without_a_replay_endpoint_nothing_is_ever_exact),
        cmocka_unit_test(a_whole_buffer_is_requested_at_most_once_in_ten_seconds),
        cmocka_unit_test(an_engine_without_a_buffer_is_unverified_and_loses_nothing),
        cmocka_unit_test(
            an_engine_that_forgot_everything_after_a_reconnection_is_another_incarnation),
        cmocka_unit_test(a_batch_that_does_not_fit_the_queue_restarts_the_list),
        cmocka_unit_test(queued_batches_are_drained_in_slices),
        cmocka_unit_test(undrained_batches_are_dropped_with_the_connection),
        cmocka_unit_test(many_queued_batches_after_a_failed_replay_are_drained_in_slices),
        cmocka_unit_test(a_replay_cut_by_its_bound_continues_from_the_last_applied_batch),
        cmocka_unit_test(a_replay_that_only_repeats_itself_ends),
        cmocka_unit_test(an_announcement_opens_an_epoch_and_lists_everything),
        cmocka_unit_test(a_withdrawn_stream_publishes_nothing_until_the_next_epoch),
        cmocka_unit_test(a_withdrawn_stream_is_not_exact_before_it_is_announced_again),
        cmocka_unit_test(an_unanswered_replay_is_requested_again_from_a_busy_engine_too),
        cmocka_unit_test(republishing_continues_in_the_same_epoch),
        cmocka_unit_test(a_reported_total_proves_that_the_list_is_complete),
        cmocka_unit_test(a_total_that_the_engine_exceeded_proves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
