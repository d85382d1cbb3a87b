#pragma once

#include <stdint.h>

/* Counts how often this project's own code has allocated since the program began: malloc, calloc,
 * realloc, aligned_alloc, mmap and mremap, wrapped by the linker. Allocations of libraries are not
 * included. Threads: any; the count covers all of them. */
uint64_t bench_own_allocations(void);
