#include "json_pack.h"

#include "kvb_test.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void append(struct kvb_buf *out, const void *bytes, size_t len)
{
    assert_ok(kvb_buf_append(out, bytes, len));
}

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

static void pack_integer(const char **at, struct kvb_buf *out)
{
    const bool is_negative = **at == '-';
    char *end = NULL;
    const uint64_t bits = is_negative ? (uint64_t)strtoll(*at, &end, 10) : strtoull(*at, &end, 10);

    append_number(out, is_negative ? 0xd3 : 0xcf, bits, 8);
    *at = end;
}

static void pack_quoted(const char **at, struct kvb_buf *out)
{
    const char quote = *(*at)++;
    const char *end = strchr(*at, quote);

    assert_non_null(end);
    const size_t len = (size_t)(end - *at);
    append_number(out, quote == '"' ? 0xda : 0xc5, len, 2);
    append(out, *at, len);
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
    out->data[head + 1] = (uint8_t)(items / items_in_one >> 8);
    out->data[head + 2] = (uint8_t)(items / items_in_one);
}

static void pack_value(const char **at, struct kvb_buf *out)
{
    if (**at == '[') {
        pack_items(at, out, ']', 0xdc);
    } else if (**at == '{') {
        pack_items(at, out, '}', 0xde);
    } else if (**at == '"' || **at == '\'') {
        pack_quoted(at, out);
    } else if (**at == '-' || isdigit((unsigned char)**at)) {
        pack_integer(at, out);
    } else if (take_word(at, "null")) {
        append_number(out, 0xc0, 0, 0);
    } else if (take_word(at, "true")) {
        append_number(out, 0xc3, 0, 0);
    } else {
        assert_true(take_word(at, "false"));
        append_number(out, 0xc2, 0, 0);
    }
}

void pack_json(const char *json, struct kvb_buf *out)
{
    skip_blanks(&json);
    pack_value(&json, out);
    skip_blanks(&json);
    assert_int_equal(*json, '\0');
}
