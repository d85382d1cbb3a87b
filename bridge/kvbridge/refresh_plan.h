#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* When which stream's blocks are stored again, and how many of them at a time.
 *
 *     round  | stream 0 | stream 1 |  stream 2  | stream 3 |  one behind the other, in a
 *            '--------------- blocks ---------------'        stream that never stops
 *
 * A reader may join while a stream is at work: it gets the rest of it, which it cannot use,
 * then all others, and that one from its beginning.  So within publish.refresh_s as many
 * blocks must go out as all streams hold, and the largest one once more.  That gives the
 * speed; what it has earned is spent in pieces of kvb_refresh_piece_blocks, or of a stream
 * that has fewer.  An explicit request does not wait for that speed: only the two ceilings limit
 * it.
 *
 *     ceilings  kvb_max_refresh_bytes_a_second  what goes out
 *               kvb_max_refresh_cpu_percent     of one core: after each piece of work
 *                                               as long a rest as that takes
 *
 * Where the ceilings are reached a round takes longer than publish.refresh_s.
 *
 * Pure: time comes with the calls.  Threads: the caller locks. */

enum { kvb_refresh_piece_blocks = 128 };

struct kvb_refresh_plan {
    uint64_t period_ns;      /* 0: only who asks gets anything */
    uint64_t blocks;         /* of all streams, as measured */
    uint64_t largest;        /* of the largest one */
    double earned_blocks;    /* that may go out now */
    double earned_bytes;     /* may be negative: as many too many went out */
    uint64_t filled_ns;      /* the two above are of then */
    uint64_t not_before_ns;  /* the processor's rest */
    uint64_t round;          /* the one at hand; the first is 1 */
    uint64_t round_began_ns; /* 0: not yet */
};

void kvb_refresh_plan_init(struct kvb_refresh_plan *plan, uint32_t period_s, uint64_t now_ns);

/* What the streams hold now. */
void kvb_refresh_plan_measure(struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t largest);

/* How many blocks of a stream that holds stream_blocks may go out now; 0: none. */
size_t kvb_refresh_plan_allows(
    struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t stream_blocks, bool is_requested);

/* Reports how much was published; is_requested as above. */
void kvb_refresh_plan_published(
    struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t bytes, bool is_requested);

/* Work of took_ns has ended now. */
void kvb_refresh_plan_rest(struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t took_ns);

/* All streams had their turn.  Returns how long the round took; of the first 0. */
uint64_t kvb_refresh_plan_next_round(struct kvb_refresh_plan *plan, uint64_t now_ns);

/* ---- Of one stream; {0} to begin with ---- */
struct kvb_refresh_turn {
    uint64_t round;    /* the newest in which it had its turn */
    bool is_requested; /* its blocks are wanted now */
    bool was_requested;
    uint64_t requested_ns; /* when that was granted */
};

/* false: it was granted less than kvb_refresh_ration_s before. */
bool kvb_refresh_turn_request(struct kvb_refresh_turn *turn, uint64_t now_ns);

enum { kvb_refresh_ration_s = 10 };
