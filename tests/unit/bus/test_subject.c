#include "bus/subject.h"
#include "core/own.h"

#include "kvb_test.h"

#include <string.h>

static void makes_the_subjects_of_the_contract(void **state)
{
    char subject[kvb_subject_bytes];

    (void)state;
    assert_ok(kvb_subject_make(subject, "dynamo", "VllmWorker", "kv_events"));
    assert_string_equal(subject, "namespace.dynamo.component.VllmWorker.kv_events");
    assert_ok(kvb_subject_make(subject, "dynamo", "Router", "kv_get.load"));
    assert_string_equal(subject, "namespace.dynamo.component.Router.kv_get.load");
    assert_ok(kvb_subject_make(subject, "*", "*", "*"));
    assert_string_equal(subject, "namespace.*.component.*.*");
}

static void refuses_names_that_could_inject_protocol_lines(void **state)
{
    static const char *const bad[] = {
        "", "a b", "a.b", "a\r\nPUB b", ">", "a*", "\xc3\xa9", "a/b"
    };
    char subject[kvb_subject_bytes] = "before";

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_false(kvb_name_is_valid(bad[i]));
        assert_int_equal(kvb_subject_make(subject, bad[i], "c", "kv_events"), KVB_BAD_INPUT);
        assert_int_equal(kvb_subject_make(subject, "n", bad[i], "kv_events"), KVB_BAD_INPUT);
    }
    assert_int_equal(kvb_subject_make(subject, "n", "c", "kv events"), KVB_BAD_INPUT);
    assert_int_equal(kvb_subject_make(subject, "n", "c", ""), KVB_BAD_INPUT);
    assert_string_equal(subject, "before");
}

static void a_name_has_1_to_64_bytes(void **state)
{
    char name[66];

    (void)state;
    memset(name, 'a', sizeof name);
    name[65] = '\0';
    assert_false(kvb_name_is_valid(name));
    name[64] = '\0';
    assert_true(kvb_name_is_valid(name));
    assert_true(kvb_name_is_valid("A-z_0"));
}

static void a_subject_that_does_not_fit_is_refused(void **state)
{
    char name[65];
    char tail[200];
    char subject[kvb_subject_bytes] = "before";

    (void)state;
    memset(name, 'n', 64);
    name[64] = '\0';
    memset(tail, 't', sizeof tail);
    tail[105] = '\0';
    assert_ok(kvb_subject_make(subject, name, name, tail));
    assert_int_equal(strlen(subject), kvb_subject_bytes - 1);
    tail[105] = 't';
    tail[106] = '\0';
    assert_int_equal(kvb_subject_make(subject, name, name, tail), KVB_BAD_INPUT);
}

static void parses_its_own_subjects(void **state)
{
    char name_space[kvb_name_bytes + 1];
    char component[kvb_name_bytes + 1];
    const char *tail = NULL;

    (void)state;
    assert_ok(kvb_subject_split(
        "namespace.dynamo.component.VllmWorker.kv_sync.7.0", name_space, component, &tail));
    assert_string_equal(name_space, "dynamo");
    assert_string_equal(component, "VllmWorker");
    assert_string_equal(tail, "kv_sync.7.0");
}

static void refuses_to_parse_other_subjects(void **state)
{
    static const char *const bad[] = {
        "",
        "namespace",
        "namespace.a.component.b",
        "namespace.a.component.b.",
        "namespace..component.b.kv_events",
        "namespace.a.component..kv_events",
        "namespace.a.components.b.kv_events",
        "Namespace.a.component.b.kv_events",
        "namespace.a b.component.c.kv_events",
        "namespace.a.component.c.kv..events",
        "namespace.*.component.c.kv_events",
        "namespace.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.component.c.t",
    };
    char name_space[kvb_name_bytes + 1] = "before";
    char component[kvb_name_bytes + 1] = "before";
    const char *tail = NULL;

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_int_equal(kvb_subject_split(bad[i], name_space, component, &tail), KVB_BAD_INPUT);
    }
    assert_string_equal(name_space, "before");
    assert_string_equal(component, "before");
    assert_null(tail);
}

