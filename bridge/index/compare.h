#pragma once

#include "index/extent.h"
#include "index/holder_set.h"

#include <stddef.h>
#include <stdint.h>

/* The inner loops of a query, over extents and over leaves of sets: with AVX2 where the machine
 * has it, scalar elsewhere.  Both give the same results. */
struct kvb_prefix_compare {
    /* Length of the common prefix of `left` and `right`, at most `count`. */
    uint32_t (*common)(const uint64_t *left, const uint64_t *right, uint32_t count);
    /* Bit i: sets[i] differs from the set before it; `last` is before the first.  Reads 16 sets,
     * and returns bits for the first `count`. */
    uint32_t (*changes)(const kvb_set_id sets[16], uint32_t count, kvb_set_id last);
    /* The number of whole extents that the query passes through, from *extent on, as long as
     * each node has the set `last` and each extent's hint is right.  Sets *extent to the next
     * one. */
    size_t (*whole)(
        const struct prefix_extent *extents, uint32_t *extent, const uint64_t *query, size_t count,
        kvb_set_id last);
    /* Intersects the leaf with `other`; *out_gone: the holders removed.  Returns bit w for each
     * word w that lost a holder. */
    uint32_t (*narrow)(
        struct kvb_set_leaf *leaf, const struct kvb_set_leaf *other, struct kvb_set_leaf *out_gone);
};

extern const struct kvb_prefix_compare kvb_prefix_compare_scalar;

/* The fastest one that this machine supports. */
const struct kvb_prefix_compare *kvb_prefix_compare_best(void);
