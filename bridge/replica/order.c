#include "core/clock.h"
#include "replica/inside.h"

#include <string.h>

/* Goes over to another epoch.  The one that was followed becomes an old one; an old epoch that is
 * followed again is not old any more. */
static void follow_epoch(struct kvb_follow *follow, const kvb_epoch *epoch, uint64_t now_ns)
{
    kvb_epoch *old = follow->old_epochs;

    if (follow->has_epoch) {
        size_t place = 0; /* that comes free: the epoch's own, the next one, or the oldest one's */
        while (place < follow->old_epoch_count && !kvb_epoch_is_same(&old[place], epoch)) {
            place++;
        }
        place -= place == max_old_epochs;
        follow->old_epoch_count += place == follow->old_epoch_count;
        memmove(old + 1, old, place * sizeof *old);
        old[0] = follow->epoch;
    }
    follow->epoch_ns = now_ns;
    follow->rival_ns = 0;
    follow->newest_id = 0;
    follow->has_epoch = true;
    follow->epoch = *epoch;
}

/* ---- Events ---- */

enum { expected_ahead = 2 }; /* events */

/* How far an event id may be above the last known one.  A bridge counts its events one by one,
 * at most a million a second, and sends a heartbeat at least once a minute.  Without a named
 * epoch a `cleared` may begin a new one, and the first id of an epoch is the bridge's wall clock
 * in microseconds. */
static const uint64_t max_ahead = UINT64_C(1) << 26;
static const uint64_t max_ahead_of_epoch = UINT64_C(1) << 50; /* 35 years */

/* True when the bridge cannot have reached this id since its newest heartbeat. */
static bool is_far_ahead(
    const struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    const struct kvb_follower *shown = &follow->shown;
    const bool may_begin = !batch->has_epoch && event->kind == KVB_ROUTER_CLEARED;
    uint64_t known_id = shown->heartbeat.last_id;

    if (!shown->has_heartbeat || !kvb_epoch_is_same(&follow->epoch, &shown->heartbeat.epoch)) {
        return false;
    }
    if (!batch->has_epoch && follow->has_cleared && follow->cleared_id > known_id) {
        known_id = follow->cleared_id; /* the heartbeat of that epoch is still to come */
    }
    return event->event_id > known_id &&
           event->event_id - known_id > (may_begin ? max_ahead_of_epoch : max_ahead);
}

/* Counts each missing event once, however often it is noticed.  newest_id is the id of an event
 * that has arrived (is_here), or the last id that a heartbeat names, whose event is missing as
 * well.  The first id of an epoch has none before it. */
static void count_missed(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t newest_id, bool is_here)
{
    if (newest_id <= follow->newest_id) {
        return;
    }
    const uint64_t ahead = newest_id - follow->newest_id - is_here;
    if (follow->newest_id > 0) {
        followers->counters.events_missed += ahead < max_ahead ? ahead : max_ahead;
    }
    follow->newest_id = newest_id;
}

/* An event of kvbridge: each id comes once and is one above the last. */
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
    if (is_far_ahead(follow, batch, event)) {
        followers->counters.events_ahead++;
        return;
    }
    if (has_last && !is_cleared && !kvb_follow_waits(follow) &&
        event->event_id - follow->shown.last_id > 1) {
        followers->counters.holes++;
        kvb_follow_need_range(followers, follow, now_ns);
    }
    if (is_cleared) {
        follow->newest_id = event->event_id; /* events before it are no longer needed */
    }
    count_missed(followers, follow, event->event_id, true);
    if (!is_cleared && kvb_follow_buffer(follow, batch, event)) {
        return;
    }
    kvb_follow_apply(followers, follow, batch, event);
}

/* An event of another bridge: applied whatever its id is.  A jump of the ids is remembered in case
 * a heartbeat comes later and shows that the bridge is kvbridge; a `cleared` forgives it. */
static void apply_unordered(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event)
{
    if (follow->shown.has_last_id && event->event_id - follow->shown.last_id != 1) {
        follow->is_subset = false;
    }
    kvb_follow_apply(followers, follow, batch, event);
}

