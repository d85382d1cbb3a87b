#pragma once

#include <stdint.h>
#include <string.h>

/* Loads 8 bytes, big-endian; the caller has checked that they exist. */
static inline uint64_t kvb_load_be64(const uint8_t *bytes)
{
    uint64_t value = 0;

    memcpy(&value, bytes, sizeof value);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? __builtin_bswap64(value) : value;
}
