#include "kvb_test.h"

#include "stream/coalesce.h"

enum { max_engines = 2048, turn_us = 100 };

/* Engines whose thread waits every 100 us, and every pause later. */
struct scene {
    struct kvb_coalescing coalescing;
    uint64_t newest[max_engines];
    uint64_t now_us;
    uint64_t due; /* runs, in millionths */
    uint64_t next;
};

static struct scene begin(void)
{
    return (struct scene){ .now_us = 1000000000 };
}

static uint64_t pause_us(struct scene *scene)
{
    return kvb_coalescing_pause_ns(&scene->coalescing, scene->now_us * 1000) / 1000;
}

/* So many engines have so many runs a second in turns.  Returns the newest pause. */
static uint64_t
run(struct scene *scene, uint64_t engines, uint64_t runs_a_second_each, uint64_t milliseconds)
{
    const uint64_t end_us = scene->now_us + milliseconds * 1000;
    uint64_t paused_us = 0;

    while (scene->now_us < end_us) {
        scene->now_us += turn_us + paused_us;
        scene->due += (turn_us + paused_us) * engines * runs_a_second_each;
        for (; scene->due >= 1000000; scene->due -= 1000000) {
            kvb_coalescing_note(&scene->coalescing, &scene->newest[scene->next++ % engines]);
        }
        paused_us = pause_us(scene);
    }
    return paused_us;
}

static void many_engines_that_send_seldom_make_it_pause(void **state)
{
    (void)state;
    struct scene scene = begin();

    assert_int_equal(run(&scene, 2048, 5, 100), 2000);
    assert_int_equal(run(&scene, 1000, 20, 100), 2000);
    assert_int_equal(run(&scene, 16, 41, 100), 2000);
}

/* A pause would gather nothing. */
static void few_engines_are_served_at_once(void **state)
{
    (void)state;
    struct scene scene = begin();

    assert_int_equal(run(&scene, 8, 41, 100), 0);
}

/* A fast engine beside many slow ones makes up an eighth of the runs, or does not count. */
static void a_fast_engine_among_many_is_served_at_once(void **state)
{
    (void)state;
    struct scene scene = begin();

    for (unsigned ms = 0; ms < 100; ms++) {
        (void)run(&scene, 2000, 2, 1);
        for (unsigned i = 0; i < 2; i++) {
            kvb_coalescing_note(&scene.coalescing, &scene.newest[max_engines - 1]);
        }
    }
    assert_int_equal(pause_us(&scene), 0);
}

/* One window decides, and the next one takes it back. */
static void it_ends_when_engines_fall_silent(void **state)
{
    (void)state;
    struct scene scene = begin();

    assert_int_equal(run(&scene, 2048, 5, 100), 2000);
    scene.now_us += 10000;
    (void)pause_us(&scene);
    scene.now_us += 10000;
    assert_int_equal(pause_us(&scene), 0);
}

/* A long rest counts as one window. */
static void a_burst_after_a_long_rest_is_served_at_once(void **state)
{
    (void)state;
    struct scene scene = begin();

    (void)pause_us(&scene);
    scene.now_us += 20000;
    for (unsigned i = 0; i < 9; i++) {
        kvb_coalescing_note(&scene.coalescing, &scene.newest[i]);
    }
    assert_int_equal(pause_us(&scene), 0);
}

SUITE(coalesce)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_engines_that_send_seldom_make_it_pause),
        cmocka_unit_test(few_engines_are_served_at_once),
        cmocka_unit_test(a_fast_engine_among_many_is_served_at_once),
        cmocka_unit_test(it_ends_when_engines_fall_silent),
        cmocka_unit_test(a_burst_after_a_long_rest_is_served_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
