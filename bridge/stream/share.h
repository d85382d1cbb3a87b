#pragma once

#include "core/backoff.h"

#include <stdbool.h>
#include <stdint.h>

/* Limits the share of the shared thread's time that one stream may take.
 *
 *     serving --- above its share for 10 s while others were served ---> quarantined
 *        ^                                                                    |
 *        +---------------------- the back-off has passed <--------------------+
 *
 * The share is half of the thread's time, counted in windows of one second.  Other streams' events
 * stay fast in the bridge because batches are applied in slices and all streams take turns.  The
 * quarantine is for the aggregators: they take longer for an event than the bridge, so that one
 * engine that occupies the whole thread makes all lists of all of them STALE(lagging) for as long
 * as it does.  The back-off is 1 s.  It doubles, up to 30 s, for a stream that exceeds its share
 * again for 2 s, and is reset after 30 s within the share.
 *
 * Pure: time is an argument.  Threads: the caller locks. */
struct kvb_share {
    uint64_t second_ns;        /* when the current second began; 0: none yet */
    uint64_t used_ns;          /* time used in this second */
    uint64_t others;           /* the count of others at the start of this second */
    unsigned over_seconds;     /* seconds in a row above the share */
    unsigned cooldown_seconds; /* seconds in a row within it, since the newest quarantine */
    uint64_t until_ns;         /* quarantined until then; 0: it is not */
    struct kvb_backoff quarantines;
};

enum kvb_share_verdict { KVB_SHARE_GO_ON, KVB_SHARE_QUARANTINE, KVB_SHARE_RELEASE };

/* Adds time for which the stream was served. */
void kvb_share_use(struct kvb_share *share, uint64_t used_ns);

/* Decides between serving and quarantine; call it once a second or more often.  others: how often
 * other streams have had live batches so far, a counter that only grows. */
enum kvb_share_verdict
kvb_share_classify(struct kvb_share *share, uint64_t now_ns, uint64_t others);

static inline bool kvb_share_is_quarantined(const struct kvb_share *share)
{
    return share->until_ns > 0;
}
