#include "kvb_test.h"

#include "model/worker_facts.h"

#include <stdio.h>
#include <string.h>

static void tokenize_is_the_beginning_of_a_url(void **state)
{
    (void)state;
    static const char *const good[] = { "", "http://engine:8000", "https://[fd00::1]:8/v/x" };
    static const char *const bad[] = {
        "engine:8000",
        "http://",
        "http:///x",
        "http://e/",
        "ftp://e",
        "http://e?a=b",
        "http://e#a",
        "http://user:secret@e",
        "http://e\\@other",
        "http://e /tokenize",
        "http://e\n",
        "http://\xff",
        "file:///etc/passwd",
    };
    char text[kvb_worker_address_bytes + 2];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(kvb_worker_tokenize_is_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (kvb_worker_tokenize_is_valid(bad[i])) {
            fail_msg("%s", bad[i]);
        }
    }
    memset(text, 'a', sizeof text);
    memcpy(text, "http://", 7);
    text[kvb_worker_address_bytes + 1] = '\0';
    assert_false(kvb_worker_tokenize_is_valid(text));
    text[kvb_worker_address_bytes] = '\0';
    assert_true(kvb_worker_tokenize_is_valid(text));
}

static struct kvb_worker_facts facts_with(const char *name, const char *value)
{
    struct kvb_worker_facts facts = { 0 };

    assert_ok(kvb_labels_add(&facts.labels, name, value, NULL));
    return facts;
}

static void labels_of_these_names_fill_role_and_address(void **state)
{
    (void)state;
    struct kvb_worker_facts facts = facts_with("role", "prefill");

    assert_ok(kvb_labels_add(&facts.labels, "address", "10.0.0.7:8000", NULL));
    assert_ok(kvb_worker_facts_settle(&facts, NULL));
    assert_int_equal(facts.role, KVB_ROLE_PREFILL);
    assert_string_equal(facts.address, "10.0.0.7:8000");
    assert_int_equal(facts.labels.count, 2);
    assert_ok(kvb_worker_facts_settle(&facts, NULL)); /* a label with the same value */
    facts = facts_with("role", "embedding");
    assert_ok(kvb_worker_facts_settle(&facts, NULL));
    assert_int_equal(facts.role, KVB_ROLE_NONE);
}

static void a_label_that_contradicts_a_fact_is_refused(void **state)
{
    (void)state;
    struct kvb_worker_facts facts = facts_with("role", "prefill");
    struct kvb_detail why;

    facts.role = KVB_ROLE_BOTH;
    assert_int_equal(kvb_worker_facts_settle(&facts, &why), KVB_BAD_INPUT);
    assert_string_equal(why.text, "role: differs from labels.role; give one of them");
    facts = facts_with("address", "a:1");
    (void)snprintf(facts.address, sizeof facts.address, "a:2");
    assert_int_equal(kvb_worker_facts_settle(&facts, &why), KVB_BAD_INPUT);
    assert_string_equal(why.text, "address: differs from labels.address; give one of them");
    assert_string_equal(facts.address, "a:2");
}

static bool includes(const struct kvb_worker_facts *facts, const char *name, const char *value)
{
    struct kvb_labels wanted = { 0 };

    assert_ok(kvb_labels_add(&wanted, name, value, NULL));
    return kvb_worker_facts_include(facts, &wanted);
}

static void role_and_address_are_selected_like_labels(void **state)
{
    (void)state;
    struct kvb_worker_facts facts = facts_with("zone", "b");

    assert_false(includes(&facts, "role", "prefill"));
    assert_false(includes(&facts, "address", "a:1"));
    (void)snprintf(facts.address, sizeof facts.address, "a:1");
    facts.role = KVB_ROLE_PREFILL;
    assert_true(includes(&facts, "zone", "b"));
    assert_false(includes(&facts, "zone", "c"));
    assert_false(includes(&facts, "rol", "prefill"));
    assert_true(includes(&facts, "role", "prefill"));
    assert_false(includes(&facts, "role", "decode"));
    assert_false(includes(&facts, "role", "both"));
    assert_true(includes(&facts, "address", "a:1"));
    assert_false(includes(&facts, "address", "A:1"));
    assert_true(kvb_worker_facts_include(&facts, &(struct kvb_labels){ 0 }));
}

static void a_worker_of_role_both_has_either(void **state)
{
    (void)state;
    const struct kvb_worker_facts both = { .role = KVB_ROLE_BOTH };
    const struct kvb_worker_facts other = facts_with("role", "embedding");

    assert_true(includes(&both, "role", "prefill"));
    assert_true(includes(&both, "role", "decode"));
    assert_true(includes(&both, "role", "both"));
    assert_false(includes(&both, "role", "embedding"));
    assert_true(includes(&other, "role", "embedding"));
    assert_false(includes(&other, "role", "prefill"));
}

static void each_fact_makes_a_difference(void **state)
{
    (void)state;
    const struct kvb_worker_facts none = { 0 };
    const struct kvb_worker_facts others[] = {
        { .address = "a" },        { .pod = "a" },
        { .node = "a" },           { .pod_namespace = "a" },
        { .role = KVB_ROLE_BOTH }, { .ready = KVB_READY_NO },
        { .is_draining = true },   facts_with("zone", "b"),
        { .tokenize = "a" },
    };

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_false(kvb_worker_facts_are_same(&none, &others[i]));
        assert_true(kvb_worker_facts_are_same(&others[i], &others[i]));
    }
}

SUITE(worker_facts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenize_is_the_beginning_of_a_url),
        cmocka_unit_test(labels_of_these_names_fill_role_and_address),
        cmocka_unit_test(a_label_that_contradicts_a_fact_is_refused),
        cmocka_unit_test(role_and_address_are_selected_like_labels),
        cmocka_unit_test(a_worker_of_role_both_has_either),
        cmocka_unit_test(each_fact_makes_a_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