/* Follows the epoch of the batch.  False: the batch belongs to an epoch that is over. */
static bool meet_epoch_of_batch(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, uint64_t now_ns)
{
    if (follow->has_epoch && kvb_epoch_is_same(&follow->epoch, &batch->epoch)) {
        return true;
    }
    if (kvb_follow_is_old_epoch(follow, &batch->epoch)) {
        return false;
    }
    const bool was_known = follow->has_epoch || follow->shown.has_last_id;
    const bool begins = batch->event_count > 0 && batch->events[0].kind == KVB_ROUTER_CLEARED;
    follow_epoch(follow, &batch->epoch, now_ns);
    follow->shown.has_last_id = false; /* the new epoch may begin at any id */
    if (was_known && !begins) {
        followers->counters.epochs_missed++;
        kvb_follow_lose(followers, follow, KVB_REASON_JOINED_LATE, now_ns);
    } else if (begins) {
        kvb_follow_need_nothing(followers, follow); /* only the old epoch lacked something */
    }
    return true;
}

bool kvb_followers_skip_json(struct kvb_followers *followers, const struct kvb_stream_id *id)
{
    const struct kvb_follower *follower = kvb_followers_find(followers, id);
    const bool skips = follower && follower->format == KVB_FORMAT_PROTOBUF;

    followers->counters.events_unused += skips;
    return skips;
}

kvb_status kvb_followers_apply(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_router_batch *batch, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, false, now_ns, &follow));
    if (!follow->shown.has_heartbeat && batch->has_epoch) {
        follow->shown.format = KVB_FORMAT_PROTOBUF;
    }
    if (batch->has_epoch != (follow->shown.format == KVB_FORMAT_PROTOBUF)) {
        followers->counters.events_unused += batch->event_count;
        return KVB_OK;
    }
    if (batch->has_epoch && !meet_epoch_of_batch(followers, follow, batch, now_ns)) {
        followers->counters.events_old += batch->event_count;
        return KVB_OK;
    }
    /* Only now: events of the old epoch must not hide that the newer one, forged, is mute. */
    if (!follow->shown.has_heartbeat) {
        kvb_follow_touch_unheard(followers, follow, now_ns);
    }
    const bool is_ours = follow->has_epoch || follow->shown.has_heartbeat;
    const uint64_t last_id = follow->shown.last_id;
    for (size_t i = 0; i < batch->event_count; i++) {
        if (i + expected_ahead < batch->event_count) {
            kvb_follow_expect(followers, follow, batch, &batch->events[i + expected_ahead]);
        }
        const struct kvb_router_event *event = &batch->events[i];
        if (is_ours) {
            order_event(followers, follow, batch, event, now_ns);
        } else {
            apply_unordered(followers, follow, batch, event);
        }
    }
    if (follow->shown.last_id != last_id) {
        follow->advanced_ns = now_ns;
    }
    kvb_follow_classify(followers, follow, now_ns);
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

/* The heartbeat is of an epoch that is not followed. */
static void meet_epoch_of_heartbeat(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool had_epoch = follow->has_epoch;
    /* In JSON, which names no epoch, the `cleared` of this one may have been applied already. */
    const bool has_beginning = follow->has_cleared && follow->loss == KVB_REASON_NONE &&
                               follow->cleared_id >= heartbeat->epoch_first_id &&
                               follow->cleared_id <= heartbeat->last_id;

    follow_epoch(follow, &heartbeat->epoch, now_ns);
    if (heartbeat->last_id + 1 == heartbeat->epoch_first_id) {
        /* Nothing of it was published yet, so that none of its events is missing.  Bridges whose
         * readers do not know `cleared` open an epoch this way. */
        kvb_follow_lose(followers, follow, KVB_REASON_NONE, now_ns);
        kvb_follow_need_nothing(followers, follow);
        go_on_after(follow, heartbeat);
    } else if (!had_epoch && !follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    } else if (!had_epoch && !follow->is_subset) {
        followers->counters.holes++;
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
    } else if (had_epoch) {
        follow->is_proven = false;
        if (!has_beginning) {
            followers->counters.epochs_missed++;
            kvb_follow_lose(followers, follow, KVB_REASON_JOINED_LATE, now_ns);
            go_on_after(follow, heartbeat);
        }
    }
}

