#include "script.h"

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

static const enum kvb_dialect dialect = KVB_DIALECT_VLLM_0_22;

struct writer {
    size_t blocks_per_batch;
    struct kvb_event_batch batch;
    uint64_t random;
    size_t blocks; /* written so far */
    kvb_engine_hash parent;
};

static kvb_status write_stored(struct writer *writer)
{
    kvb_engine_hash hashes[max_blocks_per_batch];
    uint32_t tokens[max_blocks_per_batch * block_tokens];
    const struct kvb_stored_run run = {
        .parent = writer->blocks % prompt_blocks == 0 ? NULL : &writer->parent,
        .hashes = hashes,
        .tokens = tokens,
        .count = (uint32_t)writer->blocks_per_batch,
        .block_size = block_tokens,
    };

    for (size_t i = 0; i < run.count; i++) {
        hashes[i].value = kvb_random_next(&writer->random) | UINT64_C(1) << 63; /* 9 bytes each */
    }
    for (size_t i = 0; i < (size_t)run.count * block_tokens; i++) {
        tokens[i] = (uint32_t)kvb_random_below(&writer->random, vocabulary);
    }
    kvb_event_batch_reset(&writer->batch);
    KVB_TRY(kvb_event_writer_stored(&writer->batch, &run));
    writer->parent = hashes[run.count - 1];
    writer->blocks += run.count;
    return KVB_OK;
}

static kvb_status append_batch(struct writer *writer, struct script *script)
{
    writer->batch.timestamp_s = 1.7e9 + (double)script->count / 1000;
    writer->batch.has_rank = true;
    KVB_TRY(kvb_engine_batch_encode(&writer->batch, dialect, &script->bytes));
    script->ends[script->count++] = script->bytes.len;
    return KVB_OK;
}

static kvb_status write_all(struct writer *writer, size_t batches, struct script *script)
{
    KVB_TRY(kvb_event_writer_cleared(&writer->batch));
    KVB_TRY(append_batch(writer, script));
    while (script->count < batches) {
        KVB_TRY(write_stored(writer));
        KVB_TRY(append_batch(writer, script));
    }
    script->block_count = writer->blocks;
    return KVB_OK;
}

kvb_status script_make(const struct script_options *options, struct script *out_script)
{
    const size_t batches = 1 + options->pool_blocks / options->blocks_per_batch;
    struct writer writer = { .blocks_per_batch = options->blocks_per_batch,
                             .random = options->seed };
    struct script script = { .ends = calloc(batches, sizeof *script.ends),
                             .blocks_per_batch = options->blocks_per_batch };

    assert(options->blocks_per_batch <= max_blocks_per_batch);
    if (!script.ends) {
        return KVB_NO_MEMORY;
    }
    kvb_buf_init(&script.bytes, max_script_bytes);
    const kvb_status status = write_all(&writer, batches, &script);
    kvb_event_batch_done(&writer.batch);
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
