#pragma once

#include "index/extent.h"
#include "index/holder_set.h"

#include <stddef.h>
#include <stdint.h>

/* The inner loops of a query, over extents and over leaves of sets.  They use AVX2 if the machine
 * has it, else scalar code.  Both give the same results. */
struct kvb_prefix_compare {
    /* Returns the length of the common prefix of `left` and `right`, at most `count`. */
    uint32_t (*common)(const uint64_t *left, const uint64_t *right, uint32_t count);
    /* Returns bit i if sets[i] differs from the set before it.  `last` is the set before sets[0].
     * Reads 16 sets, and returns bits for the first `count`. */
    uint32_t (*changes)(const kvb_set_id sets[16], uint32_t count, kvb_set_id last);
    /* Returns how many whole extents the query passes through, from *extent on.  Stops at an extent
     * in which a node has another set than `last`, and at one whose hint `next` is not the query's
     * next extent.  Sets *extent to the extent at which it stopped. */
    size_t (*whole)(
        const struct prefix_extent *extents, uint32_t *extent, const uint64_t *query, size_t count,
        kvb_set_id last);
    /* Intersects the leaf with `other`.  *out_gone gets the removed holders.  Returns bit w for
     * each word w that lost a holder. */
    uint32_t (*narrow)(
        struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other, struct kvb_set_leaf *out_gone);
};

extern const struct kvb_prefix_compare kvb_prefix_compare_scalar;

/* The fastest one that this machine supports. */
const struct kvb_prefix_compare *kvb_prefix_compare_best(void);
