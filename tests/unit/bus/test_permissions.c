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

static bool has(const struct kvb_permissions *permissions, bool is_publish, const char *subject)
{
    for (size_t i = 0; i < permissions->count; i++) {
        const struct kvb_permission *item = &permissions->items[i];
        if (item->is_publish == is_publish && strcmp(item->subject, subject) == 0) {
            return true;
        }
    }
    return false;
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

static void fills_in_the_subjects_of_the_contract(void **state)
{
    static const struct {
        enum kvb_contract_subject subject;
        const char *text;
    } rows[] = {
        { KVB_SUBJECT_EVENTS, "namespace.a.component.w.kv_events" },
        { KVB_SUBJECT_MATCH_OF_ONE, "namespace.b.component.r.kv_match.7" },
        { KVB_SUBJECT_HIT_RATE_ALIAS, "namespace.b.kv-hit-rate" },
        { KVB_SUBJECT_ECHO, "_INBOX.me.echo.0" },
        { KVB_SUBJECT_INBOXES, "_INBOX.>" },
        { KVB_SUBJECT_SERVICE_ONE, "$SRV.*.a_w.7" },
    };
    char subject[kvb_subject_bytes];

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        assert_ok(kvb_contract_subject_make(rows[i].subject, &names, subject));
        assert_string_equal(subject, rows[i].text);
    }
    for (int i = 0; i < KVB_SUBJECT_COUNT; i++) {
        assert_ok(kvb_contract_subject_make((enum kvb_contract_subject)i, &names, subject));
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

static void a_bridge_needs_what_its_configuration_uses(void **state)
{
    const struct kvb_permissions plain = made(KVB_CLIENT_BRIDGE, KVB_SETTING_PROTOBUF);
    const struct kvb_permissions json = made(KVB_CLIENT_BRIDGE, KVB_SETTING_JSON);

    (void)state;
    assert_true(has(&plain, true, "namespace.a.component.w.kv_events_pb"));
    assert_false(has(&plain, true, "namespace.a.component.w.kv_events"));
    assert_true(has(&json, true, "namespace.a.component.w.kv_events"));
    assert_false(has(&json, true, "namespace.a.component.w.kv_events_pb"));
    assert_false(has(&plain, true, "namespace.a.component.w.kv_window_events"));
    assert_true(has(&json, true, "namespace.a.component.w.kv_window_events"));
    assert_false(has(&plain, false, "namespace.a.component.w.kv_heartbeat"));
    assert_false(has(&plain, false, "namespace.a.component.w.bridge_status"));
    assert_true(plain.answers_requests);
}

/* Also one that reads all components receives a request once. */
static void an_aggregator_reads_exact_subjects(void **state)
{
    static const char *const tails[] = { "kv_events", "kv_events_pb", "kv_window_events",
                                         "kv_heartbeat", "load_metrics" };
    struct kvb_subject_names wide = names;
    struct kvb_permissions permissions;
    char subject[kvb_subject_bytes];

    (void)state;
    wide.workers_namespace = "*";
    wide.workers_component = "*";
    assert_ok(kvb_permissions_make(KVB_CLIENT_AGGREGATOR, &wide, 0, &permissions));
    for (size_t i = 0; i < KVB_COUNT_OF(tails); i++) {
        (void)snprintf(subject, sizeof subject, "namespace.*.component.*.%s", tails[i]);
        assert_true(has(&permissions, false, subject));
    }
    assert_false(has(&permissions, false, "namespace.*.component.*.*"));
    assert_true(has(&permissions, false, "namespace.b.component.r.kv_match"));
}

static void routers_and_readers_get_only_permissions_that_they_use(void **state)
{
    const struct kvb_permissions router = made(KVB_CLIENT_ROUTER, 0);
    const struct kvb_permissions reader = made(KVB_CLIENT_READER, 0);

    (void)state;
    for (size_t i = 0; i < router.count; i++) {
        const struct kvb_permission *item = &router.items[i];
        const char *within = item->is_publish ? "namespace.b.component.r." : "_INBOX.>";
        assert_int_equal(strncmp(item->subject, within, strlen(within)), 0);
    }
    assert_false(router.answers_requests);
    assert_int_equal(reader.count, 1);
    assert_true(has(&reader, false, "namespace.a.component.w.*"));
    assert_false(reader.answers_requests);
}

/* Whoever looks into a fleet changes nothing there: no decision, no event, no heartbeat. */
static void an_operator_asks_and_reads_and_changes_nothing(void **state)
{
    const struct kvb_permissions operator= made(KVB_CLIENT_OPERATOR, 0);

    (void)state;
    assert_true(has(&operator, true, "namespace.b.component.r.kv_match"));
    assert_true(has(&operator, true, "namespace.b.component.r.kv_get.*.7"));
    assert_true(has(&operator, false, "namespace.a.component.w.*"));
    assert_true(has(&operator, false, "_INBOX.>"));
    assert_int_equal(operator.count, 6);
    assert_false(operator.answers_requests);
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
        cmocka_unit_test(fills_in_the_subjects_of_the_contract),
        cmocka_unit_test(refuses_missing_and_unsafe_names),
        cmocka_unit_test(a_bridge_needs_what_its_configuration_uses),
        cmocka_unit_test(an_aggregator_reads_exact_subjects),
        cmocka_unit_test(routers_and_readers_get_only_permissions_that_they_use),
        cmocka_unit_test(an_operator_asks_and_reads_and_changes_nothing),
        cmocka_unit_test(a_denial_is_vital_where_the_table_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
