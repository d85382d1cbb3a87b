#include "kvb_test.h"

#include "core/clock.h"
#include "core/limits.h"
#include "core/own.h"
#include "core/random.h"
#include "pods/watch.h"

#include <stdio.h>
#include <string.h>

static struct kvb_watch new_watch(void)
{
    struct kvb_watch watch;

    kvb_watch_init(&watch, 300, 7, 1);
    return watch;
}

static struct kvb_pod_page page_of(const char *version, const char *next)
{
    struct kvb_pod_page page = { .version = "" };

    (void)snprintf(page.version, sizeof page.version, "%s", version);
    (void)snprintf(page.next, sizeof page.next, "%s", next);
    return page;
}

/* A watch that is open after a list. */
static struct kvb_watch open_watch(uint64_t now_ns)
{
    struct kvb_watch watch = new_watch();
    const struct kvb_pod_page page = page_of("9", "");

    assert_true(kvb_watch_start(&watch, now_ns));
    kvb_watch_step(&watch, KVB_WATCH_LISTED, &page, 0, now_ns);
    assert_true(kvb_watch_start(&watch, now_ns));
    return watch;
}

/* Lists are answered, but each watch is refused. */
static void refused_watches_are_repeated_less_and_less_often(void **state)
{
    uint64_t now_ns = KVB_NS_PER_S;
    struct kvb_watch watch = open_watch(now_ns);
    const struct kvb_pod_page page = page_of("9", "");

    (void)state;
    for (int i = 0; i < 12; i++) {
        kvb_watch_step(&watch, KVB_WATCH_REFUSED, NULL, 0, now_ns);
        const uint64_t pause_ns = watch.due_ns - now_ns;
        const uint64_t mean_ms = i < 6 ? 500U << i : 30000;
        assert_in_range(pause_ns / KVB_NS_PER_MS, mean_ms * 8 / 10, mean_ms * 12 / 10);
        now_ns = watch.due_ns;
        assert_true(kvb_watch_start(&watch, now_ns));
        kvb_watch_step(&watch, KVB_WATCH_LISTED, &page, 0, now_ns);
        assert_true(watch.away_ns != 0); /* until a watch succeeds */
        assert_true(kvb_watch_start(&watch, now_ns));
    }
    kvb_watch_opened(&watch);
    kvb_watch_line(&watch, "10");
    assert_true(watch.away_ns == 0);
    kvb_watch_step(&watch, KVB_WATCH_REFUSED, NULL, 0, now_ns);
    assert_true(watch.due_ns - now_ns <= 600 * KVB_NS_PER_MS);
}

static void a_watch_lasts_240_to_360_s_at_random(void **state)
{
    struct kvb_watch watch = open_watch(1);
    uint32_t least = UINT32_MAX;
    uint32_t most = 0;

    (void)state;
    for (uint64_t i = 1; i < 2000; i++) {
        const uint64_t now_ns = i * 300 * KVB_NS_PER_S;
        kvb_watch_line(&watch, "12");
        kvb_watch_step(&watch, KVB_WATCH_ENDED, NULL, 0, now_ns);
        assert_true(kvb_watch_start(&watch, now_ns)); /* at once */
        least = watch.timeout_s < least ? watch.timeout_s : least;
        most = watch.timeout_s > most ? watch.timeout_s : most;
    }
    assert_int_equal(least, 240);
    assert_int_equal(most, 360);
}

static void a_server_that_is_away_is_dialed_every_second(void **state)
{
    struct kvb_watch watch = new_watch();
    uint64_t now_ns = 1;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_true(kvb_watch_start(&watch, now_ns));
        kvb_watch_step(&watch, KVB_WATCH_AWAY, NULL, 0, now_ns);
        assert_in_range(watch.due_ns - now_ns, 800 * KVB_NS_PER_MS, 1200 * KVB_NS_PER_MS);
        assert_int_equal(watch.away_ns, 1); /* since the first failure */
        now_ns = watch.due_ns;
    }
    assert_true(kvb_watch_start(&watch, now_ns));
    kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 0, now_ns);
    assert_in_range(watch.due_ns - now_ns, 400 * KVB_NS_PER_MS, 600 * KVB_NS_PER_MS);
}

