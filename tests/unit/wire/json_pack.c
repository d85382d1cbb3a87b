#include "json_pack.h"

#include "kvb_test.h"

#include "vector_file.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void append(struct kvb_buf *out, const void *bytes, size_t len)
{
    assert_ok(kvb_buf_append(out, bytes, len));
}

/* Writes each value in its shortest form; else in the longest but one for texts and containers, and
 * in the longest for numbers. */
static bool is_short;

/* A type byte, and a number of this many bytes, big-endian. */
static void append_number(struct kvb_buf *out, uint8_t code, uint64_t number, unsigned bytes)
{
    append(out, &code, 1);
    for (unsigned i = bytes; i-- > 0;) {
        const uint8_t byte = (uint8_t)(number >> (8 * i));
        append(out, &byte, 1);
    }
}

static void skip_blanks(const char **at)
{
    *at += strspn(*at, " \n,:");
}

/* Of 1, 2, 4 and 8 bytes: code, code + 1, code + 2, code + 3. */
static void append_integer(struct kvb_buf *out, uint64_t bits, bool is_negative)
{
    const uint8_t code = is_negative ? 0xd0 : 0xcc;
    unsigned form = 0;

    if (is_short && (is_negative ? (int64_t)bits >= -32 : bits < 128)) {
        append_number(out, (uint8_t)bits, 0, 0);
        return;
    }
    for (; form < 3; form++) {
        const unsigned width = 8U << form;
        const bool fits =
            is_negative ? (int64_t)bits >= -(INT64_C(1) << (width - 1)) : bits >> width == 0;
        if (is_short && fits) {
            break;
        }
    }
    append_number(out, (uint8_t)(code + form), bits, 1U << form);
}

static void append_real(struct kvb_buf *out, double number)
{
    const float single = (float)number;
    uint64_t bits = 0;
    uint32_t few_bits = 0;

    memcpy(&bits, &number, sizeof bits);
    memcpy(&few_bits, &single, sizeof few_bits);
    if (is_short && !((double)single < number || (double)single > number)) {
        append_number(out, 0xca, few_bits, 4);
    } else {
        append_number(out, 0xcb, bits, 8);
    }
}

static void pack_number(const char **at, struct kvb_buf *out)
{
    const bool is_negative = **at == '-';
    char *end = NULL;
    const double number = strtod(*at, &end);

    if (memchr(*at, '.', (size_t)(end - *at)) || memchr(*at, 'n', (size_t)(end - *at))) {
        append_real(out, number);
    } else if (is_negative) {
        append_integer(out, (uint64_t)strtoll(*at, &end, 10), true);
    } else {
        append_integer(out, strtoull(*at, &end, 10), false);
    }
    *at = end;
}

static void append_text(struct kvb_buf *out, bool is_bytes, const void *text, size_t len)
{
    if (is_short && len < 32 && !is_bytes) {
        append_number(out, (uint8_t)(0xa0 | len), 0, 0);
    } else if (is_short && len < 256) {
        append_number(out, is_bytes ? 0xc4 : 0xd9, len, 1);
    } else {
        append_number(out, is_bytes ? 0xc5 : 0xda, len, 2);
    }
    append(out, text, len);
}

/* "text", 'bytes' as they are, x'0a0b' bytes in hex */
static void pack_quoted(const char **at, struct kvb_buf *out)
{
    const bool is_hex = **at == 'x';
    *at += is_hex;
    const char quote = *(*at)++;
    const char *end = strchr(*at, quote);
    size_t len = 0;

    assert_non_null(end);
    if (is_hex) {
        uint8_t *bytes = bytes_of_hex(*at, &len);
        append_text(out, true, bytes, len);
        free(bytes);
    } else {
        append_text(out, quote == '\'', *at, (size_t)(end - *at));
    }
    *at = end + 1;
}

static bool take_word(const char **at, const char *word)
{
    const bool is_there = strncmp(*at, word, strlen(word)) == 0;

    *at += is_there ? strlen(word) : 0;
    return is_there;
}

static void pack_value(const char **at, struct kvb_buf *out);

/* Inserts the count at its reserved place once it is known. */
static void pack_items(const char **at, struct kvb_buf *out, char close, uint8_t code)
{
    const size_t head = out->len;
    const size_t items_in_one = close == '}' ? 2 : 1;
    size_t items = 0;

    append_number(out, code, 0, 2);
    (*at)++;
    for (skip_blanks(at); **at != close; skip_blanks(at), items++) {
        pack_value(at, out);
    }
    (*at)++;
    const size_t count = items / items_in_one;
    if (is_short && count < 16) {
        out->data[head] = (uint8_t)((close == '}' ? 0x80 : 0x90) | count);
        memmove(out->data + head + 1, out->data + head + 3, out->len - head - 3);
        out->len -= 2;
        return;
    }
    out->data[head + 1] = (uint8_t)(count >> 8);
    out->data[head + 2] = (uint8_t)count;
}

static void pack_value(const char **at, struct kvb_buf *out)
{
    if (**at == '[') {
        pack_items(at, out, ']', 0xdc);
    } else if (**at == '{') {
        pack_items(at, out, '}', 0xde);
    } else if (**at == '"' || **at == '\'' || **at == 'x') {
        pack_quoted(at, out);
    } else if (**at == '-' || isdigit((unsigned char)**at) || strncmp(*at, "nan", 3) == 0) {
        pack_number(at, out);
    } else if (take_word(at, "null")) {
        append_number(out, 0xc0, 0, 0);
    } else if (take_word(at, "true")) {
        append_number(out, 0xc3, 0, 0);
    } else {
        assert_true(take_word(at, "false"));
        append_number(out, 0xc2, 0, 0);
    }
}

static void pack(const char *json, struct kvb_buf *out)
{
    skip_blanks(&json);
    pack_value(&json, out);
    skip_blanks(&json);
    assert_int_equal(*json, '\0');
}

void pack_json(const char *json, struct kvb_buf *out)
{
    is_short = false;
    pack(json, out);
}

void pack_json_short(const char *json, struct kvb_buf *out)
{
    is_short = true;
    pack(json, out);
}
