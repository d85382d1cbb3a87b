#pragma once

#include "index/holder_set.h"

#include <stdint.h>

/* Path compression as in a radix tree: an extent is a chain of up to 16 nodes, each the child of
 * the one before.  It takes 384 bytes.
 *
 *     extent 7 | parent, next, len ... kids     1 cache line: links and counts
 *              | t0 t1 t2 t3 t4 t5 ...          2 lines: tokens
 *              | s0 s0 s0 s3 s3 s3 ...          1 line: set ids of holders
 *              | n0 n1 n2 n3 n4 n5 ...          2 lines: names
 *                    \
 *                     extent 9 | t0 t1 ...      another child of t1: parent = 7 * 16 + 1;
 *                                               kids[1] of extent 7 counts it
 *
 * A query reads the first four cache lines, in order.  Elements from `len` on are undefined. */
enum { kvb_extent_nodes = 16, kvb_no_parent_override = 0xff };

struct prefix_extent {
    uint32_t parent;     /* parent of the first node; KVB_NONE: a free extent */
    uint32_t next;       /* hint: the newest extent below one of its nodes; 0: none */
    uint16_t named;      /* bit o: the table `names` contains node o */
    uint16_t overflow;   /* bit o: node o has, or had, an overflow alias */
    uint8_t len;         /* number of nodes */
    uint8_t override_at; /* the node with a parent override, or kvb_no_parent_override */
    uint16_t in_page;    /* bit o: node o has, or had, a name in a per-slot page */
    uint16_t
        kids[kvb_extent_nodes]; /* number of extents below each node; 65,535: see child_overflows */
    uint64_t pass; /* the latest pass that kept it in a holder's list (index/holders.c) */
    uint64_t parent_override_parent; /* the parent's name for the node override_at */
    uint64_t tokens[kvb_extent_nodes];
    kvb_set_id sets[kvb_extent_nodes];
    uint64_t names[kvb_extent_nodes];
};
