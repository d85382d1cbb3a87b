#include "core/clock.h"
#include "core/limits.h"
#include "stream/follower_inside.h"

#include <string.h>

/* Getting what a stream lacks from its bridge.
 *
 *     need_range     ask RANGE(last + 1 .. )   events in order, then those that waited
 *     need_sums      ask DIGEST                which buckets differ
 *     need_buckets   ask SNAPSHOT of buckets   in place of what is listed in them
 *     need_snapshot  ask SNAPSHOT              hidden slots, swapped in at the last chunk;
 *                                              then the events after its barrier
 *
 * Every wait ends: a chunk within a second or the request is over, a list that stands
 * still goes after 1.5 s, and between requests ever more time passes. */

static const uint64_t chunk_wait_ns = KVB_NS_PER_S;
static const uint64_t stand_still_ns = 1500 * KVB_NS_PER_MS; /* a list may be wrong for 2 s */
static const uint64_t first_pause_ns = 100 * KVB_NS_PER_MS;
static const uint64_t most_pause_ns = 10 * KVB_NS_PER_S;
static const uint64_t scan_every_ns = 5 * KVB_NS_PER_MS;

enum { most_asked = 16, most_rounds = 5, most_differences = 2, apply_chunk_blocks = 8192 };

/* ---- What is needed ---- */

void kvb_repair_stop_asking(struct kvb_followers *followers, struct follow_repair *repair)
{
    followers->asked -= repair->is_asked;
    followers->next_scan_ns = 0;
    repair->is_asked = false;
    kvb_follow_drop_hidden(followers, repair);
    kvb_router_batch_reset(&repair->patch);
}

static void need(struct kvb_followers *followers, struct kvb_follow *follow, enum follow_need what)
{
    struct follow_repair *repair = &follow->repair;

    kvb_repair_stop_asking(followers, repair);
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

static bool can_hold(struct follow_repair *repair)
{
    return repair->held || kvb_event_log_new(kvb_max_waiting_blocks, &repair->held) == KVB_OK;
}

void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (!followers->options.asks) {
        return;
    }
    if (follow->repair.need != need_snapshot) {
        follow->repair.failures = 0; /* another question: it may have an answer */
        follow->repair.not_before_ns = 0;
    }
    need(followers, follow, need_snapshot);
    follow->repair.since_ns = now_ns;
}

void kvb_follow_need_range(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    if (kvb_follow_waits(follow)) {
        return;
    }
    if (!followers->options.asks || repair->need == need_snapshot || !follow->has_epoch ||
        !can_hold(repair)) {
        kvb_follow_lose(followers, follow, KVB_REASON_MISSED_EVENTS, now_ns);
        return;
    }
    need(followers, follow, need_range);
    repair->since_ns = now_ns;
}

void kvb_follow_need_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (!followers->options.asks || follow->digest_seed == 0 ||
        ++follow->differs_in_a_row > most_differences || !can_hold(&follow->repair)) {
        follow->differs_in_a_row = 0;
        kvb_follow_lose(followers, follow, KVB_REASON_DIFFERS, now_ns);
        return;
    }
    need(followers, follow, need_sums);
    follow->repair.since_ns = now_ns;
}

bool kvb_follow_waits(const struct kvb_follow *follow)
{
    return follow->repair.need != need_nothing && follow->repair.need != need_snapshot;
}

void kvb_follow_ask_again(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    kvb_repair_stop_asking(followers, &follow->repair);
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

    if (waits || (repair->need == need_snapshot && repair->is_asked)) {
        kvb_event_log_add_event(repair->held, batch, event);
    }
    return waits;
}

/* ---- What waited ---- */

