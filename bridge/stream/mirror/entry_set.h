#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A hierarchical bitmap: a set of small numbers (entries of a mirror) that is walked in rising
 * order, at a cost that depends on the number of its members alone.
 *
 *     bit set with summaries, 64 to 1:
 *
 *     level 1   [ 1 0 1 ... ]                  bit w: word w below is not 0
 *     level 0   [ 0 1 1 ... ][ 0 ... ][ 1 ... ]   bit i: number i is a member
 *
 * Four levels reach 2^24 numbers.  Most changes touch one word, for its neighbours are members.
 *
 * Threads: the caller locks.
 * Memory:  a bit for each number below the largest that ever was a member, doubling. */
enum { kvb_entry_set_levels = 4 };

struct kvb_entry_set {
    uint64_t *levels[kvb_entry_set_levels]; /* owned */
    size_t capacity;                        /* numbers */
};

/* {0} is an empty set. */
void kvb_entry_set_done(struct kvb_entry_set *set);

/* A member may be added again.  KVB_TOO_LARGE: 2^24 and more; KVB_NO_MEMORY: nothing changed. */
kvb_status kvb_entry_set_add(struct kvb_entry_set *set, uint32_t number);

/* Removes a number.  A number that is no member changes nothing. */
void kvb_entry_set_remove(struct kvb_entry_set *set, uint32_t number);

/* The lowest member that is at least `from`, or UINT32_MAX. */
uint32_t kvb_entry_set_next(const struct kvb_entry_set *set, uint32_t from);

/* Forgets all members, which are below `end`.  Cost: a word for 64 of those numbers. */
void kvb_entry_set_clear(struct kvb_entry_set *set, size_t end);
