#pragma once

#include "core/ref.h"

#include <stdint.h>

/* What one block of a simulated engine holds, and what makes it another block than one of the
 * same tokens.  The block before it is in its hash.
 *
 * Threads: the caller locks.  Memory: borrowed for the call that it is given to, but the salt,
 * which lives as long as the engine. */
struct kvb_block_content {
    kvb_engine_hash hash;
    const uint32_t *tokens; /* block_size of them */
    const char *salt;       /* of the request; NULL: none */
};
