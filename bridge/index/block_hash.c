#include "index/block_hash.h"

#include "core/hash.h"
#include "core/limits.h"

#include <assert.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "hashes are taken over LE integers");

static const uint64_t base_seed = 1337;

uint64_t kvb_block_seed(kvb_span lora_name, kvb_span salt)
{
    uint64_t seed = base_seed;

    seed += lora_name.len > 0 ? kvb_hash64(lora_name, 0) : 0;
    seed += salt.len > 0 ? kvb_hash64(salt, 1) : 0;
    return seed;
}

/* Insertion: blocks have a handful of keys. */
static void sort_into(uint64_t *sorted, const uint64_t *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1] > keys[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = keys[i];
    }
}

kvb_tokens_hash kvb_tokens_hash_of(
    const uint32_t *tokens, size_t count, const uint64_t *keys, size_t key_count, uint64_t seed)
{
    uint64_t sorted[kvb_max_block_keys];
    const kvb_span token_bytes = { (const uint8_t *)tokens, count * sizeof *tokens };

    if (key_count == 0) {
        return (kvb_tokens_hash){ kvb_hash64(token_bytes, seed) };
    }
    assert(key_count <= kvb_max_block_keys);
    sort_into(sorted, keys, key_count);
    const kvb_span parts[] = { token_bytes,
                               { (const uint8_t *)sorted, key_count * sizeof *sorted } };
    return (kvb_tokens_hash){ kvb_hash64_parts(parts, 2, seed) };
}

kvb_tokens_hash kvb_tokens_hash_of_event(
    const struct kvb_event_batch *batch, const struct kvb_engine_event *event, uint32_t i,
    uint64_t seed)
{
    const uint32_t *tokens = batch->tokens + event->token_at + (size_t)i * event->block_size;
    const uint32_t width = event->block_size + (event->is_eagle ? 1 : 0);

    if (event->extra_count == 0) {
        return kvb_tokens_hash_of(tokens, width, NULL, 0, seed);
    }
    const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
    return kvb_tokens_hash_of(tokens, width, batch->keys + extra->key_at, extra->key_count, seed);
}

kvb_block_hash kvb_block_hash_root(kvb_tokens_hash first)
{
    return (kvb_block_hash){ first.value };
}

kvb_block_hash kvb_block_hash_next(kvb_block_hash parent, kvb_tokens_hash tokens)
{
    const uint64_t pair[] = { parent.value, tokens.value };

    return (
        kvb_block_hash){ kvb_hash64((kvb_span){ (const uint8_t *)pair, sizeof pair }, base_seed) };
}

size_t kvb_tokens_hash_prompt(
    const uint32_t *tokens, size_t count, uint32_t block_size, uint64_t seed,
    kvb_tokens_hash *out_tokens)
{
    const size_t blocks = block_size > 0 ? count / block_size : 0;

    for (size_t i = 0; i < blocks; i++) {
        out_tokens[i] = kvb_tokens_hash_of(tokens + i * block_size, block_size, NULL, 0, seed);
    }
    return blocks;
}
