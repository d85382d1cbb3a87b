#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* An array that grows in place.  Address space is reserved once, and memory is committed as it is
 * needed.
 *
 *     base |== in use ==|-- may be written --|.... address space only ....| max_bytes
 *
 * Growing copies nothing, and pointers stay valid.  New memory is zero.  It is resident only where
 * it was accessed.
 * Threads: the caller locks. */
struct kvb_region {
    uint8_t *base;    /* owned; NULL until it is opened */
    size_t max_bytes; /* size of the address space */
    size_t bytes;     /* size of the part that may be written */
};

/* *region must be {0}.  After KVB_OK the caller calls kvb_region_close().
 * KVB_NO_MEMORY  not enough address space */
kvb_status kvb_region_open(struct kvb_region *region, size_t max_bytes);

/* {0} is fine. */
void kvb_region_close(struct kvb_region *region);

/* Makes at least the first `bytes` writable.  It commits ahead, so most calls do nothing.
 * KVB_TOO_LARGE  above max_bytes; nothing changed
 * KVB_NO_MEMORY  nothing changed */
kvb_status kvb_region_reach(struct kvb_region *region, size_t bytes);
