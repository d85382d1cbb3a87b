#include "replica/inside.h"

#include "core/limits.h"

/* ---- What is missing ----
 *
 * What a stream lacks, and what happens to its list meanwhile.  repair.c requests it. */

enum { max_differences = 2 };

void kvb_repair_stop_request(struct kvb_followers *followers, struct follow_repair *repair)
{
    followers->open_requests -= repair->is_requested;
    followers->next_scan_ns = 0;
    repair->is_requested = false;
    kvb_follow_drop_hidden(followers, repair);
    kvb_router_batch_reset(&repair->patch);
}

static void need(struct kvb_followers *followers, struct kvb_follow *follow, enum follow_need what)
{
    struct follow_repair *repair = &follow->repair;

    kvb_repair_stop_request(followers, repair);
    if (repair->buffer) {
        kvb_event_log_clear(repair->buffer);
    }
    followers->needing += what != need_nothing;
    followers->needing -= repair->need != need_nothing;
    repair->need = what;
    repair->rounds = 0;
}

void kvb_follow_need_nothing(struct kvb_followers *followers, struct kvb_follow *follow)
{
    need(followers, follow, need_nothing);
    follow->repair.requests = (struct kvb_backoff){ 0 };
}

bool kvb_repair_has_buffer(struct follow_repair *repair)
{
    return repair->buffer || kvb_event_log_new(kvb_max_waiting_blocks, &repair->buffer) == KVB_OK;
}

void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (!followers->options.sends_requests) {
        return;
    }
    if (follow->repair.need != need_snapshot) {
        follow->repair.requests = (struct kvb_backoff){ 0 }; /* a new kind of request */
    }
    need(followers, follow, need_snapshot);
    follow->repair.since_ns = now_ns;
}

void kvb_follow_lose(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason,
    uint64_t now_ns)
{
    kvb_follow_clear(followers, follow);
    follow->loss = reason;
    follow->is_subset = true;
    follow->is_proven = false;
    follow->doubt = KVB_REASON_NONE;
    follow->heartbeats_ahead = 0;
    follow->settled_id = 0;
    kvb_follow_need_snapshot(followers, follow, now_ns);
}

bool kvb_follow_may_fit(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    const struct kvb_heartbeat *heartbeat = &follow->shown.heartbeat;
    const size_t windows = followers->window_blocks < followers->options.max_window_blocks
                               ? followers->options.max_window_blocks - followers->window_blocks
                               : 0;
    uint64_t missing = 0;

    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const uint64_t listed =
            kvb_followers_blocks(followers, &follow->shown, (enum kvb_tier)tier);
        const uint64_t held = heartbeat->tiers[tier].blocks;
        missing += held > listed ? held - listed : 0;
    }
    return missing <= kvb_prefix_index_room(followers->options.index) &&
           heartbeat->tiers[KVB_LIST_WINDOW].blocks <= windows;
}

bool kvb_follow_waits(const struct kvb_follow *follow)
{
    return follow->repair.need != need_nothing && follow->repair.need != need_snapshot;
}

void kvb_follow_need_range(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    if (kvb_follow_waits(follow)) {
        return;
    }
    if (!followers->options.sends_requests || repair->need == need_snapshot || !follow->has_epoch ||
        !kvb_repair_has_buffer(repair)) {
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
        return;
    }
    need(followers, follow, need_range);
    repair->since_ns = now_ns;
}

void kvb_follow_need_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (!followers->options.sends_requests || follow->digest_seed == 0 ||
        ++follow->differs_in_a_row > max_differences || !kvb_repair_has_buffer(&follow->repair)) {
        follow->differs_in_a_row = 0;
        kvb_follow_lose(followers, follow, KVB_REASON_DIFFERS, now_ns);
        return;
    }
    need(followers, follow, need_sums);
    follow->repair.since_ns = now_ns;
}

void kvb_follow_request_again(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    kvb_repair_stop_request(followers, &follow->repair);
    follow->repair.requests = (struct kvb_backoff){ .next_ns = now_ns };
    follow->repair.since_ns = now_ns;
}

