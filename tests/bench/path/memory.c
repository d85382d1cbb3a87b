#include "memory.h"

#include "parts/allocations.h"

#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The C library's own names for what stands behind those that this program has in their place.
 * NOLINTBEGIN(bugprone-*,cert-*,readability-*) */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static struct owner {
    const char *name;
    const char *file; /* how its file name begins */
    uintptr_t from, to;
    _Atomic uint64_t calls;
} owners[bench_owners] = {
    [bench_ours] = { .name = "ours" },
    [bench_libzmq] = { .name = "libzmq", .file = "libzmq.so" },
    [bench_libnats] = { .name = "libnats", .file = "libnats.so" },
    [bench_libstdcxx] = { .name = "libstdcxx", .file = "libstdc++.so" },
};

const char *bench_owner_name(enum bench_owner owner)
{
    return owners[owner].name;
}

uint64_t bench_allocations(enum bench_owner owner)
{
    return owner == bench_ours ? bench_own_allocations() : atomic_load(&owners[owner].calls);
}

static bool is_code(const ElfW(Phdr) * part)
{
    return part->p_type == PT_LOAD && (part->p_flags & PF_X);
}

static int note_library(struct dl_phdr_info *info, size_t size, void *context)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    (void)size;
    (void)context;
    for (int i = 0; i < bench_owners && slash; i++) {
        struct owner *owner = &owners[i];
        if (!owner->file || strncmp(slash + 1, owner->file, strlen(owner->file)) != 0) {
            continue;
        }
        for (int part = 0; part < info->dlpi_phnum; part++) {
            if (is_code(&info->dlpi_phdr[part])) {
                owner->from = info->dlpi_addr + info->dlpi_phdr[part].p_vaddr;
                owner->to = owner->from + info->dlpi_phdr[part].p_memsz;
            }
        }
    }
    return 0;
}

void bench_find_owners(void)
{
    (void)dl_iterate_phdr(note_library, NULL); /* each call returns 0, so that all are visited */
}

static void count(struct owner *owner)
{
    atomic_fetch_add_explicit(&owner->calls, 1, memory_order_relaxed);
}

static void count_caller(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;

    for (int i = bench_ours + 1; i < bench_owners; i++) {
        if (at >= owners[i].from && at < owners[i].to) {
            count(&owners[i]);
        }
    }
}

/* ---- What libraries call; our own code too, which is no library and not counted here ---- */

void *malloc(size_t bytes)
{
    count_caller(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes)
{
    count_caller(__builtin_return_address(0));
    return __libc_calloc(number, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count_caller(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    count_caller(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}
/* NOLINTEND(bugprone-*,cert-*,readability-*) */
