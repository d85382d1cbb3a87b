#pragma once

#include "wire/query/forward.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The challenges that a bridge has given to aggregators, so that nobody who records a request can
 * send it a second time.
 *
 *     given ---- used by one request ---> gone
 *        +------ 10 s, or 64 newer ones -> gone
 *
 * Threads: the caller locks.  Times are of the monotonic clock, in ns. */

enum { kvb_challenges_max = 64 };

struct kvb_challenges {
    struct {
        char text[kvb_forward_challenge_bytes]; /* "": none */
        uint64_t until_ns;
    } items[kvb_challenges_max];
    size_t next; /* the place of the next one: the oldest is replaced */
};

/* random: 16 bytes that nobody can guess. */
void kvb_challenges_give(
    struct kvb_challenges *challenges, const uint8_t random[16], uint64_t now_ns,
    char out_text[kvb_forward_challenge_bytes]);

/* True once for each that was given. */
bool kvb_challenges_use(struct kvb_challenges *challenges, const char *text, uint64_t now_ns);
