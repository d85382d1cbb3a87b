#pragma once

#include "core/buf.h"
#include "core/span.h"

#include <stddef.h>

/* What an engine publishes, as bytes, made before anything is timed: prompts of 64 blocks of
 * 16 tokens, block after block, and a Cleared at the end, so that the same batches can be
 * published again and again.
 *
 *     [ stored ][ stored ] ... [ stored ][ cleared ]
 *
 * Tokens are random, and small numbers are frequent, as a tokenizer's are: the processor cannot
 * predict how many bytes the next one has. */
enum { bench_feed_batches = 1 << 14 };

struct bench_feed {
    struct kvb_buf bytes;                  /* owned */
    size_t starts[bench_feed_batches + 1]; /* in bytes; the last: the end */
    size_t batch_blocks;                   /* of each stored batch */
};

/* Aborts when an allocation fails. */
void bench_feed_make(struct bench_feed *feed, size_t batch_blocks);
void bench_feed_done(struct bench_feed *feed);

kvb_span bench_feed_payload(const struct bench_feed *feed, size_t batch);
