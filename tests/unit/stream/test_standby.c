#include "kvb_test.h"

#include "core/clock.h"
#include "stream/standby.h"

static const uint64_t ms = KVB_NS_PER_MS;
static const uint64_t s = KVB_NS_PER_S;
static const uint64_t wall_us = 1700000000ULL * 1000 * 1000;

enum { ours = 50, primary = 10, other_standby = 90, own_first = 1000 };

static const enum kvb_standby_state watching = KVB_STANDBY_WATCHING;
static const enum kvb_standby_state active = KVB_STANDBY_ACTIVE;
static const enum kvb_standby_state challenged = KVB_STANDBY_CHALLENGED;

static struct kvb_standby connected_at(uint64_t now_ns)
{
    struct kvb_standby standby;

    kvb_standby_init(&standby, ours, 1000);
    kvb_standby_connected(&standby, now_ns);
    return standby;
}

static enum kvb_standby_action receive(
    struct kvb_standby *standby, uint64_t publisher, bool is_standby, bool is_bye, uint64_t now_ns)
{
    const struct kvb_heartbeat beat = { .publisher = publisher,
                                        .is_standby = is_standby,
                                        .is_bye = is_bye,
                                        .period_ms = 1000,
                                        .epoch_first_id = own_first - 1,
                                        .last_id = own_first };

    return kvb_standby_receive(standby, &beat, own_first, wall_us, now_ns);
}

static void receive_primary(struct kvb_standby *standby, uint64_t now_ns)
{
    assert_int_equal(receive(standby, primary, false, false, now_ns), KVB_STANDBY_REST);
}

/* Steps of 10 ms, in which our own messages come back. Returns when the stream was taken over. */
static uint64_t run_until_taken(struct kvb_standby *standby, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t echoes = 0;

    for (uint64_t now_ns = from_ns; now_ns <= to_ns; now_ns += 10 * ms) {
        const enum kvb_standby_action action = kvb_standby_next(standby, echoes, now_ns);
        echoes += action == KVB_STANDBY_PROBE;
        if (action == KVB_STANDBY_TAKE_OVER) {
            assert_int_equal(standby->state, active);
            return now_ns;
        }
    }
    return 0;
}

static struct kvb_standby active_at(uint64_t now_ns)
{
    struct kvb_standby standby = connected_at(now_ns - 4 * s);

    assert_true(run_until_taken(&standby, now_ns - 4 * s, now_ns) > 0);
    return standby;
}

/* ---- Taking over ---- */

