#include "wire/json/writer.h"

#include "core/utf8.h"

#include "core/decimal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvb_json_writer kvb_json_writer_of(struct kvb_buf *out)
{
    return (struct kvb_json_writer){ .out = out, .status = KVB_OK };
}

static void put_json_bytes(struct kvb_json_writer *json, const void *bytes, size_t len)
{
    if (json->status == KVB_OK) {
        json->status = kvb_buf_append(json->out, bytes, len);
    }
}

static void put_json_comma(struct kvb_json_writer *json)
{
    if (json->is_after_value) {
        put_json_bytes(json, ",", 1);
    }
    json->is_after_value = true;
}

void kvb_json_write_begin(struct kvb_json_writer *json, char bracket)
{
    put_json_comma(json);
    put_json_bytes(json, &bracket, 1);
    json->is_after_value = false;
}

void kvb_json_write_end(struct kvb_json_writer *json, char bracket)
{
    put_json_bytes(json, &bracket, 1);
    json->is_after_value = true;
}

static const char hex_digits[] = "0123456789abcdef";

/* With a thousand streams printf() would take a tenth of an idle bridge's time. */
void kvb_hex_write(char out[kvb_hex_digits], uint64_t value)
{
    for (size_t i = kvb_hex_digits; i-- > 0; value >>= 4U) {
        out[i] = hex_digits[value & 0xfU];
    }
}

static void put_json_escaped(struct kvb_json_writer *json, uint8_t c)
{
    static const char shorts[][2] = {
        { '"', '"' }, { '\\', '\\' }, { '\n', 'n' }, { '\r', 'r' }, { '\t', 't' }
    };
    char text[6] = { '\\', 'u', '0', '0', hex_digits[c >> 4U], hex_digits[c & 15U] };

    for (size_t i = 0; i < sizeof shorts / sizeof shorts[0]; i++) {
        if ((uint8_t)shorts[i][0] == c) {
            text[1] = shorts[i][1];
            put_json_bytes(json, text, 2);
            return;
        }
    }
    put_json_bytes(json, text, sizeof text);
}

static bool is_plain(uint8_t c)
{
    return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f;
}

/* The number of leading bytes that need no escape; usually all of them. */
static size_t plain_len(const uint8_t *at, size_t left)
{
    size_t len = 0;

    while (len < left && at[len] < 0x80 && is_plain(at[len])) {
        len++;
    }
    return len;
}

/* Writes one character that needs an escape; returns its length. */
static size_t put_odd(struct kvb_json_writer *json, const uint8_t *at, size_t left)
{
    const size_t len = kvb_utf8_len(at, left);

    /* No UTF-8: this byte is replaced, and the next one looked at anew. */
    if (len == 0) {
        put_json_bytes(json, "\xef\xbf\xbd", 3);
        return 1;
    }
    if (len == 1) {
        put_json_escaped(json, *at);
    } else {
        put_json_bytes(json, at, len);
    }
    return len;
}

/* Fast path for most keys and texts: they need no escapes, and the buffer has room.  One check
 * covers comma, quotes, text and colon.  false: nothing was written. */
static bool put_plain(struct kvb_json_writer *json, kvb_span text, bool is_key)
{
    enum { around = 4 }; /* comma, two quotes, colon */
    struct kvb_buf *out = json->out;

    if (json->status != KVB_OK || out->capacity - out->len < text.len + around ||
        plain_len(text.data, text.len) < text.len) {
        return false;
    }
    uint8_t *at = out->data + out->len;
    /* Written in any case, kept only if the length says so: no branch. */
    *at = ',';
    at += json->is_after_value;
    *at++ = '"';
    if (text.len > 0) { /* the data of an empty span may be NULL */
        memcpy(at, text.data, text.len);
    }
    at += text.len;
    *at++ = '"';
    *at = ':';
    at += is_key;
    out->len = (size_t)(at - out->data);
    json->is_after_value = !is_key;
    return true;
}

static void put_json_quoted(struct kvb_json_writer *json, kvb_span text)
{
    put_json_bytes(json, "\"", 1);
    for (size_t at = 0; at < text.len;) {
        const size_t len = plain_len(text.data + at, text.len - at);
        put_json_bytes(json, text.data + at, len);
        at += len;
        if (at < text.len) {
            at += put_odd(json, text.data + at, text.len - at);
        }
    }
    put_json_bytes(json, "\"", 1);
}

void kvb_json_write_span(struct kvb_json_writer *json, kvb_span text)
{
    if (!put_plain(json, text, false)) {
        put_json_comma(json);
        put_json_quoted(json, text);
    }
}

void kvb_json_write_text(struct kvb_json_writer *json, const char *text)
{
    kvb_json_write_span(json, kvb_span_of(text));
}

void kvb_json_write_key(struct kvb_json_writer *json, const char *key)
{
    const kvb_span text = kvb_span_of(key);

    if (!put_plain(json, text, true)) {
        put_json_comma(json);
        put_json_quoted(json, text);
        put_json_bytes(json, ":", 1);
        json->is_after_value = false;
    }
}

char *kvb_json_write_open(struct kvb_json_writer *json, size_t max_bytes)
{
    struct kvb_buf *out = json->out;

    if (json->status == KVB_OK && out->capacity - out->len < max_bytes + 1) {
        json->status = kvb_buf_reserve(out, max_bytes + 1);
    }
    if (json->status != KVB_OK) {
        return NULL;
    }
    /* One more byte than asked for, so that the comma always has a place. */
    out->data[out->len] = ',';
    out->len += json->is_after_value;
    return (char *)out->data + out->len;
}

