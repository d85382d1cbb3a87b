#include "core/limits.h"
#include "stream/follower_inside.h"

#include <string.h>

static bool is_same_epoch(const kvb_epoch *a, const kvb_epoch *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* Something may be missing, removals among it: what is listed can no longer be
 * called a subset, so it goes. */
static void
lose(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason)
{
    kvb_follow_clear(followers, follow);
    follow->loss = reason;
    follow->is_subset = true;
    follow->is_proven = false;
    follow->must_prove = false;
    follow->heartbeats_ahead = 0;
}

/* Blocks are missing, no removal is: a subset still. */
static void note_missing(struct kvb_followers *followers, struct kvb_follow *follow)
{
    followers->counters.blocks_refused++;
    follow->is_proven = false;
    if (follow->loss == KVB_REASON_NONE) {
        follow->loss = KVB_REASON_MEMORY;
    }
}

static void take_epoch(struct kvb_follow *follow, const kvb_epoch *epoch)
{
    follow->has_old_epoch = follow->has_epoch;
    follow->old_epoch = follow->epoch;
    follow->has_epoch = true;
    follow->epoch = *epoch;
}

static bool is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch)
{
    return follow->has_old_epoch && is_same_epoch(&follow->old_epoch, epoch);
}

/* ---- Events ---- */

static void store(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const struct kvb_index_run run = {
        .has_parent = event->has_parent,
        .parent = event->parent,
        .blocks = batch->blocks + event->block_at,
        .tokens = batch->tokens + event->block_at,
        .count = event->block_count,
    };
    kvb_slot_ref slot = { 0 };

    if (kvb_follow_slot(followers, follow, event->tier, &slot) != KVB_OK ||
        kvb_prefix_index_store(followers->options.index, slot, &run, NULL) != KVB_OK) {
        note_missing(followers, follow);
    }
}

static void remove_blocks(
    struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    if (follow->shown.has_slot[event->tier]) {
        kvb_prefix_index_remove(
            followers->options.index, follow->shown.slots[event->tier],
            batch->blocks + event->block_at, event->block_count, NULL);
    }
}

/* A `cleared` begins a complete history at whatever id.  It may have opened a
 * new epoch that JSON cannot name, so only a contiguous one of a known epoch
 * leaves the bridge's word standing. */
static void clear(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const bool is_next = batch->has_epoch && follow->shown.has_last_id &&
                         event->event_id - follow->shown.last_id == 1;

    kvb_follow_clear(followers, follow);
    follow->is_proven = follow->is_proven && is_next;
    follow->loss = KVB_REASON_NONE;
    follow->is_subset = true;
    follow->has_cleared = true;
    follow->cleared_id = event->event_id;
    follow->heartbeats_ahead = 0;
}

static void apply_event(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    switch (event->kind) {
    case KVB_ROUTER_STORED:
        store(followers, follow, batch, event);
        break;
    case KVB_ROUTER_REMOVED:
        remove_blocks(followers, follow, batch, event);
        break;
    case KVB_ROUTER_CLEARED:
        clear(followers, follow, batch, event);
        break;
    }
    follow->shown.has_last_id = true;
    follow->shown.last_id = event->event_id;
    followers->counters.events_applied++;
}

/* Ids of a bridge of ours: each once, +1 each. */
static void order_event(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    const bool has_last = follow->shown.has_last_id;

    if (has_last && event->event_id <= follow->shown.last_id) {
        followers->counters.events_old++;
        return;
    }
    if (has_last && event->event_id - follow->shown.last_id > 1 &&
        event->kind != KVB_ROUTER_CLEARED) {
        followers->counters.holes++;
        lose(followers, follow, KVB_REASON_MISSED_EVENTS);
    }
    apply_event(followers, follow, batch, event);
}

/* Ids of whoever else: applied as they come.  Whether they jumped is remembered
 * for the case that a heartbeat comes and says that the bridge is ours. */
static void take_event(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    if (follow->shown.has_last_id && event->event_id - follow->shown.last_id != 1) {
        follow->is_subset = false; /* a `cleared` sets it again */
    }
    apply_event(followers, follow, batch, event);
}

/* False: the batch belongs to an epoch that is over. */
static bool meet_epoch_of_batch(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch)
{
    if (follow->has_epoch && is_same_epoch(&follow->epoch, &batch->epoch)) {
        return true;
    }
    if (is_old_epoch(follow, &batch->epoch)) {
        return false;
    }
    const bool was_known = follow->has_epoch || follow->shown.has_last_id;
    const bool begins = batch->event_count > 0 && batch->events[0].kind == KVB_ROUTER_CLEARED;
    take_epoch(follow, &batch->epoch);
    follow->shown.has_last_id = false; /* ids of the old epoch bind no more */
    if (was_known && !begins) {
        followers->counters.epochs_missed++;
        lose(followers, follow, KVB_REASON_JOINED_LATE);
    }
    return true;
}

