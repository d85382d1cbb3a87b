#include "kvb_test.h"

#include "checkpoint_bytes.h"
#include "stream_world.h"

/* What proves that a list is the engine's: a batch that arrived both live and by replay. */

static void
give_life(struct stream_world *world, uint64_t count, uint64_t life, uint32_t first_token)
{
    for (uint64_t seq = 0; seq < count; seq++) {
        replayed(world, seq, life, first_token + (uint32_t)seq);
    }
}

/* The history of an idle engine: no error is known, but nothing proves it. */
static void begin_idle(struct stream_world *world, uint64_t count)
{
    stream_world_begin(world, true);
    give(world, KVB_INPUT_UP);
    (void)start_wanted_replay(world);
    give_life(world, count, first_incarnation, 1);
    end_replay(world, first_incarnation);
    assert_state(world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    assert_int_equal(world->held_count, count);
}

/* ---- Publishers that count from 1 ---- */

/* The engine has published nothing; then batch 1 comes, and is the first of its history. */
static void the_first_batch_of_a_new_engine_may_be_1(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 0);
    live(&world, 1, first_incarnation, 1);
    pass_ms(&world, 10000); /* histories are requested seldom */
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 1, first_incarnation, 1);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_true(world.held_count == 1 && router_holds(&world, root(1)));
    stream_world_end(&world);
}

/* A history that begins with 1: batch 0 may have been dropped just now.  Whether batch 1 outlives a
 * newer one shows it. */
static void a_history_that_begins_with_1_is_whole_if_it_still_does_later(void **state)
{
    (void)state;

    for (uint64_t first = 1; first <= 2; first++) {
        struct stream_world world;
        stream_world_begin(&world, true);
        give(&world, KVB_INPUT_UP);
        assert_int_equal(start_wanted_replay(&world), 0);
        replayed(&world, 1, first_incarnation, 1);
        replayed(&world, 2, first_incarnation, 2);
        end_replay(&world, first_incarnation);
        live(&world, 2, first_incarnation, 2); /* found: the replay is this engine's */
        assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
        live(&world, 3, first_incarnation, 3);
        pass_ms(&world, 1100);
        assert_int_equal(start_wanted_replay(&world), 1);
        for (uint64_t seq = first; seq <= 3; seq++) {
            replayed(&world, seq, first_incarnation, (uint32_t)seq);
        }
        give(&world, KVB_INPUT_REPLAY_END);
        if (first == 1) {
            assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
        } else {
            assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
        }
        assert_int_equal(world.held_count, 3);
        stream_world_end(&world);
    }
}

/* ---- Without a batch in common ---- */

/* vLLM's buffer_steps = 0, or a replay port of a process that never publishes. */
static void an_end_without_any_batch_proves_nothing(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 0);
    for (int i = 0; i < 4; i++) {
        pass_ms(&world, 1100);
        assert_int_equal(start_wanted_replay(&world), 0);
        give(&world, KVB_INPUT_REPLAY_END);
        assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    }
    stream_world_end(&world);
}

static void a_history_is_not_exact_before_a_live_batch_is_found_in_it(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 3);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, first_incarnation, 3); /* a second replay only confirms the first */
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    live(&world, 3, first_incarnation, 4);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    find_live(&world, 3, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

/* ---- Another engine's replay ---- */

/* Batches 0 to 2 belong to another engine, which does not have batch 3. */
static void a_list_of_another_engine_is_rebuilt_from_live_batches(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;

    begin_idle(&world, 3);
    live(&world, 3, second_incarnation, 14);
    pass_ms(&world, 50);
    assert_int_equal(start_wanted_replay(&world), 3);
    live(&world, 4, second_incarnation, 15);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_true(world.saw_cleared);
    pass_ms(&world, 50); /* the blocks listed before */
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    assert_true(world.held_count == 1 && router_holds(&world, root(15)));
    live(&world, 5, second_incarnation, 16);
    assert_int_equal(world.held_count, 2);
    pass_ms(&world, 900);
    assert_false(kvb_stream_wants_replay(world.stream, world.now_ns, &from)); /* backs off */
    pass_ms(&world, 200);
    assert_int_equal(start_wanted_replay(&world), 5); /* and never for its whole buffer */
    replayed(&world, 5, first_incarnation, 6);
    assert_int_equal(world.held_count, 2); /* nothing of it is listed */
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    stream_world_end(&world);
}

static void an_engine_with_higher_numbers_is_another_engine_too(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 3);
    live(&world, 3, second_incarnation, 14);
    pass_ms(&world, 50);
    assert_int_equal(start_wanted_replay(&world), 3);
    replayed(&world, 3, first_incarnation, 4);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    pass_ms(&world, 5000); /* its list is not requested again */
    assert_int_equal(world.held_count, 0);
    live(&world, 4, second_incarnation, 15);
    assert_int_equal(world.held_count, 1);
    stream_world_end(&world);
}

