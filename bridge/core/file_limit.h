#pragma once

#include <stdint.h>

/* The process's limit of open files (RLIMIT_NOFILE).
 *
 * Threads: any thread. */

/* Raises the limit to `files`, as far as the hard limit allows; never lowers it.  Returns the
 * limit now in force; UINT64_MAX for no limit. */
uint64_t kvb_file_limit_raise(uint64_t files);