static void takes_over_after_three_silent_periods_and_not_before([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(s);

    receive_primary(&standby, 20 * s);
    assert_int_equal(run_until_taken(&standby, 20 * s, 23 * s - 1), 0);
    assert_in_range(run_until_taken(&standby, 23 * s, 24 * s), 23 * s, 23 * s + 20 * ms);
}

static void follows_the_period_that_the_heartbeat_names([[maybe_unused]] void **state)
{
    static const struct {
        uint32_t said_ms;
        uint64_t silence_ms;
    } rows[] = { { 0, 3000 }, { 10, 1500 }, { 2000, 6000 }, { 600000, 180000 } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvb_standby standby = connected_at(s);
        const struct kvb_heartbeat beat = { .publisher = primary, .period_ms = rows[i].said_ms };
        const uint64_t due_ns = 20 * s + rows[i].silence_ms * ms;
        (void)kvb_standby_receive(&standby, &beat, own_first, wall_us, 20 * s);
        assert_int_equal(run_until_taken(&standby, 20 * s, due_ns - 1), 0);
        assert_true(run_until_taken(&standby, due_ns, due_ns + s) > 0);
    }
}

static void a_goodbye_is_followed_at_once([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(19 * s);

    receive_primary(&standby, 20 * s);
    assert_int_equal(receive(&standby, primary, false, true, 20 * s + 100 * ms), KVB_STANDBY_REST);
    const uint64_t taken_ns = run_until_taken(&standby, 20 * s + 100 * ms, 21 * s);
    assert_in_range(taken_ns, 20 * s + 100 * ms, 20 * s + 120 * ms);
}

static void a_goodbye_beside_one_who_publishes_is_none([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(s);

    receive_primary(&standby, 20 * s);
    (void)receive(&standby, other_standby, true, false, 20 * s);
    (void)receive(&standby, other_standby, true, true, 20 * s + ms);
    /* from a bridge that was never received */
    (void)receive(&standby, 77, false, true, 20 * s + ms);
    assert_int_equal(run_until_taken(&standby, 20 * s + ms, 23 * s - 1), 0);
    assert_true(run_until_taken(&standby, 23 * s, 24 * s) > 0);
}

static void alone_it_waits_three_periods_from_the_connection([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(20 * s);

    assert_int_equal(run_until_taken(&standby, 20 * s, 23 * s - 1), 0);
    assert_true(run_until_taken(&standby, 23 * s, 24 * s) > 0);
}

static void silence_counts_only_while_connected([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(s);

    receive_primary(&standby, 20 * s);
    (void)run_until_taken(&standby, 20 * s, 22 * s);
    kvb_standby_connected(&standby, 23 * s); /* repeated */
    assert_int_equal(run_until_taken(&standby, 23 * s, 26 * s - 1), 0);

    /* the server froze: our own messages do not come back */
    struct kvb_standby frozen = connected_at(s);
    receive_primary(&frozen, 20 * s);
    for (uint64_t now_ns = 20 * s; now_ns < 60 * s; now_ns += 100 * ms) {
        assert_int_not_equal(kvb_standby_next(&frozen, 7, now_ns), KVB_STANDBY_TAKE_OVER);
    }
    receive_primary(&frozen, 60 * s); /* it thaws, and the heartbeat is read before our echo */
    assert_int_equal(kvb_standby_next(&frozen, 8, 60 * s), KVB_STANDBY_REST);
    assert_int_equal(frozen.state, watching);
}

static void a_standstill_of_our_own_is_nobodys_silence([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(s);

    receive_primary(&standby, 20 * s);
    (void)kvb_standby_next(&standby, 0, 20 * s);
    assert_int_equal(run_until_taken(&standby, 30 * s, 31 * s - 1), 0);
    assert_true(run_until_taken(&standby, 31 * s, 32 * s) > 0);
}

static void the_second_standby_waits_a_period_more([[maybe_unused]] void **state)
{
    struct kvb_standby standby = connected_at(s);

    receive_primary(&standby, 20 * s);
    kvb_standby_is_behind(&standby, 22 * s);
    assert_int_equal(run_until_taken(&standby, 20 * s, 24 * s - 1), 0);
    assert_true(run_until_taken(&standby, 24 * s, 25 * s) > 0);

    /* and not beyond the first heartbeat, which shows that the other is there */
    standby = connected_at(s);
    receive_primary(&standby, 20 * s);
    kvb_standby_is_behind(&standby, 19 * s);
    assert_true(run_until_taken(&standby, 20 * s, 23 * s + 20 * ms) > 0);
}

/* ---- Yielding ---- */

static void yields_to_the_second_heartbeat_of_a_primary([[maybe_unused]] void **state)
{
    struct kvb_standby standby = active_at(20 * s);

    receive_primary(&standby, 21 * s);
    assert_int_equal(standby.state, challenged);
    receive_primary(&standby, 21 * s + 100 * ms); /* a burst of messages that were under way */
    assert_true(kvb_standby_is_active(&standby));
    assert_int_equal(receive(&standby, primary, false, false, 22 * s), KVB_STANDBY_YIELD);
    assert_int_equal(standby.state, watching);
    assert_int_equal(run_until_taken(&standby, 22 * s, 25 * s - 1), 0);
}

static void one_late_heartbeat_is_no_reason_to_yield([[maybe_unused]] void **state)
{
    struct kvb_standby standby = active_at(20 * s);

    receive_primary(&standby, 21 * s);
    for (uint64_t now_ns = 21 * s; now_ns < 25 * s; now_ns += 10 * ms) {
        assert_int_equal(kvb_standby_next(&standby, 9, now_ns), KVB_STANDBY_REST);
    }
    assert_int_equal(standby.state, active);
    receive_primary(&standby, 26 * s); /* counts as the first one again */
    assert_int_equal(receive(&standby, primary, false, true, 27 * s), KVB_STANDBY_REST);
    assert_int_equal(standby.state, active);
}

static void of_two_standbys_the_later_epoch_stays([[maybe_unused]] void **state)
{
    static const struct {
        uint64_t publisher, first_id;
        enum kvb_standby_action action;
    } rows[] = { { other_standby, own_first - 1, KVB_STANDBY_REST },
                 { other_standby, own_first + 1, KVB_STANDBY_YIELD },
                 { ours + 1, own_first, KVB_STANDBY_YIELD },
                 { ours - 1, own_first, KVB_STANDBY_REST },
                 { ours, own_first + 1, KVB_STANDBY_REST } }; /* this bridge's own heartbeat */

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kvb_standby standby = active_at(20 * s);
        const struct kvb_heartbeat beat = { .publisher = rows[i].publisher,
                                            .is_standby = true,
                                            .epoch_first_id = rows[i].first_id };
        assert_int_equal(
            kvb_standby_receive(&standby, &beat, own_first, wall_us, 21 * s), rows[i].action);
    }
}

/* ---- Epochs ---- */

static void the_next_epoch_is_above_what_others_published([[maybe_unused]] void **state)
{
    const uint64_t ahead = wall_us + 3600ULL * 1000 * 1000; /* its clock is an hour ahead */
    const uint64_t absurd = wall_us + 864000ULL * 1000 * 1000;

    assert_int_equal(kvb_standby_epoch_us(0, wall_us), wall_us);
    assert_true(kvb_standby_epoch_us(ahead, wall_us) > ahead);
    assert_int_equal(kvb_standby_epoch_us(wall_us / 2, wall_us), wall_us);
    assert_int_equal(kvb_standby_floor(5, ahead, wall_us), ahead);
    assert_int_equal(kvb_standby_floor(ahead, 5, wall_us), ahead);
    assert_int_equal(kvb_standby_floor(5, absurd, wall_us), 5);
    assert_int_equal(kvb_standby_floor(5, UINT64_MAX, wall_us), 5);

    struct kvb_standby standby = connected_at(s);
    const struct kvb_heartbeat beat = { .publisher = primary, .last_id = ahead };
    (void)kvb_standby_receive(&standby, &beat, own_first, wall_us, 20 * s);
    assert_int_equal(standby.floor_id, ahead);
}

static void who_takes_a_stream_back_knows_whether_to_open_an_epoch([[maybe_unused]] void **state)
{
    struct kvb_heartbeat own = { .profile = KVB_PROFILE_PROTOBUF, .epoch_first_id = 7 };

    assert_false(kvb_standby_needs_epoch(&own, 6));
    assert_true(kvb_standby_needs_epoch(&own, 7));
    assert_true(kvb_standby_needs_epoch(&own, 8));
    own.profile = KVB_PROFILE_JSON;
    assert_true(kvb_standby_needs_epoch(&own, 6));
}

/* ---- A world of two standbys and a primary that starts, stops, crashes and freezes ---- */

struct world {
    uint64_t now_ns;
    uint64_t seed;
    bool primary_publishes;
    uint64_t somebody_ns; /* some bridge published at that time */
    uint64_t alone_ns;    /* no two bridges published at that time */
    struct kvb_standby standbys[2];
    uint64_t firsts[2];
    uint64_t next_beat_ns[3];
    uint64_t echoes[2];
    uint64_t next_first;
};

static uint64_t draw(struct world *world, uint64_t below)
{
    world->seed = world->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (world->seed >> 33) % below;
}

static void tell(struct world *world, size_t to, const struct kvb_heartbeat *beat);

static void send(struct world *world, size_t from, bool is_bye)
{
    const struct kvb_heartbeat beat = { .publisher = from + 1,
                                        .is_standby = from > 0,
                                        .is_bye = is_bye,
                                        .period_ms = 1000,
                                        .epoch_first_id = from > 0 ? world->firsts[from - 1] : 0 };

    for (size_t to = 0; to < 2; to++) {
        tell(world, to, &beat);
    }
}

static void tell(struct world *world, size_t to, const struct kvb_heartbeat *beat)
{
    const enum kvb_standby_action action =
        kvb_standby_receive(&world->standbys[to], beat, world->firsts[to], wall_us, world->now_ns);

    if (action == KVB_STANDBY_YIELD) {
        send(world, to + 1, true);
    }
}

static void turn_standby(struct world *world, size_t at)
{
    struct kvb_standby *standby = &world->standbys[at];

    if (at == 1) {
        kvb_standby_is_behind(standby, world->now_ns); /* the first standby always runs */
    }
    switch (kvb_standby_next(standby, world->echoes[at], world->now_ns)) {
    case KVB_STANDBY_PROBE:
        world->echoes[at]++;
        break;
    case KVB_STANDBY_TAKE_OVER:
        world->firsts[at] = ++world->next_first;
        world->next_beat_ns[at + 1] = world->now_ns;
        break;
    case KVB_STANDBY_REST:
    case KVB_STANDBY_YIELD:
        break;
    }
}

static void change_primary(struct world *world)
{
    if (world->primary_publishes && draw(world, 2) == 0) {
        send(world, 0, true);
    }
    world->primary_publishes = !world->primary_publishes;
}

static bool publishes(const struct world *world, size_t at)
{
    return at == 0 ? world->primary_publishes : kvb_standby_is_active(&world->standbys[at - 1]);
}

static void turn_world(struct world *world)
{
    if (draw(world, 300) == 0) {
        change_primary(world);
    }
    for (size_t at = 0; at < 3; at++) {
        if (publishes(world, at) && world->now_ns >= world->next_beat_ns[at]) {
            world->next_beat_ns[at] = world->now_ns + s;
            send(world, at, false);
        }
    }
    turn_standby(world, 0);
    turn_standby(world, 1);
}

/* What must hold in the end, whatever happened. */
static void check_world(struct world *world)
{
    const int count = publishes(world, 0) + publishes(world, 1) + publishes(world, 2);

    world->somebody_ns = count > 0 ? world->now_ns : world->somebody_ns;
    world->alone_ns = count < 2 ? world->now_ns : world->alone_ns;
    assert_true(world->now_ns - world->somebody_ns < 4 * s + 100 * ms);
    assert_true(world->now_ns - world->alone_ns < 2 * s + 100 * ms);
}

static void there_is_one_publisher_but_for_a_moment([[maybe_unused]] void **state)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct world world = { .now_ns = s, .seed = seed, .somebody_ns = s, .alone_ns = s };
        for (size_t i = 0; i < 2; i++) {
            kvb_standby_init(&world.standbys[i], i + 2, 1000);
            kvb_standby_connected(&world.standbys[i], s);
        }
        for (; world.now_ns < 120 * s; world.now_ns += 20 * ms) {
            turn_world(&world);
            check_world(&world);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_over_after_three_silent_periods_and_not_before),
        cmocka_unit_test(follows_the_period_that_the_heartbeat_names),
        cmocka_unit_test(a_goodbye_is_followed_at_once),
        cmocka_unit_test(a_goodbye_beside_one_who_publishes_is_none),
        cmocka_unit_test(alone_it_waits_three_periods_from_the_connection),
        cmocka_unit_test(silence_counts_only_while_connected),
        cmocka_unit_test(a_standstill_of_our_own_is_nobodys_silence),
        cmocka_unit_test(the_second_standby_waits_a_period_more),
        cmocka_unit_test(yields_to_the_second_heartbeat_of_a_primary),
        cmocka_unit_test(one_late_heartbeat_is_no_reason_to_yield),
        cmocka_unit_test(of_two_standbys_the_later_epoch_stays),
        cmocka_unit_test(the_next_epoch_is_above_what_others_published),
        cmocka_unit_test(who_takes_a_stream_back_knows_whether_to_open_an_epoch),
        cmocka_unit_test(there_is_one_publisher_but_for_a_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
