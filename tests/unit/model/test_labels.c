#include "kvb_test.h"

#include "core/random.h"
#include "model/labels.h"

#include <stdio.h>
#include <string.h>

static void only_named_labels_are_kept(void **state)
{
    (void)state;
    struct kvb_labels labels = { 0 };
    struct kvb_label_names names = { 0 };

    assert_ok(kvb_labels_add(&labels, "zone", "b", NULL));
    assert_ok(kvb_labels_add(&labels, "zon", "c", NULL));
    assert_ok(kvb_labels_add(&labels, "role", "decode", NULL));
    assert_ok(kvb_label_names_add(&names, "zone", NULL));
    assert_ok(kvb_label_names_add(&names, "rol", NULL));
    kvb_labels_keep(&labels, &names);
    assert_int_equal(labels.count, 1);
    assert_true(kvb_labels_have(&labels, "zone=b"));
    assert_false(kvb_labels_have(&labels, "zone=c"));
    names.count = 0;
    kvb_labels_keep(&labels, &names);
    assert_memory_equal(&labels, &(struct kvb_labels){ 0 }, sizeof labels);
}

static void bad_names_and_too_many_names_are_refused(void **state)
{
    (void)state;
    struct kvb_label_names names = { 0 };
    struct kvb_detail why;

    assert_int_equal(kvb_label_names_add(&names, "", &why), KVB_BAD_INPUT);
    assert_int_equal(kvb_label_names_add(&names, "a b", &why), KVB_BAD_INPUT);
    assert_int_equal(
        kvb_label_names_add(
            &names, "a123456789b123456789c123456789d123456789e123456789f123456789g123", &why),
        KVB_BAD_INPUT);
    assert_non_null(strstr(why.text, "63"));
    assert_int_equal(names.count, 0);
    assert_ok(kvb_label_names_add(
        &names, "a123456789b123456789c123456789d123456789e123456789f123456789g12", &why));
    assert_int_equal(strlen(names.names[0]), kvb_label_name_bytes);
    names.count = 0;
    for (int i = 0; i < kvb_max_labels; i++) {
        assert_ok(kvb_label_names_add(&names, "zone", &why));
    }
    assert_int_equal(kvb_label_names_add(&names, "zone", &why), KVB_TOO_LARGE);
}

static void bad_labels_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *why;
    } rows[] = {
        { "", "x", "the name of a label" },
        { "a b", "x", "the name of a label" },
        { "a=b", "x", "the name of a label" },
        { "a123456789b123456789c123456789d123456789e123456789f123456789g1234", "x",
          "the name of a label" },
        { "zone", "x", "label zone is given twice" },
        { "a", "\x01", "label a: the value" },
        { "a", "\xff", "label a: the value" },
    };
    struct kvb_labels labels = { 0 };
    struct kvb_detail detail;
    char value[kvb_label_value_bytes + 2];

    assert_ok(kvb_labels_add(&labels, "zone", "b", NULL));
    const struct kvb_labels before = labels;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(
            kvb_labels_add(&labels, rows[i].name, rows[i].value, &detail), KVB_BAD_INPUT);
        assert_non_null(strstr(detail.text, rows[i].why));
    }
    memset(value, 'v', sizeof value);
    value[kvb_label_value_bytes + 1] = '\0';
    assert_int_equal(kvb_labels_add(&labels, "a", value, NULL), KVB_BAD_INPUT);
    assert_int_equal(kvb_labels_add_pair(&labels, "noequals", NULL), KVB_BAD_INPUT);
    assert_memory_equal(&labels, &before, sizeof labels);
    value[kvb_label_value_bytes] = '\0';
    assert_ok(kvb_labels_add(&labels, "a", value, NULL));
}

static void the_ceilings_are_enforced(void **state)
{
    (void)state;
    struct kvb_labels labels = { 0 };
    char name[8];
    char value[kvb_label_value_bytes + 1];

    for (int i = 0; i < kvb_max_labels; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_ok(kvb_labels_add(&labels, name, "", NULL));
    }
    assert_int_equal(kvb_labels_add(&labels, "more", "", NULL), KVB_TOO_LARGE);
    labels = (struct kvb_labels){ 0 };
    memset(value, 'v', kvb_label_value_bytes);
    value[kvb_label_value_bytes] = '\0';
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_ok(kvb_labels_add(&labels, name, value, NULL));
    }
    assert_int_equal(kvb_labels_add(&labels, "n3", value, NULL), KVB_TOO_LARGE);
    value[kvb_labels_bytes - labels.bytes - (int)sizeof "n3="] = '\0';
    assert_ok(kvb_labels_add(&labels, "n3", value, NULL));
    assert_int_equal(labels.bytes, kvb_labels_bytes);
    assert_int_equal(kvb_labels_add(&labels, "a", "", NULL), KVB_TOO_LARGE);
}

/* Two orders of adding give the same bytes. */
static void equal_labels_have_equal_bytes(void **state)
{
    (void)state;
    uint64_t seed = 1;

    for (int round = 0; round < 500; round++) {
        struct kvb_labels one = { 0 };
        struct kvb_labels other = { 0 };
        const uint64_t start = kvb_random_below(&seed, 12);
        for (uint64_t i = 0; i < 12; i++) {
            char pairs[2][16];
            (void)snprintf(pairs[0], sizeof pairs[0], "n%d=%d", (int)i * 7 % 40, (int)i);
            const uint64_t k = (i * 5 + start) % 12;
            (void)snprintf(pairs[1], sizeof pairs[1], "n%d=%d", (int)k * 7 % 40, (int)k);
            assert_ok(kvb_labels_add_pair(&one, pairs[0], NULL));
            assert_ok(kvb_labels_add_pair(&other, pairs[1], NULL));
        }
        assert_true(kvb_labels_are_same(&one, &other));
    }
}

SUITE(labels)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_named_labels_are_kept),
        cmocka_unit_test(bad_names_and_too_many_names_are_refused),
        cmocka_unit_test(bad_labels_are_refused_with_a_reason),
        cmocka_unit_test(the_ceilings_are_enforced),
        cmocka_unit_test(equal_labels_have_equal_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
