#pragma once

#include <stdint.h>

/* The process's limit of open files (RLIMIT_NOFILE).
 *
 * Threads: any thread. */

/* Raises the limit to `files`, or to the hard limit if that is lower.  Never lowers it.  Returns
 * the limit that is now in force; UINT64_MAX means no limit. */
uint64_t kvb_file_limit_raise(uint64_t files);
