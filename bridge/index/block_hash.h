#pragma once

#include "core/ref.h"
#include "core/span.h"
#include "model/event_batch.h"
#include "model/stream.h"

#include <stddef.h>
#include <stdint.h>

/* The hashes that name blocks.  They follow Dynamo's scheme, which the whole fleet uses.
 *
 *     seed            = 1337 [+ XXH3-64(lora name, 0)] [+ XXH3-64(salt, 1)]   (wrapping)
 *     tokens_hash     = XXH3-64(the block's tokens, and its lookahead tokens, as little-endian u32
 *                               [|| its multimodal ids, sorted, as LE64], seed)
 *     rolling hash[0] = tokens_hash[0]
 *     rolling hash[i] = XXH3-64(LE64(rolling[i-1]) || LE64(tokens_hash[i]), 1337)
 *
 * Source: RFC 1527 of Dynamo; values in tests/data/vectors/hashes.txt.
 * Little-endian machines only (asserted at compile time).  Threads: any thread. */

/* Returns the seed of a block's tokens_hash.  An empty span means that there is no name or salt. */
uint64_t kvb_block_seed(kvb_span lora_name, kvb_span salt);

/* For a `lora_id` without a name the caller builds the name "lora_id:N". */

/* Returns the tokens_hash of a block.  tokens: block_size tokens, then the shape's lookahead
 * tokens, if it has any.  keys: the block's multimodal ids, in any order, at most
 * kvb_max_block_keys. */
kvb_tokens_hash kvb_tokens_hash_of(
    const uint32_t *tokens, size_t count, const uint64_t *keys, size_t key_count, uint64_t seed);

/* Returns the tokens_hash of block i of a Stored event that has tokens.  Extra keys that routers
 * cannot match (extra.unmatchable) are left out. */
kvb_tokens_hash kvb_tokens_hash_of_event(
    const struct kvb_event_batch *batch, const struct kvb_engine_event *event, uint32_t i,
    uint64_t seed);

kvb_block_hash kvb_block_hash_root(kvb_tokens_hash first);
kvb_block_hash kvb_block_hash_next(kvb_block_hash parent, kvb_tokens_hash tokens);

/* The name of a block in the window list, for the groups of window number `window` of the
 * heartbeat.  Those of the first window are the blocks' own names. */
kvb_block_hash kvb_block_hash_in_window(kvb_block_hash block, unsigned window);

/* Hashes all complete blocks of a prompt without multimodal ids.  Returns how many hashes it wrote.
 * A block is complete when the prompt also contains its lookahead tokens.  out_tokens has room for
 * count / block_size hashes. */
size_t kvb_tokens_hash_prompt(
    const uint32_t *tokens, size_t count, struct kvb_block_shape shape, uint64_t seed,
    kvb_tokens_hash *out_tokens);
