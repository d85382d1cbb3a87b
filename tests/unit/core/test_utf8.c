#include "kvb_test.h"

#include "core/utf8.h"

#include <stdbool.h>
#include <string.h>

/* The length of the character that this byte begins; 0 when it begins none. */
static size_t promised_len(uint8_t first)
{
    if (first < 0x80) {
        return 1;
    }
    return first < 0xc0 || first > 0xf7 ? 0 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}

/* The definition of UTF-8, written out slowly: decode as many bits as the first byte promises, then
 * check that the code point is valid and needs that many bytes. */
static size_t plain_len(const uint8_t *at, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const size_t len = promised_len(at[0]);
    uint32_t point = len == 1 ? at[0] : at[0] & (0xffU >> (len + 1));

    if (len == 0 || len > left) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((at[i] & 0xc0U) != 0x80) {
            return 0;
        }
        point = point << 6U | (at[i] & 0x3fU);
    }
    const bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
    return point < least[len] || point > 0x10ffff || is_surrogate ? 0 : len;
}

static void every_three_bytes_are_read_as_the_definition_says(void **state)
{
    (void)state;
    static const uint8_t fourth[] = { 0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff };

    for (uint32_t bytes = 0; bytes < UINT32_C(1) << 24; bytes++) {
        const uint8_t last = fourth[bytes % sizeof fourth];
        const uint8_t text[] = { (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 8), (uint8_t)bytes,
                                 last };
        if (kvb_utf8_len(text, 4) != plain_len(text, 4)) {
            fail_msg("%02x %02x %02x %02x", text[0], text[1], text[2], text[3]);
        }
    }
}

/* Eight bytes of ASCII are looked at together: a bad byte is found wherever it stands among them.
 */
static void a_text_is_whole_when_each_of_its_characters_is(void **state)
{
    uint8_t text[24];

    (void)state;
    assert_true(kvb_utf8_is_whole((kvb_span){ 0 }));
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'a', sizeof text);
        assert_true(kvb_utf8_is_whole((kvb_span){ text, at }));
        text[at] = 0xc3;
        assert_false(kvb_utf8_is_whole((kvb_span){ text, sizeof text }));
        assert_true(kvb_utf8_is_whole((kvb_span){ text, at }));
        assert_false(kvb_utf8_is_whole((kvb_span){ text, at + 1 }));
        if (at + 1 < sizeof text) {
            text[at + 1] = 0xa9;
            assert_true(kvb_utf8_is_whole((kvb_span){ text, sizeof text }));
        }
    }
}

SUITE(utf8)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_three_bytes_are_read_as_the_definition_says),
        cmocka_unit_test(a_text_is_whole_when_each_of_its_characters_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
