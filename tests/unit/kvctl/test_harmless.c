#include "kvb_test.h"

#include "kvctl/kvctl.h"

#include <stdlib.h>
#include <string.h>

/* What kvctl_put() prints of a text. */
static void assert_shown(const char *text, const char *expected)
{
    char *shown = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&shown, &len);

    assert_non_null(out);
    kvctl_put(out, text, strlen(text));
    assert_int_equal(fclose(out), 0);
    assert_string_equal(shown, expected);
    free(shown);
}

static void what_controls_a_terminal_is_escaped(void **state)
{
    (void)state;
    assert_shown("", "");
    assert_shown("a\x1b[31m\x7f\r", "a\\u001b[31m\\u007f\\u000d");
    assert_shown(
        "\xc2\x9b"
        "2J",
        "\\u009b2J"); /* CSI in one character */
    assert_shown(
        /* NOLINTNEXTLINE(misc-misleading-bidirectional): this is what the test is about */
        "a\xe2\x80\xae"
        "b\xe2\x81\xa6",
        "a\\u202eb\\u2066");
    assert_shown("\xd8\x9c\xe2\x80\xa8", "\\u061c\\u2028");
    assert_shown(
        "\x9b"
        "2J",
        "\\u009b2J");                           /* not UTF-8: C1 for a terminal in Latin-1 */
    assert_shown("\xe2\x80", "\\u00e2\\u0080"); /* a character that is cut */
}

static void other_text_stays(void **state)
{
    (void)state;
    assert_shown("{\"a\":\"b\"}\n\tc\n", "{\"a\":\"b\"}\n\tc\n");
    assert_shown(
        "Zürich ©   東京 \xf0\x9f\x98\x80 ‑ ⁠",
        "Zürich ©   東京 \xf0\x9f\x98\x80 ‑ ⁠");
}

static void a_text_of_another_size_is_printed_whole(void **state)
{
    (void)state;
    char *shown = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&shown, &len);

    assert_non_null(out);
    kvctl_print(out, "%5000s|\x1b", "a");
    assert_int_equal(fclose(out), 0);
    assert_int_equal(len, 5007);
    assert_string_equal(shown + 4999, "a|\\u001b");
    free(shown);
}

SUITE(harmless)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_controls_a_terminal_is_escaped),
        cmocka_unit_test(other_text_stays),
        cmocka_unit_test(a_text_of_another_size_is_printed_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