/* Another engine answered for a while, which a proxy can cause. */
static void a_replay_by_the_right_engine_is_used_later(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 3);
    live(&world, 3, second_incarnation, 14);
    pass_ms(&world, 50);
    (void)start_wanted_replay(&world);
    give(&world, KVB_INPUT_REPLAY_END);
    live(&world, 4, second_incarnation, 15);
    pass_ms(&world, 1100);
    assert_int_equal(start_wanted_replay(&world), 4);
    replayed(&world, 4, second_incarnation, 15);
    give(&world, KVB_INPUT_REPLAY_END);
    pass_ms(&world, 10000); /* its whole buffer was requested a moment ago */
    assert_int_equal(start_wanted_replay(&world), 0);
    give_life(&world, 5, second_incarnation, 11);
    end_replay(&world, second_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 5);
    stream_world_end(&world);
}

/* ---- A buffer that wraps ---- */

/* The engine is faster than the look-up: its oldest kept batch is newer than the one that is looked
 * for. */
static void a_batch_that_left_the_buffer_proves_nothing(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 3);
    live(&world, 3, first_incarnation, 4);
    pass_ms(&world, 50);
    assert_int_equal(start_wanted_replay(&world), 3);
    for (uint32_t seq = 4; seq < 9; seq++) {
        live(&world, seq, first_incarnation, seq + 1);
    }
    replayed(&world, 6, first_incarnation, 7);
    assert_false(world.saw_cleared);
    pass_ms(&world, 50);
    assert_int_equal(world.held_count, 9); /* the replay has everything, and nothing was lost */
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    pass_ms(&world, 1000);
    assert_int_equal(start_wanted_replay(&world), 8); /* next, the newest batch */
    replayed(&world, 8, first_incarnation, 9);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    stream_world_end(&world);
}

/* The same when batches were lost: the buffer has only a part of them. */
static void after_a_loss_beyond_the_buffer_the_next_live_batch_is_looked_for(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    live(&world, 80, first_incarnation, 81);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 31, first_incarnation, 32);
    for (uint32_t seq = 32; seq < 82; seq++) {
        replayed(&world, seq, first_incarnation, seq + 1);
    }
    live(&world, 81, first_incarnation, 82);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_PARTIAL, KVB_REASON_GONE);
    assert_int_equal(world.held_count, 51);
    stream_world_end(&world);
}

/* ---- Once a minute ---- */

/* A busy engine is never silent, so it is never probed, although another engine may answer its
 * replays. */
static void live_batches_are_looked_for_once_a_minute(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    uint64_t seq = 3;
    int looks = 0;

    begin_exact(&world, 3);
    for (int i = 0; i < 300; i++, seq++) { /* 150 s */
        live(&world, seq, first_incarnation, (uint32_t)seq + 1);
        pass_ms(&world, 500);
        if (kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
            (void)start_wanted_replay(&world);
            looks++;
            /* a check covers 64 batches, the maximum */
            assert_int_equal(seq - from, 63);
            for (; from <= seq; from++) {
                replayed(&world, from, first_incarnation, (uint32_t)from + 1);
            }
            give(&world, KVB_INPUT_REPLAY_END);
        }
    }
    assert_int_equal(looks, 2);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    stream_world_end(&world);
}

