#include "core/clock.h"
#include "core/limits.h"
#include "stream/follower_inside.h"

#include <string.h>

static bool is_same_epoch(const kvb_epoch *a, const kvb_epoch *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void kvb_follow_lose(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason,
    uint64_t now_ns)
{
    kvb_follow_clear(followers, follow);
    follow->loss = reason;
    follow->is_subset = true;
    follow->is_proven = false;
    follow->must_prove = false;
    follow->heartbeats_ahead = 0;
    follow->settled_id = 0;
    kvb_follow_need_snapshot(followers, follow, now_ns);
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

static void take_epoch(struct kvb_follow *follow, const kvb_epoch *epoch, uint64_t now_ns)
{
    follow->epoch_ns = now_ns;
    follow->rival_ns = 0;
    follow->has_old_epoch = follow->has_epoch;
    follow->old_epoch = follow->epoch;
    follow->has_epoch = true;
    follow->epoch = *epoch;
}

bool kvb_follow_is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch)
{
    return follow->has_old_epoch && is_same_epoch(&follow->old_epoch, epoch);
}

/* ---- What a heartbeat proves ---- */

static void note_proof(struct kvb_follow *follow)
{
    follow->is_proven = true;
    follow->must_prove = false;
    follow->differs_in_a_row = 0;
}

void kvb_follow_recall(const struct kvb_followers *followers, struct kvb_follow *follow)
{
    const struct kvb_heartbeat *heartbeat = &follow->shown.heartbeat;

    if ((follow->is_proven && !follow->must_prove) || follow->loss != KVB_REASON_NONE ||
        !follow->shown.has_heartbeat || heartbeat->last_id != follow->shown.last_id ||
        heartbeat->last_id < follow->settled_id ||
        !is_same_epoch(&follow->epoch, &heartbeat->epoch)) {
        return;
    }
    if (kvb_follow_has_counts(followers, follow, heartbeat)) {
        note_proof(follow);
    }
}

/* ---- Events ---- */

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
    follow->settled_id = 0;
    kvb_follow_need_nothing(followers, follow);
}

void kvb_follow_apply(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    switch (event->kind) {
    case KVB_ROUTER_STORED:
        if (kvb_follow_store(followers, follow, batch, event) != KVB_OK) {
            note_missing(followers, follow);
        }
        break;
    case KVB_ROUTER_REMOVED:
        if (kvb_follow_remove(followers, follow, batch, event) != KVB_OK) {
            note_missing(followers, follow);
        }
        break;
    case KVB_ROUTER_CLEARED:
        clear(followers, follow, batch, event);
        break;
    }
    follow->shown.has_last_id = true;
    follow->shown.last_id = event->event_id;
    kvb_follow_recall(followers, follow);
    followers->counters.events_applied++;
}

enum { expected_ahead = 2 }; /* events */

/* Ids of a bridge of ours: each once, +1 each. */
static void order_event(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event, uint64_t now_ns)
{
    const bool has_last = follow->shown.has_last_id;
    const bool is_cleared = event->kind == KVB_ROUTER_CLEARED;

    if (has_last && event->event_id <= follow->shown.last_id) {
        followers->counters.events_old++;
        return;
    }
    if (has_last && !is_cleared && !kvb_follow_waits(follow) &&
        event->event_id - follow->shown.last_id > 1) {
        followers->counters.holes++;
        kvb_follow_need_range(followers, follow, now_ns);
    }
    if (!is_cleared && kvb_follow_hold(follow, batch, event)) {
        return;
    }
    kvb_follow_apply(followers, follow, batch, event);
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
    kvb_follow_apply(followers, follow, batch, event);
}

