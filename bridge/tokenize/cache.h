#pragma once

#include "core/span.h"
#include "core/status.h"
#include "tokenize/chain.h"

#include <stddef.h>
#include <stdint.h>

/* Which tokens a text has: the body of POST /tokenize -> token ids.  A cache with LRU eviction,
 * limited in bytes.
 *
 *     table   hash of the body -> entry number       open addressing, core/id_table.h
 *     chain   places in a body -> entry number       for texts that begin with it, chain.h
 *     entry   newest <-> ... <-> oldest              evicted from the oldest on
 *     memory  [ tokens | body ]                      one block for each entry
 *
 * The hash is XXH3-128 with a random seed.  The bodies are compared too: XXH3 is not a
 * cryptographic hash, and requesters choose the bodies.  A collision would give one text the tokens
 * of another.
 *
 * An entry is forgotten after max_age_ns, because an engine of the same model name may be started
 * with another chat template.
 *
 * Threads: the caller locks.
 * Memory:  at most max_bytes, of which an entry takes 4 bytes a token, its body and about 120. */
struct kvb_token_cache;

struct kvb_token_cache_stats {
    uint64_t bytes;   /* as counted against max_bytes */
    uint64_t entries; /* expired ones included */
    uint64_t evicted; /* so far, to make room */
};

/* max_bytes 0: nothing is kept.  KVB_NO_MEMORY */
kvb_status kvb_token_cache_new(
    uint64_t max_bytes, uint64_t max_age_ns, uint64_t seed, struct kvb_token_cache **out_cache);
/* NULL is fine. */
void kvb_token_cache_free(struct kvb_token_cache *cache);

/* Finds the tokens of a body and makes it the newest.  *out_tokens is borrowed until the next call.
 * KVB_NOT_FOUND */
kvb_status kvb_token_cache_find(
    struct kvb_token_cache *cache, kvb_span body, uint64_t now_ns, const uint32_t **out_tokens,
    size_t *out_count);

/* Finds the longest known text that is the beginning of this one, and makes it the newest.
 * *out_bytes: how much of the body it is.  The last tokens of it are not those of this text: a
 * chat's are the beginning of an answer.  The rest as kvb_token_cache_find().  KVB_NOT_FOUND */
kvb_status kvb_token_cache_find_beginning(
    struct kvb_token_cache *cache, const struct kvb_text_view *text, uint64_t now_ns,
    const uint32_t **out_tokens, size_t *out_count, size_t *out_bytes);

/* Keeps a copy, in place of an earlier one.
 * KVB_TOO_LARGE  larger than the whole cache: not kept
 * KVB_NO_MEMORY  not kept */
kvb_status kvb_token_cache_put(
    struct kvb_token_cache *cache, const struct kvb_text_view *text, const uint32_t *tokens,
    size_t count, uint64_t now_ns);

struct kvb_token_cache_stats kvb_token_cache_count(const struct kvb_token_cache *cache);
