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

static const char *
found(const struct kvb_denials *denials, uint64_t now_ns, kvb_denial_is_vital is_vital)
{
    const struct kvb_denial *denial = kvb_denials_find(denials, now_ns, is_vital, NULL);

    return denial ? denial->subject : "";
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
        cmocka_unit_test(a_publish_is_forgotten_unless_it_is_denied_again),
        cmocka_unit_test(denied_replies_evict_no_other_denial),
        cmocka_unit_test(a_full_table_evicts_an_old_entry),
        cmocka_unit_test(a_long_subject_is_truncated),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
