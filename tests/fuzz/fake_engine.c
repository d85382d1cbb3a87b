#include "fake_engine.h"

#include "core/buf.h"
#include "fleet/dialects/encode.h"
#include "fleet/engine/event_writer.h"
#include "index/block_hash.h"
#include "target.h"

#include <stdlib.h>
#include <string.h>

void fake_engine_done(struct fake_engine *engine)
{
    for (size_t i = 0; i < engine->count; i++) {
        free(engine->messages[i].bytes);
    }
    engine->count = 0;
}

void fake_engine_restart(struct fake_engine *engine)
{
    fake_engine_done(engine);
    memset(engine->held, 0, sizeof engine->held);
    engine->incarnation++;
}

void fake_block_fill(unsigned block, uint32_t out_tokens[fake_block_tokens])
{
    for (uint32_t i = 0; i < fake_block_tokens; i++) {
        out_tokens[i] = 1000 * (block + 1) + i;
    }
}

kvb_tokens_hash fake_block_tokens_hash(unsigned block)
{
    uint32_t tokens[fake_block_tokens];

    fake_block_fill(block, tokens);
    return kvb_tokens_hash_of(
        tokens, fake_block_tokens, NULL, 0, kvb_block_seed((kvb_span){ 0 }, (kvb_span){ 0 }));
}

kvb_block_hash fake_block_name(unsigned block)
{
    return block == 0 ? kvb_block_hash_root(fake_block_tokens_hash(0))
                      : kvb_block_hash_next(
                            fake_block_name((block - 1) / 2), fake_block_tokens_hash(block));
}

/* ---- Messages ---- */

static kvb_engine_hash engine_hash(const struct fake_engine *engine, unsigned block)
{
    return (kvb_engine_hash){ engine->incarnation << 32 | (block + 1) };
}

static const struct fake_message *
add_message(struct fake_engine *engine, struct kvb_event_batch *batch)
{
    struct kvb_buf bytes = { 0 };
    struct fake_message *message = &engine->messages[engine->count];

    kvb_buf_init(&bytes, 1 << 16);
    batch->timestamp_s = 1.5;
    check(kvb_engine_batch_encode(batch, engine->dialect, &bytes) == KVB_OK);
    *message = (struct fake_message){ engine->count, malloc(bytes.len), bytes.len };
    check(message->bytes != NULL);
    memcpy(message->bytes, bytes.data, bytes.len);
    engine->count++;
    kvb_buf_done(&bytes);
    kvb_event_batch_done(batch);
    return message;
}

static const struct fake_message *store(struct fake_engine *engine, unsigned block)
{
    struct kvb_event_batch batch = { 0 };
    uint32_t tokens[fake_block_tokens];
    const kvb_engine_hash hash = engine_hash(engine, block);
    const kvb_engine_hash parent = engine_hash(engine, block > 0 ? (block - 1) / 2 : 0);
    const struct kvb_stored_run run = { .parent = block > 0 ? &parent : NULL,
                                        .hashes = &hash,
                                        .tokens = tokens,
                                        .count = 1,
                                        .block_size = fake_block_tokens };

    fake_block_fill(block, tokens);
    check(kvb_event_writer_stored(&batch, &run) == KVB_OK);
    engine->held[block] = true;
    return add_message(engine, &batch);
}

static const struct fake_message *evict(struct fake_engine *engine, unsigned block)
{
    struct kvb_event_batch batch = { 0 };

    check(kvb_event_writer_removed(&batch, engine_hash(engine, block)) == KVB_OK);
    engine->held[block] = false;
    return add_message(engine, &batch);
}

static bool has_child(const struct fake_engine *engine, unsigned block)
{
    const unsigned left = 2 * block + 1;

    return left < fake_blocks && (engine->held[left] || engine->held[left + 1]);
}

const struct fake_message *fake_engine_touch(struct fake_engine *engine, unsigned block)
{
    if (engine->count == fake_max_messages) {
        return NULL;
    }
    if (!engine->held[block]) {
        return block == 0 || engine->held[(block - 1) / 2] ? store(engine, block) : NULL;
    }
    return has_child(engine, block) ? NULL : evict(engine, block);
}

const struct fake_message *fake_engine_clear(struct fake_engine *engine)
{
    struct kvb_event_batch batch = { 0 };

    if (engine->count == fake_max_messages) {
        return NULL;
    }
    check(kvb_event_writer_cleared(&batch) == KVB_OK);
    memset(engine->held, 0, sizeof engine->held);
    return add_message(engine, &batch);
}
