#pragma once

#include "index/holder_set.h"

#include <stdint.h>

/* What a query asks of each extent, 16 nodes at a time: by AVX2 where the machine has it,
 * one by one elsewhere.  Both give the same answers. */
struct kvb_prefix_compare {
    /* How many of the first `count` are equal in both, from the first on. */
    uint32_t (*common)(const uint64_t *left, const uint64_t *right, uint32_t count);
    /* Bit i: sets[i] is another set than the one before; before the first came `last`.
     * Reads 16 sets, of which the first `count` are told. */
    uint32_t (*changes)(const kvb_set_id sets[16], uint32_t count, kvb_set_id last);
};

extern const struct kvb_prefix_compare kvb_prefix_compare_plain;

/* The best that this machine has. */
const struct kvb_prefix_compare *kvb_prefix_compare_best(void);
