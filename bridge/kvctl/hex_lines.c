#include "kvctl/hex_lines.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static kvb_span first_part(kvb_span text, char end)
{
    const uint8_t *at = text.len > 0 ? memchr(text.data, end, text.len) : NULL;

    return (kvb_span){ text.data, at ? (size_t)(at - text.data) : text.len };
}

/* Removes the text that was taken and the character that ended it. */
static void drop_taken_text(kvb_span *text, size_t len)
{
    const size_t gone = len < text->len ? len + 1 : len;

    *text = (kvb_span){ text->data + gone, text->len - gone };
}

static bool is_blank_line(kvb_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (!isspace(text.data[i])) {
            return false;
        }
    }
    return true;
}

static kvb_status read_length(kvb_span text, size_t *out_length)
{
    size_t length = 0;

    for (size_t i = 0; i < text.len; i++) {
        if (!isdigit(text.data[i]) || __builtin_mul_overflow(length, 10, &length) ||
            __builtin_add_overflow(length, (size_t)(text.data[i] - '0'), &length)) {
            return KVB_BAD_INPUT;
        }
    }
    *out_length = length;
    return text.len > 0 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_hex_digits(kvb_span text, struct kvb_buf *out)
{
    unsigned value = 1; /* a one before the digits of the byte */

    for (size_t i = 0; i < text.len; i++) {
        const int digit = tolower(text.data[i]);
        if (isspace(digit)) {
            continue;
        }
        if (!isxdigit(digit)) {
            return KVB_BAD_INPUT;
        }
        value = value << 4 | (unsigned)(isdigit(digit) ? digit - '0' : digit - 'a' + 10);
        if (value >= 0x100) {
            const uint8_t byte = (uint8_t)value;
            KVB_TRY(kvb_buf_append(out, &byte, 1));
            value = 1;
        }
    }
    return value == 1 ? KVB_OK : KVB_BAD_INPUT;
}

static kvb_status read_line(kvb_span line, struct kvb_hex_line *out_line, struct kvb_buf *out)
{
    const kvb_span first = first_part(line, '|');
    size_t length = 0;

    *out_line = (struct kvb_hex_line){ .name = { 0 } };
    if (first.len == line.len) {
        return read_hex_digits(line, out);
    }
    out_line->name = first;
    drop_taken_text(&line, first.len);
    const kvb_span second = first_part(line, '|');
    if (second.len == line.len) {
        return read_hex_digits(line, out);
    }
    drop_taken_text(&line, second.len);
    KVB_TRY(read_length(second, &length));
    KVB_TRY(read_hex_digits(line, out));
    return out->len == length ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_hex_line_take(kvb_span *text, struct kvb_hex_line *out_line, struct kvb_buf *out)
{
    kvb_buf_reset(out);
    while (text->len > 0) {
        const kvb_span line = first_part(*text, '\n');
        drop_taken_text(text, line.len);
        if (!is_blank_line(line)) {
            return read_line(line, out_line, out);
        }
    }
    return KVB_NOT_FOUND;
}
