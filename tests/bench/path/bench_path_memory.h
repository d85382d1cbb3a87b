#pragma once

#include <stdint.h>

/* Counts what our own code asks the C library and the kernel for: calls to malloc,
 * calloc, realloc, aligned_alloc, mmap and mremap, wrapped by the linker.
 * Threads: any; the count is of all of them. */
uint64_t bench_allocations(void);
