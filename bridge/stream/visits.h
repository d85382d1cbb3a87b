#pragma once

#include <stddef.h>
#include <stdint.h>

/* When each rank is visited next, so that a rank at rest costs nothing in between: a hashed timing
 * wheel (Varghese, Lauck) of one turn, because no rank rests for longer than the turn takes.
 *
 *     slot   0       1       2            255
 *          [ a ]   [   ]   [ b, c ] ... [   ]      a slot is 5 ms, the wheel 1.28 s
 *                    ^ at: taken last
 *
 * Setting and taking cost O(1) for each rank, and time moves over empty slots.
 *
 * Pure: time is an argument.  Threads: the caller locks.  Memory: none of its own; {0} is an empty
 * wheel, which must not be moved afterwards. */

/* In the struct of a rank.  {0}: it is never visited. */
struct kvb_visit {
    struct kvb_visit *next, *before; /* of its slot, a ring; NULL: it is in none */
    struct kvb_visit *then;          /* after kvb_visits_take(): the next one that was due */
};

enum { kvb_visit_slots = 256 };

struct kvb_visits {
    uint64_t at;                             /* the number of the slot that was taken last */
    uint64_t first;                          /* no slot before this one has a visit */
    struct kvb_visit slots[kvb_visit_slots]; /* the heads of the rings */
};

/* Visits it at due_ns, or up to 5 ms later; a time that has passed: with the next take.  due_ns is
 * cut to the wheel's turn. */
void kvb_visits_set(struct kvb_visits *visits, struct kvb_visit *visit, uint64_t due_ns);

/* It is not visited any more. */
void kvb_visits_drop(struct kvb_visit *visit);

/* When the next one is due, to 5 ms; UINT64_MAX: none is in the wheel.  Looks at each slot once as
 * time passes, because they are as many lines of the cache. */
uint64_t kvb_visits_due_ns(struct kvb_visits *visits);

/* Takes those that are due out of the wheel: the first of a list, linked by `then`. */
struct kvb_visit *kvb_visits_take(struct kvb_visits *visits, uint64_t now_ns);
