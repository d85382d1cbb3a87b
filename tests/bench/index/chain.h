#pragma once

#include "index/index.h"
#include "index/replay.h"

#include <stddef.h>
#include <stdint.h>

/* A prompt, or the rest of one: blocks that follow each other, made of one number.
 *
 * Threads: the caller locks. */
struct chain {
    kvb_tokens_hash *tokens;   /* owned, as the others */
    kvb_block_hash *blocks;    /* names: each follows from those before */
    kvb_block_hash *backwards; /* the same, the last first: so they are evicted */
    size_t count;
    bool has_parent;
    kvb_block_hash parent;
};

void chain_init(struct chain *chain, size_t count);
void chain_done(struct chain *chain);

/* Chains with different content share no block. after: the block below which the chain begins;
 * NULL: it begins a prompt. */
void chain_make(struct chain *chain, uint64_t content, const kvb_block_hash *after);

/* The worker stores blocks first .. end-1, or removes them, the last one first. */
void chain_store(
    struct replay *replay, uint32_t worker, const struct chain *chain, size_t first, size_t end);
void chain_remove(
    struct replay *replay, uint32_t worker, const struct chain *chain, size_t first, size_t end);
