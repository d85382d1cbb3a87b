#pragma once

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* A hierarchical bitmap: a set of small numbers (entries of a mirror) that is walked in rising
 * order, at a cost that depends only on the number of its members.
 *
 *     bit set with summaries, 64 to 1:
 *
 *     level 1   [ 1 0 1 ... ]                  bit w: word w of level 0 is not 0
 *     level 0   [ 0 1 1 ... ][ 0 ... ][ 1 ... ]   bit i: number i is a member
 *
 * Four levels hold 2^24 numbers.  Most changes touch one word, because neighbouring numbers are
 * members too.
 *
 * Threads: the caller locks.
 * Memory:  one bit for each number up to the largest member ever; grows by doubling. */
enum { kvb_entry_set_levels = 4 };

struct kvb_entry_set {
    uint64_t *levels[kvb_entry_set_levels]; /* owned */
    size_t capacity;                        /* how many numbers fit */
};

/* {0} is an empty set. */
void kvb_entry_set_done(struct kvb_entry_set *set);

/* Adds a number; a member may be added again.  KVB_TOO_LARGE: it is 2^24 or more.  KVB_NO_MEMORY:
 * nothing changed. */
kvb_status kvb_entry_set_add(struct kvb_entry_set *set, uint32_t number);

/* Removes a number, if it is a member. */
void kvb_entry_set_remove(struct kvb_entry_set *set, uint32_t number);

/* The lowest member that is at least `from`, or UINT32_MAX. */
uint32_t kvb_entry_set_next(const struct kvb_entry_set *set, uint32_t from);

/* Removes all members, which must be below `end`.  Cost: one word for each 64 numbers. */
void kvb_entry_set_clear(struct kvb_entry_set *set, size_t end);
