#include "stream/share.h"

#include "core/clock.h"

static const uint64_t second_ns = KVB_NS_PER_S;
static const struct kvb_backoff_range of_quarantines = { .first_ns = KVB_NS_PER_S,
                                                         .longest_ns = 30 * KVB_NS_PER_S };

enum {
    share_divisor = 2, /* half of the thread's time */
    first_patience_seconds = 10,
    next_patience_seconds = 2,
    forgiven_after_seconds = 30
};

void kvb_share_use(struct kvb_share *share, uint64_t used_ns)
{
    share->used_ns += used_ns;
}

static void begin_second(struct kvb_share *share, uint64_t now_ns, uint64_t others)
{
    share->second_ns = now_ns;
    share->used_ns = 0;
    share->others = others;
}

enum kvb_share_verdict kvb_share_classify(struct kvb_share *share, uint64_t now_ns, uint64_t others)
{
    if (kvb_share_is_quarantined(share)) {
        if (now_ns < share->until_ns) {
            return KVB_SHARE_GO_ON;
        }
        share->until_ns = 0;
        share->over_seconds = 0;
        share->cooldown_seconds = 0;
        begin_second(share, now_ns, others);
        return KVB_SHARE_RELEASE;
    }
    if (share->second_ns == 0) {
        begin_second(share, now_ns, others);
    }
    if (now_ns < share->second_ns + second_ns) {
        return KVB_SHARE_GO_ON;
    }
    /* A second is over.  While nobody else was served, nobody had to wait. */
    const unsigned patience =
        share->quarantines.pause_ns > 0 ? next_patience_seconds : first_patience_seconds;
    const bool is_over =
        others > share->others && share->used_ns > (now_ns - share->second_ns) / share_divisor;
    share->over_seconds = is_over ? share->over_seconds + 1 : 0;
    share->cooldown_seconds = is_over ? 0 : share->cooldown_seconds + 1;
    if (share->cooldown_seconds >= forgiven_after_seconds) {
        share->quarantines = (struct kvb_backoff){ 0 };
    }
    begin_second(share, now_ns, others);
    if (share->over_seconds < patience) {
        return KVB_SHARE_GO_ON;
    }
    share->until_ns = now_ns + kvb_backoff_fail(&share->quarantines, &of_quarantines, now_ns);
    return KVB_SHARE_QUARANTINE;
}
