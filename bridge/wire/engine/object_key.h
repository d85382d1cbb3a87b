#pragma once

#include "core/span.h"
#include "core/status.h"

#include <stdint.h>

/* The key of an object in a Mooncake store, as the engine's connector wrote it.  It names a block,
 * and the part of the block's KV cache that the object contains:
 *
 *     [PREFIX@]MODEL@tp_rank:T@pcpP@dcpD@pp_rank:R@group:G@HASH   vLLM; the hash is the last 8
 * bytes MODEL@pcpP@dcpD@head_or_tp_rank:T@pp_rank:R@HASH            vLLM Ascend, likewise
 *     SHA256_RANK_k, SHA256_RANK_v                                SGLang; the first 8 bytes
 *     1234, -1234, 0x4d2                                          a client's own: the hash alone
 *
 * HASH and SHA256 are hexadecimal.  SGLang with MLA writes no RANK, with pipeline stages two. */
struct kvb_object_key {
    uint64_t hash; /* of the block, as the engine's events have it */
    /* Keys of one family differ in shard and hash only: a request can load a block if one family
     * has all its shards.  Both numbers are hashes of texts; a family is never 0, and has 24 bits,
     * which fit a checkpoint. */
    uint32_t family;
    uint32_t shard;
    kvb_span model; /* borrowed from the key; empty: the key names none */
};

/* KVB_BAD_INPUT: the key has another form. */
kvb_status kvb_object_key_read(kvb_span key, struct kvb_object_key *out_key);

/* The family and the shard of an object whose key has another form, but whose event has a hash. */
void kvb_object_key_of_hash(uint64_t hash, struct kvb_object_key *out_key);
