#include "kvb_test.h"

#include "kvbridge/refresh_responder.h"

#include <string.h>

static void on_message(struct kvb_refresh_responder *responder, const char *reply, const char *body)
{
    const struct kvb_bus_message message = { .subject = "namespace.a.component.b.kv_refresh",
                                             .reply = reply,
                                             .payload = { .data = (const uint8_t *)body,
                                                          .len = strlen(body) } };
    kvb_refresh_responder_receive(responder, &message);
}

static void a_flood_is_dropped_and_counted(void **state)
{
    (void)state;
    struct kvb_refresh_responder responder = { 0 };
    struct kvb_pending_refresh pending;
    uint64_t taken = 0;

    assert_ok(kvb_refresh_responder_init(&responder));
    for (int i = 0; i < 1000; i++) {
        on_message(&responder, "_INBOX.x.1", "");
    }
    while (kvb_refresh_responder_take(&responder, &pending) == KVB_OK) {
        taken++;
    }
    assert_true(taken > 0 && taken < 1000);
    assert_int_equal(responder.refused, 1000 - taken);
    kvb_refresh_responder_done(&responder);
}

SUITE(refresh_responder)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_is_dropped_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
