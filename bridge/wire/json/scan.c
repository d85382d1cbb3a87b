#include "wire/json/scan.h"

#include <assert.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first digit is the lowest byte");

enum { unknown_depth = 16, max_fields = 32 };

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex_digit(uint8_t c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static void skip_space(struct kvb_json_scan *scan)
{
    while (scan->at < scan->end && is_space(*scan->at)) {
        scan->at++;
    }
}

/* The next byte; at the end 0, with which no JSON token begins. */
static uint8_t peek(const struct kvb_json_scan *scan)
{
    return scan->at < scan->end ? *scan->at : 0;
}

struct kvb_json_scan kvb_json_scan_of(kvb_span text)
{
    static const uint8_t nothing[1]; /* an empty span may have NULL data: NULL + 0 is undefined */
    const uint8_t *at = text.len > 0 ? text.data : nothing;

    return (struct kvb_json_scan){ .at = at, .end = at + text.len };
}

bool kvb_json_take(struct kvb_json_scan *scan, char c)
{
    skip_space(scan);
    if (peek(scan) != (uint8_t)c) {
        return false;
    }
    scan->at++;
    return true;
}

bool kvb_json_take_word(struct kvb_json_scan *scan, const char *word)
{
    const size_t len = strlen(word);

    skip_space(scan);
    if ((size_t)(scan->end - scan->at) < len || memcmp(scan->at, word, len) != 0) {
        return false;
    }
    scan->at += len;
    return true;
}

kvb_status kvb_json_expect(struct kvb_json_scan *scan, char c)
{
    return kvb_json_take(scan, c) ? KVB_OK : KVB_BAD_INPUT;
}

/* SWAR (SIMD within a register): the number of leading digits among 8 bytes, of which the first is
 * the lowest.  The carry of a byte of 0xfa or more affects only the bytes after it. */
static unsigned count_digits(uint64_t text)
{
    const uint64_t high = 0xf0f0f0f0f0f0f0f0;
    const uint64_t zeros = 0x3030303030303030;
    const uint64_t odd = ((text & high) ^ zeros) | (((text + 0x0606060606060606) & high) ^ zeros);

    return odd ? (unsigned)__builtin_ctzll(odd) / 8 : 8;
}

/* SWAR: the value of the first 1 .. 8 digits of the text.  Three rounds combine neighbours:
 *
 *     [1|2 |3|4 |5|6 |7|8 ]    10 * the first + the second
 *     [ 12 | 34 | 56 | 78 ]    100 *
 *     [  1234  |   5678  ]     10000 *
 *     [     12345678     ] */
static uint64_t value_of_digits(uint64_t text, unsigned count)
{
    const uint64_t digits = (text << (8 * (8 - count))) & 0x0f0f0f0f0f0f0f0f;
    const uint64_t pairs = (digits * (1 + (10U << 8U)) >> 8U) & 0x00ff00ff00ff00ff;
    const uint64_t fours = (pairs * (1 + (100U << 16U)) >> 16U) & 0x0000ffff0000ffff;

    return fours * (1 + (UINT64_C(10000) << 32U)) >> 32U;
}

/* Reads digits 8 bytes at a time, 16 at most, which fit 64 bits. */
static uint64_t read_first_digits(struct kvb_json_scan *scan)
{
    static const uint32_t powers[] = {
        1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000
    };
    uint64_t value = 0;
    unsigned count = 8;

    for (int i = 0; i < 2 && count == 8 && scan->end - scan->at >= 8; i++) {
        uint64_t text = 0;
        memcpy(&text, scan->at, sizeof text);
        count = count_digits(text);
        if (count > 0) {
            value = (value * powers[count]) + value_of_digits(text, count);
            scan->at += count;
        }
    }
    return value;
}

/* Reads at least one digit; *out_wide: the value is above 2^64-1. */
static kvb_status
read_decimal_digits(struct kvb_json_scan *scan, uint64_t *out_value, bool *out_wide)
{
    const uint8_t *first = scan->at;
    uint64_t value = read_first_digits(scan);
    bool wide = false;

    /* The 17th digit on, and the last bytes of a text, one by one. */
    while (is_digit(peek(scan))) {
        wide |= __builtin_mul_overflow(value, 10, &value);
        wide |= __builtin_add_overflow(value, (uint64_t)(*scan->at - '0'), &value);
        scan->at++;
    }
    /* JSON has no leading zeros: "01" is two tokens, so no number. */
    if (scan->at == first || (*first == '0' && scan->at - first > 1)) {
        return KVB_BAD_INPUT;
    }
    *out_value = value;
    *out_wide = wide;
    return KVB_OK;
}

kvb_status kvb_json_u64(struct kvb_json_scan *scan, uint64_t *out_value)
{
    uint64_t value = 0;
    bool is_wide = false;

    skip_space(scan);
    KVB_TRY(read_decimal_digits(scan, &value, &is_wide));
    const uint8_t next = peek(scan);
    /* 1.0 and 1e3 are whole numbers to people, but another type to typed readers. */
    if (is_wide || next == '.' || next == 'e' || next == 'E') {
        return KVB_BAD_INPUT;
    }
    *out_value = value;
    return KVB_OK;
}

kvb_status kvb_json_u32(struct kvb_json_scan *scan, uint32_t *out_value)
{
    uint64_t value = 0;

    KVB_TRY(kvb_json_u64(scan, &value));
    if (value > UINT32_MAX) {
        return KVB_BAD_INPUT;
    }
    *out_value = (uint32_t)value;
    return KVB_OK;
}

/* ---- Runs of numbers ----
 *
 * Where a number begins is known only when the one before it was read, and that chain of loads is
 * what reading a list costs.  So the ends of all numbers in 64 bytes are found first, as the bits
 * of a mask; then the numbers are read independently of each other:
 *
 *     text   1 7 , 2 0 4 8 ,   9 1 ,
 *     mask   . . 1 . . . . 1 1 . . 1       not a digit */

enum { run_bytes = 64, run_margin = 8 }; /* a number is read as 8 bytes */

/* SWAR: bit i is set when byte i is not a digit. */
static uint64_t mask_of_8(const uint8_t *at)
{
    const uint64_t low_bits = 0x7f7f7f7f7f7f7f7f;
    uint64_t text = 0;

    memcpy(&text, at, sizeof text);
    text ^= 0x3030303030303030; /* a digit is its value now: below 10 */
    const uint64_t odd = (((text & low_bits) + 0x7676767676767676) | text) & ~low_bits;
    return (odd >> 7U) * 0x0102040810204080 >> 56U; /* gathers the highest bits */
}

static uint64_t mask_of_others(const uint8_t *at)
{
    uint64_t mask = 0;

    for (unsigned i = 0; i < run_bytes; i += 8) {
        mask |= mask_of_8(at + i) << i;
    }
    return mask;
}

/* Reads the number before `comma`.  False: it is not in the form of a run. */
static bool read_run_number(const uint8_t *first, const uint8_t *comma, uint32_t *out)
{
    const size_t len = (size_t)(comma - first);
    uint64_t text = 0;

    if (*comma != ',' || len - 1 >= 8 || (*first == '0' && len > 1)) {
        return false;
    }
    memcpy(&text, first, sizeof text);
    *out = (uint32_t)value_of_digits(text, (unsigned)len);
    return true;
}

size_t kvb_json_u32_run(struct kvb_json_scan *scan, uint32_t *out, size_t max)
{
    size_t count = 0;

    skip_space(scan);
    const uint8_t *at = scan->at;
    for (const uint8_t *chunk = at; scan->end - chunk >= run_bytes + run_margin;
         chunk += run_bytes) {
        uint64_t mask = mask_of_others(chunk);
        mask &= at > chunk ? ~UINT64_C(0) << (at - chunk) : ~UINT64_C(0); /* a blank, read before */
        for (; mask != 0; mask &= mask - 1) {
            const uint8_t *comma = chunk + __builtin_ctzll(mask);
            if (count == max || !read_run_number(at, comma, &out[count])) {
                /* A number that is cut by the end of the text is left for the slow reader. */
                scan->at = at;
                return count;
            }
            count++;
            at = comma + 1;
            if (*at == ' ') { /* as Python writes lists */
                at++;
                mask &= mask - 1;
            }
        }
    }
    scan->at = at;
    return count;
}

/* The digits after a point or an exponent: leading zeros are allowed there. */
static kvb_status skip_digits(struct kvb_json_scan *scan)
{
    if (!is_digit(peek(scan))) {
        return KVB_BAD_INPUT;
    }
    while (is_digit(peek(scan))) {
        scan->at++;
    }
    return KVB_OK;
}

static kvb_status skip_exponent(struct kvb_json_scan *scan)
{
    scan->at++; /* 'e' */
    if (peek(scan) == '+' || peek(scan) == '-') {
        scan->at++;
    }
    return skip_digits(scan);
}

static kvb_status skip_number(struct kvb_json_scan *scan, struct kvb_json_budget *budget)
{
    const uint64_t lowest = (uint64_t)1 << 63; /* -2^63 is the lowest i64 */
    const bool is_negative = peek(scan) == '-';
    uint64_t value = 0;
    bool is_wide = false;
    bool is_integer = true;

    scan->at += is_negative;
    KVB_TRY(read_decimal_digits(scan, &value, &is_wide));
    if (peek(scan) == '.') {
        is_integer = false;
        scan->at++;
        KVB_TRY(skip_digits(scan));
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        is_integer = false;
        KVB_TRY(skip_exponent(scan));
    }
    /* json-c would replace it silently by the nearest 64-bit number. */
    budget->has_wide_integer |= is_integer && (is_wide || (is_negative && value > lowest));
    return KVB_OK;
}

/* Skips the rest of an escape after its backslash. */
static kvb_status skip_escape(struct kvb_json_scan *scan)
{
    const uint8_t c = peek(scan);

    if (c == 'u') {
        if (scan->end - scan->at < 5) {
            return KVB_BAD_INPUT;
        }
        for (int i = 1; i <= 4; i++) {
            if (!is_hex_digit(scan->at[i])) {
                return KVB_BAD_INPUT;
            }
        }
        scan->at += 5;
        return KVB_OK;
    }
    if (c == 0 || !strchr("\"\\/bfnrt", c)) {
        return KVB_BAD_INPUT;
    }
    scan->at++;
    return KVB_OK;
}

kvb_status kvb_json_string(struct kvb_json_scan *scan, kvb_span *out_raw)
{
    KVB_TRY(kvb_json_expect(scan, '"'));
    const uint8_t *first = scan->at;
    while (peek(scan) != '"') {
        const uint8_t c = peek(scan); /* also 0 at the end of the text */
        /* A control character, or the end: a string has neither. */
        if (c < 0x20) {
            return KVB_BAD_INPUT;
        }
        scan->at++;
        if (c == '\\') {
            KVB_TRY(skip_escape(scan));
        }
    }
    *out_raw = (kvb_span){ .data = first, .len = (size_t)(scan->at - first) };
    scan->at++;
    return KVB_OK;
}

/* Counts one down.  An exhausted budget is KVB_TOO_LARGE, not a syntax error. */
static kvb_status spend_scan_budget(size_t *left)
{
    if (*left == 0) {
        return KVB_TOO_LARGE;
    }
    (*left)--;
    return KVB_OK;
}

static kvb_status skip_member(struct kvb_json_scan *scan, struct kvb_json_budget *budget)
{
    kvb_span key = { 0 };

    KVB_TRY(kvb_json_string(scan, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    return kvb_json_skip(scan, budget);
}

/* Skips the rest of a container after its opening bracket.  The recursion is bounded: each level
 * takes one from budget->depth, which the caller sets. */
static kvb_status skip_container(
    struct kvb_json_scan *scan, struct kvb_json_budget *budget, char close,
    kvb_status (*skip_item)(struct kvb_json_scan *, struct kvb_json_budget *))
{
    if (budget->depth == 0) {
        return KVB_TOO_LARGE;
    }
    KVB_TRY(spend_scan_budget(&budget->containers));
    if (kvb_json_take(scan, close)) {
        return KVB_OK;
    }
    /* The empty container above is no level. */
    budget->depth--;
    do {
        KVB_TRY(skip_item(scan, budget));
    } while (kvb_json_take(scan, ','));
    budget->depth++;
    return kvb_json_expect(scan, close);
}

static kvb_status skip_scalar(struct kvb_json_scan *scan, struct kvb_json_budget *budget)
{
    kvb_span text = { 0 };
    const uint8_t first = peek(scan);

    KVB_TRY(spend_scan_budget(&budget->values));
    if (first == '"') {
        return kvb_json_string(scan, &text);
    }
    if (first == '-' || is_digit(first)) {
        return skip_number(scan, budget);
    }
    const bool is_word = kvb_json_take_word(scan, "null") || kvb_json_take_word(scan, "true") ||
                         kvb_json_take_word(scan, "false");
    return is_word ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_json_skip(struct kvb_json_scan *scan, struct kvb_json_budget *budget)
{
    if (kvb_json_take(scan, '{')) {
        return skip_container(scan, budget, '}', skip_member);
    }
    if (kvb_json_take(scan, '[')) {
        return skip_container(scan, budget, ']', kvb_json_skip);
    }
    return skip_scalar(scan, budget);
}

kvb_status
kvb_json_value(struct kvb_json_scan *scan, struct kvb_json_budget *budget, kvb_span *out_value)
{
    skip_space(scan);
    const uint8_t *first = scan->at;
    KVB_TRY(kvb_json_skip(scan, budget));
    *out_value = (kvb_span){ first, (size_t)(scan->at - first) };
    return KVB_OK;
}

kvb_status kvb_json_finish(struct kvb_json_scan *scan)
{
    skip_space(scan);
    return scan->at == scan->end ? KVB_OK : KVB_BAD_INPUT;
}

kvb_status kvb_json_guard(kvb_span text, struct kvb_json_budget *budget)
{
    struct kvb_json_scan scan = kvb_json_scan_of(text);

    KVB_TRY(kvb_json_skip(&scan, budget));
    return kvb_json_finish(&scan);
}

/* Returns count if no field has that name.  Compares without kvb_span_is(), which also handles
 * empty names, because this runs for each key of a router event. */
static size_t find_field(const struct kvb_json_field *fields, size_t count, kvb_span name)
{
    size_t i = 0;

    while (i < count && (strlen(fields[i].name) != name.len ||
                         memcmp(fields[i].name, name.data, name.len) != 0)) {
        i++;
    }
    return i;
}

static kvb_status read_object_member(
    struct kvb_json_scan *scan, const struct kvb_json_field *fields, size_t count, void *context,
    uint32_t *seen)
{
    kvb_span name = { 0 };

    KVB_TRY(kvb_json_string(scan, &name));
    KVB_TRY(kvb_json_expect(scan, ':'));
    const size_t at = find_field(fields, count, name);
    if (at == count) {
        /* Skipping allocates nothing, so only the depth is limited: it uses the stack. */
        struct kvb_json_budget budget = kvb_json_depth(unknown_depth);
        return kvb_json_skip(scan, &budget);
    }
    const uint32_t bit = (uint32_t)1 << at;
    /* A field twice: readers differ on which counts, so neither does. */
    if (*seen & bit) {
        return KVB_BAD_INPUT;
    }
    *seen |= bit;
    return fields[at].read(scan, context);
}

kvb_status kvb_json_object(
    struct kvb_json_scan *scan, const struct kvb_json_field *fields, size_t count, void *context)
{
    uint32_t seen = 0;

    assert(count <= max_fields);
    KVB_TRY(kvb_json_expect(scan, '{'));
    if (!kvb_json_take(scan, '}')) {
        do {
            KVB_TRY(read_object_member(scan, fields, count, context, &seen));
        } while (kvb_json_take(scan, ','));
        KVB_TRY(kvb_json_expect(scan, '}'));
    }
    /* Required fields may stand anywhere, so they are checked at the end. */
    for (size_t i = 0; i < count; i++) {
        if (fields[i].is_required && !(seen & ((uint32_t)1 << i))) {
            return KVB_BAD_INPUT;
        }
    }
    return KVB_OK;
}

kvb_status kvb_json_array(
    struct kvb_json_scan *scan, kvb_status (*read)(struct kvb_json_scan *scan, void *context),
    void *context)
{
    KVB_TRY(kvb_json_expect(scan, '['));
    if (kvb_json_take(scan, ']')) {
        return KVB_OK;
    }
    do {
        KVB_TRY(read(scan, context));
    } while (kvb_json_take(scan, ','));
    return kvb_json_expect(scan, ']');
}

kvb_status kvb_json_one_of(
    struct kvb_json_scan *scan, const struct kvb_json_field *kinds, size_t count, void *context)
{
    kvb_span key = { 0 };

    KVB_TRY(kvb_json_expect(scan, '{'));
    KVB_TRY(kvb_json_string(scan, &key));
    KVB_TRY(kvb_json_expect(scan, ':'));
    for (size_t i = 0; i < count; i++) {
        if (kvb_span_is(key, kinds[i].name)) {
            KVB_TRY(kinds[i].read(scan, context));
            return kvb_json_expect(scan, '}');
        }
    }
    return KVB_BAD_INPUT;
}
