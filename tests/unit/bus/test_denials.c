#include "bus/denials.h"
#include "core/clock.h"
#include "core/own.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

static const uint64_t start_ns = 5 * KVB_NS_PER_S;
static const char events_denied[] =
    "Permissions Violation for Publish to \"namespace.a.component.b.kv_events\"";

static bool is_any(const void *context, const struct kvb_denial *denial)
{
    (void)context;
    (void)denial;
    return true;
}

static bool is_publish(const void *context, const struct kvb_denial *denial)
{
    (void)context;
    return denial->is_publish;
}

static const char *
found(const struct kvb_denials *denials, uint64_t now_ns, kvb_denial_is_vital is_vital)
{
    const struct kvb_denial *denial = kvb_denials_find(denials, now_ns, is_vital, NULL);

    return denial ? denial->subject : "";
}

static void names_what_was_denied(void **state)
{
    struct kvb_denials denials = { 0 };
    struct kvb_denials second = { 0 };
    struct kvb_detail why;

    (void)state;
    assert_int_equal(kvb_denials_note(&denials, events_denied, start_ns), KVB_DENIAL_NEW);
    kvb_denial_explain(kvb_denials_find(&denials, start_ns, is_any, NULL), &why);
    assert_string_equal(
        why.text, "no permission to publish on namespace.a.component.b.kv_events: look at the "
                  "permissions of this user in nats-server");
    assert_int_equal(
        kvb_denials_note(
            &second, "Permissions Violation for Subscription to \"a.*\" using queue \"q\"",
            start_ns),
        KVB_DENIAL_NEW);
    kvb_denial_explain(kvb_denials_find(&second, start_ns, is_any, NULL), &why);
    assert_string_equal(
        why.text,
        "no permission to subscribe to a.*: look at the permissions of this user in nats-server");
    assert_int_equal(denials.publishes, 1);
    assert_int_equal(denials.subscriptions, 0);
    assert_int_equal(second.subscriptions, 1);
}

static void other_errors_of_the_server_are_no_denial(void **state)
{
    static const char *const words[] = { "", "Permissions Violation", "Maximum Payload Violation",
                                         "Slow Consumer \"a\"" };
    struct kvb_denials denials = { 0 };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(words); i++) {
        assert_int_equal(kvb_denials_note(&denials, words[i], start_ns), KVB_DENIAL_KNOWN);
    }
    assert_int_equal(denials.count, 0);
}

static void each_subject_is_logged_once(void **state)
{
    struct kvb_denials denials = { 0 };

    (void)state;
    assert_int_equal(kvb_denials_note(&denials, events_denied, start_ns), KVB_DENIAL_NEW);
    assert_int_equal(kvb_denials_note(&denials, events_denied, start_ns), KVB_DENIAL_KNOWN);
    assert_int_equal(denials.count, 1);
    assert_int_equal(denials.publishes, 2);
}

static void a_publish_is_forgotten_unless_it_is_denied_again(void **state)
{
    const uint64_t forget_ns = kvb_denial_forget_ms * KVB_NS_PER_MS;
    struct kvb_denials denials = { 0 };

    (void)state;
    (void)kvb_denials_note(&denials, events_denied, start_ns);
    (void)kvb_denials_note(&denials, events_denied, start_ns + KVB_NS_PER_S);
    assert_string_not_equal(found(&denials, start_ns + forget_ns, is_any), "");
    assert_string_equal(found(&denials, start_ns + KVB_NS_PER_S + forget_ns, is_any), "");
}

static void a_subscription_stays_denied(void **state)
{
    struct kvb_denials denials = { 0 };

    (void)state;
    (void)kvb_denials_note(&denials, "Permissions Violation for Subscription to \"a\"", start_ns);
    assert_string_equal(found(&denials, start_ns + 86400 * KVB_NS_PER_S, is_any), "a");
}

/* A client may choose any reply subject and send many requests. */
static void denied_replies_evict_no_other_denial(void **state)
{
    struct kvb_denials denials = { 0 };
    char text[128];

    (void)state;
    (void)kvb_denials_note(&denials, events_denied, start_ns);
    for (int i = 0; i < 100; i++) {
        (void)snprintf(text, sizeof text, "Permissions Violation for Publish to \"_INBOX.%d\"", i);
        assert_int_equal(kvb_denials_note(&denials, text, start_ns), KVB_DENIAL_ELSEWHERE);
    }
    assert_int_equal(denials.count, 1);
    assert_string_equal(found(&denials, start_ns, is_any), "namespace.a.component.b.kv_events");
}

static void the_newest_denied_reply_is_known(void **state)
{
    struct kvb_denials denials = { 0 };

    (void)state;
    (void)kvb_denials_note(
        &denials, "Permissions Violation for Publish to \"_INBOX.a.echo.0\"", start_ns);
    assert_string_equal(found(&denials, start_ns, is_any), "_INBOX.a.echo.0");
}

static void a_full_table_evicts_an_old_entry(void **state)
{
    const uint64_t later_ns = start_ns + kvb_denial_forget_ms * KVB_NS_PER_MS;
    struct kvb_denials denials = { 0 };
    char text[128];

    (void)state;
    for (int i = 0; i < kvb_denials_kept; i++) {
        (void)snprintf(
            text, sizeof text, "Permissions Violation for Publish to \"namespace.%d\"", i);
        (void)kvb_denials_note(&denials, text, i == 0 ? start_ns : later_ns - 1);
    }
    assert_int_equal(kvb_denials_note(&denials, events_denied, later_ns - 1), KVB_DENIAL_KNOWN);
    assert_int_equal(kvb_denials_note(&denials, events_denied, later_ns), KVB_DENIAL_NEW);
    assert_int_equal(denials.count, kvb_denials_kept);
    assert_string_equal(denials.items[0].subject, "namespace.a.component.b.kv_events");
}

static void only_vital_subjects_are_found(void **state)
{
    struct kvb_denials denials = { 0 };

    (void)state;
    (void)kvb_denials_note(&denials, "Permissions Violation for Subscription to \"a\"", start_ns);
    assert_string_equal(found(&denials, start_ns, is_publish), "");
    (void)kvb_denials_note(&denials, events_denied, start_ns);
    assert_string_equal(found(&denials, start_ns, is_publish), "namespace.a.component.b.kv_events");
}

static void a_long_subject_is_truncated(void **state)
{
    struct kvb_denials denials = { 0 };
    char text[1024] = "Permissions Violation for Publish to \"namespace.";

    (void)state;
    memset(text + strlen(text), 'x', 900);
    assert_int_equal(kvb_denials_note(&denials, text, start_ns), KVB_DENIAL_NEW);
    assert_int_equal(strlen(denials.items[0].subject), kvb_subject_bytes - 1);
}

SUITE(denials)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_what_was_denied),
        cmocka_unit_test(other_errors_of_the_server_are_no_denial),
        cmocka_unit_test(each_subject_is_logged_once),
        cmocka_unit_test(a_publish_is_forgotten_unless_it_is_denied_again),
        cmocka_unit_test(a_subscription_stays_denied),
        cmocka_unit_test(denied_replies_evict_no_other_denial),
        cmocka_unit_test(the_newest_denied_reply_is_known),
        cmocka_unit_test(a_full_table_evicts_an_old_entry),
        cmocka_unit_test(only_vital_subjects_are_found),
        cmocka_unit_test(a_long_subject_is_truncated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
