#include "core/limits.h"
#include "replica/inside.h"

/* What a stream lacks, and what happens to its list meanwhile.  repair.c requests it. */

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
    if (repair->held) {
        kvb_event_log_clear(repair->held);
    }
    followers->needing += what != need_nothing;
    followers->needing -= repair->need != need_nothing;
    repair->need = what;
    repair->rounds = 0;
}

void kvb_follow_need_nothing(struct kvb_followers *followers, struct kvb_follow *follow)
{
    need(followers, follow, need_nothing);
    follow->repair.failures = 0;
    follow->repair.not_before_ns = 0;
}

bool kvb_repair_can_hold(struct follow_repair *repair)
{
    return repair->held || kvb_event_log_new(kvb_max_waiting_blocks, &repair->held) == KVB_OK;
}

void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (!followers->options.sends_requests) {
        return;
    }
    if (follow->repair.need != need_snapshot) {
        follow->repair.failures = 0; /* a new kind of request: no backoff yet */
        follow->repair.not_before_ns = 0;
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
        !kvb_repair_can_hold(repair)) {
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
        ++follow->differs_in_a_row > max_differences || !kvb_repair_can_hold(&follow->repair)) {
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
    follow->repair.failures = 0;
    follow->repair.not_before_ns = now_ns;
    follow->repair.since_ns = now_ns;
}

bool kvb_follow_hold(
    struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    const struct follow_repair *repair = &follow->repair;
    const bool waits = kvb_follow_waits(follow);

    if (waits || (repair->need == need_snapshot && repair->is_requested)) {
        kvb_event_log_add_event(repair->held, batch, event);
    }
    return waits;
}
