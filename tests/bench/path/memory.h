#pragma once

#include <stdint.h>

/* Which code allocates memory, and how often.
 *
 *     our code --wrapped by the linker--> counted as ours ----+
 *     libzmq, libnats, ... ---------> malloc of this program: counted by whose code calls
 *
 * Ours are calls to malloc, calloc, realloc, aligned_alloc, mmap and mremap; a library's are
 * those to malloc, calloc, realloc and memalign, of C++'s new too (libstdc++).
 * Threads: any; the counts are of all of them. */
enum bench_owner { bench_ours, bench_libzmq, bench_libnats, bench_libstdcxx, bench_owners };

const char *bench_owner_name(enum bench_owner owner);

/* Finds where the libraries are mapped; call before the first count is read. */
void bench_find_owners(void);

uint64_t bench_allocations(enum bench_owner owner);
