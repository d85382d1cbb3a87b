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

static void assert_path(const struct kvb_watch *watch, const char *expected)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf buf;

    kvb_buf_init(&buf, 8192);
    assert_ok(kvb_watch_path(watch, "inference", "app=vllm,tier in (a,b)", "", &buf));
    assert_ok(kvb_buf_append(&buf, "", 1));
    assert_string_equal((const char *)buf.data, expected);
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

static void lists_in_pages_then_watches_from_that_version(void **state)
{
    struct kvb_watch watch = new_watch();
    const struct kvb_pod_page one = page_of("9", "token/+=");
    const struct kvb_pod_page two = page_of("9", "");
    char path[256];

    (void)state;
    assert_true(kvb_watch_start(&watch, 1));
    assert_false(kvb_watch_start(&watch, 1)); /* the request is under way */
    assert_path(
        &watch, "/api/v1/namespaces/inference/pods?limit=500"
                "&labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2Cb%29");
    kvb_watch_step(&watch, KVB_WATCH_PAGE, &one, 0, 2);
    assert_true(kvb_watch_start(&watch, 2));
    assert_path(
        &watch, "/api/v1/namespaces/inference/pods?limit=500&continue=token%2F%2B%3D"
                "&labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2Cb%29");
    kvb_watch_step(&watch, KVB_WATCH_LISTED, &two, 0, 3);
    assert_int_equal(watch.state, KVB_WATCH_WATCH_DUE);
    assert_true(kvb_watch_start(&watch, 3));
    (void)snprintf(
        path, sizeof path,
        "/api/v1/namespaces/inference/pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=%u"
        "&resourceVersion=9&labelSelector=app%%3Dvllm%%2Ctier%%20in%%20%%28a%%2Cb%%29",
        watch.timeout_s);
    assert_path(&watch, path);
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

static void a_line_or_a_bookmark_advances_the_version(void **state)
{
    struct kvb_watch watch = open_watch(1);

    (void)state;
    kvb_watch_line(&watch, "12");
    kvb_watch_line(&watch, ""); /* a line whose object could not be decoded */
    kvb_watch_step(&watch, KVB_WATCH_ENDED, NULL, 0, 2);
    assert_string_equal(watch.page.version, "12");
    assert_int_equal(watch.state, KVB_WATCH_WATCH_DUE);
}

static void gone_lists_at_once_and_pauses_when_it_is_gone_again(void **state)
{
    struct kvb_watch watch = open_watch(1);
    const struct kvb_pod_page page = page_of("20", "");

    (void)state;
    kvb_watch_step(&watch, KVB_WATCH_GONE, NULL, 0, 10);
    assert_int_equal(watch.state, KVB_WATCH_LIST_DUE);
    assert_int_equal(watch.due_ns, 10);
    assert_true(kvb_watch_start(&watch, 10));
    assert_path(
        &watch, "/api/v1/namespaces/inference/pods?limit=500"
                "&labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2Cb%29");
    kvb_watch_step(&watch, KVB_WATCH_LISTED, &page, 0, 11);
    assert_true(kvb_watch_start(&watch, 11));
    kvb_watch_step(&watch, KVB_WATCH_GONE, NULL, 0, 12);
    assert_true(watch.due_ns >= 12 + 400 * KVB_NS_PER_MS);
    assert_int_equal(watch.away_ns, 0); /* the server answers */
}

static void an_expired_continue_token_restarts_at_the_first_page(void **state)
{
    struct kvb_watch watch = new_watch();
    const struct kvb_pod_page page = page_of("9", "token");

    (void)state;
    assert_true(kvb_watch_start(&watch, 1));
    kvb_watch_step(&watch, KVB_WATCH_PAGE, &page, 0, 2);
    assert_true(kvb_watch_start(&watch, 2));
    kvb_watch_step(&watch, KVB_WATCH_GONE, NULL, 0, 3);
    assert_string_equal(watch.page.next, "");
    assert_true(watch.due_ns > 3);
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

/* After a restore from a backup the server's versions are lower than the known one. */
static void a_refused_version_causes_a_new_list(void **state)
{
    struct kvb_watch watch = open_watch(1);

    (void)state;
    kvb_watch_step(&watch, kvb_watch_input_of_code(504), NULL, 0, 5);
    assert_int_equal(watch.state, KVB_WATCH_LIST_DUE);
    assert_true(watch.due_ns >= 400 * KVB_NS_PER_MS);
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

static void a_watch_without_any_line_causes_a_new_list(void **state)
{
    struct kvb_watch watch = open_watch(1);

    (void)state;
    kvb_watch_step(&watch, KVB_WATCH_ENDED, NULL, 0, 300 * KVB_NS_PER_S);
    assert_int_equal(watch.state, KVB_WATCH_LIST_DUE);
    assert_int_equal(watch.due_ns, 300 * KVB_NS_PER_S);
}

static void a_failed_watch_continues_from_its_version(void **state)
{
    struct kvb_watch watch = open_watch(1);

    (void)state;
    kvb_watch_line(&watch, "31");
    kvb_watch_step(&watch, KVB_WATCH_FAILED, NULL, 0, 5);
    assert_int_equal(watch.state, KVB_WATCH_WATCH_DUE);
    assert_string_equal(watch.page.version, "31");
    assert_true(watch.due_ns > 5);
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

static void a_watch_that_ends_at_once_has_failed(void **state)
{
    struct kvb_watch watch = open_watch(1);

    (void)state;
    kvb_watch_step(&watch, KVB_WATCH_ENDED, NULL, 0, 1000);
    assert_true(watch.due_ns >= 400 * KVB_NS_PER_MS);
    assert_int_equal(watch.state, KVB_WATCH_WATCH_DUE);
}

/* Endless by its pages, or by the items of one page. */
static void a_list_that_never_ends_is_abandoned(void **state)
{
    struct kvb_watch watch = new_watch();
    const struct kvb_pod_page page = page_of("9", "more");
    size_t pages = 0;
    size_t items = 0;

    (void)state;
    while (kvb_watch_start(&watch, 1) && pages <= kvb_max_pod_list_pages) {
        kvb_watch_step(&watch, KVB_WATCH_PAGE, &page, 0, 1);
        pages++;
    }
    assert_int_equal(pages, kvb_max_pod_list_pages);
    assert_int_equal(watch.state, KVB_WATCH_LIST_DUE);
    assert_true(watch.due_ns > 1);
    assert_string_equal(watch.page.next, "");
    while (kvb_watch_item(&watch) == KVB_OK) {
        items++;
    }
    assert_int_equal(items, 500 * kvb_max_pod_list_pages);
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
        cmocka_unit_test(lists_in_pages_then_watches_from_that_version),
        cmocka_unit_test(a_watch_lasts_240_to_360_s_at_random),
        cmocka_unit_test(a_line_or_a_bookmark_advances_the_version),
        cmocka_unit_test(gone_lists_at_once_and_pauses_when_it_is_gone_again),
        cmocka_unit_test(an_expired_continue_token_restarts_at_the_first_page),
        cmocka_unit_test(a_server_that_is_away_is_dialed_every_second),
        cmocka_unit_test(pauses_after_failures_grow_up_to_30_s),
        cmocka_unit_test(a_refused_version_causes_a_new_list),
        cmocka_unit_test(throttling_and_missing_rights_keep_the_version),
        cmocka_unit_test(a_watch_without_any_line_causes_a_new_list),
        cmocka_unit_test(a_failed_watch_continues_from_its_version),
        cmocka_unit_test(retry_after_is_honoured_up_to_five_minutes),
        cmocka_unit_test(silence_of_30_s_beyond_the_end_is_detected),
        cmocka_unit_test(a_watch_that_ends_at_once_has_failed),
        cmocka_unit_test(a_list_that_never_ends_is_abandoned),
        cmocka_unit_test(any_inputs_in_any_order_keep_it_going),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
