#pragma once

#include <stddef.h>

/* Heap selection: qsort_r() where only the best are wanted, in count * log(first) steps.
 *
 *     [ 5 2 9 1 7 3 ]   first = 2   ->   [ 1 2 | 5 9 7 3 ]   the rest in any order
 *
 * Places 0 .. first-1 are as after qsort_r(); a `first` of count or more sorts all.  Of equal
 * items any may come first.  Threads: any thread.  Memory: none, but what qsort_r() takes. */
void kvb_sort_first(
    void *items, size_t count, size_t item_bytes, size_t first,
    int (*compare)(const void *left, const void *right, void *context), void *context);
