#include "core/own.h"
#include "daemon/bearer_token.h"

#include "kvb_test.h"

#include <stdio.h>
#include <string.h>

static const char token[kvb_bearer_token_bytes] = "0123456789abcdef";

static void the_token_is_shown_whole_and_by_its_scheme(void **state)
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

static void an_empty_token_is_never_shown(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_token_is_shown_whole_and_by_its_scheme),
        cmocka_unit_test(an_empty_token_is_never_shown),
        cmocka_unit_test(a_longer_token_than_any_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
