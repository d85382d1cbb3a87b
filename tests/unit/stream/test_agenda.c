#include "kvb_test.h"

#include "core/clock.h"
#include "stream/agenda.h"

static const uint64_t ms = KVB_NS_PER_MS;

static void ticks_are_due_every_50_ms(void **state)
{
    (void)state;
    struct kvb_agenda agenda = { .connects_seen = 0 };

    assert_true(kvb_agenda_takes_tick(&agenda, 100 * ms));
    assert_false(kvb_agenda_takes_tick(&agenda, 150 * ms - 1));
    assert_true(kvb_agenda_takes_tick(&agenda, 157 * ms));
    assert_false(kvb_agenda_takes_tick(&agenda, 200 * ms)); /* a late one moves the next */
    assert_true(kvb_agenda_takes_tick(&agenda, 207 * ms));
}

static void rounds_are_due_every_5_ms(void **state)
{
    (void)state;
    struct kvb_agenda agenda = { .connects_seen = 0 };

    assert_true(kvb_agenda_takes_round(&agenda, 100 * ms));
    assert_false(kvb_agenda_takes_round(&agenda, 105 * ms - 1));
    assert_true(kvb_agenda_takes_round(&agenda, 105 * ms));
}

static bool is_sooner_after(enum kvb_stream_input_kind kind, struct kvb_stream_output output)
{
    struct kvb_agenda agenda = { .connects_seen = 0 };

    assert_true(kvb_agenda_takes_round(&agenda, 100 * ms));
    kvb_agenda_note_step(&agenda, kind, &output);
    kvb_agenda_note_step(&agenda, KVB_INPUT_TICK, &(struct kvb_stream_output){ .has_more = true });
    const bool is_sooner = kvb_agenda_takes_round(&agenda, 100 * ms + 1);
    assert_false(kvb_agenda_takes_round(&agenda, 100 * ms + 2)); /* once */
    return is_sooner;
}

static void a_round_is_due_at_once_when_a_stream_changed_or_a_replay_is_over(void **state)
{
    (void)state;

    assert_false(is_sooner_after(KVB_INPUT_LIVE, (struct kvb_stream_output){ .has_more = true }));
    assert_true(is_sooner_after(KVB_INPUT_LIVE, (struct kvb_stream_output){ .is_changed = true }));
    assert_true(
        is_sooner_after(KVB_INPUT_TICK, (struct kvb_stream_output){ .drops_replay = true }));
    assert_true(
        is_sooner_after(KVB_INPUT_REPLAY_END, (struct kvb_stream_output){ .has_more = false }));
}

static void each_connection_is_seen_once_and_readers_get_time_to_connect(void **state)
{
    (void)state;
    struct kvb_agenda agenda = { .connects_seen = 0 };
    uint64_t announce_ns = 7;

    assert_false(kvb_agenda_takes_connection(&agenda, 0, 100 * ms, &announce_ns));
    assert_int_equal(announce_ns, 7);
    assert_true(kvb_agenda_takes_connection(&agenda, 1, 100 * ms, &announce_ns));
    assert_int_equal(announce_ns, 1300 * ms);
    assert_false(kvb_agenda_takes_connection(&agenda, 1, 200 * ms, &announce_ns));
    assert_true(kvb_agenda_takes_connection(&agenda, 3, 300 * ms, &announce_ns)); /* two at once */
    assert_int_equal(announce_ns, 1500 * ms);
    assert_false(kvb_agenda_takes_connection(&agenda, 3, 400 * ms, &announce_ns));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_due_every_50_ms),
        cmocka_unit_test(rounds_are_due_every_5_ms),
        cmocka_unit_test(a_round_is_due_at_once_when_a_stream_changed_or_a_replay_is_over),
        cmocka_unit_test(each_connection_is_seen_once_and_readers_get_time_to_connect),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