kvb_status kvb_followers_apply(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_router_batch *batch, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, now_ns, &follow));
    if (batch->has_epoch && !meet_epoch_of_batch(followers, follow, batch)) {
        followers->counters.events_old += batch->event_count;
        return KVB_OK;
    }
    const bool is_ours = follow->has_epoch || follow->shown.has_heartbeat;
    for (size_t i = 0; i < batch->event_count; i++) {
        if (is_ours) {
            order_event(followers, follow, batch, &batch->events[i]);
        } else {
            take_event(followers, follow, batch, &batch->events[i]);
        }
    }
    kvb_follow_judge(followers, follow, now_ns);
    return KVB_OK;
}

/* ---- Heartbeats ---- */

/* Events and heartbeats come in the bridge's order, so whatever comes after this
 * heartbeat has a larger id: counting goes on from there. */
static void go_on_after(struct kvb_follow *follow, const struct kvb_heartbeat *heartbeat)
{
    follow->shown.has_last_id = true;
    follow->shown.last_id = heartbeat->last_id;
}

static void meet_first_heartbeat(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    if (!follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    } else if (!follow->is_subset) {
        followers->counters.holes++;
        lose(followers, follow, KVB_REASON_MISSED_EVENTS);
    }
    take_epoch(follow, &heartbeat->epoch);
}

/* A new epoch whose `cleared` was applied (in JSON, which names no epoch) goes on
 * as it is; any other begins empty. */
static void meet_new_epoch(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    const bool has_beginning = follow->has_cleared && follow->loss == KVB_REASON_NONE &&
                               follow->cleared_id >= heartbeat->epoch_first_id &&
                               follow->cleared_id <= heartbeat->last_id;

    take_epoch(follow, &heartbeat->epoch);
    follow->is_proven = false;
    if (!has_beginning) {
        followers->counters.epochs_missed++;
        lose(followers, follow, KVB_REASON_JOINED_LATE);
        go_on_after(follow, heartbeat);
    }
}

static bool has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        const uint64_t blocks =
            kvb_followers_blocks(followers, &follow->shown, (enum kvb_tier)tier);
        if (blocks != heartbeat->tiers[tier].blocks) {
            return false;
        }
    }
    return true;
}

/* The bridge speaks of the same event that we applied last. */
static void compare_counts(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    follow->heartbeats_ahead = 0;
    if (has_counts(followers, follow, heartbeat)) {
        follow->loss = KVB_REASON_NONE;
        follow->is_proven = true;
        follow->must_prove = false;
    } else if (follow->loss == KVB_REASON_NONE) {
        followers->counters.differs++;
        lose(followers, follow, KVB_REASON_DIFFERS);
    } else {
        follow->must_prove = false; /* PARTIAL, for the reason that is known */
    }
}

/* One heartbeat ahead is forgiven, two mean that the events will not come. */
static void note_ahead(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    followers->counters.heartbeats_late++;
    if (++follow->heartbeats_ahead > 1) {
        lose(followers, follow, KVB_REASON_MISSED_EVENTS);
        go_on_after(follow, heartbeat);
    }
}

static void check(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat)
{
    if (!follow->has_epoch) {
        meet_first_heartbeat(followers, follow, heartbeat);
    } else if (!is_same_epoch(&follow->epoch, &heartbeat->epoch)) {
        meet_new_epoch(followers, follow, heartbeat);
    } else if (!follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    }
    if (heartbeat->last_id > follow->shown.last_id) {
        note_ahead(followers, follow, heartbeat);
    } else if (heartbeat->last_id == follow->shown.last_id) {
        compare_counts(followers, follow, heartbeat);
    }
}

kvb_status kvb_followers_heartbeat(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, now_ns, &follow));
    followers->counters.heartbeats++;
    if (is_old_epoch(follow, &heartbeat->epoch)) {
        followers->counters.events_old++;
        return KVB_OK;
    }
    check(followers, follow, heartbeat);
    follow->shown.has_heartbeat = true;
    follow->shown.heartbeat = *heartbeat;
    follow->alive_ns = now_ns;
    follow->is_silent = false;
    follow->is_bye = heartbeat->is_bye;
    kvb_follow_judge(followers, follow, now_ns);
    return KVB_OK;
}