/* False: the batch belongs to an epoch that is over. */
static bool meet_epoch_of_batch(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, uint64_t now_ns)
{
    if (follow->has_epoch && is_same_epoch(&follow->epoch, &batch->epoch)) {
        return true;
    }
    if (kvb_follow_is_old_epoch(follow, &batch->epoch)) {
        return false;
    }
    const bool was_known = follow->has_epoch || follow->shown.has_last_id;
    const bool begins = batch->event_count > 0 && batch->events[0].kind == KVB_ROUTER_CLEARED;
    take_epoch(follow, &batch->epoch, now_ns);
    follow->shown.has_last_id = false; /* ids of the old epoch bind no more */
    if (was_known && !begins) {
        followers->counters.epochs_missed++;
        kvb_follow_lose(followers, follow, KVB_REASON_JOINED_LATE, now_ns);
    } else if (begins) {
        kvb_follow_need_nothing(followers, follow); /* what was missing was of the old epoch */
    }
    return true;
}

kvb_status kvb_followers_apply(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_router_batch *batch, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, now_ns, &follow));
    if (batch->has_epoch && !meet_epoch_of_batch(followers, follow, batch, now_ns)) {
        followers->counters.events_old += batch->event_count;
        return KVB_OK;
    }
    const bool is_ours = follow->has_epoch || follow->shown.has_heartbeat;
    for (size_t i = 0; i < batch->event_count; i++) {
        if (i + expected_ahead < batch->event_count) {
            kvb_follow_expect(followers, follow, batch, &batch->events[i + expected_ahead]);
        }
        if (is_ours) {
            order_event(followers, follow, batch, &batch->events[i], now_ns);
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
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    if (!follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    } else if (!follow->is_subset) {
        followers->counters.holes++;
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
    }
    take_epoch(follow, &heartbeat->epoch, now_ns);
}

/* A new epoch whose `cleared` was applied (in JSON, which names no epoch) goes on
 * as it is; any other begins empty. */
static void meet_new_epoch(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool has_beginning = follow->has_cleared && follow->loss == KVB_REASON_NONE &&
                               follow->cleared_id >= heartbeat->epoch_first_id &&
                               follow->cleared_id <= heartbeat->last_id;

    take_epoch(follow, &heartbeat->epoch, now_ns);
    follow->is_proven = false;
    if (!has_beginning) {
        followers->counters.epochs_missed++;
        kvb_follow_lose(followers, follow, KVB_REASON_JOINED_LATE, now_ns);
        go_on_after(follow, heartbeat);
    }
}

/* Nothing of the epoch was published yet: what comes is the whole of it.  Bridges
 * whose readers know no `cleared` open an epoch so. */
static bool is_opening(const struct kvb_heartbeat *heartbeat)
{
    return heartbeat->last_id + 1 == heartbeat->epoch_first_id;
}

static void meet_opening(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    kvb_follow_lose(followers, follow, KVB_REASON_NONE, now_ns);
    kvb_follow_need_nothing(followers, follow);
    take_epoch(follow, &heartbeat->epoch, now_ns);
    go_on_after(follow, heartbeat);
}

/* The bridge speaks of the same event that we applied last. */
static void compare_counts(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    follow->heartbeats_ahead = 0;
    if (heartbeat->last_id < follow->settled_id) {
        return; /* a snapshot was walked while this was the newest event, or an older one */
    }
    if (kvb_follow_has_counts(followers, follow, heartbeat)) {
        kvb_follow_need_nothing(followers, follow);
        follow->loss = KVB_REASON_NONE;
        note_proof(follow);
    } else if (kvb_follow_waits(follow)) {
        return; /* it is known */
    } else if (follow->loss == KVB_REASON_NONE) {
        followers->counters.differs++;
        kvb_follow_need_sums(followers, follow, now_ns);
    } else {
        follow->must_prove = false; /* PARTIAL, for the reason that is known */
    }
}

/* Who asks may ask at once; else one heartbeat ahead is forgiven, and two mean that
 * the events will not come. */
static void note_ahead(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool can_wait = followers->options.asks && follow->repair.need != need_snapshot;

    followers->counters.heartbeats_late++;
    follow->heartbeats_ahead++;
    if (can_wait) {
        kvb_follow_need_range(followers, follow, now_ns);
    } else if (follow->heartbeats_ahead > 1) {
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
        go_on_after(follow, heartbeat);
    }
}

static void check(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool is_known = follow->has_epoch && is_same_epoch(&follow->epoch, &heartbeat->epoch);

    if (!is_known && is_opening(heartbeat)) {
        meet_opening(followers, follow, heartbeat, now_ns);
    } else if (!follow->has_epoch) {
        meet_first_heartbeat(followers, follow, heartbeat, now_ns);
    } else if (!is_known) {
        meet_new_epoch(followers, follow, heartbeat, now_ns);
    } else if (!follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    }
    if (heartbeat->digest_seed != follow->digest_seed) {
        kvb_follow_begin_digest(followers, follow, heartbeat->digest_seed);
    }
    if (heartbeat->last_id > follow->shown.last_id) {
        note_ahead(followers, follow, heartbeat, now_ns);
    } else if (heartbeat->last_id == follow->shown.last_id) {
        compare_counts(followers, follow, heartbeat, now_ns);
    }
    if (follow->loss != KVB_REASON_NONE && follow->loss != KVB_REASON_MEMORY &&
        follow->repair.need == need_nothing) {
        kvb_follow_need_snapshot(followers, follow, now_ns);
    }
}

/* A bridge that began another epoch says no more of the one before; the last words of one
 * that ended come at once.  So it is another bridge's, and that lives. */
static void note_rival(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool lives = !heartbeat->is_bye &&
                       now_ns - follow->epoch_ns >= followers->options.heartbeat_ms * KVB_NS_PER_MS;

    followers->counters.events_old++;
    followers->counters.rivals += lives && follow->rival_ns == 0;
    follow->rival_ns = lives ? now_ns : 0;
    kvb_follow_judge(followers, follow, now_ns);
}

static bool has_other_shapes(const struct kvb_heartbeat *old, const struct kvb_heartbeat *news)
{
    bool is_other = old->block_size != news->block_size || old->lookahead != news->lookahead ||
                    old->shape_count != news->shape_count;

    for (size_t i = 0; !is_other && i < news->shape_count; i++) {
        const struct kvb_tier_shape *a = &old->shapes[i];
        const struct kvb_tier_shape *b = &news->shapes[i];
        is_other = a->tier != b->tier || a->shape.block_size != b->shape.block_size ||
                   a->shape.lookahead != b->shape.lookahead;
    }
    return is_other;
}

static bool has_other_traits(const struct kvb_follower *shown, const struct kvb_heartbeat *news)
{
    const struct kvb_heartbeat *old = &shown->heartbeat;

    return !shown->has_heartbeat || has_other_shapes(old, news) ||
           old->window_tokens != news->window_tokens || old->hashes != news->hashes ||
           old->is_paired != news->is_paired || old->is_store != news->is_store ||
           strcmp(old->model, news->model) != 0;
}

kvb_status kvb_followers_heartbeat(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, now_ns, &follow));
    followers->counters.heartbeats++;
    /* A bridge that was restored from its past has no other epoch to offer, nor has one
     * whose rival stopped. */
    if (kvb_follow_is_old_epoch(follow, &heartbeat->epoch) && !follow->is_silent &&
        !follow->is_bye) {
        note_rival(followers, follow, heartbeat, now_ns);
        return KVB_OK;
    }
    followers->traits += has_other_traits(&follow->shown, heartbeat);
    follow->shown.has_heartbeat = true;
    follow->shown.heartbeat = *heartbeat;
    check(followers, follow, heartbeat, now_ns);
    follow->alive_ns = now_ns;
    follow->is_silent = false;
    follow->is_bye = heartbeat->is_bye;
    kvb_follow_judge(followers, follow, now_ns);
    return KVB_OK;
}
