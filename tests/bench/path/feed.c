#include "feed.h"

#include "core/hash.h"
#include "fleet/dialects/encode.h"
#include "fleet/engine/event_writer.h"

#include <stdlib.h>

enum {
    block_tokens = 16,
    prompt_blocks = 64,
    max_blocks = 64, /* of a batch */
    vocabulary = 128000,
    feed_bytes_max = 64 << 20,
};

static const double clock_s = 1.7e9;

static uint64_t draw(uint64_t *rng)
{
    (*rng)++;
    return kvb_hash64((kvb_span){ (const uint8_t *)rng, sizeof *rng }, 0);
}

static uint32_t draw_token(uint64_t *rng)
{
    const double unit = (double)(draw(rng) >> 11) / (double)(UINT64_C(1) << 53);

    return (uint32_t)(unit * unit * vocabulary);
}

static void must(kvb_status status)
{
    if (status != KVB_OK) {
        abort();
    }
}

/* The engine's name of block number `block` since the beginning. */
static uint64_t name_of(size_t block)
{
    const uint64_t number = block;

    return kvb_hash64((kvb_span){ (const uint8_t *)&number, sizeof number }, 1);
}

static void make_stored(struct kvb_event_batch *batch, size_t first, size_t blocks, uint64_t *rng)
{
    kvb_engine_hash hashes[max_blocks];
    uint32_t tokens[max_blocks * block_tokens];
    const kvb_engine_hash parent = { first > 0 ? name_of(first - 1) : 0 };
    const struct kvb_stored_run run = { .parent = first % prompt_blocks != 0 ? &parent : NULL,
                                        .hashes = hashes,
                                        .tokens = tokens,
                                        .count = (uint32_t)blocks,
                                        .block_size = block_tokens };

    if (blocks > max_blocks) {
        abort();
    }
    for (size_t i = 0; i < blocks; i++) {
        hashes[i].value = name_of(first + i);
    }
    for (size_t i = 0; i < blocks * block_tokens; i++) {
        tokens[i] = draw_token(rng);
    }
    must(kvb_event_writer_stored(batch, &run));
}

void bench_feed_make(struct bench_feed *feed, size_t batch_blocks)
{
    struct kvb_event_batch batch = { .timestamp_s = clock_s };
    uint64_t rng = 0;

    kvb_buf_init(&feed->bytes, feed_bytes_max);
    feed->batch_blocks = batch_blocks;
    for (size_t i = 0; i < bench_feed_batches; i++) {
        feed->starts[i] = feed->bytes.len;
        kvb_event_batch_reset(&batch);
        batch.timestamp_s = clock_s + (double)i / 1e3;
        if (i + 1 < bench_feed_batches) {
            make_stored(&batch, i * batch_blocks, batch_blocks, &rng);
        } else {
            must(kvb_event_writer_cleared(&batch));
        }
        must(kvb_engine_batch_encode(&batch, KVB_DIALECT_SGLANG_MID, &feed->bytes));
    }
    feed->starts[bench_feed_batches] = feed->bytes.len;
    kvb_event_batch_done(&batch);
}

void bench_feed_done(struct bench_feed *feed)
{
    kvb_buf_done(&feed->bytes);
}

kvb_span bench_feed_payload(const struct bench_feed *feed, size_t batch)
{
    return (kvb_span){ .data = feed->bytes.data + feed->starts[batch],
                       .len = feed->starts[batch + 1] - feed->starts[batch] };
}
