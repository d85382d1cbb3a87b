#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Pauses between attempts that fail, each twice as long as the one before (exponential backoff):
 *
 *     failures    1       2           3                    n
 *     pause       first   2 * first   4 * first   ...      longest
 *
 * {0} has not failed: an attempt is due at once.
 *
 * Pure: times are arguments, monotonic ns.  Threads: the caller locks. */
struct kvb_backoff {
    uint64_t pause_ns; /* after the newest failure; 0: none */
    uint64_t next_ns;  /* when the next attempt is due */
};

struct kvb_backoff_range {
    uint64_t first_ns;
    uint64_t longest_ns;
};

/* The attempt failed.  Returns the pause before the next one; a caller with jitter may then change
 * next_ns. */
uint64_t kvb_backoff_fail(
    struct kvb_backoff *backoff, const struct kvb_backoff_range *range, uint64_t now_ns);

/* An attempt succeeded.  The pauses begin again with the first, and so much after the newest failed
 * attempt the next is due: what comes and goes is limited, too. */
void kvb_backoff_end(struct kvb_backoff *backoff, const struct kvb_backoff_range *range);

bool kvb_backoff_is_due(const struct kvb_backoff *backoff, uint64_t now_ns);
