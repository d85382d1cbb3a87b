#include "core/decimal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lowest byte is written first");

/* 10^8 and 10^16.  They split a 64-bit number into parts of at most 4, 8 and 8 digits. */
static const uint64_t part = 100000000;
static const uint64_t two_parts = 10000000000000000;

/* SWAR conversion of a value below 10^8 to 8 digits, one per byte, the leading digit in the
 * lowest byte.  Three rounds split all parts in half at once; each division is a multiplication
 * and a shift.
 *
 *     [     12345678     ]
 *     [  1234  |   5678  ]     / 10000
 *     [ 12 | 34 | 56 | 78 ]    / 100 = * 10486 >> 20
 *     [1|2 |3|4 |5|6 |7|8 ]    / 10  = * 103 >> 10 */
[[gnu::hot]] static uint64_t digits_of(uint32_t value)
{
    const uint64_t halves = value / 10000 | (uint64_t)(value % 10000) << 32;
    const uint64_t hundreds = (halves * 10486) >> 20 & 0x0000007f0000007f;
    const uint64_t pairs = hundreds | (halves - 100 * hundreds) << 16;
    const uint64_t tens = (pairs * 103) >> 10 & 0x000f000f000f000f;

    return tens | (pairs - 10 * tens) << 8;
}

static void write_eight_digits(char *out, uint64_t digits)
{
    const uint64_t text = digits + 0x3030303030303030;

    memcpy(out, &text, sizeof text);
}

/* Omits leading zeros; 0 is "0".  Always writes 8 bytes. */
static size_t write_leading_digits(char *out, uint64_t digits)
{
    const size_t zeros = digits ? (size_t)__builtin_ctzll(digits) / 8 : sizeof digits - 1;

    const uint64_t text = (digits + 0x3030303030303030) >> (8 * zeros);

    memcpy(out, &text, sizeof text);
    return sizeof digits - zeros;
}

[[gnu::hot]] size_t kvb_decimal_write(char out[kvb_decimal_bytes], uint64_t value)
{
    size_t len = 0;

    if (value < 10) { /* half of all numbers in an answer: ranks, counts of empty tiers */
        out[0] = (char)('0' + value);
        return 1;
    }
    if (value < part) {
        return write_leading_digits(out, digits_of((uint32_t)value));
    }
    /* The last eight digits are written whole, the part before them without leading zeros. */
    const uint64_t last = digits_of((uint32_t)(value % part));
    if (value < two_parts) {
        len = write_leading_digits(out, digits_of((uint32_t)(value / part)));
    } else {
        len = write_leading_digits(out, digits_of((uint32_t)(value / two_parts)));
        write_eight_digits(out + len, digits_of((uint32_t)(value / part % part)));
        len += sizeof last;
    }
    write_eight_digits(out + len, last);
    return len + sizeof last;
}

bool kvb_decimal_read(const char *text, uint64_t *out)
{
    errno = 0;
    const unsigned long long number = strtoull(text, NULL, 10);

    /* strtoull() accepts blanks and signs, which the span does not. */
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0' || errno != 0) {
        return false;
    }
    *out = number;
    return true;
}
