#include "core/own.h"
#include "daemon/bearer_token.h"

#include "kvb_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char token[kvb_bearer_token_bytes] = "0123456789abcdef";

static void a_request_needs_the_whole_token_and_its_scheme(void **state)
{
    (void)state;
    static const char *const shown[] = { "Bearer 0123456789abcdef", "bearer 0123456789abcdef" };
    static const char *const wrong[] = {
        "",
        "Bearer",
        "Bearer ",
        "0123456789abcdef",
        "Basic 0123456789abcdef",
        "Bearer  0123456789abcdef",
        "Bearer 0123456789abcdeF",
        "Bearer 1123456789abcdef",
        "Bearer 0123456789abcde",
        "Bearer 0123456789abcdef0",
    };

    for (size_t i = 0; i < KVB_COUNT_OF(shown); i++) {
        assert_true(kvb_bearer_token_is_shown(shown[i], token));
    }
    for (size_t i = 0; i < KVB_COUNT_OF(wrong); i++) {
        assert_false(kvb_bearer_token_is_shown(wrong[i], token));
    }
}

static void an_empty_token_is_never_accepted(void **state)
{
    static const char empty[kvb_bearer_token_bytes] = "";

    (void)state;
    assert_false(kvb_bearer_token_is_shown("Bearer ", empty));
}

static void a_longer_token_than_any_is_refused(void **state)
{
    char text[sizeof "Bearer " + kvb_bearer_token_bytes];
    char longest[kvb_bearer_token_bytes];

    (void)state;
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    (void)snprintf(text, sizeof text, "Bearer %s", longest);
    assert_true(kvb_bearer_token_is_shown(text, longest));
    (void)snprintf(text, sizeof text, "Bearer %sx", longest);
    assert_false(kvb_bearer_token_is_shown(text, longest));
}

/* The token that a file of `len` bytes gives; "" when the file is refused with a sentence that
 * names it. */
static const char *read_token(const char *text, size_t len)
{
    static char out[kvb_bearer_token_bytes];
    struct kvb_detail detail = { .text = "" };
    char path[] = "/tmp/kvb-token-XXXXXX";
    const int fd = mkstemp(path);

    out[0] = '\0';
    assert_int_equal(write(fd, text, len), len);
    assert_int_equal(close(fd), 0);
    if (kvb_bearer_token_read(path, out, &detail) != KVB_OK) {
        assert_non_null(strstr(detail.text, path));
        assert_int_equal(out[0], '\0');
    }
    assert_int_equal(unlink(path), 0);
    return out;
}

static void a_token_is_the_first_line_of_its_file(void **state)
{
    static const char *const texts[] = { "0123456789abcdef", "0123456789abcdef\n",
                                         "0123456789abcdef\r\nmore" };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        assert_string_equal(read_token(texts[i], strlen(texts[i])), token);
    }
}

static void a_text_that_is_no_token_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t len;
    } files[] = {
#define FILE_OF(text) { (text), sizeof(text) - 1 }
        FILE_OF(""),
        FILE_OF("\n"),
        FILE_OF("0123456789abcde"),
        FILE_OF("\n0123456789abcdef"),
        FILE_OF("0123456789 abcdef"),
        FILE_OF("0123456789abcdef\t"),
        FILE_OF("\xef\xbb\xbf"
                "0123456789abcdef"),
        FILE_OF("0123456789abcdef\0"),
        FILE_OF("0123456789abcdef\0more\n"),
#undef FILE_OF
    };

    (void)state;
    for (size_t i = 0; i < KVB_COUNT_OF(files); i++) {
        assert_string_equal(read_token(files[i].text, files[i].len), "");
    }
}

SUITE(bearer_token)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_needs_the_whole_token_and_its_scheme),
        cmocka_unit_test(an_empty_token_is_never_accepted),
        cmocka_unit_test(a_longer_token_than_any_is_refused),
        cmocka_unit_test(a_token_is_the_first_line_of_its_file),
        cmocka_unit_test(a_text_that_is_no_token_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
