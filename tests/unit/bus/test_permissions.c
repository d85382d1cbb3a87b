#include "bus/permissions.h"
#include "core/own.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

static const struct kvb_subject_names names = {
    .workers_namespace = "a",
    .workers_component = "w",
    .router_namespace = "b",
    .router_component = "r",
    .inbox_prefix = "_INBOX",
    .inbox = "me",
    .id = "7",
    .service = "a_w",
};

static struct kvb_permissions made(enum kvb_client_role role, unsigned settings)
{
    struct kvb_permissions permissions;

    assert_ok(kvb_permissions_make(role, &names, settings, &permissions));
    return permissions;
}

static bool
is_vital(const struct kvb_permissions *permissions, bool is_publish, const char *subject)
{
    struct kvb_denial denial = { .is_publish = is_publish };

    (void)snprintf(denial.subject, sizeof denial.subject, "%s", subject);
    return kvb_permissions_is_vital(permissions, &denial);
}

static void one_subject_includes_another(void **state)
{
    static const struct {
        const char *a;
        const char *b;
        bool is_included;
    } rows[] = {
        { "a.b", "a.b", true },     { "a.b", "a.c", false },   { "a.*", "a.b", true },
        { "a.*", "a.*", true },     { "a.b", "a.*", false },   { "a.*", "a.>", false },
        { "a.*", "a.b.c", false },  { "a.*.c", "a.b", false }, { "a.>", "a.b.c", true },
        { "a.>", "a", false },      { "a.>", "a.>", true },    { ">", "a.b", true },
        { "*.*", "a.b", true },     { "a", "ab", false },      { "ab", "a", false },
        { "a.>", "a.*.c.*", true },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (kvb_subject_includes(rows[i].a, rows[i].b) != rows[i].is_included) {
            fail_msg("%s, %s", rows[i].a, rows[i].b);
        }
    }
}

static void refuses_missing_and_unsafe_names(void **state)
{
    struct kvb_subject_names bad = names;
    char long_name[kvb_subject_bytes];
    char subject[kvb_subject_bytes] = "before";

    (void)state;
    bad.workers_component = NULL;
    assert_int_equal(kvb_contract_subject_make(KVB_SUBJECT_EVENTS, &bad, subject), KVB_BAD_INPUT);
    bad.workers_component = "w\r\nPUB x";
    assert_int_equal(kvb_contract_subject_make(KVB_SUBJECT_EVENTS, &bad, subject), KVB_BAD_INPUT);
    bad.id = NULL;
    assert_int_equal(
        kvb_contract_subject_make(KVB_SUBJECT_SERVICE_ONE, &bad, subject), KVB_BAD_INPUT);
    bad.inbox = "a b";
    assert_int_equal(kvb_contract_subject_make(KVB_SUBJECT_ECHO, &bad, subject), KVB_BAD_INPUT);
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    bad.inbox_prefix = long_name;
    assert_int_equal(kvb_contract_subject_make(KVB_SUBJECT_INBOXES, &bad, subject), KVB_BAD_INPUT);
    assert_string_equal(subject, "before");
}

static void a_denial_is_vital_where_the_table_says_so(void **state)
{
    const struct kvb_permissions json = made(KVB_CLIENT_BRIDGE, KVB_SETTING_JSON);
    const struct kvb_permissions protobuf = made(KVB_CLIENT_BRIDGE, KVB_SETTING_PROTOBUF);
    const struct kvb_permissions aggregator = made(KVB_CLIENT_AGGREGATOR, 0);

    (void)state;
    assert_true(is_vital(&json, true, "namespace.a.component.w.load_metrics"));
    assert_false(is_vital(&json, true, "elsewhere")); /* the reply subject of a request */
    assert_false(is_vital(&json, false, "namespace.a.component.w.kv_sync.*.*"));
    assert_true(is_vital(&protobuf, false, "namespace.a.component.w.kv_sync.*.*"));
    assert_false(is_vital(&protobuf, false, "$SRV.*"));
    assert_true(is_vital(&aggregator, true, "namespace.a.component.w.kv_sync.7.0"));
    assert_true(is_vital(&aggregator, true, "_INBOX.me.echo.0"));
    assert_false(is_vital(&aggregator, true, "_INBOX.other.echo.0"));
    assert_true(is_vital(&aggregator, false, "namespace.a.component.w.kv_heartbeat"));
    assert_true(is_vital(&aggregator, false, "namespace.a.component.w.load_metrics"));
    assert_true(is_vital(&aggregator, false, "_INBOX.me.*"));
    assert_false(is_vital(&aggregator, false, "namespace.b.component.r.kv_match"));
    assert_false(is_vital(&aggregator, true, "namespace.b.component.r.load_stats"));
}

SUITE(permissions)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_subject_includes_another),
        cmocka_unit_test(refuses_missing_and_unsafe_names),
        cmocka_unit_test(a_denial_is_vital_where_the_table_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
