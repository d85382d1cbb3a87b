#include "parts/allocations.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

static _Atomic uint64_t allocations;

uint64_t bench_own_allocations(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

static void count_one(void)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

/* The linker's names for the two sides of a wrapped call.
 * NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__real_mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...);
void *__wrap_mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...);

void *__wrap_malloc(size_t bytes)
{
    count_one();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    count_one();
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    count_one();
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    count_one();
    return __real_aligned_alloc(alignment, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    count_one();
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

void *__wrap_mremap(void *at, size_t old_bytes, size_t bytes, int flags, ...)
{
    va_list more;

    count_one();
    va_start(more, flags);
    void *to = va_arg(more, void *); /* there with MREMAP_FIXED alone; else never looked at */
    va_end(more);
    return __real_mremap(at, old_bytes, bytes, flags, to);
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */
