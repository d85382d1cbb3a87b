#include "kvb_test.h"

#include "batch_maker.h"
#include "stream_world.h"

/* How often an engine is asked for a replay, and what ends the asking. */

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

/* A live batch each second until a check is wanted, which starts; returns its first number.  Batch
 * `flipped` has other bytes than the engine's. */
static uint64_t begin_check(struct stream_world *world, uint64_t flipped, uint64_t *out_next)
{
    uint64_t from = 0;
    uint64_t seq = 3;

    begin_exact(world, 3);
    for (; !kvb_stream_wants_replay(world->stream, world->now_ns, &from); seq++) {
        assert_true(seq < 200);
        live(
            world, seq, seq == flipped ? second_incarnation : first_incarnation, (uint32_t)seq + 1);
        pass_ms(world, 950);
    }
    (void)start_wanted_replay(world);
    assert_true(seq - from <= 64);
    *out_next = seq;
    return from;
}

/* Bytes flipped in transit, undetected by TCP's checksum: nothing else ever compares them. */
static void an_older_batch_with_other_bytes_is_detected(void **state)
{
    (void)state;
    const uint64_t flipped = 10;
    struct stream_world world;
    uint64_t next = 0;

    for (uint64_t from = begin_check(&world, flipped, &next); !world.saw_cleared; from++) {
        assert_true(from <= flipped);
        replayed(&world, from, first_incarnation, (uint32_t)from + 1);
    }
    /* the engine's whole history is requested */
    assert_int_equal(start_wanted_replay(&world), 0);
    stream_world_end(&world);
}

/* It is smaller than a check. */
static void a_check_begins_where_the_buffer_does(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t next = 0;

    assert_true(begin_check(&world, UINT64_MAX, &next) < next - 5);
    for (uint64_t at = next - 5; at < next; at++) {
        replayed(&world, at, first_incarnation, (uint32_t)at + 1);
        assert_false(world.saw_cleared);
    }
    give(&world, KVB_INPUT_REPLAY_END);
    assert_state(&world, KVB_STREAM_EXACT, KVB_REASON_NONE);
    assert_int_equal(world.held_count, next);
    stream_world_end(&world);
}

static void another_publisher_is_detected_where_its_buffer_begins(void **state)
{
    (void)state;
    struct stream_world world;
    uint64_t next = 0;

    assert_true(begin_check(&world, UINT64_MAX, &next) < next - 5);
    replayed(&world, next - 5, second_incarnation, 500);
    assert_true(world.saw_cleared);
    assert_int_equal(world.held_count, 0);
    stream_world_end(&world);
}

/* ---- Whole buffers, and answers that bring nothing ---- */

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

SUITE(stream_pace)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probes_of_a_silent_engine_pause_a_quarter_of_its_silence),
        cmocka_unit_test(probes_of_a_silent_engine_pause_a_minute_at_most),
        cmocka_unit_test(a_tail_lost_in_a_long_silence_is_found_by_the_next_probe),
        cmocka_unit_test(a_batch_or_a_connection_ends_the_silence),
        cmocka_unit_test(an_engine_is_probed_once_a_second_at_most),
        cmocka_unit_test(live_batches_are_looked_for_once_a_minute),
        cmocka_unit_test(an_older_batch_with_other_bytes_is_detected),
        cmocka_unit_test(a_check_begins_where_the_buffer_does),
        cmocka_unit_test(another_publisher_is_detected_where_its_buffer_begins),
        cmocka_unit_test(a_whole_buffer_is_requested_at_most_once_in_ten_seconds),
        cmocka_unit_test(answers_of_ever_new_incarnations_are_requested_less_and_less_often),
        cmocka_unit_test(a_replay_that_only_repeats_itself_ends),
        cmocka_unit_test(an_unanswered_replay_is_requested_again_from_a_busy_engine_too),
        cmocka_unit_test(a_live_batch_outweighs_unproven_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
