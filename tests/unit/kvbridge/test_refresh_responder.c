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

static void a_request_has_a_reply_subject_or_none(void **state)
{
    (void)state;
    struct kvb_refresh_responder responder = { 0 };
    struct kvb_pending_refresh pending;

    assert_ok(kvb_refresh_responder_init(&responder));
    on_message(&responder, "_INBOX.x.1", "{\"worker_id\":7,\"dp_rank\":1}");
    on_message(&responder, NULL, "");
    assert_ok(kvb_refresh_responder_take(&responder, &pending));
    assert_false(pending.is_bad);
    assert_string_equal(pending.reply, "_INBOX.x.1");
    assert_true(pending.request.worker_id == 7);
    assert_int_equal(pending.request.dp_rank, 1);
    assert_ok(kvb_refresh_responder_take(&responder, &pending));
    assert_string_equal(pending.reply, "");
    assert_false(pending.request.has_worker_id);
    assert_int_equal(kvb_refresh_responder_take(&responder, &pending), KVB_AGAIN);
    assert_int_equal(responder.refused, 0);
    kvb_refresh_responder_done(&responder);
}

static void a_bad_body_is_counted_and_answered(void **state)
{
    (void)state;
    struct kvb_refresh_responder responder = { 0 };
    struct kvb_pending_refresh pending;

    assert_ok(kvb_refresh_responder_init(&responder));
    on_message(&responder, "_INBOX.x.1", "now");
    assert_ok(kvb_refresh_responder_take(&responder, &pending));
    assert_true(pending.is_bad);
    assert_true(strlen(pending.why.text) > 0);
    assert_int_equal(responder.refused, 1);
    kvb_refresh_responder_done(&responder);
}

/* One answer on P.kv_events would stop some routers for good. */
static void no_answer_goes_to_a_subject_of_the_contract(void **state)
{
    (void)state;
    struct kvb_refresh_responder responder = { 0 };
    struct kvb_pending_refresh pending;
    char too_long[kvb_refresh_reply_bytes + 1];

    memset(too_long, 'x', sizeof too_long);
    too_long[kvb_refresh_reply_bytes] = '\0';
    assert_ok(kvb_refresh_responder_init(&responder));
    on_message(&responder, "namespace.a.component.b.kv_events", "");
    on_message(&responder, too_long, "");
    assert_int_equal(kvb_refresh_responder_take(&responder, &pending), KVB_AGAIN);
    assert_int_equal(responder.refused, 2);
    kvb_refresh_responder_done(&responder);
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
        cmocka_unit_test(a_request_has_a_reply_subject_or_none),
        cmocka_unit_test(a_bad_body_is_counted_and_answered),
        cmocka_unit_test(no_answer_goes_to_a_subject_of_the_contract),
        cmocka_unit_test(a_flood_is_dropped_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
