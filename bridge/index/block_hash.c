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

/* Insertion sort: blocks have a handful of keys. */
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

/* The input of a block's tokens_hash, without its multimodal ids. */
struct block_content {
    const uint32_t *tokens;
    size_t token_count;
    const uint32_t *lookahead;
    size_t lookahead_count;
};

static kvb_tokens_hash hash_content(
    const struct block_content *content, const uint64_t *keys, size_t key_count, uint64_t seed)
{
    uint64_t sorted[kvb_max_block_keys];
    const kvb_span parts[] = {
        { (const uint8_t *)content->tokens, content->token_count * sizeof *content->tokens },
        { (const uint8_t *)content->lookahead,
          content->lookahead_count * sizeof *content->lookahead },
        { (const uint8_t *)sorted, key_count * sizeof *sorted },
    };

    /* In one piece, as nearly always, the tokens are hashed where they lie. */
    if (content->lookahead_count == 0 && key_count == 0) {
        return (kvb_tokens_hash){ kvb_hash64(parts[0], seed) };
    }
    assert(key_count <= kvb_max_block_keys);
    sort_into(sorted, keys, key_count);
    return (kvb_tokens_hash){ kvb_hash64_parts(parts, 3, seed) };
}

kvb_tokens_hash kvb_tokens_hash_of(
    const uint32_t *tokens, size_t count, const uint64_t *keys, size_t key_count, uint64_t seed)
{
    const struct block_content content = { .tokens = tokens, .token_count = count };

    return hash_content(&content, keys, key_count, seed);
}

[[gnu::hot]] kvb_tokens_hash kvb_tokens_hash_of_event(
    const struct kvb_event_batch *batch, const struct kvb_engine_event *event, uint32_t i,
    uint64_t seed)
{
    const uint32_t *tokens = batch->tokens + event->token_at + (size_t)i * event->block_size;

    if (event->lookahead == 0 && event->extra_count == 0) { /* nearly every block */
        return (kvb_tokens_hash){ kvb_hash64(
            (kvb_span){ (const uint8_t *)tokens, event->block_size * sizeof *tokens }, seed) };
    }
    const struct block_content content = {
        .tokens = tokens,
        .token_count = event->block_size,
        .lookahead = event->lookahead > 0
                         ? batch->tokens + event->lookahead_at + (size_t)i * event->lookahead
                         : NULL,
        .lookahead_count = event->lookahead,
    };
    if (event->extra_count == 0) {
        return hash_content(&content, NULL, 0, seed);
    }
    const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
    return hash_content(&content, batch->keys + extra->key_at, extra->key_count, seed);
}

kvb_block_hash kvb_block_hash_root(kvb_tokens_hash first)
{
    return (kvb_block_hash){ first.value };
}

[[gnu::hot]] kvb_block_hash kvb_block_hash_next(kvb_block_hash parent, kvb_tokens_hash tokens)
{
    const uint64_t pair[] = { parent.value, tokens.value };

    return (kvb_block_hash){ kvb_hash64_pair(pair, base_seed) };
}

size_t kvb_tokens_hash_prompt(
    const uint32_t *tokens, size_t count, struct kvb_block_shape shape, uint64_t seed,
    kvb_tokens_hash *out_tokens)
{
    const size_t block_size = shape.block_size;
    const size_t width = block_size + shape.lookahead;
    const size_t blocks =
        block_size == 0 || count < width ? 0 : (count - shape.lookahead) / block_size;

    /* Lookahead tokens are those that the next block begins with: these ranges overlap. */
    for (size_t i = 0; i < blocks; i++) {
        out_tokens[i] = kvb_tokens_hash_of(tokens + (i * block_size), width, NULL, 0, seed);
    }
    return blocks;
}

kvb_block_hash kvb_block_hash_in_window(kvb_block_hash block, unsigned window)
{
    static const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio */

    return (kvb_block_hash){ block.value ^ window * odd };
}