/* The heartbeat is of the event that was applied last, so its counts must be those of the list. */
static void compare_counts(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    follow->heartbeats_ahead = 0;
    if (heartbeat->last_id < follow->settled_id) {
        return; /* the snapshot was read at a later event: its counts are not comparable */
    }
    if (kvb_follow_has_counts(followers, follow, heartbeat)) {
        kvb_follow_need_nothing(followers, follow);
        follow->loss = KVB_REASON_NONE;
        kvb_follow_note_proof(follow);
    } else if (kvb_follow_waits(follow)) {
        return; /* the difference is known and under repair */
    } else if (follow->loss == KVB_REASON_NONE) {
        followers->counters.differs++;
        kvb_follow_need_sums(followers, follow, now_ns);
    } else {
        follow->doubt = KVB_REASON_NONE; /* PARTIAL, for the reason that is known */
    }
}

/* The heartbeat is ahead of the last event applied.  Where a range can be requested, that is
 * done at once; else one such heartbeat is tolerated, and two in a row mean that the events are
 * lost. */
static void note_ahead(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool can_wait = followers->options.sends_requests && follow->repair.need != need_snapshot;

    followers->counters.heartbeats_late++;
    follow->heartbeats_ahead++;
    if (can_wait) {
        kvb_follow_need_range(followers, follow, now_ns);
    } else if (follow->heartbeats_ahead > 1) {
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
        go_on_after(follow, heartbeat);
    }
}

/* How long a heartbeat may arrive after an event that was published after it. */
static const uint64_t reordered_ns = 100 * KVB_NS_PER_MS;

/* The heartbeat is behind the last event applied.  Either another sender forged that event, or
 * it overtook this heartbeat on another path; the next heartbeat decides.  The heartbeat itself
 * may be the forged message, so it alone revokes nothing: the bridge's digests are requested, and
 * the answer shows where the bridge is. */
static void note_behind(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    const bool may_be_overtaken =
        ++follow->heartbeats_behind < 2 && now_ns - follow->advanced_ns < reordered_ns;

    if (may_be_overtaken || heartbeat->state == KVB_STREAM_DOWN || kvb_follow_waits(follow)) {
        return; /* DOWN: a bridge restored from an earlier state is still catching up */
    }
    if (follow->repair.need == need_nothing) {
        followers->counters.contradicted++;
        kvb_follow_need_sums(followers, follow, now_ns);
    }
    if (!kvb_follow_waits(follow)) { /* the list was emptied, and no answer came yet */
        go_on_after(follow, heartbeat);
    }
}

static void check_heartbeat(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    if (!follow->has_epoch || !kvb_epoch_is_same(&follow->epoch, &heartbeat->epoch)) {
        meet_epoch_of_heartbeat(followers, follow, heartbeat, now_ns);
    } else if (!follow->shown.has_last_id) {
        go_on_after(follow, heartbeat);
    }
    if (heartbeat->digest_seed != follow->digest_seed) {
        kvb_follow_begin_digest(followers, follow, heartbeat->digest_seed);
    }
    count_missed(followers, follow, heartbeat->last_id, false);
    if (heartbeat->last_id < follow->shown.last_id) {
        note_behind(followers, follow, heartbeat, now_ns);
    } else {
        follow->heartbeats_behind = 0;
    }
    if (heartbeat->last_id > follow->shown.last_id) {
        note_ahead(followers, follow, heartbeat, now_ns);
    } else if (heartbeat->last_id == follow->shown.last_id) {
        compare_counts(followers, follow, heartbeat, now_ns);
    }
    const bool has_cause = follow->loss == KVB_REASON_MEMORY ? kvb_follow_may_fit(followers, follow)
                                                             : follow->loss != KVB_REASON_NONE;
    if (has_cause && follow->repair.need == need_nothing) {
        kvb_follow_need_snapshot(followers, follow, now_ns);
    }
}

