#include "kvb_test.h"

#include "core/clock.h"
#include "daemon/notify.h"

#include <string.h>

static const uint64_t begin_ns = 100 * KVB_NS_PER_S;

/* A service manager with a watchdog of 2 s, so a keep-alive is due every second. */
enum { limit_us = 2000000 };

static const char *
tell(struct kvb_notify_update *update, uint64_t after_ms, const struct kvb_liveness *liveness)
{
    static char text[kvb_notify_text_bytes];

    kvb_notify_update_send(update, begin_ns + (after_ms * KVB_NS_PER_MS), liveness, text);
    return text;
}

static const struct kvb_liveness first = { .turns = 1, .streams = 16 };

static void begin(struct kvb_notify_update *update, uint64_t limit)
{
    kvb_notify_update_init(update, limit);
    assert_string_equal(
        tell(update, 0, &first), "READY=1\nSTATUS=16 streams, 0 EXACT, NATS not connected\n");
}

static void status_is_sent_when_it_changes_and_at_most_every_three_seconds(void **state)
{
    (void)state;
    struct kvb_notify_update update;
    struct kvb_liveness liveness = first;

    begin(&update, 0);
    liveness.exact = 7;
    assert_string_equal(tell(&update, 2999, &liveness), "");
    liveness.exact = 16;
    liveness.is_connected = true;
    assert_string_equal(
        tell(&update, 3000, &liveness), "STATUS=16 streams, 16 EXACT, NATS connected\n");
    liveness.turns = 1000; /* an unchanged status is not reported */
    assert_string_equal(tell(&update, 9000, &liveness), "");
    liveness.is_connected = false;
    assert_string_equal(
        tell(&update, 9001, &liveness), "STATUS=16 streams, 16 EXACT, NATS not connected\n");
}

static void checks_come_several_times_a_keep_alive_and_quickly_during_the_start(void **state)
{
    (void)state;
    struct kvb_notify_update update;

    kvb_notify_update_init(&update, limit_us);
    assert_true(kvb_notify_update_pause_ns(&update) == 20 * KVB_NS_PER_MS);
    begin(&update, limit_us);
    assert_true(kvb_notify_update_pause_ns(&update) == 250 * KVB_NS_PER_MS);
    begin(&update, 0);
    assert_true(kvb_notify_update_pause_ns(&update) == KVB_NS_PER_S);
    begin(&update, 1); /* an absurd limit must not make a busy loop */
    assert_true(kvb_notify_update_pause_ns(&update) == 10 * KVB_NS_PER_MS);
    begin(&update, UINT64_MAX); /* no overflow */
    assert_true(kvb_notify_update_pause_ns(&update) == KVB_NS_PER_S);
}

static void the_longest_update_fits(void **state)
{
    (void)state;
    struct kvb_notify_update update;
    const struct kvb_liveness liveness = { .turns = UINT64_MAX,
                                           .streams = UINT64_MAX,
                                           .exact = UINT64_MAX };

    kvb_notify_update_init(&update, limit_us);
    const char *text = tell(&update, 0, &liveness);
    assert_non_null(strstr(text, "NATS not connected\n"));
    assert_true(strlen(text) + strlen("WATCHDOG=1\n") < kvb_notify_text_bytes);
}

SUITE(notify)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_is_sent_when_it_changes_and_at_most_every_three_seconds),
        cmocka_unit_test(checks_come_several_times_a_keep_alive_and_quickly_during_the_start),
        cmocka_unit_test(the_longest_update_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
