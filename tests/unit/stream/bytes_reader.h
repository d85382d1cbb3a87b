#pragma once

#include "stream/checkpoint/checkpoint.h"

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

/* Makes a whole checkpoint at once.  Errors as kvb_checkpoint_save_step(). */
static inline kvb_status save_stream(struct kvb_stream *stream, struct kvb_buf *out)
{
    struct kvb_checkpoint_save save = { 0 };
    bool is_done = false;

    KVB_TRY(kvb_checkpoint_save_begin(&save, stream));
    kvb_status status = KVB_OK;
    while (status == KVB_OK && !is_done) {
        status = kvb_checkpoint_save_step(&save, kvb_checkpoint_step_items, out, &is_done);
    }
    kvb_checkpoint_save_end(&save);
    return status;
}
