#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Decodes runs of small non-negative integers of MessagePack, such as token ids.  Engines mix the
 * widths, so where an integer begins depends on all integers before it:
 *
 *     0x00 .. 0x7f              the number itself
 *     0xcc  0xcd  0xce          the number is in the next 1, 2, 4 bytes: 1 << (low two bits)
 *
 * Reads at most `count` integers from the `len` bytes at `bytes` into `out`.  Stops before another
 * kind of value, and up to 24 bytes before the end.  *out_len: how many bytes were read.  Returns
 * how many integers were read; the caller reads the rest one by one. */
typedef uint32_t kvb_small_integers(
    const uint8_t *bytes, size_t len, uint32_t count, uint32_t *out, size_t *out_len);

/* On any machine. */
kvb_small_integers kvb_small_integers_scalar;

/* The fastest one that this machine supports.  All read the same numbers, but may stop at different
 * distances from the end. */
kvb_small_integers *kvb_small_integers_best(void);

/* Loads 8 bytes, big-endian; the caller has checked that they exist. */
static inline uint64_t kvb_load_be64(const uint8_t *bytes)
{
    uint64_t value = 0;

    memcpy(&value, bytes, sizeof value);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap64(value) : value;
}
