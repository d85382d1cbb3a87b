#pragma once

#include "index/holder_set.h"

#include <stdint.h>

/* Up to 16 nodes, each the child of the one before; 384 bytes.
 *
 *     extent 7 | parent, next, len ... kids     1 line of the cache: how it hangs together
 *              | t0 t1 t2 t3 t4 t5 ...          2 lines: tokens
 *              | s0 s0 s0 s3 s3 s3 ...          1 line: sets of holders, by number
 *              | n0 n1 n2 n3 n4 n5 ...          2 lines: names
 *                    \
 *                     extent 9 | t0 t1 ...      another child of t1: its parent is 7 * 16 + 1,
 *                                               and t1's kids are one more
 *
 * A query reads the first four lines, in order; what is behind `len` means nothing. */
enum { kvb_extent_nodes = 16, kvb_no_seam = 0xff };

struct prefix_extent {
    uint32_t parent; /* node; KVB_NONE: a free extent */
    uint32_t next;   /* guess: the extent below its last node; 0: none */
    uint16_t named;  /* bit o: `names` of the index leads to node o */
    uint16_t odd;    /* bit o: odd words stand for node o, or stood */
    uint8_t len;     /* nodes */
    uint8_t seam;    /* the node whose parent has another name to who calls it by its own */
    uint16_t paged;  /* bit o: paged words stand for node o, or stood */
    uint16_t kids[kvb_extent_nodes]; /* extents below each node; all ones: see crowds */
    uint64_t pass;        /* the last one that kept it in its holder's list (prefix_holders.c) */
    uint64_t seam_parent; /* that name */
    uint64_t tokens[kvb_extent_nodes];
    kvb_set_id sets[kvb_extent_nodes];
    uint64_t names[kvb_extent_nodes];
};
