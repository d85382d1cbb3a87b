#include "parts/script.h"

#include "core/random.h"
#include "fleet/dialects/encode.h"
#include "fleet/engine/event_writer.h"

#include <assert.h>
#include <stdlib.h>

enum {
    block_tokens = 16,
    max_blocks_per_batch = 64,
    prompt_blocks = 64,  /* then another prompt begins, without a parent */
    vocabulary = 128256, /* of Llama 3: half of its ids take 5 bytes, half 3 */
    max_script_bytes = 1 << 30,
};

static uint32_t draw_token(const struct script_options *options, uint64_t *random)
{
    if (!options->is_skewed) {
        return (uint32_t)kvb_random_below(random, vocabulary);
    }
    const double unit = kvb_random_unit(random);
    return (uint32_t)(unit * unit * vocabulary);
}

/* The next blocks of the pool, behind those of the same prompt that were stored before. */
static kvb_status store_next(
    const struct script_options *options, struct script *script, uint64_t *random,
    kvb_engine_hash *parent, struct kvb_event_batch *batch)
{
    kvb_engine_hash hashes[max_blocks_per_batch];
    uint32_t tokens[max_blocks_per_batch * block_tokens];
    const struct kvb_stored_run run = {
        .parent = script->block_count % prompt_blocks == 0 ? NULL : parent,
        .hashes = hashes,
        .tokens = tokens,
        .count = (uint32_t)options->blocks_per_batch,
        .block_size = block_tokens,
    };

    for (size_t i = 0; i < run.count; i++) {
        hashes[i].value = kvb_random_next(random) | UINT64_C(1) << 63; /* 9 bytes each */
    }
    for (size_t i = 0; i < (size_t)run.count * block_tokens; i++) {
        tokens[i] = draw_token(options, random);
    }
    KVB_TRY(kvb_event_writer_stored(batch, &run));
    *parent = hashes[run.count - 1];
    script->block_count += run.count;
    return KVB_OK;
}

static kvb_status write_all(
    const struct script_options *options, struct script *script, struct kvb_event_batch *batch)
{
    const size_t batches = 1 + options->pool_blocks / options->blocks_per_batch;
    kvb_engine_hash parent = { 0 };
    uint64_t random = options->seed;

    while (script->count < batches) {
        kvb_event_batch_reset(batch);
        KVB_TRY(
            script->count == 0 ? kvb_event_writer_cleared(batch)
                               : store_next(options, script, &random, &parent, batch));
        batch->has_rank = options->has_rank;
        batch->timestamp_s = 1.7e9 + (double)script->count / 1000;
        KVB_TRY(kvb_engine_batch_encode(batch, options->dialect, &script->bytes));
        script->ends[script->count++] = script->bytes.len;
    }
    return KVB_OK;
}

kvb_status script_make(const struct script_options *options, struct script *out_script)
{
    const size_t batches = 1 + options->pool_blocks / options->blocks_per_batch;
    struct script script = { .ends = calloc(batches, sizeof *script.ends),
                             .blocks_per_batch = options->blocks_per_batch };
    struct kvb_event_batch batch = { .timestamp_s = 0 };

    assert(options->blocks_per_batch <= max_blocks_per_batch);
    if (!script.ends) {
        return KVB_NO_MEMORY;
    }
    kvb_buf_init(&script.bytes, max_script_bytes);
    const kvb_status status = write_all(options, &script, &batch);
    kvb_event_batch_done(&batch);
    if (status != KVB_OK) {
        script_done(&script);
        return status;
    }
    *out_script = script;
    return KVB_OK;
}

void script_done(struct script *script)
{
    kvb_buf_done(&script->bytes);
    free(script->ends);
    *script = (struct script){ .count = 0 };
}

kvb_span script_batch(const struct script *script, size_t at)
{
    const size_t begin = at == 0 ? 0 : script->ends[at - 1];

    return (kvb_span){ .data = script->bytes.data + begin, .len = script->ends[at] - begin };
}
