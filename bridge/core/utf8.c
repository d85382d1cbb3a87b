#include "core/utf8.h"

#include <string.h>

/* Each row has a range of first bytes.  len - 1 bytes 80 .. bf follow, and the second byte must
 * also be in low .. high.  This refuses overlong forms, surrogates and numbers above U+10FFFF
 * (table 3-7 of the Unicode standard). */
size_t kvb_utf8_len(const uint8_t *at, size_t left)
{
    static const struct {
        uint8_t first, last, len, low, high;
    } rows[] = {
        { 0x00, 0x7f, 1, 0, 0 },       { 0xc2, 0xdf, 2, 0x80, 0xbf }, { 0xe0, 0xe0, 3, 0xa0, 0xbf },
        { 0xe1, 0xec, 3, 0x80, 0xbf }, { 0xed, 0xed, 3, 0x80, 0x9f }, { 0xee, 0xef, 3, 0x80, 0xbf },
        { 0xf0, 0xf0, 4, 0x90, 0xbf }, { 0xf1, 0xf3, 4, 0x80, 0xbf }, { 0xf4, 0xf4, 4, 0x80, 0x8f },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (*at < rows[i].first || *at > rows[i].last || rows[i].len > left) {
            continue;
        }
        bool is_good = rows[i].len == 1 || (at[1] >= rows[i].low && at[1] <= rows[i].high);
        for (size_t n = 2; n < rows[i].len; n++) {
            is_good = is_good && (at[n] & 0xc0U) == 0x80;
        }
        return is_good ? rows[i].len : 0;
    }
    return 0;
}

bool kvb_utf8_is_whole(kvb_span text)
{
    size_t len = 1;

    for (size_t at = 0; at < text.len; at += len) {
        uint64_t eight = 0x80;

        if (text.len - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
        }
        /* Most of a text is ASCII, where eight bytes are looked at together. */
        len =
            eight & 0x8080808080808080 ? kvb_utf8_len(text.data + at, text.len - at) : sizeof eight;
        if (len == 0) {
            return false;
        }
    }
    return true;
}

bool kvb_utf8_is_plain(const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t left = strlen(text);
    size_t len = 1;

    for (; left > 0 && len > 0; at += len, left -= len) {
        len = *at < ' ' || *at == 0x7f ? 0 : kvb_utf8_len(at, left);
    }
    return len > 0;
}
