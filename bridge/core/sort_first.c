#include "core/sort_first.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { swap_bytes = 64 };

/* A max-heap of the first `first` items.  Its root, at position 0, is the last of them in order. */
struct heap {
    uint8_t *items;
    size_t item_bytes;
    size_t first;
    int (*compare)(const void *left, const void *right, void *context);
    void *context;
};

static uint8_t *item_at(const struct heap *heap, size_t at)
{
    return heap->items + (at * heap->item_bytes);
}

static void swap_items(const struct heap *heap, size_t a, size_t b)
{
    uint8_t *left = item_at(heap, a);
    uint8_t *right = item_at(heap, b);

    uint8_t kept[swap_bytes];

    for (size_t at = 0; at < heap->item_bytes; at += swap_bytes) {
        const size_t rest = heap->item_bytes - at;
        const size_t bytes = rest < swap_bytes ? rest : swap_bytes;
        memcpy(kept, left + at, bytes);
        memcpy(left + at, right + at, bytes);
        memcpy(right + at, kept, bytes);
    }
}

static int compare_at(const struct heap *heap, size_t a, size_t b)
{
    return heap->compare(item_at(heap, a), item_at(heap, b), heap->context);
}

static void sink_item(const struct heap *heap, size_t at)
{
    for (size_t child = (2 * at) + 1; child < heap->first; child = (2 * at) + 1) {
        /* The larger of both children. */
        if (child + 1 < heap->first && compare_at(heap, child, child + 1) < 0) {
            child++;
        }
        if (compare_at(heap, at, child) >= 0) {
            return;
        }
        swap_items(heap, at, child);
        at = child;
    }
}

static void select_first(const struct heap *heap, size_t count)
{
    for (size_t at = heap->first / 2; at-- > 0;) {
        sink_item(heap, at);
    }
    for (size_t at = heap->first; at < count; at++) {
        /* The item precedes the last of those kept, and takes its place. */
        if (compare_at(heap, at, 0) < 0) {
            swap_items(heap, at, 0);
            sink_item(heap, 0);
        }
    }
}

void kvb_sort_first(
    void *items, size_t count, size_t item_bytes, size_t first,
    int (*compare)(const void *left, const void *right, void *context), void *context)
{
    const struct heap heap = { .items = items,
                               .item_bytes = item_bytes,
                               .first = first < count ? first : count,
                               .compare = compare,
                               .context = context };

    if (heap.first == 0) {
        return;
    }
    if (heap.first < count) {
        select_first(&heap, count);
    }
    qsort_r(items, heap.first, item_bytes, compare, context);
}
