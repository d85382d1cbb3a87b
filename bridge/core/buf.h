#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A byte buffer that grows up to a ceiling and is reused between messages.
 *
 *     data [ written: len ][ spare ]        len <= capacity <= ceiling
 *
 * Threads: the caller locks.
 * Errors of every append: KVB_TOO_LARGE above the ceiling, KVB_NO_MEMORY.  A failed append changes
 * nothing. */
struct kvb_buf {
    uint8_t *data; /* owned */
    size_t len;
    size_t capacity;
    size_t ceiling;
};

/* Allocates nothing.  kvb_buf_done() frees the memory; it also accepts {0}. */
void kvb_buf_init(struct kvb_buf *buf, size_t ceiling_bytes);
void kvb_buf_done(struct kvb_buf *buf);

/* Empties the buffer and keeps its memory. */
void kvb_buf_reset(struct kvb_buf *buf);

/* Makes room for more_bytes at data + len.  The caller writes them there and adds to len. */
kvb_status kvb_buf_reserve(struct kvb_buf *buf, size_t more_bytes);

kvb_status kvb_buf_append(struct kvb_buf *buf, const void *bytes, size_t len);
kvb_status kvb_buf_append_text(struct kvb_buf *buf, const char *text);

/* Appends the number in decimal. */
kvb_status kvb_buf_append_u64(struct kvb_buf *buf, uint64_t value);

kvb_status kvb_buf_append_format(struct kvb_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns what was written.  Borrowed until the next change. */
kvb_span kvb_buf_span(const struct kvb_buf *buf);