bool kvb_repair_apply_held(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t to_id)
{
    struct kvb_router_batch batch = { 0 };
    uint64_t first = 0;
    uint64_t last = 0;
    const bool has_any = kvb_event_log_range(follow->repair.held, &first, &last);
    const uint64_t end = has_any && last < to_id ? last : to_id;

    if (end <= follow->shown.last_id || (!has_any && to_id == UINT64_MAX)) {
        return to_id == UINT64_MAX || follow->shown.last_id >= to_id;
    }
    if (!has_any || first > follow->shown.last_id + 1) {
        return false;
    }
    bool is_whole = true;
    for (uint64_t next = follow->shown.last_id + 1; next <= end && is_whole;) {
        kvb_router_batch_reset(&batch);
        is_whole = kvb_event_log_read(
                       follow->repair.held, next, end, apply_chunk_blocks, &batch, &next) == KVB_OK;
        for (size_t i = 0; i < batch.event_count && is_whole; i++) {
            kvb_follow_apply(followers, follow, &batch, &batch.events[i]);
        }
    }
    kvb_router_batch_done(&batch);
    return is_whole && (to_id == UINT64_MAX || follow->shown.last_id >= to_id);
}

/* What it stands still for does not come: the list goes, and grows again from the events
 * that waited, if there are any.  Not from those that NATS was away after: what was
 * removed since then is not among them. */
static void
give_up_waiting(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct kvb_event_log *held = follow->repair.held;
    const bool is_past = follow->must_prove;
    uint64_t first = 0;
    uint64_t last = 0;

    const enum kvb_stream_reason reason =
        follow->repair.need == need_range ? KVB_REASON_MISSED_EVENTS : KVB_REASON_DIFFERS;

    follow->repair.held = NULL; /* out of the reach of lose() */
    kvb_follow_lose(followers, follow, reason, now_ns);
    follow->repair.held = held;
    if (kvb_event_log_range(held, &first, &last)) {
        follow->shown.last_id = is_past ? last : first - 1;
        (void)kvb_repair_apply_held(followers, follow, UINT64_MAX); /* a part is a subset too */
        kvb_event_log_clear(held);
    } else if (follow->shown.heartbeat.last_id > follow->shown.last_id) {
        follow->shown.last_id = follow->shown.heartbeat.last_id;
    }
}

/* ---- Asking ---- */

static bool is_up(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    return !followers->is_nats_away && !follow->is_silent && !follow->is_bye &&
           follow->shown.has_heartbeat;
}

/* From the next event to the first that waits, or to the newest of the heartbeat.
 * False: nothing is missing. */
static bool range_of(const struct kvb_follow *follow, struct kvb_sync_request *request)
{
    uint64_t last = 0;

    request->from_id = follow->shown.last_id + 1;
    if (kvb_event_log_range(follow->repair.held, &request->to_id, &last)) {
        request->to_id--;
    } else {
        request->to_id = follow->shown.heartbeat.last_id;
    }
    return request->to_id >= request->from_id;
}

/* False: nothing is missing. */
static bool make_request(
    struct kvb_followers *followers, struct kvb_follow *follow, struct kvb_sync_request *request)
{
    struct kvb_follower_counters *counters = &followers->counters;

    *request = (struct kvb_sync_request){ .kind = KVB_SYNC_SNAPSHOT, .epoch = follow->epoch };
    switch (follow->repair.need) {
    case need_nothing:
        return false;
    case need_range:
        request->kind = KVB_SYNC_RANGE;
        if (!range_of(follow, request)) {
            return false;
        }
        counters->ranges_asked++;
        return true;
    case need_sums:
        request->kind = KVB_SYNC_DIGEST;
        counters->digests_asked++;
        return true;
    case need_buckets:
        request->has_buckets = true;
        request->buckets = follow->repair.buckets;
        return true;
    case need_snapshot:
        break;
    }
    counters->snapshots_asked++;
    return true;
}

static bool
ask(struct kvb_followers *followers, size_t number, uint64_t now_ns,
    struct kvb_follower_ask *out_ask)
{
    struct kvb_follow *follow = &followers->follows[number];
    struct follow_repair *repair = &follow->repair;

