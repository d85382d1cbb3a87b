#include "kvb_test.h"

#include "model/served_names.h"

#include <stdio.h>
#include <string.h>

static kvb_status add(struct kvb_served_names *names, enum kvb_served_kind kind, const char *name)
{
    return kvb_served_names_add(names, kind, kvb_span_of(name));
}

static void names_are_found_with_their_kind(void **state)
{
    (void)state;
    struct kvb_served_names names = { 0 };
    struct kvb_served_name one;
    enum kvb_served_kind kind = KVB_SERVED_NAME;
    size_t at = 0;

    assert_ok(add(&names, KVB_SERVED_NAME, "chat"));
    assert_ok(add(&names, KVB_SERVED_ADAPTER, "chat-lora"));
    assert_ok(add(&names, KVB_SERVED_ADAPTER, "chat")); /* it keeps its kind */
    assert_int_equal(names.count, 2);
    assert_true(kvb_served_names_find(&names, kvb_span_of("chat"), &kind));
    assert_int_equal(kind, KVB_SERVED_NAME);
    assert_true(kvb_served_names_find(&names, kvb_span_of("chat-lora"), &kind));
    assert_int_equal(kind, KVB_SERVED_ADAPTER);
    assert_false(kvb_served_names_find(&names, kvb_span_of("cha"), &kind));
    assert_false(kvb_served_names_find(&names, kvb_span_of(""), &kind));
    assert_true(kvb_served_names_next(&names, &at, &one));
    assert_string_equal(one.name, "chat");
    assert_true(kvb_served_names_next(&names, &at, &one));
    assert_string_equal(one.name, "chat-lora");
    assert_int_equal(one.len, 9);
    assert_false(kvb_served_names_next(&names, &at, &one));
}

static void names_that_no_request_can_have_are_refused(void **state)
{
    (void)state;
    struct kvb_served_names names = { 0 };
    char longest[kvb_served_name_bytes + 2] = "";

    assert_int_equal(add(&names, KVB_SERVED_NAME, ""), KVB_BAD_INPUT);
    assert_int_equal(add(&names, KVB_SERVED_NAME, "a\nb"), KVB_BAD_INPUT);
    assert_int_equal(add(&names, KVB_SERVED_NAME, "\xff"), KVB_BAD_INPUT);
    assert_int_equal(
        kvb_served_names_add(&names, KVB_SERVED_NAME, (kvb_span){ (const uint8_t *)"a\0b", 3 }),
        KVB_BAD_INPUT);
    memset(longest, 'n', kvb_served_name_bytes + 1);
    assert_int_equal(add(&names, KVB_SERVED_NAME, longest), KVB_BAD_INPUT);
    longest[kvb_served_name_bytes] = '\0';
    assert_ok(add(&names, KVB_SERVED_NAME, longest));
    assert_int_equal(names.count, 1);
    assert_int_equal(names.left_out, 0);
}

static void names_without_room_are_counted(void **state)
{
    (void)state;
    struct kvb_served_names many = { .is_listed = true };
    struct kvb_served_names large = { .is_listed = true };
    char name[kvb_served_name_bytes + 1];

    for (int i = 0; i < kvb_max_served_names; i++) {
        (void)snprintf(name, sizeof name, "n%d", i);
        assert_ok(add(&many, KVB_SERVED_ADAPTER, name));
    }
    assert_true(kvb_served_names_are_all(&many));
    assert_int_equal(add(&many, KVB_SERVED_ADAPTER, "one more"), KVB_TOO_LARGE);
    assert_ok(add(&many, KVB_SERVED_ADAPTER, "n0")); /* it is there */
    assert_int_equal(many.left_out, 1);
    assert_false(kvb_served_names_are_all(&many));

    for (int i = 0; i < 8; i++) { /* 131 bytes each */
        (void)snprintf(name, sizeof name, "%0128d", i);
        assert_int_equal(add(&large, KVB_SERVED_NAME, name), i < 7 ? KVB_OK : KVB_TOO_LARGE);
    }
    assert_int_equal(large.count, 7);
    assert_int_equal(large.left_out, 1);
}

static void only_whole_lists_of_the_engine_are_all(void **state)
{
    (void)state;
    struct kvb_served_names of_events = { 0 };
    struct kvb_served_names listed = { .is_listed = true };

    assert_false(kvb_served_names_are_all(&of_events));
    assert_true(kvb_served_names_are_all(&listed)); /* it serves nothing else */
    assert_false(kvb_served_names_are_same(&of_events, &listed));
    assert_ok(add(&of_events, KVB_SERVED_ADAPTER, "a"));
    listed.is_listed = false;
    assert_false(kvb_served_names_are_same(&of_events, &listed));
    assert_ok(add(&listed, KVB_SERVED_NAME, "a"));
    assert_false(kvb_served_names_are_same(&of_events, &listed));
}

SUITE(served_names)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found_with_their_kind),
        cmocka_unit_test(names_that_no_request_can_have_are_refused),
        cmocka_unit_test(names_without_room_are_counted),
        cmocka_unit_test(only_whole_lists_of_the_engine_are_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
