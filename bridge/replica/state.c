#include "replica/inside.h"

/* Derives state and reason of a stream from its other fields. */

struct verdict {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
};

static bool is_down(const struct kvb_follow *follow, struct verdict *out_verdict)
{
    const struct kvb_follower *shown = &follow->shown;

    if (follow->bridge == bridge_stopped) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED };
    } else if (follow->bridge == bridge_silent) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_SILENT };
    } else if (shown->has_heartbeat && shown->heartbeat.state == KVB_STREAM_DOWN) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, shown->heartbeat.reason };
    } else {
        return false;
    }
    return true;
}

/* Why the list may be outdated; NONE: it is not. */
static enum kvb_stream_reason
stale_for(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    if (followers->is_nats_away) {
        return KVB_REASON_NATS_AWAY;
    }
    return followers->is_lagging ? KVB_REASON_LAGGING : follow->doubt;
}

/* True when the window list has blocks but the newest heartbeat knows no window yet.  Answers
 * would then treat the model as one without a window and count all blocks as usable. */

static bool is_window_unsaid(const struct kvb_follower *shown)
{
    return shown->window && shown->window->count > 0 && shown->heartbeat.window_tokens == 0 &&
           shown->heartbeat.tiers[KVB_LIST_WINDOW].blocks == 0;
}

static struct verdict
verdict_of(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    const struct kvb_follower *shown = &follow->shown;
    struct verdict verdict = { KVB_STREAM_SYNCING, KVB_REASON_NONE };

    if (is_down(follow, &verdict)) {
        return verdict;
    }
    if (stale_for(followers, follow) != KVB_REASON_NONE) {
        return (struct verdict){ KVB_STREAM_STALE, stale_for(followers, follow) };
    }
    if (follow->rival_ns > 0) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_TWO_BRIDGES };
    }
    if (!shown->has_heartbeat) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT };
    }
    if (kvb_follow_waits(follow)) {
        return (struct verdict){ KVB_STREAM_SYNCING, follow->repair.need == need_range
                                                         ? KVB_REASON_MISSED_EVENTS
                                                         : KVB_REASON_DIFFERS };
    }
    if (follow->loss != KVB_REASON_NONE) {
        const bool is_coming = follow->repair.need == need_snapshot && follow->repair.failures == 0;
        return (struct verdict){ is_coming ? KVB_STREAM_SYNCING : KVB_STREAM_PARTIAL,
                                 follow->loss };
    }
    if (follow->is_proven && is_window_unsaid(shown)) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS };
    }
    if (follow->is_proven) {
        return (struct verdict){ shown->heartbeat.state, shown->heartbeat.reason };
    }
    return verdict;
}

void kvb_follow_classify(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    const struct verdict verdict = verdict_of(followers, follow);

    if (verdict.state == KVB_STREAM_DOWN && follow->shown.state != KVB_STREAM_DOWN) {
        follow->down_ns = now_ns;
    }
    followers->traits +=
        (verdict.state == KVB_STREAM_DOWN) != (follow->shown.state == KVB_STREAM_DOWN);
    follow->shown.state = verdict.state;
    follow->shown.reason = verdict.reason;
}