/* Bytes flipped in transit, undetected by TCP's checksum: nothing else ever compares them. */
static void an_older_batch_with_other_bytes_is_detected(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    const uint64_t flipped = 10;
    uint64_t seq = 3;

    begin_exact(&world, 3);
    while (!kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
        assert_true(seq < 200);
        live(
            &world, seq, seq == flipped ? second_incarnation : first_incarnation,
            (uint32_t)seq + 1);
        seq++;
        pass_ms(&world, 950);
    }
    assert_true(from <= flipped && seq - from <= 64);
    (void)start_wanted_replay(&world);
    for (; !world.saw_cleared; from++) {
        assert_true(from <= flipped);
        replayed(&world, from, first_incarnation, (uint32_t)from + 1);
    }
    /* the engine's whole history is requested */
    assert_int_equal(start_wanted_replay(&world), 0);
    stream_world_end(&world);
}

/* Its buffer is smaller than a walk, so the walk begins where the buffer does. */
static void a_check_begins_where_the_buffer_does(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t from = 0;
    uint64_t seq = 3;

    begin_exact(&world, 3);
    while (!kvb_stream_wants_replay(world.stream, world.now_ns, &from)) {
        live(&world, seq, first_incarnation, (uint32_t)seq + 1);
        seq++;
        pass_ms(&world, 900);
    }
    (void)start_wanted_replay(&world);
    for (uint64_t at = seq - 5; at < seq; at++) {
        assert_true(at > from);
        replayed(&world, at, first_incarnation, (uint32_t)at + 1);
        assert_false(world.saw_cleared);
    }
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, seq);
    stream_world_end(&world);
}

/* ---- One batch is no proof ---- */

/* An engine that writes no timestamps sends an identical batch 2 in its next incarnation. */
static void an_equal_last_batch_does_not_prove_the_same_incarnation(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 1, second_incarnation, 12);
    assert_true(world.saw_cleared);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, second_incarnation, 11);
    replayed(&world, 1, second_incarnation, 12);
    replayed(&world, 2, first_incarnation, 3);
    end_replay(&world, first_incarnation);
    assert_int_equal(world.held_count, 3);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    stream_world_end(&world);
}

/* Neither does an equal last-but-one batch when the last one differs or is missing. */
static void an_equal_earlier_batch_does_not_prove_the_same_incarnation(void **state)
{
    (void)state;
    struct stream_world world;

    for (int is_missing = 0; is_missing < 2; is_missing++) {
        begin_exact(&world, 3);
        give(&world, KVB_INPUT_DOWN);
        give(&world, KVB_INPUT_UP);
        (void)start_wanted_replay(&world);
        replayed(&world, 1, first_incarnation, 2);
        assert_state(&world, KVB_STREAM_DOWN, KVB_REASON_CONNECTING);
        if (is_missing) {
            give(&world, KVB_INPUT_REPLAY_END);
        } else {
            replayed(&world, 2, second_incarnation, 13);
        }
        assert_true(world.saw_cleared);
        assert_int_equal(world.held_count, 0);
        stream_world_end(&world);
    }
}

static void a_reconnection_to_the_same_incarnation_keeps_the_proof(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    (void)start_wanted_replay(&world);
    replayed(&world, 1, first_incarnation, 2);
    replayed(&world, 2, first_incarnation, 3);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(kvb_stream_count(world.stream)->clears, 0);
    stream_world_end(&world);
}

/* What follows the batches of the proof may have been cut off. */
static void an_end_right_after_the_proof_is_requested_once_more(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 3);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 1);
    replayed(&world, 1, first_incarnation, 2);
    replayed(&world, 2, first_incarnation, 3);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_SYNCING, KVB_REASON_REPLAYING);
    assert_int_equal(start_wanted_replay(&world), 2);
    replayed(&world, 2, first_incarnation, 3);
    replayed(&world, 3, first_incarnation, 4);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, 4);
    stream_world_end(&world);
}

static void live_batches_before_a_reconnection_prove_nothing_after_it(void **state)
{
    (void)state;
    struct stream_world world;

    begin_idle(&world, 0);
    live(&world, 0, first_incarnation, 1);
    live(&world, 1, first_incarnation, 2); /* the look-up has not happened yet */
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    replayed(&world, 1, first_incarnation, 2);
    end_replay(&world, first_incarnation);
    assert_state(&world, KVB_STREAM_UNVERIFIED, KVB_REASON_NO_BASE);
    live(&world, 2, first_incarnation, 3);
    find_live(&world, 2, first_incarnation);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* An engine that has published one batch has only one as a proof. */
static void a_single_batch_proves_the_incarnation(void **state)
{
    (void)state;
    struct stream_world world;

    begin_exact(&world, 1);
    give(&world, KVB_INPUT_DOWN);
    give(&world, KVB_INPUT_UP);
    assert_int_equal(start_wanted_replay(&world), 0);
    replayed(&world, 0, first_incarnation, 1);
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    stream_world_end(&world);
}

/* The next process must know exactly as much. */
static void a_checkpoint_keeps_whether_the_list_was_proven(void **state)
{
    (void)state;
    const struct kvb_stream_options options = stream_world_options(true);

    for (int is_found = 0; is_found < 2; is_found++) {
        struct stream_world world;
        struct kvb_buf bytes;
        enum kvb_checkpoint_rejection cause = KVB_CHECKPOINT_FLAW_COUNT;
        bool needs_epoch = false;
        if (is_found) {
            begin_exact(&world, 3);
        } else {
            begin_idle(&world, 3);
        }
        save_whole(world.stream, &bytes);
        kvb_stream_free(world.stream);
        assert_ok(kvb_stream_new(&options, &world.stream));
        assert_ok(restore_from(world.stream, bytes.data, bytes.len, &needs_epoch, &cause));
        give(&world, KVB_INPUT_UP);
        assert_int_equal(start_wanted_replay(&world), 1);
        replayed(&world, 1, first_incarnation, 2);
        replayed(&world, 2, first_incarnation, 3);
        end_replay(&world, first_incarnation);
        assert_state(
            &world, is_found ? KVB_STREAM_EXACT : KVB_STREAM_UNVERIFIED,
            is_found ? KVB_REASON_NONE : KVB_REASON_NO_BASE);
        kvb_buf_done(&bytes);
        stream_world_end(&world);
    }
}

SUITE(stream_base)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_batch_of_a_new_engine_may_be_1),
        cmocka_unit_test(a_history_that_begins_with_1_is_whole_if_it_still_does_later),
        cmocka_unit_test(an_end_without_any_batch_proves_nothing),
        cmocka_unit_test(a_history_is_not_exact_before_a_live_batch_is_found_in_it),
        cmocka_unit_test(a_list_of_another_engine_is_rebuilt_from_live_batches),
        cmocka_unit_test(an_engine_with_higher_numbers_is_another_engine_too),
        cmocka_unit_test(a_replay_by_the_right_engine_is_used_later),
        cmocka_unit_test(a_batch_that_left_the_buffer_proves_nothing),
        cmocka_unit_test(after_a_loss_beyond_the_buffer_the_next_live_batch_is_looked_for),
        cmocka_unit_test(live_batches_are_looked_for_once_a_minute),
        cmocka_unit_test(an_older_batch_with_other_bytes_is_detected),
        cmocka_unit_test(a_check_begins_where_the_buffer_does),
        cmocka_unit_test(an_equal_last_batch_does_not_prove_the_same_incarnation),
        cmocka_unit_test(an_equal_earlier_batch_does_not_prove_the_same_incarnation),
        cmocka_unit_test(a_reconnection_to_the_same_incarnation_keeps_the_proof),
        cmocka_unit_test(an_end_right_after_the_proof_is_requested_once_more),
        cmocka_unit_test(live_batches_before_a_reconnection_prove_nothing_after_it),
        cmocka_unit_test(a_single_batch_proves_the_incarnation),
        cmocka_unit_test(a_checkpoint_keeps_whether_the_list_was_proven),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
