#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* An array that grows in place: address space is reserved once, memory is committed as it is
 * needed, and the content never moves.
 *
 *     base |== in use ==|-- may be written --|.... address space only ....| max_bytes
 *
 * Growth costs no copy, and pointers stay valid.  Memory comes zeroed from the kernel, and is
 * resident only where it was touched.
 * Threads: the caller locks. */
struct kvb_region {
    uint8_t *base;    /* owned; NULL until it is opened */
    size_t max_bytes; /* of address space */
    size_t bytes;     /* that may be written */
};

/* {0} before; kvb_region_close() after KVB_OK.
 * KVB_NO_MEMORY  not enough address space */
kvb_status kvb_region_open(struct kvb_region *region, size_t max_bytes);

/* {0} is fine. */
void kvb_region_close(struct kvb_region *region);

/* Makes at least the first `bytes` writable.  It commits ahead, so most calls do nothing.
 * KVB_TOO_LARGE  above max_bytes   KVB_NO_MEMORY  nothing changed on either */
kvb_status kvb_region_reach(struct kvb_region *region, size_t bytes);
