#include "kvb_test.h"

#include "kvbridge/explain_responder.h"

#include <stdio.h>
#include <string.h>

static void on_message(
    struct kvb_explain_responder *responder, const char *tail, const char *reply, const char *body)
{
    char subject[128];
    const struct kvb_bus_message message = { .subject = subject,
                                             .reply = reply,
                                             .payload = { .data = (const uint8_t *)body,
                                                          .len = strlen(body) } };

    (void)snprintf(subject, sizeof subject, "namespace.a.component.b.%s", tail);
    kvb_explain_responder_receive(responder, &message);
}

static void a_request_names_the_stream_in_its_subject(void **state)
{
    (void)state;
    struct kvb_explain_responder responder = { 0 };

    assert_ok(kvb_explain_responder_init(&responder));
    on_message(&responder, "kv_explain.7.1", "_INBOX.x.1", "{\"token_ids\":[1,2]}");
    struct kvb_pending_explain *pending = kvb_explain_responder_take(&responder);
    assert_non_null(pending);
    assert_true(pending->worker_id == 7);
    assert_int_equal(pending->dp_rank, 1);
    assert_false(pending->is_bad);
    assert_int_equal(pending->request.query.count, 2);
    assert_string_equal(pending->reply, "_INBOX.x.1");
    kvb_pending_explain_free(pending);
    assert_null(kvb_explain_responder_take(&responder));
    assert_int_equal(responder.refused, 0);
    kvb_explain_responder_done(&responder);
}

static void a_bad_body_is_to_be_answered_and_a_bad_subject_is_not(void **state)
{
    (void)state;
    struct kvb_explain_responder responder = { 0 };
    static const char good[] = "{\"token_ids\":[1]}";

    assert_ok(kvb_explain_responder_init(&responder));
    on_message(&responder, "kv_explain.7.1", "_INBOX.x.1", "now");
    struct kvb_pending_explain *pending = kvb_explain_responder_take(&responder);
    assert_true(pending->is_bad);
    assert_true(strlen(pending->why.text) > 0);
    kvb_pending_explain_free(pending);
    assert_int_equal(responder.refused, 1);
    on_message(&responder, "kv_explain.7.1", "namespace.a.component.b.kv_events", good);
    on_message(&responder, "kv_explain.7.1", "$JS.API.x", good);
    on_message(&responder, "kv_explain.7.1", NULL, good); /* nobody would read the answer */
    on_message(&responder, "kv_explain.7", "_INBOX.x.1", good);
    on_message(&responder, "kv_explain.7.x", "_INBOX.x.1", good);
    on_message(&responder, "kv_explain.7.4294967296", "_INBOX.x.1", good);
    assert_null(kvb_explain_responder_take(&responder));
    assert_int_equal(responder.refused, 7);
    kvb_explain_responder_done(&responder);
}

static bool is_worker_7(void *context, uint64_t worker_id, uint32_t dp_rank)
{
    (void)dp_rank;
    ++*(unsigned *)context;
    return worker_id == 7;
}

/* Each bridge receives every request; their prompts may be long. */
static void a_request_about_a_stream_of_another_bridge_is_not_decoded(void **state)
{
    (void)state;
    unsigned looked_up = 0;
    struct kvb_explain_responder responder = { .has_stream = is_worker_7, .context = &looked_up };

    assert_ok(kvb_explain_responder_init(&responder));
    for (int i = 0; i < 100; i++) {
        on_message(&responder, "kv_explain.8.1", "_INBOX.x.1", "now");
    }
    on_message(&responder, "kv_explain.7.1", "_INBOX.x.1", "{\"token_ids\":[1,2]}");
    struct kvb_pending_explain *pending = kvb_explain_responder_take(&responder);
    assert_true(pending->worker_id == 7);
    kvb_pending_explain_free(pending);
    assert_null(kvb_explain_responder_take(&responder));
    assert_int_equal(looked_up, 101);
    assert_int_equal(responder.refused, 0);
    kvb_explain_responder_done(&responder);
}

static void a_flood_is_dropped_and_counted(void **state)
{
    (void)state;
    struct kvb_explain_responder responder = { 0 };
    struct kvb_pending_explain *pending = NULL;
    size_t taken = 0;

    assert_ok(kvb_explain_responder_init(&responder));
    for (int i = 0; i < 100; i++) {
        on_message(&responder, "kv_explain.7.1", "_INBOX.x.1", "{\"token_ids\":[1,2]}");
    }
    while ((pending = kvb_explain_responder_take(&responder))) {
        kvb_pending_explain_free(pending);
        taken++;
    }
    assert_int_equal(taken, 8);
    assert_int_equal(responder.refused, 100 - taken);
    on_message(&responder, "kv_explain.7.1", "_INBOX.x.1", "{\"token_ids\":[1,2]}");
    kvb_explain_responder_done(&responder); /* one is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_names_the_stream_in_its_subject),
        cmocka_unit_test(a_bad_body_is_to_be_answered_and_a_bad_subject_is_not),
        cmocka_unit_test(a_request_about_a_stream_of_another_bridge_is_not_decoded),
        cmocka_unit_test(a_flood_is_dropped_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
