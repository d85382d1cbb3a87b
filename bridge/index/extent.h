#pragma once

#include "index/holder_set.h"

#include <stdint.h>

/* Path compression: up to 16 nodes, each the child of the one before; 384 bytes.
 *
 *     extent 7 | parent, next, len ... kids     1 line of the cache: how it hangs together
 *              | t0 t1 t2 t3 t4 t5 ...          2 lines: tokens
 *              | s0 s0 s0 s3 s3 s3 ...          1 line: sets of holders, by number
 *              | n0 n1 n2 n3 n4 n5 ...          2 lines: names
 *                    \
 *                     extent 9 | t0 t1 ...      another child of t1: its parent is 7 * 16 + 1,
 *                                               and t1's kids are one more
 *
 * A query reads the first four lines, in order.  Elements from `len` on are undefined. */
enum { kvb_extent_nodes = 16, kvb_no_parent_override = 0xff };

struct prefix_extent {
    uint32_t parent;     /* node; KVB_NONE: a free extent */
    uint32_t next;       /* hint: an extent below its last node; 0: none */
    uint16_t named;      /* bit o: the index's table `names` contains node o */
    uint16_t overflow;   /* bit o: node o has, or had, an overflow alias */
    uint8_t len;         /* nodes */
    uint8_t override_at; /* the node with a parent override, or kvb_no_parent_override */
    uint16_t in_page;    /* bit o: node o has, or had, a name in a per-slot page */
    uint16_t
        kids[kvb_extent_nodes]; /* extents below each node; from 65,535 on: see child_overflows */
    uint64_t pass; /* the last pass that kept it in a holder's list (index/holders.c) */
    uint64_t parent_override_parent; /* the name of its parent that the override gives */
    uint64_t tokens[kvb_extent_nodes];
    kvb_set_id sets[kvb_extent_nodes];
    uint64_t names[kvb_extent_nodes];
};
