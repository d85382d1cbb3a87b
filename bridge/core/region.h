#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* An array that grows where it stands: address space is taken once, memory as it is
 * needed, and what lies in it never moves.
 *
 *     base |== in use ==|-- may be written --|.... address space only ....| most_bytes
 *
 * So growth costs no copy and pointers stay good.  Memory is the kernel's: zeroed, and
 * resident only where it was touched.
 * Threads: the caller locks. */
struct kvb_region {
    uint8_t *base;     /* owned; NULL until it is opened */
    size_t most_bytes; /* of address space */
    size_t bytes;      /* that may be written */
};

/* {0} before; kvb_region_close() after KVB_OK.
 * KVB_NO_MEMORY  no such address space */
kvb_status kvb_region_open(struct kvb_region *region, size_t most_bytes);

/* {0} is fine. */
void kvb_region_close(struct kvb_region *region);

/* Makes the first `bytes` writable; more than asked for, so that few calls do anything.
 * KVB_TOO_LARGE  above most_bytes   KVB_NO_MEMORY  nothing changed on either */
kvb_status kvb_region_reach(struct kvb_region *region, size_t bytes);
