#include "kvb_test.h"

#include "core/clock.h"
#include "stream/serve.h"
#include "stream_world.h"

enum { fleet = 40 };

static struct stream_world worlds[fleet];
static struct kvb_served ranks[fleet];

static int end_fleet(void **state)
{
    (void)state;
    for (size_t i = 0; i < fleet; i++) {
        if (worlds[i].stream) {
            stream_world_end(&worlds[i]);
        }
        worlds[i] = (struct stream_world){ .now_ns = 0 };
    }
    return 0;
}

/* Reconnected at_ms later than the others. */
static void add_proof(size_t number, uint64_t at_ms)
{
    begin_exact(&worlds[number], 2);
    give(&worlds[number], KVB_INPUT_DOWN);
    worlds[number].now_ns = (10000 + at_ms) * KVB_NS_PER_MS;
    give(&worlds[number], KVB_INPUT_UP);
}

static void add_gap(size_t number, uint64_t at_ms)
{
    begin_exact(&worlds[number], 2);
    worlds[number].now_ns = (10000 + at_ms) * KVB_NS_PER_MS;
    live(&worlds[number], 9, first_incarnation, 10);
}

static void add_history(size_t number, uint64_t at_ms)
{
    stream_world_begin(&worlds[number], true);
    worlds[number].now_ns = (10000 + at_ms) * KVB_NS_PER_MS;
    give(&worlds[number], KVB_INPUT_UP);
}

static void add_probe(size_t number, uint64_t at_ms)
{
    begin_exact(&worlds[number], 2);
    worlds[number].now_ns = (10000 + at_ms) * KVB_NS_PER_MS;
    give(&worlds[number], KVB_INPUT_TICK);
}

/* The streams whose requests are sent in one round, in order. */
static size_t run_round(size_t *out_numbers)
{
    struct kvb_replay_turns turns = { .proofs = { .count = 0 } };
    struct kvb_replay_turn turn;
    const uint64_t now_ns = 20000 * KVB_NS_PER_MS;
    size_t count = 0;

    for (size_t i = 0; i < fleet; i++) {
        if (worlds[i].stream) {
            kvb_replay_turns_offer(&turns, &ranks[i], worlds[i].stream, now_ns);
        }
    }
    while (kvb_replay_turns_take(&turns, &turn)) {
        const size_t number = (size_t)(turn.rank - ranks);
        kvb_stream_replay_started(worlds[number].stream, now_ns);
        out_numbers[count++] = number;
    }
    assert_in_range(kvb_replay_turns_running(&turns), 0, kvb_max_replays_at_once);
    return count;
}

static void expect_round(const size_t *numbers, size_t count)
{
    size_t found[fleet];

    assert_int_equal(run_round(found), count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(found[i], numbers[i]);
    }
}

static void the_stream_that_waited_longest_goes_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < 9; i++) {
        add_gap(i, 100 * (i * 4 % 9)); /* 0 4 8 3 7 2 6 1 5 */
    }
    expect_round((size_t[]){ 0, 7, 5, 3, 1, 8 }, 6);
}

/* Streams with a gap list their blocks as before; streams without history list nothing yet. */
static void proofs_go_first_then_gaps_then_histories_then_probes(void **state)
{
    (void)state;
    add_probe(0, 1100);
    add_history(1, 1200);
    add_history(2, 1250);
    add_gap(3, 1300);
    add_gap(4, 1400);
    add_proof(5, 1500);
    add_proof(6, 1600);
    expect_round((size_t[]){ 5, 6, 3, 4, 1, 2, 0 }, 7);
}

static void a_thousand_reconnections_leave_room_for_a_gap(void **state)
{
    (void)state;
    for (size_t i = 0; i < 30; i++) {
        add_proof(i, i);
    }
    add_gap(30, 500);
    add_gap(31, 501);
    add_gap(32, 502);
    expect_round((size_t[]){ 0, 1, 2, 3, 4, 5, 30, 31 }, 8);
    expect_round(NULL, 0);
}

static void many_gaps_leave_room_for_proofs(void **state)
{
    (void)state;
    for (size_t i = 0; i < 10; i++) {
        add_gap(i, i);
    }
    expect_round((size_t[]){ 0, 1, 2, 3, 4, 5 }, 6);
    add_proof(20, 0);
    add_proof(21, 1);
    add_proof(22, 2);
    expect_round((size_t[]){ 20, 21 }, 2);
}

SUITE(replay_turns)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_stream_that_waited_longest_goes_first, end_fleet),
        cmocka_unit_test_teardown(proofs_go_first_then_gaps_then_histories_then_probes, end_fleet),
        cmocka_unit_test_teardown(a_thousand_reconnections_leave_room_for_a_gap, end_fleet),
        cmocka_unit_test_teardown(many_gaps_leave_room_for_proofs, end_fleet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
