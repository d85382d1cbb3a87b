#include "kvb_test.h"

#include "daemon/refresh_desk.h"

#include <string.h>

static void hear(struct kvb_refresh_desk *desk, const char *reply, const char *body)
{
    const struct kvb_bus_message message = { .subject = "namespace.a.component.b.kv_refresh",
                                             .reply = reply,
                                             .payload = { .data = (const uint8_t *)body,
                                                          .len = strlen(body) } };
    kvb_refresh_desk_hear(desk, &message);
}

static void a_request_comes_with_its_reply_subject_or_without(void **state)
{
    (void)state;
    struct kvb_refresh_desk desk = { 0 };
    struct kvb_refresh_ask ask;

    assert_ok(kvb_refresh_desk_init(&desk));
    hear(&desk, "_INBOX.x.1", "{\"worker_id\":7,\"dp_rank\":1}");
    hear(&desk, NULL, "");
    assert_ok(kvb_refresh_desk_take(&desk, &ask));
    assert_false(ask.is_bad);
    assert_string_equal(ask.reply, "_INBOX.x.1");
    assert_true(ask.request.worker_id == 7);
    assert_int_equal(ask.request.dp_rank, 1);
    assert_ok(kvb_refresh_desk_take(&desk, &ask));
    assert_string_equal(ask.reply, "");
    assert_false(ask.request.has_worker_id);
    assert_int_equal(kvb_refresh_desk_take(&desk, &ask), KVB_AGAIN);
    assert_int_equal(desk.refused, 0);
    kvb_refresh_desk_done(&desk);
}

static void a_bad_body_is_counted_and_to_be_answered(void **state)
{
    (void)state;
    struct kvb_refresh_desk desk = { 0 };
    struct kvb_refresh_ask ask;

    assert_ok(kvb_refresh_desk_init(&desk));
    hear(&desk, "_INBOX.x.1", "now");
    assert_ok(kvb_refresh_desk_take(&desk, &ask));
    assert_true(ask.is_bad);
    assert_true(strlen(ask.why.text) > 0);
    assert_int_equal(desk.refused, 1);
    kvb_refresh_desk_done(&desk);
}

/* One answer on P.kv_events would stop some routers for good. */
static void an_answer_goes_to_no_subject_of_the_contract(void **state)
{
    (void)state;
    struct kvb_refresh_desk desk = { 0 };
    struct kvb_refresh_ask ask;
    char too_long[kvb_refresh_reply_bytes + 1];

    memset(too_long, 'x', sizeof too_long);
    too_long[kvb_refresh_reply_bytes] = '\0';
    assert_ok(kvb_refresh_desk_init(&desk));
    hear(&desk, "namespace.a.component.b.kv_events", "");
    hear(&desk, too_long, "");
    assert_int_equal(kvb_refresh_desk_take(&desk, &ask), KVB_AGAIN);
    assert_int_equal(desk.refused, 2);
    kvb_refresh_desk_done(&desk);
}

static void a_flood_is_dropped_and_counted(void **state)
{
    (void)state;
    struct kvb_refresh_desk desk = { 0 };
    struct kvb_refresh_ask ask;
    uint64_t taken = 0;

    assert_ok(kvb_refresh_desk_init(&desk));
    for (int i = 0; i < 1000; i++) {
        hear(&desk, "_INBOX.x.1", "");
    }
    while (kvb_refresh_desk_take(&desk, &ask) == KVB_OK) {
        taken++;
    }
    assert_true(taken > 0 && taken < 1000);
    assert_int_equal(desk.refused, 1000 - taken);
    kvb_refresh_desk_done(&desk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_comes_with_its_reply_subject_or_without),
        cmocka_unit_test(a_bad_body_is_counted_and_to_be_answered),
        cmocka_unit_test(an_answer_goes_to_no_subject_of_the_contract),
        cmocka_unit_test(a_flood_is_dropped_and_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
