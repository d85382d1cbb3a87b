#pragma once

#include <stdint.h>

/* Numbers that must not be mixed up get a type each.  A struct of one integer
 * costs nothing at run time and makes two swapped arguments a compile error. */

/* A block's hash as its engine sends it, cast to u64: opaque, differs between engine processes. */
typedef struct kvb_engine_hash {
    uint64_t value;
} kvb_engine_hash;

/* A block's name as we publish it: the rolling hash of all tokens up to its
 * end (or the engine's own, with hashes = "engine"). */
typedef struct kvb_block_hash {
    uint64_t value;
} kvb_block_hash;

/* The hash of one block's own tokens; a query by content is a list of these. */
typedef struct kvb_tokens_hash {
    uint64_t value;
} kvb_tokens_hash;

/* A dense number for one (worker, rank, tier) in a prefix index. */
typedef struct kvb_slot_ref {
    uint32_t value;
} kvb_slot_ref;

/* Identifies an epoch of a stream: 16 random bytes, drawn whenever later events can no longer
 * build on what was published before. */
typedef struct kvb_epoch {
    uint8_t bytes[16];
} kvb_epoch;