void kvb_json_write_close(struct kvb_json_writer *json, const char *end)
{
    json->out->len = (size_t)(end - (const char *)json->out->data);
    json->is_after_value = true;
}

void kvb_json_write_key_u64(struct kvb_json_writer *json, uint64_t key)
{
    char *at = kvb_json_write_open(json, kvb_decimal_bytes + 3);

    if (at) {
        *at++ = '"';
        at += kvb_decimal_write(at, key);
        *at++ = '"';
        *at++ = ':';
        kvb_json_write_close(json, at);
        json->is_after_value = false;
    }
}

/* Fast path, as put_plain(): the buffer has room for comma and digits. */
static bool put_number(struct kvb_json_writer *json, uint64_t value)
{
    struct kvb_buf *out = json->out;

    if (json->status != KVB_OK || out->capacity - out->len < 1 + kvb_decimal_bytes) {
        return false;
    }
    out->data[out->len] = ',';
    out->len += json->is_after_value;
    out->len += kvb_decimal_write((char *)out->data + out->len, value);
    json->is_after_value = true;
    return true;
}

void kvb_json_write_u64(struct kvb_json_writer *json, uint64_t value)
{
    if (put_number(json, value)) {
        return;
    }
    put_json_comma(json);
    if (json->status == KVB_OK) {
        json->status = kvb_buf_append_u64(json->out, value);
    }
}

static void put_digits(struct kvb_json_writer *json, double value, int digits)
{
    if (!isfinite(value)) {
        kvb_json_write_null(json);
        return;
    }
    put_json_comma(json);
    if (json->status == KVB_OK) {
        json->status = kvb_buf_append_format(json->out, "%.*g", digits, value);
    }
}

/* Writes millionths as a number with up to 6 digits after the point, without zeros at its end. */
static void put_millionths(struct kvb_json_writer *json, uint64_t millionths)
{
    enum { places = 6, million = 1000000 };
    char *at = kvb_json_write_open(json, kvb_decimal_bytes + 1 + places);
    uint64_t rest = millionths % million;

    if (!at) {
        return;
    }
    at += kvb_decimal_write(at, millionths / million);
    *at = '.';
    for (int i = places; i > 0; i--) {
        at[i] = (char)('0' + rest % 10);
        rest /= 10;
    }
    /* Zeros at the end go, as printf leaves them out. */
    for (at += places; *at == '0'; at--) {
    }
    kvb_json_write_close(json, at + 1);
}

/* As printf writes %.9g, which takes 0.3 us.  Whole numbers below 10^9 and numbers of at most 9
 * digits, 6 of them after the point, have the same digits without it: these are exact to more than
 * 9 digits.  Below 0.0001 printf writes an exponent. */
void kvb_json_write_number(struct kvb_json_writer *json, double value)
{
    const double max_whole = 1e9; /* from here on %.9g writes an exponent */
    const double millionths = value * 1e6;

    if (value > 0 && value < max_whole && value == (double)(uint64_t)value) {
        kvb_json_write_u64(json, (uint64_t)value);
    } else if (
        value >= 1e-3 && millionths < max_whole && millionths == (double)(uint64_t)millionths) {
        put_millionths(json, (uint64_t)millionths);
    } else {
        put_digits(json, value, 9);
    }
}

void kvb_json_write_float(struct kvb_json_writer *json, float value)
{
    enum { max_digits = 9, longest_float = 32 };
    char text[longest_float] = "0.0";

    for (int digits = 1; isfinite(value) && digits <= max_digits; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        /* The fewest digits that read back as the same float. */
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    put_json_comma(json);
    put_json_bytes(json, text, strlen(text));
    if (!strpbrk(text, ".e")) {
        put_json_bytes(json, ".0", 2);
    }
}

void kvb_json_write_time(struct kvb_json_writer *json, double value)
{
    put_digits(json, value, 16);
}

void kvb_json_write_bool(struct kvb_json_writer *json, bool value)
{
    put_json_comma(json);
    put_json_bytes(json, value ? "true" : "false", value ? 4 : 5);
}

void kvb_json_write_null(struct kvb_json_writer *json)
{
    put_json_comma(json);
    put_json_bytes(json, "null", 4);
}

void kvb_json_write_pair_text(struct kvb_json_writer *json, const char *key, const char *text)
{
    kvb_json_write_key(json, key);
    kvb_json_write_text(json, text);
}

void kvb_json_write_pair_u64(struct kvb_json_writer *json, const char *key, uint64_t value)
{
    kvb_json_write_key(json, key);
    kvb_json_write_u64(json, value);
}

void kvb_json_write_pair_bool(struct kvb_json_writer *json, const char *key, bool value)
{
    kvb_json_write_key(json, key);
    kvb_json_write_bool(json, value);
}

void kvb_json_write_pair_number(struct kvb_json_writer *json, const char *key, double value)
{
    kvb_json_write_key(json, key);
    kvb_json_write_number(json, value);
}

void kvb_json_write_pair_begin(struct kvb_json_writer *json, const char *key, char bracket)
{
    kvb_json_write_key(json, key);
    kvb_json_write_begin(json, bracket);
}
