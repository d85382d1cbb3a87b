#pragma once

#include <stdint.h>

/* How often our own code has asked for memory since the program began: malloc, calloc, realloc,
 * aligned_alloc, mmap and mremap, wrapped by the linker.  What libraries ask for is not in it.
 * Threads: any; the count is of all of them. */
uint64_t bench_own_allocations(void);
