#pragma once

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The end of the numbers of a republished stream that may have been used, in a file of its own: in
 * the directory of checkpoints, or without one in kvb_republish_numbers_directory().  So a later
 * process never uses a number again, wherever its clock stands, and readers see a gap that a replay
 * fills.  Most readers drop a batch whose number is not above the last one, and know no sign of a
 * restart; so numbers must not go back.
 *
 *     "KVBN"  version u32 | end u64 | boot u64 | is_exact u64 | XXH3 of these u64       40 bytes
 *
 * Numbers before `end` may have been used.  After a crash of the machine the file may be an older
 * one.  So it counts only if the machine has not booted since it was written, or if it was written
 * at the normal end of a process (is_exact), which waits for the disk.  The next process overwrites
 * such a file before it uses a number, and waits for the disk, too: otherwise the file would still
 * count after a power loss.
 *
 *     file                      the next process begins at
 *     -----------------------   --------------------------------------------------------------
 *     counts                    `end`; where `from_clock`, at the clock if that is higher
 *     of an earlier boot        the clock, but at least 2^32 above `end`: no kernel keeps that
 *                               many batches from the disk
 *     none, or damaged          the clock
 *
 * Written in place by one system call of 40 bytes.
 * Threads: any; one file is one thread's. */

struct kvb_republish_numbers {
    uint64_t first; /* see the table */
    uint64_t end;   /* numbers before it are reserved; `first`: none are, because writing failed */
};

/* Where a process begins that keeps its numbers: reserves `count` of them.  Waits for the disk
 * where an earlier process has left a file that counts.  from_clock: other processes, which do not
 * know this file, may have used numbers at their clocks. */
struct kvb_republish_numbers kvb_republish_numbers_begin(
    const char *directory, const char *name, uint64_t clock, uint64_t count, bool from_clock);

enum { kvb_republish_directory_bytes = 4096 };

/* The directory for numbers where there is none of checkpoints: systemd's StateDirectory, else
 * /var/tmp/kvbridge-UID, which outlives a reboot, and is made if it is not there.
 * KVB_IO  there is none that this user alone may write to */
kvb_status kvb_republish_numbers_directory(char out[kvb_republish_directory_bytes]);

/* KVB_NOT_FOUND  there is no file, or it does not count: begin at the clock */
kvb_status kvb_republish_numbers_read(const char *directory, const char *name, uint64_t *out_end);

/* is_exact: no number from end on was used, and the process ends; waits for the disk.  Without it
 * the call does not wait.
 * KVB_IO */
kvb_status
kvb_republish_numbers_write(const char *directory, const char *name, uint64_t end, bool is_exact);
