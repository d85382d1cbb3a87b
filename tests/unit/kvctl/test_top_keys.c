#include "core/own.h"
#include "kvctl/top/columns.h"
#include "kvctl/top/keys.h"

#include "kvb_test.h"

#include <curses.h>
#include <string.h>

static void type(struct kvctl_top_view *view, const char *keys)
{
    for (; *keys; keys++) {
        kvctl_top_press(view, *keys);
    }
}

static void every_key_code_is_survived(void **state)
{
    struct kvctl_top_view view = { .page = 5 };
    uint32_t random = 1;

    (void)state;
    for (unsigned i = 0; i < 200000; i++) {
        random = random * 1664525 + 1013904223;
        kvctl_top_press(&view, (int)((random >> 16) % (i % 2 ? 128 : KEY_MAX)));
        assert_non_null(memchr(view.typed, '\0', sizeof view.typed));
    }
}

static void a_column_s_letter_sorts_by_it_and_again_the_other_way(void **state)
{
    struct kvctl_top_view view = { .sort = 0 };
    size_t count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&count);

    (void)state;
    for (size_t i = 1; i < count; i++) {
        kvctl_top_press(&view, columns[i].key);
        assert_int_equal(view.sort, i);
        assert_false(view.is_reversed);
        kvctl_top_press(&view, columns[i].key);
        assert_int_equal(view.sort, i);
        assert_true(view.is_reversed);
    }
}

static void arrows_cycle_through_the_columns_and_r_reverses(void **state)
{
    struct kvctl_top_view view = { .sort = 0 };
    size_t count = 0;

    (void)state;
    (void)kvctl_top_columns(&count);
    kvctl_top_press(&view, KEY_LEFT);
    assert_int_equal(view.sort, count - 1);
    kvctl_top_press(&view, '>');
    assert_int_equal(view.sort, 0);
    kvctl_top_press(&view, 'r');
    assert_true(view.is_reversed);
}

static void the_filter_is_typed_applied_and_dropped(void **state)
{
    struct kvctl_top_view view = { .first = 7 };

    (void)state;
    type(&view, "/qpart\x7f");
    assert_true(view.is_typing && !view.is_done); /* while the filter is typed, q is a letter */
    assert_string_equal(view.typed, "qpar");
    assert_int_equal(view.first, 0);
    kvctl_top_press(&view, '\r');
    assert_string_equal(view.filter, "qpar");
    type(&view, "/x");
    kvctl_top_press(&view, '\033');
    assert_string_equal(view.filter, "qpar");
    kvctl_top_press(&view, '\033');
    assert_string_equal(view.filter, "");
}

static void a_long_filter_is_truncated(void **state)
{
    struct kvctl_top_view view = { .is_typing = true };

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        kvctl_top_press(&view, 'x');
    }
    assert_int_equal(strlen(view.typed), sizeof view.typed - 1);
}

static void q_quits_h_helps_and_p_pauses(void **state)
{
    struct kvctl_top_view view = { .is_done = false };

    (void)state;
    type(&view, "h");
    assert_true(view.is_help);
    type(&view, "h ");
    assert_true(!view.is_help && view.is_paused);
    type(&view, "pq");
    assert_true(!view.is_paused && view.is_done);
}

static void all_keys_are_different(void **state)
{
    struct kvctl_top_view before = { .sort = 3, .first = 3, .page = 2, .is_help = true };
    size_t count = 0;
    const struct kvctl_top_column *columns = kvctl_top_columns(&count);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        struct kvctl_top_view view = before;
        kvctl_top_press(&view, columns[i].key); /* an unknown key changes nothing */
        assert_int_equal(view.sort, i);
        assert_true(view.is_help && view.first == 3 && !view.is_done);
        for (size_t k = 0; k < i; k++) {
            assert_int_not_equal(columns[i].key, columns[k].key);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_code_is_survived),
        cmocka_unit_test(a_column_s_letter_sorts_by_it_and_again_the_other_way),
        cmocka_unit_test(arrows_cycle_through_the_columns_and_r_reverses),
        cmocka_unit_test(the_filter_is_typed_applied_and_dropped),
        cmocka_unit_test(a_long_filter_is_truncated),
        cmocka_unit_test(q_quits_h_helps_and_p_pauses),
        cmocka_unit_test(all_keys_are_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
