#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reads the bytes of a checkpoint from memory, for the tests and the fuzz target. */
struct reader {
    const uint8_t *bytes;
    size_t len;
};

static inline kvb_status read_bytes(void *context, void *to, size_t bytes)
{
    struct reader *reader = context;

    if (reader->len < bytes) {
        return KVB_NOT_FOUND;
    }
    memcpy(to, reader->bytes, bytes);
    reader->bytes += bytes;
    reader->len -= bytes;
    return KVB_OK;
}