    if (repair->need == need_nothing || repair->is_asked || now_ns < repair->not_before_ns ||
        !is_up(followers, follow)) {
        return false;
    }
    if (!can_hold(repair)) {
        return false; /* memory may be there at the next tick */
    }
    if (!make_request(followers, follow, &out_ask->request)) {
        kvb_follow_need_nothing(followers, follow);
        kvb_follow_judge(followers, follow, now_ns);
        return false;
    }
    if (repair->need == need_snapshot) {
        kvb_event_log_clear(repair->held);
        repair->hidden_seed = follow->digest_seed;
    }
    repair->is_asked = true;
    repair->request++;
    repair->next_chunk = 0;
    repair->deadline_ns = now_ns + chunk_wait_ns;
    followers->asked++;
    out_ask->id = follow->shown.id;
    out_ask->token = (uint64_t)repair->request << 32 | number;
    return true;
}

bool kvb_followers_next_ask(
    struct kvb_followers *followers, uint64_t now_ns, struct kvb_follower_ask *out_ask)
{
    const size_t limit = followers->names.limit;

    if (followers->needing == 0 || now_ns < followers->next_scan_ns) {
        return false;
    }
    for (size_t i = 0; i < limit && followers->asked < most_asked; i++) {
        const size_t number = (followers->next_asked + i) % limit;
        if (followers->names.entries[number].is_used && ask(followers, number, now_ns, out_ask)) {
            followers->next_asked = number + 1;
            return true;
        }
    }
    followers->next_scan_ns = now_ns + scan_every_ns; /* nobody is due: it goes through all */
    return false;
}

/* ---- Answers ---- */

void kvb_repair_fail(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;
    uint64_t pause_ns = first_pause_ns << (repair->failures < 8 ? repair->failures : 8);

    kvb_repair_stop_asking(followers, repair);
    followers->counters.asks_failed++;
    repair->failures++;
    pause_ns = pause_ns < most_pause_ns ? pause_ns : most_pause_ns;
    repair->not_before_ns = now_ns + pause_ns;
    kvb_follow_judge(followers, follow, now_ns);
}

static void
finish_range(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    kvb_repair_stop_asking(followers, repair);
    repair->failures = 0;
    if (kvb_repair_apply_held(followers, follow, UINT64_MAX)) {
        followers->counters.ranges_filled++;
        kvb_follow_need_nothing(followers, follow);
    } else if (++repair->rounds >= most_rounds) {
        give_up_waiting(followers, follow, now_ns);
    }
}

/* Events that follow on the last one; those that came by another way are passed over. */
static void take_events(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const struct kvb_router_batch *batch = reply->events;

    if (follow->repair.need != need_range) {
        kvb_repair_fail(followers, follow, now_ns);
        return;
    }
    for (size_t i = 0; batch && i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        if (event->event_id <= follow->shown.last_id) {
            continue;
        }
        if (event->event_id - follow->shown.last_id > 1) {
            kvb_repair_fail(followers, follow, now_ns);
            return;
        }
        kvb_follow_apply(followers, follow, batch, event);
    }
    if (reply->is_last && follow->repair.need == need_range) { /* a `cleared` ends the need */
        finish_range(followers, follow, now_ns);
    }
}

static void finish_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    if (kvb_follow_show_hidden(followers, follow) != KVB_OK) {
        kvb_repair_fail(followers, follow, now_ns);
        return;
    }
    kvb_repair_stop_asking(followers, repair);
    followers->counters.snapshots_taken++;
    follow->loss = KVB_REASON_NONE;
    follow->is_proven = false;
    follow->is_subset = true;
    follow->settled_id = reply->last_id;
    follow->shown.has_last_id = true;
    follow->shown.last_id = reply->barrier_id;
    kvb_follow_recall(followers, follow);
    repair->need = need_range; /* if some of what came meanwhile is lost */
    repair->since_ns = now_ns;
    if (kvb_repair_apply_held(followers, follow, UINT64_MAX)) {
        kvb_follow_need_nothing(followers, follow);
    }
}

