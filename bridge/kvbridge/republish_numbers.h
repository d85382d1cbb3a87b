#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The end of the numbers of a republished stream that may have been used, in a file of its own in
 * the directory of checkpoints.  So a later process never uses a number again, and readers see a
 * gap that a replay fills.
 *
 *     "KVBN"  version u32 | end u64 | boot u64 | is_exact u64 | XXH3 of these u64       40 bytes
 *
 * Numbers before `end` may have been used.  After a crash of the machine the file may be an older
 * one.  So it counts only if the machine has not booted since it was written, or if it was written
 * at the normal end of a process (is_exact), which waits for the disk.  The next process overwrites
 * such a file before it uses a number, and waits for the disk, too: otherwise the file would still
 * count after a power loss.
 *
 * Written in place by one system call of 40 bytes.
 * Threads: any; one file is one thread's. */

struct kvb_republish_numbers {
    uint64_t first; /* behind all numbers that may have been used, or the clock */
    uint64_t end;   /* numbers before it are reserved; `first`: none are, because writing failed */
};

/* Where a process begins that keeps its numbers: reserves `count` of them.  Waits for the disk
 * where an earlier process has left a file that counts. */
struct kvb_republish_numbers kvb_republish_numbers_begin(
    const char *directory, const char *name, uint64_t clock, uint64_t count);

/* KVB_NOT_FOUND  there is no file, or it does not count: begin at the clock */
kvb_status kvb_republish_numbers_read(const char *directory, const char *name, uint64_t *out_end);

/* is_exact: no number from end on was used, and the process ends; waits for the disk.  Without it
 * the call does not wait.
 * KVB_IO */
kvb_status
kvb_republish_numbers_write(const char *directory, const char *name, uint64_t end, bool is_exact);
