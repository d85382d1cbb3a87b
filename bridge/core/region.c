#include "core/region.h"

#include <sys/mman.h>

enum {
    page_bytes = 64 << 10, /* the largest page size: 4 KiB on x86, up to 64 KiB on arm64 */
    max_step = 32 << 20,
    huge_page_bytes = 2 << 20,
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

kvb_status kvb_region_open(struct kvb_region *region, size_t max_bytes)
{
    const size_t wanted = round_up(max_bytes, huge_page_bytes);
    /* Only addresses: without access rights the kernel gives no memory for them. */
    void *base =
        wanted < max_bytes
            ? MAP_FAILED
            : mmap(NULL, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (base == MAP_FAILED) {
        return KVB_NO_MEMORY;
    }
    *region = (struct kvb_region){ .base = base, .max_bytes = wanted };
    return KVB_OK;
}

void kvb_region_close(struct kvb_region *region)
{
    if (region->base) {
        munmap(region->base, region->max_bytes);
    }
    *region = (struct kvb_region){ 0 };
}

/* Returns the next size: half as much again, but at most max_step more.  So a region does not grow
 * page by page.  A large region has whole huge pages. */
static size_t next_bytes(const struct kvb_region *region, size_t bytes)
{
    size_t step = region->bytes / 2;

    step = step < page_bytes ? page_bytes : step;
    step = step > max_step ? max_step : step;
    size_t next = region->bytes + step > bytes ? region->bytes + step : bytes;
    next = round_up(next, next > huge_page_bytes ? huge_page_bytes : page_bytes);
    return next < region->max_bytes ? next : region->max_bytes;
}

/* Asks the kernel for huge pages.  A small region gets none here, because they would only make it
 * larger.  When a region becomes large, its old pages are included, and the kernel collapses them
 * later. */
static void want_huge_pages(const struct kvb_region *region, size_t next)
{
    const size_t from = region->bytes > huge_page_bytes ? region->bytes : 0;

    if (next > huge_page_bytes) {
        (void)madvise(region->base + from, next - from, MADV_HUGEPAGE);
    }
}

[[gnu::hot]] kvb_status kvb_region_reach(struct kvb_region *region, size_t bytes)
{
    if (bytes <= region->bytes) {
        return KVB_OK;
    }
    if (bytes > region->max_bytes) {
        return KVB_TOO_LARGE;
    }
    /* The next part becomes accessible; what was there keeps its address. */
    const size_t next = next_bytes(region, bytes);
    if (mprotect(region->base + region->bytes, next - region->bytes, PROT_READ | PROT_WRITE) != 0) {
        return KVB_NO_MEMORY;
    }
    want_huge_pages(region, next);
    region->bytes = next;
    return KVB_OK;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool kvb_region_populate(struct kvb_region *region, size_t used, size_t spare, size_t step)
{
    const size_t bytes = used + min_size(spare, region->max_bytes - used);
    /* The first access to a part of a huge page makes all of it resident.  So the last huge page is
     * included, unless it would be large beside what is in use: then the first access does it. */
    const size_t wanted = used < huge_page_bytes / 2 ? bytes / huge_page_bytes * huge_page_bytes
                                                     : round_up(bytes, huge_page_bytes);
    const size_t from = region->populated;
    const size_t to = min_size(from + round_up(step, huge_page_bytes), wanted);

    if (from >= wanted || kvb_region_reach(region, to) != KVB_OK) {
        return false;
    }
    (void)madvise(region->base + from, to - from, MADV_HUGEPAGE);
    const bool is_done = madvise(region->base + from, to - from, MADV_POPULATE_WRITE) == 0;
    region->populated = is_done ? to : SIZE_MAX; /* a call that failed would fail again */
    return is_done && to < wanted;
}
