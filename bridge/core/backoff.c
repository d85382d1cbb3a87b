#include "core/backoff.h"

uint64_t kvb_backoff_fail(
    struct kvb_backoff *backoff, const struct kvb_backoff_range *range, uint64_t now_ns)
{
    /* halves are compared, so that no pause is too large to be doubled */
    const uint64_t longer_ns = backoff->pause_ns == 0                      ? range->first_ns
                               : backoff->pause_ns < range->longest_ns / 2 ? 2 * backoff->pause_ns
                                                                           : range->longest_ns;

    backoff->pause_ns = longer_ns < range->longest_ns ? longer_ns : range->longest_ns;
    backoff->next_ns = now_ns + backoff->pause_ns;
    return backoff->pause_ns;
}

void kvb_backoff_end(struct kvb_backoff *backoff, const struct kvb_backoff_range *range)
{
    if (backoff->pause_ns > 0) {
        backoff->next_ns -= backoff->pause_ns - range->first_ns;
        backoff->pause_ns = 0;
    }
}

bool kvb_backoff_is_due(const struct kvb_backoff *backoff, uint64_t now_ns)
{
    return now_ns >= backoff->next_ns;
}