static void take_blocks(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    kvb_status status = follow->repair.need == need_snapshot ? KVB_OK : KVB_BAD_INPUT;
    const struct kvb_router_batch *batch = reply->events;

    if (follow->repair.need == need_buckets) {
        kvb_repair_take_patch(followers, follow, reply, now_ns);
        return;
    }
    for (size_t i = 0; batch && i < batch->event_count && status == KVB_OK; i++) {
        status = kvb_follow_hide(followers, follow, batch, &batch->events[i]);
    }
    if (status != KVB_OK) {
        kvb_repair_fail(followers, follow, now_ns);
    } else if (reply->is_last) {
        finish_snapshot(followers, follow, reply, now_ns);
    }
}

static void take_gone(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    (void)reply;
    if (kvb_follow_waits(follow)) {
        give_up_waiting(followers, follow, now_ns);
    } else {
        kvb_repair_fail(
            followers, follow, now_ns); /* another epoch began: its heartbeat is to come */
    }
}

static void take_busy(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const uint64_t pause_ns = reply->retry_ms * KVB_NS_PER_MS;

    kvb_repair_stop_asking(followers, &follow->repair);
    follow->repair.not_before_ns = now_ns + (pause_ns < most_pause_ns ? pause_ns : most_pause_ns);
}

typedef void (*take_answer)(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

static const take_answer takes[KVB_SYNC_ANSWER_COUNT] = {
    [KVB_SYNC_EVENTS] = take_events,        [KVB_SYNC_BLOCKS] = take_blocks,
    [KVB_SYNC_SUMS] = kvb_repair_take_sums, [KVB_SYNC_GONE] = take_gone,
    [KVB_SYNC_TOO_NEW] = take_gone,         [KVB_SYNC_BUSY] = take_busy,
};

/* Where two bridges speak of a stream, both answer. */
static bool is_of_rival(const struct kvb_follow *follow, const struct kvb_sync_reply *reply)
{
    return follow->rival_ns > 0 && kvb_follow_is_old_epoch(follow, &reply->epoch);
}

/* Of this stream, of the epoch that is followed, and the chunk that is next. */
static bool fits(const struct kvb_follow *follow, const struct kvb_sync_reply *reply)
{
    const struct kvb_stream_id *id = &follow->shown.id;
    const bool has_content = reply->answer <= KVB_SYNC_SUMS;

    if (reply->worker_id != id->worker_id || reply->dp_rank != id->dp_rank ||
        reply->chunk != follow->repair.next_chunk) {
        return false;
    }
    return !has_content ||
           (follow->has_epoch && memcmp(&reply->epoch, &follow->epoch, sizeof reply->epoch) == 0 &&
            reply->barrier_id <= reply->last_id);
}

void kvb_followers_reply(
    struct kvb_followers *followers, uint64_t token, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const size_t number = (size_t)(token & UINT32_MAX);

    if (number >= followers->names.limit || !followers->names.entries[number].is_used) {
        return;
    }
    struct kvb_follow *follow = &followers->follows[number];
    struct follow_repair *repair = &follow->repair;
    if (!repair->is_asked || repair->request != token >> 32 || is_of_rival(follow, reply)) {
        return;
    }
    if (!fits(follow, reply)) {
        kvb_repair_fail(followers, follow, now_ns);
        return;
    }
    repair->next_chunk++;
    repair->deadline_ns = now_ns + chunk_wait_ns;
    takes[reply->answer](followers, follow, reply, now_ns);
    kvb_follow_judge(followers, follow, now_ns);
}

/* ---- Time ---- */

void kvb_follow_repair_tick(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    if (repair->is_asked && now_ns >= repair->deadline_ns) {
        kvb_repair_fail(followers, follow, now_ns);
    }
    if (kvb_follow_waits(follow) && now_ns - repair->since_ns >= stand_still_ns) {
        give_up_waiting(followers, follow, now_ns);
        kvb_follow_judge(followers, follow, now_ns);
    }
}