/* True when a heartbeat of the old epoch comes from a second bridge that is running.  A bridge
 * that begins a new epoch sends no more heartbeats of the old one, and the last heartbeats of a
 * bridge that stopped arrive within one period. */
static bool is_of_living(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    return !heartbeat->is_bye &&
           now_ns - follow->epoch_ns >= kvb_follow_period_ns(followers, heartbeat);
}

static bool has_other_shapes(const struct kvb_heartbeat *old, const struct kvb_heartbeat *update)
{
    _Static_assert(sizeof *old->shapes == 12, "no padding, which memcmp() would compare");

    return old->block_size != update->block_size || old->lookahead != update->lookahead ||
           old->shape_count != update->shape_count ||
           memcmp(old->shapes, update->shapes, old->shape_count * sizeof *old->shapes) != 0;
}

static bool has_other_windows(const struct kvb_heartbeat *old, const struct kvb_heartbeat *update)
{
    bool is_other = old->window_tokens != update->window_tokens ||
                    old->window_count != update->window_count ||
                    old->is_without_full != update->is_without_full;

    for (size_t i = 0; !is_other && i < update->window_count; i++) {
        const struct kvb_window_rule *a = &old->windows[i];
        const struct kvb_window_rule *b = &update->windows[i];
        is_other = a->tokens != b->tokens || a->size != b->size || a->drop != b->drop ||
                   a->is_chunked != b->is_chunked;
    }
    return is_other;
}

static bool has_other_traits(const struct kvb_follower *shown, const struct kvb_heartbeat *update)
{
    const struct kvb_heartbeat *old = &shown->heartbeat;

    return !shown->has_heartbeat || has_other_shapes(old, update) ||
           has_other_windows(old, update) || old->hashes != update->hashes ||
           old->speculative_drop != update->speculative_drop ||
           old->chunk_blocks != update->chunk_blocks || old->is_paired != update->is_paired ||
           old->is_store != update->is_store || strcmp(old->model, update->model) != 0 ||
           kvb_worker_facts_are_known(&old->facts) != kvb_worker_facts_are_known(&update->facts);
}

kvb_status kvb_followers_heartbeat(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns)
{
    struct kvb_follow *follow = NULL;

    KVB_TRY(kvb_follow_get(followers, id, true, now_ns, &follow));
    followers->counters.heartbeats++;
    if (kvb_follow_is_old_epoch(follow, &heartbeat->epoch) && follow->bridge == bridge_alive) {
        const bool lives = is_of_living(followers, follow, heartbeat, now_ns);
        /* The newer epoch had no heartbeat for two periods of this one, whatever period its own
         * name: its bridge may not exist, and a forged message named the epoch. */
        const bool is_successor_mute =
            lives && now_ns - follow->alive_ns >= 2 * kvb_follow_period_ns(followers, heartbeat);
        if (!is_successor_mute) {
            followers->counters.events_old++;
            followers->counters.rivals += lives && follow->rival_ns == 0;
            follow->rival_ns = lives ? now_ns : 0;
            kvb_follow_classify(followers, follow, now_ns);
            return KVB_OK;
        }
    }
    /* Else an old epoch is followed again: that of a bridge that was restored from an earlier
     * state, or whose rival has stopped. */
    followers->traits += has_other_traits(&follow->shown, heartbeat);
    if (!follow->shown.has_heartbeat) {
        kvb_follow_leave_unheard(followers, follow);
    }
    follow->shown.has_heartbeat = true;
    follow->shown.heartbeat = *heartbeat;
    follow->shown.format = kvb_formats_have(heartbeat->formats, KVB_FORMAT_PROTOBUF)
                               ? KVB_FORMAT_PROTOBUF
                               : KVB_FORMAT_JSON;
    check_heartbeat(followers, follow, heartbeat, now_ns);
    follow->alive_ns = now_ns;
    follow->bridge = heartbeat->is_bye ? bridge_stopped : bridge_alive;
    kvb_follow_classify(followers, follow, now_ns);
    return KVB_OK;
}
