#pragma once

#include "core/span.h"

#include <stdint.h>

/* XXH3 in both widths: the only hash function of the project.
 * Source: xxHash 0.8, stable since that version.  Threads: any thread. */

struct kvb_hash128 {
    uint64_t low;
    uint64_t high;
};

uint64_t kvb_hash64(kvb_span bytes, uint64_t seed);
/* The hash of the parts' bytes, one after the other. */
uint64_t kvb_hash64_parts(const kvb_span *parts, size_t count, uint64_t seed);

struct kvb_hash128 kvb_hash128(kvb_span bytes, uint64_t seed);
