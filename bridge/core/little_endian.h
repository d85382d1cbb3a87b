#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

/* Reads and writes little-endian numbers.  The addresses need no alignment.
 * Threads: any thread. */

static inline void kvb_le_put_u32(uint8_t *to, uint32_t value)
{
    const uint32_t bytes = htole32(value);
    memcpy(to, &bytes, sizeof bytes);
}

static inline void kvb_le_put_u64(uint8_t *to, uint64_t value)
{
    const uint64_t bytes = htole64(value);
    memcpy(to, &bytes, sizeof bytes);
}

static inline uint32_t kvb_le_get_u32(const uint8_t *from)
{
    uint32_t bytes = 0;
    memcpy(&bytes, from, sizeof bytes);
    return le32toh(bytes);
}

static inline uint64_t kvb_le_get_u64(const uint8_t *from)
{
    uint64_t bytes = 0;
    memcpy(&bytes, from, sizeof bytes);
    return le64toh(bytes);
}
