#pragma once

#include <stdint.h>

/* Each kind of number has its own type.  A struct of one integer costs nothing at run time, and
 * makes two swapped arguments a compile error. */

/* A block's hash as its engine sends it, cast to u64.  It is opaque, and differs between engine
 * processes. */
typedef struct kvb_engine_hash {
    uint64_t value;
} kvb_engine_hash;

/* A block's name as we publish it: the rolling hash of all tokens up to the block's end.  With
 * hashes = "engine" in the configuration it is the engine's own hash. */
typedef struct kvb_block_hash {
    uint64_t value;
} kvb_block_hash;

/* The hash of one block's own tokens.  A query by content is a list of these. */
typedef struct kvb_tokens_hash {
    uint64_t value;
} kvb_tokens_hash;

/* A dense number for one (worker, rank, tier) in a prefix index. */
typedef struct kvb_slot_ref {
    uint32_t value;
} kvb_slot_ref;

/* Identifies an epoch of a stream: 16 random bytes.  A new epoch begins when later events cannot
 * build on what was published before. */
typedef struct kvb_epoch {
    uint8_t bytes[16];
} kvb_epoch;