static void pauses_after_failures_grow_up_to_30_s(void **state)
{
    struct kvb_watch watch = new_watch();
    uint64_t now_ns = 1;
    uint64_t longest_ns = 0;

    (void)state;
    for (int i = 0; i < 50; i++) {
        assert_true(kvb_watch_start(&watch, now_ns));
        kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 0, now_ns);
        const uint64_t wait_ns = watch.due_ns - now_ns;
        if (i == 0) {
            assert_in_range(wait_ns, 400 * KVB_NS_PER_MS, 600 * KVB_NS_PER_MS);
        }
        longest_ns = wait_ns > longest_ns ? wait_ns : longest_ns;
        now_ns = watch.due_ns;
    }
    assert_in_range(longest_ns, 30 * KVB_NS_PER_S, 36 * KVB_NS_PER_S);
    assert_int_equal(watch.away_ns, 1); /* since the first failure */
    assert_true(kvb_watch_start(&watch, now_ns));
    kvb_watch_opened(&watch);
    assert_int_equal(watch.away_ns, 0);
}

static void throttling_and_missing_rights_keep_the_version(void **state)
{
    static const unsigned codes[] = { 401, 403, 429, 503 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(codes); i++) {
        struct kvb_watch watch = open_watch(1);
        kvb_watch_step(&watch, kvb_watch_input_of_code(codes[i]), NULL, 0, 5);
        assert_int_equal(watch.state, KVB_WATCH_WATCH_DUE);
    }
    assert_int_equal(kvb_watch_input_of_code(410), KVB_WATCH_GONE);
}

static void retry_after_is_honoured_up_to_five_minutes(void **state)
{
    struct kvb_watch watch = new_watch();

    (void)state;
    assert_true(kvb_watch_start(&watch, 1));
    kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 60, 1);
    assert_int_equal(watch.due_ns, 1 + 60 * KVB_NS_PER_S);
    assert_true(kvb_watch_start(&watch, watch.due_ns));
    kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 1000000, 1);
    assert_int_equal(watch.due_ns, 1 + 300 * KVB_NS_PER_S);
}

static void silence_of_30_s_beyond_the_end_is_detected(void **state)
{
    struct kvb_watch watch = open_watch(1);
    const uint64_t end_ns = 1 + watch.timeout_s * KVB_NS_PER_S;

    (void)state;
    assert_false(kvb_watch_is_silent(&watch, end_ns + 29 * KVB_NS_PER_S));
    assert_true(kvb_watch_is_silent(&watch, end_ns + 30 * KVB_NS_PER_S));
    kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 0, end_ns + 30 * KVB_NS_PER_S);
    assert_false(kvb_watch_is_silent(&watch, end_ns + 31 * KVB_NS_PER_S));
}

/* Whatever arrives in any order: a due time is never in the past, a pause is at most five minutes,
 * and a request that is due can be started. */
static void any_inputs_in_any_order_keep_it_going(void **state)
{
    const struct kvb_pod_page pages[] = { page_of("5", "next"), page_of("6", "") };

    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct kvb_watch watch;
        uint64_t random = seed;
        uint64_t now_ns = seed;
        kvb_watch_init(&watch, 300, seed, now_ns);
        for (int i = 0; i < 100; i++) {
            const enum kvb_watch_input input =
                (enum kvb_watch_input)kvb_random_below(&random, KVB_WATCH_INPUT_COUNT);
            const uint32_t after_s = (uint32_t)kvb_random_below(&random, 1000);
            now_ns += kvb_random_below(&random, 400 * KVB_NS_PER_S);
            kvb_watch_step(
                &watch, input, input <= KVB_WATCH_LISTED ? &pages[input] : NULL,
                kvb_random_chance(&random, 0.3) ? after_s : 0, now_ns);
            if (watch.state == KVB_WATCH_LIST_DUE || watch.state == KVB_WATCH_WATCH_DUE) {
                assert_true(watch.due_ns <= now_ns + 300 * KVB_NS_PER_S);
                assert_true(watch.state == KVB_WATCH_LIST_DUE || watch.page.version[0] != '\0');
                assert_true(kvb_watch_start(&watch, now_ns + 300 * KVB_NS_PER_S));
            }
        }
    }
}

SUITE(watch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_watches_are_repeated_less_and_less_often),
        cmocka_unit_test(a_watch_lasts_240_to_360_s_at_random),
        cmocka_unit_test(a_server_that_is_away_is_dialed_every_second),
        cmocka_unit_test(pauses_after_failures_grow_up_to_30_s),
        cmocka_unit_test(throttling_and_missing_rights_keep_the_version),
        cmocka_unit_test(retry_after_is_honoured_up_to_five_minutes),
        cmocka_unit_test(silence_of_30_s_beyond_the_end_is_detected),
        cmocka_unit_test(any_inputs_in_any_order_keep_it_going),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