static void distinguishes_subjects_from_other_texts(void **state)
{
    static const struct {
        const char *subject;
        bool is_subject;
        bool is_pattern;
    } cases[] = {
        { "a", true, true },          { "a.b.c", true, true },  { "$SRV.PING", true, true },
        { "_INBOX.x.1", true, true }, { "", false, false },     { ".", false, false },
        { "a.", false, false },       { ".a", false, false },   { "a..b", false, false },
        { "a b", false, false },      { "a\tb", false, false }, { "a\r\nPUB b", false, false },
        { "a.*", false, true },       { "a.>", false, true },   { ">", false, true },
        { ">.a", false, false },      { "a.b*", false, false }, { "a.*.>", false, true },
        { "a.\x7f", false, false },   { "\xff", false, false },
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        assert_int_equal(kvb_subject_is_valid(cases[i].subject, false), cases[i].is_subject);
        assert_int_equal(kvb_subject_is_valid(cases[i].subject, true), cases[i].is_pattern);
    }
}

static void replies_go_to_no_subject_that_commands_something(void **state)
{
    (void)state;
    assert_true(kvb_reply_is_refused("namespace.a.component.b.kv_events"));
    assert_true(kvb_reply_is_refused("$JS.API.STREAM.PURGE.x"));
    assert_true(kvb_reply_is_refused("$SRV.PING"));
    assert_false(kvb_reply_is_refused("_INBOX.a.b"));
    /* the reply subject of a request from another account */
    assert_false(kvb_reply_is_refused("_R_.a.b"));
    assert_false(kvb_reply_is_refused("elsewhere"));
}

static void a_subject_may_end_with_a_stream(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "namespace.a.component.b.kv_sync.7",
        "namespace.a.component.b.kv_sync.7.x",
        "namespace.a.component.b.kv_sync.x.1",
        "namespace.a.component.b.kv_sync.7.1.2",
        "namespace.a.component.b.kv_sync.7.",
        "namespace.a.component.b.kv_refresh.7.1",
        "namespace.a.component.b.kv_sync_more.7.1",
        "kv_sync.7.1",
        "namespace.a.component.b.kv_sync.7.4294967296",
        "namespace.a.component.b.kv_sync.-1.0",
        "namespace.a.component.b.kv_sync.+1.0",
        "namespace.a.component.b.kv_sync.7.+1",
        "namespace.a.component.b.kv_sync.7.-18446744073709551615",
        "namespace.a.component.b.kv_sync.18446744073709551616.0",
        "namespace.a.component.b.kv_sync.99999999999999999999999.0",
    };
    uint64_t worker = 1;
    uint32_t rank = 2;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvb_subject_read_stream(bad[i], "kv_sync", &worker, &rank), KVB_BAD_INPUT);
    }
    assert_true(worker == 1 && rank == 2);
    assert_ok(kvb_subject_read_stream(
        "namespace.a.component.b.kv_sync.18446744073709551615.4294967295", "kv_sync", &worker,
        &rank));
    assert_true(worker == UINT64_MAX && rank == UINT32_MAX);
}

SUITE(subject)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_the_subjects_of_the_contract),
        cmocka_unit_test(refuses_names_that_could_inject_protocol_lines),
        cmocka_unit_test(a_name_has_1_to_64_bytes),
        cmocka_unit_test(a_subject_that_does_not_fit_is_refused),
        cmocka_unit_test(parses_its_own_subjects),
        cmocka_unit_test(refuses_to_parse_other_subjects),
        cmocka_unit_test(replies_go_to_no_subject_that_commands_something),
        cmocka_unit_test(distinguishes_subjects_from_other_texts),
        cmocka_unit_test(a_subject_may_end_with_a_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
