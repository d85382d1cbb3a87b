#pragma once

#include "daemon/http.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* GET /readyz?exact=0.95: is that share of the streams EXACT?  Whoever replaces a fleet of daemons
 * one by one waits for the list of each with it.
 *
 * Streams that are DOWN do not count, because a worker that is away must not hold up an update.
 * Without streams the answer is yes: there is nothing to wait for.
 *
 * Threads: one sets, any thread reads. */
struct kvb_exact_share {
    _Atomic uint64_t counts; /* EXACT ones in the high half, all in the low half: of one moment */
};

void kvb_exact_share_set(struct kvb_exact_share *share, uint32_t exact, uint32_t streams);
void kvb_exact_share_get(
    const struct kvb_exact_share *share, uint32_t *out_exact, uint32_t *out_streams);

/* True: the query part requires a share that is no number from 0 to 1 (400) or that is not reached
 * (503), and the answer is complete.  False: it requires none, or its share is reached. */
bool kvb_exact_share_refuses(
    const struct kvb_exact_share *share, const char *query, struct kvb_http_answer *answer);
