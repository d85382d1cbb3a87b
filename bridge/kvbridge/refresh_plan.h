#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Plans when the blocks of which stream are stored again, and how many at a time.
 *
 *     round  | stream 0 | stream 1 |  stream 2  | stream 3 |  one after another,
 *            '--------------- blocks ---------------'        without end
 *
 * A reader may join in the middle of a stream.  It receives the rest of that stream, which it
 * cannot use, then all others, and then that stream from its beginning.  Therefore, within
 * publish.refresh_s, the blocks of all streams and once more those of the largest one must be
 * published.  This defines the rate of a token bucket, which is spent in pieces of
 * kvb_refresh_piece_blocks, or of a whole stream with fewer blocks.  An explicit request does not
 * wait for that speed: only the two ceilings limit it.
 *
 *     ceilings  kvb_max_refresh_bytes_a_second  bytes published
 *               kvb_max_refresh_cpu_percent     of one core: after each piece of work
 *                                               a rest of proportional length
 *
 * At these ceilings a round takes longer than publish.refresh_s.
 *
 * Pure: time is an argument.  Threads: the caller locks. */

enum { kvb_refresh_piece_blocks = 128 };

struct kvb_refresh_plan {
    uint64_t period_ns;      /* 0: only on request */
    uint64_t blocks;         /* blocks of all streams, as measured */
    uint64_t largest;        /* blocks of the largest stream */
    double earned_blocks;    /* the budget now */
    double earned_bytes;     /* the budget now; negative: too many were published */
    uint64_t filled_ns;      /* when the two budgets were computed */
    uint64_t not_before_ns;  /* end of the rest for the processor */
    uint64_t round;          /* the current round; the first is 1 */
    uint64_t round_began_ns; /* 0: not yet */
};

void kvb_refresh_plan_init(struct kvb_refresh_plan *plan, uint32_t period_s, uint64_t now_ns);

/* Reports how many blocks the streams hold now. */
void kvb_refresh_plan_measure(struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t largest);

/* How many blocks of a stream that holds stream_blocks may be published now; 0: none. */
size_t kvb_refresh_plan_allows(
    struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t stream_blocks, bool is_requested);

/* When the next piece of such a stream may be published, without a request and as far as the rate
 * says; UINT64_MAX: only on request. */
uint64_t kvb_refresh_plan_due_ns(const struct kvb_refresh_plan *plan, uint64_t stream_blocks);

/* Reports how much was published; is_requested as above. */
void kvb_refresh_plan_published(
    struct kvb_refresh_plan *plan, uint64_t blocks, uint64_t bytes, bool is_requested);

/* Reports that work of took_ns has ended now. */
void kvb_refresh_plan_rest(struct kvb_refresh_plan *plan, uint64_t now_ns, uint64_t took_ns);

/* Begins the next round after all streams had their turn.  Returns how long the round took; 0 for
 * the first. */
uint64_t kvb_refresh_plan_next_round(struct kvb_refresh_plan *plan, uint64_t now_ns);

/* ---- The turns of one stream; initially {0} ---- */
struct kvb_refresh_turn {
    uint64_t round;    /* the newest round in which it had its turn */
    bool is_requested; /* a refresh is requested and has not begun */
    bool was_requested;
    uint64_t requested_ns; /* when the last request was granted */
};

/* False: a request was granted less than kvb_refresh_ration_s before. */
bool kvb_refresh_turn_request(struct kvb_refresh_turn *turn, uint64_t now_ns);

enum { kvb_refresh_ration_s = 10 };
