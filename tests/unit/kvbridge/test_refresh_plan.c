#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "kvbridge/refresh_plan.h"

#include <stdlib.h>
#include <string.h>

/* Streams of equal size, published by the plan in virtual time, one turn every 20 ms. */
enum { max_streams = 32, bytes_a_block = 72, turn_ms = 20 };

struct world {
    struct kvb_refresh_plan plan;
    uint64_t now_ns;
    size_t count;
    uint64_t blocks[max_streams];
    size_t at;           /* the stream that is being published */
    uint64_t advertised; /* blocks of it that are published */
    uint64_t rounds;
    uint64_t began_ns[max_streams]; /* when its newest publication began */
    uint64_t ended_ns[max_streams];
    uint64_t longest_ns;   /* from just after the begin of one publication to the end of the next */
    uint64_t max_a_second; /* bytes */
};

static struct world *new_world(uint32_t period_s, size_t count, uint64_t blocks)
{
    struct world *world = calloc(1, sizeof *world);
    uint64_t all = 0;
    uint64_t largest = 0;

    assert_non_null(world);
    world->now_ns = KVB_NS_PER_S;
    world->count = count;
    kvb_refresh_plan_init(&world->plan, period_s, world->now_ns);
    for (size_t i = 0; i < count; i++) {
        world->blocks[i] = blocks;
        all += blocks;
        largest = blocks > largest ? blocks : largest;
    }
    kvb_refresh_plan_measure(&world->plan, all, largest);
    return world;
}

static void resize(struct world *world, size_t stream, uint64_t blocks)
{
    uint64_t all = 0;
    uint64_t largest = 0;

    world->blocks[stream] = blocks;
    for (size_t i = 0; i < world->count; i++) {
        all += world->blocks[i];
        largest = world->blocks[i] > largest ? world->blocks[i] : largest;
    }
    kvb_refresh_plan_measure(&world->plan, all, largest);
}

static void end_stream(struct world *world)
{
    world->advertised = 0;
    world->at = (world->at + 1) % world->count;
    world->rounds += world->at == 0;
}

/* A reader that joined just after the last begin has the whole stream only now. */
static void note_end(struct world *world, uint64_t previous_ns)
{
    const uint64_t waited_ns = previous_ns > 0 ? world->now_ns - previous_ns : 0;

    world->longest_ns = waited_ns > world->longest_ns ? waited_ns : world->longest_ns;
}

/* Returns how many blocks the turn has published. */
static uint64_t take_turn(struct world *world, bool is_requested)
{
    static const uint64_t ns_a_block = 200;
    uint64_t all = 0;

    for (size_t allowed = 0; all < 5000 && (allowed = kvb_refresh_plan_allows(
                                                &world->plan, world->now_ns,
                                                world->blocks[world->at], is_requested)) > 0;) {
        const uint64_t left = world->blocks[world->at] - world->advertised;
        const uint64_t now = allowed < left ? allowed : left;
        const uint64_t previous_ns = world->began_ns[world->at];
        if (world->advertised == 0) {
            world->ended_ns[world->at] = previous_ns; /* began before */
            world->began_ns[world->at] = world->now_ns;
        }
        kvb_refresh_plan_published(&world->plan, now, now * bytes_a_block, is_requested);
        world->advertised += now;
        all += now;
        if (world->advertised == world->blocks[world->at]) {
            note_end(world, world->ended_ns[world->at]);
            end_stream(world);
        }
    }
    if (all > 0) {
        kvb_refresh_plan_rest(&world->plan, world->now_ns, all * ns_a_block);
    }
    world->now_ns += turn_ms * KVB_NS_PER_MS;
    return all;
}

static void pass(struct world *world, unsigned seconds)
{
    for (unsigned second = 0; second < seconds; second++) {
        uint64_t advertised = 0;
        for (unsigned i = 0; i < 1000 / turn_ms; i++) {
            advertised += take_turn(world, false);
        }
        if (advertised * bytes_a_block > world->max_a_second) {
            world->max_a_second = advertised * bytes_a_block;
        }
    }
}

