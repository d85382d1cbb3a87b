#include "kvb_test.h"

#include "cmd/notify_news.h"
#include "core/clock.h"

#include <string.h>

static const uint64_t begin_ns = 100 * KVB_NS_PER_S;

/* A manager that waits 2 s, so that a beat is due every second. */
enum { limit_us = 2000000 };

static const char *
tell(struct kvb_notify_news *news, uint64_t after_ms, const struct kvb_pulse *pulse)
{
    static char text[kvb_notify_text_bytes];

    kvb_notify_news_tell(news, begin_ns + (after_ms * KVB_NS_PER_MS), pulse, text);
    return text;
}

static const struct kvb_pulse first = { .turns = 1, .streams = 16 };

static void begin(struct kvb_notify_news *news, uint64_t limit)
{
    kvb_notify_news_init(news, limit);
    assert_string_equal(
        tell(news, 0, &first), "READY=1\nSTATUS=16 streams, 0 EXACT, NATS not connected\n");
}

static void ready_is_said_once_and_not_before_the_first_turn(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    struct kvb_pulse pulse = { .streams = 1 };

    kvb_notify_news_init(&news, 0);
    assert_string_equal(tell(&news, 0, &pulse), "");
    assert_string_equal(tell(&news, 60000, &pulse), "");
    pulse.turns = 1;
    assert_string_equal(
        tell(&news, 60001, &pulse), "READY=1\nSTATUS=1 stream, 0 EXACT, NATS not connected\n");
    pulse.turns = 2;
    assert_string_equal(tell(&news, 120000, &pulse), "");
}

static void status_is_said_when_it_changes_and_at_most_every_three_seconds(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    struct kvb_pulse pulse = first;

    begin(&news, 0);
    pulse.exact = 7;
    assert_string_equal(tell(&news, 2999, &pulse), "");
    pulse.exact = 16;
    pulse.is_connected = true;
    assert_string_equal(tell(&news, 3000, &pulse), "STATUS=16 streams, 16 EXACT, NATS connected\n");
    pulse.turns = 1000; /* is no news */
    assert_string_equal(tell(&news, 9000, &pulse), "");
    pulse.is_connected = false;
    assert_string_equal(
        tell(&news, 9001, &pulse), "STATUS=16 streams, 16 EXACT, NATS not connected\n");
}

static void a_beat_follows_a_turn_at_half_of_the_limit(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    struct kvb_pulse pulse = first;

    begin(&news, limit_us);
    pulse.turns = 2;
    assert_string_equal(tell(&news, 999, &pulse), "");
    assert_string_equal(tell(&news, 1000, &pulse), "WATCHDOG=1\n");
    pulse.turns = 3;
    assert_string_equal(tell(&news, 1999, &pulse), "");
    assert_string_equal(tell(&news, 2000, &pulse), "WATCHDOG=1\n");
}

static void a_thread_that_makes_no_turn_is_not_spoken_for(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    struct kvb_pulse pulse = first;

    begin(&news, limit_us);
    assert_string_equal(tell(&news, 1000, &pulse), "");
    assert_string_equal(tell(&news, 60000, &pulse), "");
    pulse.is_connected = true; /* nor does other news hide it */
    assert_null(strstr(tell(&news, 61000, &pulse), "WATCHDOG"));
    pulse.turns = 2; /* it lives again: said at the next look */
    assert_string_equal(tell(&news, 61001, &pulse), "WATCHDOG=1\n");
}

static void without_a_limit_nobody_waits_for_beats(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    struct kvb_pulse pulse = first;

    begin(&news, 0);
    pulse.turns = 2;
    assert_string_equal(tell(&news, 3600000, &pulse), "");
}

static void looks_come_several_times_a_beat_and_soon_while_it_starts(void **state)
{
    (void)state;
    struct kvb_notify_news news;

    kvb_notify_news_init(&news, limit_us);
    assert_true(kvb_notify_news_pause_ns(&news) == 20 * KVB_NS_PER_MS);
    begin(&news, limit_us);
    assert_true(kvb_notify_news_pause_ns(&news) == 250 * KVB_NS_PER_MS);
    begin(&news, 0);
    assert_true(kvb_notify_news_pause_ns(&news) == KVB_NS_PER_S);
    begin(&news, 1); /* absurd: no busy loop */
    assert_true(kvb_notify_news_pause_ns(&news) == 10 * KVB_NS_PER_MS);
    begin(&news, UINT64_MAX); /* no overflow */
    assert_true(kvb_notify_news_pause_ns(&news) == KVB_NS_PER_S);
}

static void the_longest_news_fit(void **state)
{
    (void)state;
    struct kvb_notify_news news;
    const struct kvb_pulse pulse = { .turns = UINT64_MAX,
                                     .streams = UINT64_MAX,
                                     .exact = UINT64_MAX };

    kvb_notify_news_init(&news, limit_us);
    const char *text = tell(&news, 0, &pulse);
    assert_non_null(strstr(text, "NATS not connected\n"));
    assert_true(strlen(text) + strlen("WATCHDOG=1\n") < kvb_notify_text_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_is_said_once_and_not_before_the_first_turn),
        cmocka_unit_test(status_is_said_when_it_changes_and_at_most_every_three_seconds),
        cmocka_unit_test(a_beat_follows_a_turn_at_half_of_the_limit),
        cmocka_unit_test(a_thread_that_makes_no_turn_is_not_spoken_for),
        cmocka_unit_test(without_a_limit_nobody_waits_for_beats),
        cmocka_unit_test(looks_come_several_times_a_beat_and_soon_while_it_starts),
        cmocka_unit_test(the_longest_news_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
