#pragma once

#include <stddef.h>

/* Heap selection: sorts only the first items, in O(count * log(first)) steps.
 *
 *     [ 5 2 9 1 7 3 ]   first = 2   ->   [ 1 2 | 5 9 7 3 ]   the rest in any order
 *
 * Positions 0 .. first-1 are as after qsort_r().  If `first` is count or more, all items are
 * sorted.  Equal items may be in any order.  Threads: any thread.  Memory: only what qsort_r()
 * takes. */
void kvb_sort_first(
    void *items, size_t count, size_t item_bytes, size_t first,
    int (*compare)(const void *left, const void *right, void *context), void *context);
