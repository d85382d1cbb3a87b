#pragma once

#include "core/ref.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct kvb_request_progress;

/* One request inside an engine: its tokens so far and the blocks it uses.
 *
 *     tokens  [ prompt ................ ][ output so far .. ][ room ... ]
 *     hashes  [ h0 ][ h1 ] ...                 one for each whole block known
 *     blocks  [ b0 ][ b1 ][ b2 ] ...           one for each block computed or begun
 *
 * committed: how many of its blocks are in the prefix cache, found or stored.
 * Threads: the caller locks.  Memory: all of it is taken at the start. */
struct kvb_request {
    uint32_t *tokens; /* owned, like hashes and blocks */
    kvb_engine_hash *hashes;
    uint32_t *blocks;
    const char *salt; /* borrowed; NULL: none */
    uint32_t token_count;
    uint32_t output_left; /* tokens still to be made */
    uint32_t computed;    /* tokens whose cache is there */
    uint32_t scheduled;   /* tokens of this step */
    uint32_t hash_count;
    uint32_t block_count;
    uint32_t committed;
    bool reports;  /* announces the prefix that it reuses (report mode "full") */
    bool bypasses; /* computes everything again, as prompt_logprobs does */
    struct kvb_request_progress *progress; /* borrowed; NULL: nobody waits for it */
};

/* Copies the prompt.  KVB_BAD_INPUT no token, KVB_NO_MEMORY */
kvb_status kvb_request_new(
    const uint32_t *prompt, uint32_t count, uint32_t output_length, uint32_t block_size,
    struct kvb_request **out_request);

/* NULL is fine. */
void kvb_request_free(struct kvb_request *request);

/* Adds one token of output; output_left is not 0. */
void kvb_request_append(struct kvb_request *request, uint32_t token);

/* Computes the hashes of whole blocks that are still missing:
 * hash = XXH3(parent hash, XXH3(tokens)), everything under the engine's seed.  At the root the
 * salt stands in the parent's place. */
void kvb_request_hash(struct kvb_request *request, uint32_t block_size, uint64_t seed);
