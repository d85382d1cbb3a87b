#pragma once

#include "index/holder_set.h"

#include <stddef.h>
#include <stdint.h>

enum { kvb_extent_nodes = 16 };

/* prefix_inside.h says what an extent is. */
struct prefix_extent {
    uint32_t parent; /* node; KVB_NONE: a free extent */
    uint32_t next;   /* guess: the extent below its last node; 0: none */
    uint16_t named;  /* bit o: `names` leads to node o */
    uint16_t odd;    /* bit o: odd words stand for node o */
    uint8_t len;     /* nodes */
    uint8_t unused;
    uint16_t paged;                  /* bit o: paged words stood for node o */
    uint16_t kids[kvb_extent_nodes]; /* extents below each node; all ones: see crowds */
    uint64_t pass; /* the last one that kept it in its holder's list (prefix_holders.c) */
    uint8_t pad[8];
    uint64_t tokens[kvb_extent_nodes];
    kvb_set_id sets[kvb_extent_nodes];
    uint64_t names[kvb_extent_nodes];
};

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
