#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* How far the numbers of a republished stream may have been used, in a file of its own in the
 * directory of checkpoints: so that a later process never gives a number again, and readers see a
 * gap that a replay fills.
 *
 *     "KVBN"  version u32 | end u64 | boot u64 | is_exact u64 | XXH3 of these u64       40 bytes
 *
 * Numbers before `end` may have been used.  A file that was written by a process which crashed
 * together with the machine may be an older one; so it counts only if the machine has not booted
 * since, or if the process ended in peace (is_exact), which waits for the disk.
 *
 * Written in place by one system call of 40 bytes, which does not wait for the disk.
 * Threads: any; one file is one thread's. */

/* KVB_NOT_FOUND  there is none, or it does not count: begin at the clock */
kvb_status kvb_republish_numbers_read(const char *directory, const char *name, uint64_t *out_end);

/* is_exact: no number from end on was used, and the process ends; waits for the disk.
 * KVB_IO */
kvb_status
kvb_republish_numbers_write(const char *directory, const char *name, uint64_t end, bool is_exact);
