#pragma once

#include "core/buf.h"
#include "core/status.h"
#include "fleet/dialects/dialect.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an engine publishes, encoded once and sent again and again:
 *
 *     [ Cleared ][ Stored ][ Stored ] ... [ Stored ]   and from the beginning
 *                 \___ until its pool is full ____/
 *
 * A block that is stored again changes nothing, and nothing is published; so the pool is
 * cleared first.  Then each batch makes exactly one event, and the n-th event
 * that arrives is of the n-th batch that was sent.
 *
 * Threads: none of its own; any number of readers.
 * Memory:  127 bytes a batch of one block, 640 of eight. */
struct script {
    struct kvb_buf bytes;
    size_t *ends; /* owned; of batch i in bytes */
    size_t count; /* batches */
    size_t block_count;
    size_t blocks_per_batch;
};

struct script_options {
    size_t blocks_per_batch;
    size_t pool_blocks; /* a multiple of it */
    uint64_t seed;      /* scripts of two seeds have no block in common */
    enum kvb_dialect dialect;
    bool has_rank;
    bool is_skewed; /* small tokens are frequent, as a tokenizer's are: a reader cannot predict how
                       many bytes the next one has */
};

/* Undone by script_done(), which also takes {0}.  KVB_NO_MEMORY, KVB_TOO_LARGE */
kvb_status script_make(const struct script_options *options, struct script *out_script);
void script_done(struct script *script);

/* at < count.  Borrowed until script_done(). */
kvb_span script_batch(const struct script *script, size_t at);