bool kvb_follow_buffer(
    struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    const struct follow_repair *repair = &follow->repair;
    const bool waits = kvb_follow_waits(follow);

    if (waits || (repair->need == need_snapshot && repair->is_requested)) {
        kvb_event_log_add_event(repair->buffer, batch, event);
    }
    return waits;
}

/* Derives state and reason of a stream from its other fields. */

struct verdict {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
};

/* Why the list may be outdated; NONE: it is not. */
static enum kvb_stream_reason
stale_for(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    if (followers->is_nats_away) {
        return KVB_REASON_NATS_AWAY;
    }
    return followers->is_lagging || followers->is_unread ? KVB_REASON_LAGGING : follow->doubt;
}

/* A table: the first condition that holds gives the state. */
static struct verdict
verdict_of(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    const struct kvb_follower *shown = &follow->shown;

    /* What is down is down, whatever else is wrong: nobody may be sent there. */
    if (follow->bridge == bridge_stopped) {
        return (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED };
    }
    if (follow->bridge == bridge_silent) {
        return (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_SILENT };
    }
    if (shown->has_heartbeat && shown->heartbeat.state == KVB_STREAM_DOWN) {
        return (struct verdict){ KVB_STREAM_DOWN, shown->heartbeat.reason };
    }
    /* Then what makes it unknown whether the list is that of now, or of which bridge. */
    if (stale_for(followers, follow) != KVB_REASON_NONE) {
        return (struct verdict){ KVB_STREAM_STALE, stale_for(followers, follow) };
    }
    if (follow->rival_ns > 0) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_TWO_BRIDGES };
    }
    if (!shown->has_heartbeat) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_NO_HEARTBEAT };
    }
    /* Then what is known to be missing. */
    if (kvb_follow_waits(follow)) {
        return (struct verdict){ KVB_STREAM_SYNCING, follow->repair.need == need_range
                                                         ? KVB_REASON_MISSED_EVENTS
                                                         : KVB_REASON_DIFFERS };
    }
    if (follow->loss != KVB_REASON_NONE) {
        const bool is_coming =
            follow->repair.need == need_snapshot && follow->repair.requests.pause_ns == 0;
        return (struct verdict){ is_coming ? KVB_STREAM_SYNCING : KVB_STREAM_PARTIAL,
                                 follow->loss };
    }
    if (!follow->is_proven) {
        return (struct verdict){ KVB_STREAM_SYNCING, KVB_REASON_NONE };
    }
    /* The window list has blocks, but the newest heartbeat knows no window yet: answers would treat
     * the model as one without a window, and count all blocks as usable. */
    if (shown->window && shown->window->count > 0 && shown->heartbeat.window_tokens == 0 &&
        shown->heartbeat.tiers[KVB_LIST_WINDOW].blocks == 0) {
        return (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_GROUPS };
    }
    return (struct verdict){ shown->heartbeat.state, shown->heartbeat.reason };
}

void kvb_follow_classify(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct verdict verdict = verdict_of(followers, follow);
    const bool was_claimed = follow->shown.is_claimed;

    follow->shown.is_claimed =
        verdict.state == KVB_STREAM_EXACT || verdict.state == KVB_STREAM_PARTIAL;
    follow->shown.claim += was_claimed && !follow->shown.is_claimed;
    if (follow->shown.is_doubted && follow->shown.is_claimed) {
        verdict = (struct verdict){ KVB_STREAM_UNVERIFIED, KVB_REASON_AUDIT };
    }
    if (verdict.state == KVB_STREAM_DOWN && follow->shown.state != KVB_STREAM_DOWN) {
        follow->down_ns = now_ns;
    }
    followers->traits +=
        (verdict.state == KVB_STREAM_DOWN) != (follow->shown.state == KVB_STREAM_DOWN);
    follow->shown.state = verdict.state;
    follow->shown.reason = verdict.reason;
}
