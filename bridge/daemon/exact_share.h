#pragma once

#include "daemon/http.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* GET /readyz?exact=0.95 asks whether at least this share of the streams is EXACT.  A rolling
 * update of daemons uses it to wait until a new daemon has complete lists.
 *
 * Streams that are DOWN do not count, because an absent worker must not delay an update.  Without
 * streams the answer is yes.
 *
 * Threads: one thread sets, any thread reads. */
struct kvb_exact_share {
    _Atomic uint64_t counts; /* one atomic: EXACT in the high half, all in the low half */
};

void kvb_exact_share_set(struct kvb_exact_share *share, uint32_t exact, uint32_t streams);
void kvb_exact_share_get(
    const struct kvb_exact_share *share, uint32_t *out_exact, uint32_t *out_streams);

/* True: the required share is not reached (503), or is no number from 0 to 1 (400); the answer is
 * then complete.  False: the query part requires no share, or the share is reached. */
bool kvb_exact_share_refuses(
    const struct kvb_exact_share *share, const char *query, struct kvb_http_answer *answer);
