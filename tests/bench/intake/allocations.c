#include "intake/intake.h"

#include <stdatomic.h>

static _Atomic uint64_t allocations;

uint64_t intake_allocations(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

static void count_one(void)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

/* The linker's names, not ours.
 * NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    count_one();
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    count_one();
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    count_one();
    return __real_realloc(old, size);
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */
