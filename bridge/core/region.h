#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An array that grows in place.  Address space is reserved once, and memory is committed as it is
 * needed.
 *
 *     base |== in use ==|-- populated --|-- may be written --|.. address space only ..| max_bytes
 *
 * Growing copies nothing, and pointers stay valid.  New memory is zero.  It is resident only where
 * it was accessed or populated.  The first access to a huge page costs 0.1 ms, and many times that
 * on a virtual machine whose host has to find the memory.  A caller with time to spare populates
 * the memory that it will need, so that the access costs nothing.
 * Threads: the caller locks. */
struct kvb_region {
    uint8_t *base;    /* owned; NULL until it is opened */
    size_t max_bytes; /* size of the address space */
    size_t bytes;     /* size of the part that may be written */
    size_t populated; /* size of the part that was populated; SIZE_MAX: it failed once */
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

/* Makes the next `spare` bytes after the first `used` resident before they are needed, in order. It
 * populates whole huge pages (2 MiB): also the one that is wanted in part, once `used` is half a
 * huge page.  One call populates at most `step` bytes, rounded up to huge pages.  Returns whether
 * any is left.  It ends for good and silently where there is no memory, and on Linux before 5.14:
 * then the first access does it.  The memory counts against a memory limit of the control group,
 * whose kernel may end the process: the caller bounds it. */
bool kvb_region_populate(struct kvb_region *region, size_t used, size_t spare, size_t step);
