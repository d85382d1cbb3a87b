#pragma once

#include "index/holder_set.h"
#include "index/prefix_extent.h"

#include <stddef.h>
#include <stdint.h>

/* What a query asks of each extent, and of each leaf of a set: by AVX2 where the machine has
 * it, one by one elsewhere.  Both give the same answers. */
struct kvb_prefix_compare {
    /* How many of the first `count` are equal in both, from the first on. */
    uint32_t (*common)(const uint64_t *left, const uint64_t *right, uint32_t count);
    /* Bit i: sets[i] is another set than the one before; before the first came `last`.
     * Reads 16 sets, of which the first `count` are told. */
    uint32_t (*changes)(const kvb_set_id sets[16], uint32_t count, kvb_set_id last);
    /* Through how many whole extents the query leads, from *extent on, where each node has
     * the set `last` and each extent's hint is right.  *extent: where it goes on. */
    size_t (*whole)(
        const struct prefix_extent *extents, uint32_t *extent, const uint64_t *query, size_t count,
        kvb_set_id last);
    /* Takes out of the leaf who is not in `other`, into *out_gone; bit w of what it returns:
     * word w lost somebody. */
    uint32_t (*narrow)(
        struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other, struct kvb_set_leaf *out_gone);
};

extern const struct kvb_prefix_compare kvb_prefix_compare_plain;

/* The best that this machine has. */
const struct kvb_prefix_compare *kvb_prefix_compare_best(void);
