#pragma once

#include "daemon/http.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* GET /readyz?exact=0.95 asks whether at least this share of the streams is EXACT.  A rolling
 * update of daemons uses it to wait until a new daemon has complete lists.
 *
 * Streams for which kvb_stream_is_counted() is false do not count, because an absent or idle worker
 * must not delay an update.  Without streams the answer is yes.
 *
 * A daemon that `keeps` repeats a yes: a share that was asked for and reached, and every smaller
 * one, stays reached.  As a readiness probe it must not take all aggregators away at once because
 * of something that all of them see.
 *
 * Threads: one thread sets, any thread asks. */
struct kvb_exact_share {
    _Atomic uint64_t counts; /* one atomic: EXACT in the high half, all in the low half */
    _Atomic double kept;     /* the largest share that was asked for and reached */
    bool keeps;              /* set before the first question */
};

void kvb_exact_share_set(struct kvb_exact_share *share, uint32_t exact, uint32_t streams);
void kvb_exact_share_get(
    const struct kvb_exact_share *share, uint32_t *out_exact, uint32_t *out_streams);

/* True: the required share is not reached (503), or is no number from 0 to 1 (400); the answer is
 * then complete.  False: the query part requires no share, or the share is reached. */
bool kvb_exact_share_refuses(
    struct kvb_exact_share *share, const char *query, struct kvb_http_answer *answer);