static void a_reader_that_joins_at_any_time_has_all_within_the_period(void **state)
{
    (void)state;
    static const struct {
        uint32_t period_s;
        size_t count;
        uint64_t blocks, of_the_first;
    } cases[] = {
        { 60, 16, 4096, 4096 }, { 60, 1, 4096, 4096 }, { 60, 1, 1, 1 },       { 60, 32, 3, 3 },
        { 60, 8, 10, 100000 },  { 10, 3, 200, 129 },   { 2, 16, 4096, 4096 }, { 1, 2, 127, 1 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = new_world(cases[i].period_s, cases[i].count, cases[i].blocks);
        resize(world, 0, cases[i].of_the_first);
        pass(world, 5 * cases[i].period_s);
        assert_true(world->rounds >= 4);
        assert_true(world->longest_ns > 0);
        assert_true(world->longest_ns <= cases[i].period_s * KVB_NS_PER_S);
        free(world);
    }
}

/* 16 streams of 4,096 blocks in 60 s: about 1,300 blocks a second, in each second. */
static void it_is_spread_evenly(void **state)
{
    (void)state;
    struct world *world = new_world(60, 16, 4096);

    pass(world, 120);
    assert_true(world->max_a_second < (uint64_t)1500 * bytes_a_block);
    free(world);
}

static void bytes_a_second_are_bounded(void **state)
{
    (void)state;
    struct world *world = new_world(1, 1, 1 << 24);

    pass(world, 10);
    assert_true(world->max_a_second > kvb_max_refresh_bytes_a_second / 2);
    assert_true(world->max_a_second <= kvb_max_refresh_bytes_a_second * 11 / 10);
    free(world);
}

static void work_is_followed_by_pauses(void **state)
{
    (void)state;
    struct world *world = new_world(1, 1, 1 << 20);
    uint64_t worked_ns = 0;

    for (uint64_t end_ns = world->now_ns + 10 * KVB_NS_PER_S; world->now_ns < end_ns;) {
        if (kvb_refresh_plan_allows(&world->plan, world->now_ns, 1 << 20, true) > 0) {
            worked_ns += KVB_NS_PER_MS;
            world->now_ns += KVB_NS_PER_MS;
            kvb_refresh_plan_rest(&world->plan, world->now_ns, KVB_NS_PER_MS);
        }
        world->now_ns += KVB_NS_PER_MS / 10;
    }
    assert_true(worked_ns > 10 * KVB_NS_PER_S * (kvb_max_refresh_cpu_percent - 1) / 100);
    assert_true(worked_ns <= 10 * KVB_NS_PER_S * kvb_max_refresh_cpu_percent / 100 + KVB_NS_PER_MS);
    free(world);
}

/* 65,536 blocks of 72 bytes at 8 MiB a second. */
static void a_request_does_not_wait_for_the_period(void **state)
{
    (void)state;
    struct world *world = new_world(3600, 16, 4096);
    const uint64_t began_ns = world->now_ns;

    while (world->rounds == 0) {
        (void)take_turn(world, true);
        assert_true(world->now_ns < began_ns + KVB_NS_PER_S);
    }
    free(world);
}

static void without_a_period_only_requests_are_answered(void **state)
{
    (void)state;
    struct world *world = new_world(0, 1, 1000);

    pass(world, 100);
    assert_int_equal(world->rounds, 0);
    assert_int_equal(world->advertised, 0);
    assert_true(take_turn(world, true) > 0);
    free(world);
}

/* Nothing was sent for an hour; no burst follows. */
static void no_burst_follows_a_pause(void **state)
{
    (void)state;
    struct world *world = new_world(60, 16, 4096);

    world->now_ns += 3600 * KVB_NS_PER_S;
    assert_true(take_turn(world, false) < 1500);
    free(world);
}

static void a_stream_is_refreshed_on_request_once_in_ten_seconds(void **state)
{
    (void)state;
    struct kvb_refresh_turn turn = { 0 };

    assert_true(kvb_refresh_turn_request(&turn, 5));
    assert_true(turn.is_requested);
    turn.is_requested = false;
    assert_false(kvb_refresh_turn_request(&turn, 5 + 10 * KVB_NS_PER_S - 1));
    assert_false(turn.is_requested);
    assert_true(kvb_refresh_turn_request(&turn, 5 + 10 * KVB_NS_PER_S));
    assert_true(turn.is_requested);
}

static void nothing_is_allowed_before_it_is_due(void **state)
{
    struct kvb_refresh_plan plan;
    uint64_t now_ns = KVB_NS_PER_S;

    (void)state;
    kvb_refresh_plan_init(&plan, 0, now_ns);
    kvb_refresh_plan_measure(&plan, 1000, 1000);
    assert_true(kvb_refresh_plan_due_ns(&plan, 1000) == UINT64_MAX); /* only on request */
    kvb_refresh_plan_init(&plan, 60, now_ns);
    kvb_refresh_plan_measure(&plan, 1000, 1000);
    for (int i = 0; i < 20; i++) {
        const uint64_t due_ns = kvb_refresh_plan_due_ns(&plan, 1000);
        assert_int_equal(kvb_refresh_plan_allows(&plan, due_ns - KVB_NS_PER_MS, 1000, false), 0);
        const size_t fit = kvb_refresh_plan_allows(&plan, due_ns + KVB_NS_PER_MS, 1000, false);
        assert_in_range(fit, kvb_refresh_piece_blocks, kvb_refresh_piece_blocks + 1);
        kvb_refresh_plan_published(&plan, fit, fit * bytes_a_block, false);
        now_ns = due_ns;
    }
    assert_in_range(now_ns, 60 * KVB_NS_PER_S, 80 * KVB_NS_PER_S); /* 2,560 of 2,000 blocks */
}

SUITE(refresh_plan)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_that_joins_at_any_time_has_all_within_the_period),
        cmocka_unit_test(it_is_spread_evenly),
        cmocka_unit_test(bytes_a_second_are_bounded),
        cmocka_unit_test(work_is_followed_by_pauses),
        cmocka_unit_test(a_request_does_not_wait_for_the_period),
        cmocka_unit_test(without_a_period_only_requests_are_answered),
        cmocka_unit_test(no_burst_follows_a_pause),
        cmocka_unit_test(nothing_is_allowed_before_it_is_due),
        cmocka_unit_test(a_stream_is_refreshed_on_request_once_in_ten_seconds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
