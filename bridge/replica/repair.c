#include "core/clock.h"
#include "replica/inside.h"

#include <string.h>

/* Requests from the bridge what a stream lacks, and applies the answers.
 *
 *     need_range     RANGE(last + 1 .. )   events in order, then the reorder buffer
 *     need_sums      DIGEST                shows which buckets differ
 *     need_buckets   SNAPSHOT of buckets   replaces what is listed in them
 *     need_snapshot  SNAPSHOT              fills hidden lists, swapped in at the last chunk;
 *                                          then the events after its barrier
 *
 * Every wait is bounded: a request ends when no chunk comes for a second, a frozen list is
 * emptied after 1.5 s, and repeated requests back off exponentially. */

static const uint64_t chunk_wait_ns = KVB_NS_PER_S;
static const uint64_t stand_still_ns = 1500 * KVB_NS_PER_MS; /* a list may be wrong for 2 s */
static const struct kvb_backoff_range between_requests = { .first_ns = 100 * KVB_NS_PER_MS,
                                                           .longest_ns = 10 * KVB_NS_PER_S };
static const uint64_t scan_every_ns = 5 * KVB_NS_PER_MS;

enum { max_open_requests = 16, max_rounds = 5 };

/* ---- The reorder buffer ---- */

/* What the frozen list waits for does not come: empties the list and fills it again from the
 * reorder buffer.  The buffer is skipped when messages may have been lost after it (doubt),
 * because removals may be among those. */
static void
give_up_waiting(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct kvb_event_log *buffer = follow->repair.buffer;
    const bool is_past = follow->doubt != KVB_REASON_NONE;
    uint64_t first = 0;
    uint64_t last = 0;

    const enum kvb_stream_reason reason =
        follow->repair.need == need_range ? KVB_REASON_MISSED_EVENTS : KVB_REASON_DIFFERS;

    follow->repair.buffer = NULL; /* so that kvb_follow_lose() does not clear it */
    kvb_follow_lose(followers, follow, reason, now_ns);
    follow->repair.buffer = buffer;
    if (kvb_event_log_range(buffer, &first, &last)) {
        follow->shown.last_id = is_past ? last : first - 1;
        (void)kvb_repair_apply_buffered(followers, follow, UINT64_MAX); /* a part is a subset */
        kvb_event_log_clear(buffer);
    } else if (follow->shown.heartbeat.last_id > follow->shown.last_id) {
        follow->shown.last_id = follow->shown.heartbeat.last_id;
    }
}

/* ---- Requests ---- */

/* False: nothing is missing. */
static bool make_request(
    struct kvb_followers *followers, struct kvb_follow *follow, struct kvb_sync_request *request)
{
    struct kvb_follower_counters *counters = &followers->counters;
    uint64_t first = 0;
    uint64_t last = 0;

    *request = (struct kvb_sync_request){ .kind = KVB_SYNC_SNAPSHOT, .epoch = follow->epoch };
    switch (follow->repair.need) {
    case need_nothing:
        return false;
    case need_range:
        /* From the next event to the one before the reorder buffer, or to that of the newest
         * heartbeat. */
        request->kind = KVB_SYNC_RANGE;
        request->from_id = follow->shown.last_id + 1;
        request->to_id = kvb_event_log_range(follow->repair.buffer, &first, &last)
                             ? first - 1
                             : follow->shown.heartbeat.last_id;
        if (request->to_id < request->from_id) {
            return false;
        }
        counters->ranges_requested++;
        return true;
    case need_sums:
        request->kind = KVB_SYNC_DIGEST;
        counters->digests_requested++;
        return true;
    case need_buckets:
        request->has_buckets = true;
        request->buckets = follow->repair.buckets;
        return true;
    case need_snapshot:
        break;
    }
    counters->snapshots_requested++;
    return true;
}

static bool request_repair(
    struct kvb_followers *followers, size_t number, uint64_t now_ns,
    struct kvb_follower_request *out_due)
{
    struct kvb_follow *follow = &followers->follows[number];
    struct follow_repair *repair = &follow->repair;
    const bool can_answer =
        !followers->is_nats_away && follow->bridge == bridge_alive && follow->shown.has_heartbeat;

    if (repair->need == need_nothing || repair->is_requested ||
        !kvb_backoff_is_due(&repair->requests, now_ns) || !can_answer) {
        return false;
    }
    if (!kvb_repair_has_buffer(repair) ||
        (follow->loss == KVB_REASON_MEMORY && !kvb_follow_may_fit(followers, follow))) {
        return false; /* memory may be there at the next tick */
    }
    if (!make_request(followers, follow, &out_due->request)) { /* it has come meanwhile */
        kvb_follow_need_nothing(followers, follow);
        kvb_follow_classify(followers, follow, now_ns);
        return false;
    }
    if (repair->need == need_snapshot) {
        kvb_event_log_clear(repair->buffer);
        repair->hidden_seed = follow->digest_seed;
    }
    repair->is_requested = true;
    repair->request++;
    repair->next_chunk = 0;
    repair->deadline_ns = now_ns + chunk_wait_ns;
    followers->open_requests++;
    out_due->id = follow->shown.id;
    out_due->token = (uint64_t)repair->request << 32 | number;
    return true;
}

bool kvb_followers_next_request(
    struct kvb_followers *followers, uint64_t now_ns, struct kvb_follower_request *out_due)
{
    const size_t limit = followers->names.limit;

    if (followers->needing == 0 || now_ns < followers->next_scan_ns) {
        return false;
    }
    for (size_t i = 0; i < limit && followers->open_requests < max_open_requests; i++) {
        const size_t number = (followers->next_requested + i) % limit;
        if (followers->names.entries[number].is_used &&
            request_repair(followers, number, now_ns, out_due)) {
            followers->next_requested = number + 1;
            return true;
        }
    }
    followers->next_scan_ns = now_ns + scan_every_ns; /* none is due; a scan reads all streams */
    return false;
}

/* ---- Answers ---- */

void kvb_repair_fail(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    kvb_repair_stop_request(followers, repair);
    followers->counters.requests_failed++;
    (void)kvb_backoff_fail(&repair->requests, &between_requests, now_ns);
    kvb_follow_classify(followers, follow, now_ns);
}

/* Applies the events after the last one; skips those that were applied meanwhile. */
static void apply_missed_events(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const struct kvb_router_batch *batch = reply->events;
    struct follow_repair *repair = &follow->repair;

    if (repair->need != need_range) {
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
    if (!reply->is_last || repair->need != need_range) { /* a `cleared` has ended the need */
        return;
    }
    kvb_repair_stop_request(followers, repair);
    repair->requests = (struct kvb_backoff){ 0 };
    if (kvb_repair_apply_buffered(followers, follow, UINT64_MAX)) {
        followers->counters.ranges_filled++;
        kvb_follow_need_nothing(followers, follow);
    } else if (++repair->rounds >= max_rounds) {
        give_up_waiting(followers, follow, now_ns); /* each round shows one more hole */
    }
}

static void finish_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    kvb_follow_show_hidden(followers, follow);
    kvb_repair_stop_request(followers, repair);
    followers->counters.snapshots_taken++;
    follow->loss = KVB_REASON_NONE;
    follow->is_proven = false;
    follow->is_subset = true;
    follow->settled_id = reply->last_id;
    follow->shown.has_last_id = true;
    follow->shown.last_id = reply->barrier_id;
    kvb_follow_recall(followers, follow);
    repair->need = need_range; /* in case a live event was lost meanwhile */
    repair->since_ns = now_ns;
    if (kvb_repair_apply_buffered(followers, follow, UINT64_MAX)) {
        kvb_follow_need_nothing(followers, follow);
    }
}

static void add_snapshot_blocks(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    kvb_status status = follow->repair.need == need_snapshot ? KVB_OK : KVB_BAD_INPUT;
    const struct kvb_router_batch *batch = reply->events;

    for (size_t i = 0; batch && i < batch->event_count && status == KVB_OK; i++) {
        status = kvb_follow_hide(followers, follow, batch, &batch->events[i]);
    }
    if (status == KVB_TOO_LARGE || status == KVB_NO_MEMORY) {
        follow->loss = KVB_REASON_MEMORY;
    }
    if (status != KVB_OK) {
        kvb_repair_fail(followers, follow, now_ns);
    } else if (reply->is_last) {
        finish_snapshot(followers, follow, reply, now_ns);
    }
}

static void apply_answer(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const uint64_t pause_ns = reply->retry_ms * KVB_NS_PER_MS;

    switch (reply->answer) {
    case KVB_SYNC_EVENTS:
        apply_missed_events(followers, follow, reply, now_ns);
        break;
    case KVB_SYNC_BLOCKS:
        if (follow->repair.need == need_buckets) {
            kvb_repair_add_to_patch(followers, follow, reply, now_ns);
        } else {
            add_snapshot_blocks(followers, follow, reply, now_ns);
        }
        break;
    case KVB_SYNC_SUMS:
        kvb_repair_compare_sums(followers, follow, reply, now_ns);
        break;
    case KVB_SYNC_GONE:
    case KVB_SYNC_TOO_NEW:
        if (kvb_follow_waits(follow)) {
            give_up_waiting(followers, follow, now_ns);
        } else { /* a new epoch began; its heartbeat will come */
            kvb_repair_fail(followers, follow, now_ns);
        }
        break;
    case KVB_SYNC_BUSY:
        kvb_repair_stop_request(followers, &follow->repair);
        follow->repair.requests.next_ns =
            now_ns +
            (pause_ns < between_requests.longest_ns ? pause_ns : between_requests.longest_ns);
        break;
    case KVB_SYNC_ANSWER_COUNT:
        break;
    }
}

/* True for the next chunk, of this stream and of the epoch that is followed. */
static bool fits_repair(const struct kvb_follow *follow, const struct kvb_sync_reply *reply)
{
    const struct kvb_stream_id *id = &follow->shown.id;
    const bool has_content = reply->answer <= KVB_SYNC_SUMS;

    if (reply->worker_id != id->worker_id || reply->dp_rank != id->dp_rank ||
        reply->chunk != follow->repair.next_chunk) {
        return false;
    }
    return !has_content || (follow->has_epoch && kvb_epoch_is_same(&reply->epoch, &follow->epoch) &&
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
    /* When two bridges publish a stream, both answer. */
    const bool is_of_rival = follow->rival_ns > 0 && kvb_follow_is_old_epoch(follow, &reply->epoch);
    if (!repair->is_requested || repair->request != token >> 32 || is_of_rival) {
        return;
    }
    if (!fits_repair(follow, reply)) {
        kvb_repair_fail(followers, follow, now_ns);
        return;
    }
    const uint64_t last_id = follow->shown.last_id;
    repair->next_chunk++;
    repair->deadline_ns = now_ns + chunk_wait_ns;
    apply_answer(followers, follow, reply, now_ns);
    if (follow->shown.last_id != last_id) {
        follow->advanced_ns = now_ns;
    }
    kvb_follow_classify(followers, follow, now_ns);
}

/* ---- Time ---- */

void kvb_follow_repair_tick(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;

    if (repair->is_requested && now_ns >= repair->deadline_ns) {
        kvb_repair_fail(followers, follow, now_ns);
    }
    if (kvb_follow_waits(follow) && now_ns - repair->since_ns >= stand_still_ns) {
        give_up_waiting(followers, follow, now_ns);
        kvb_follow_classify(followers, follow, now_ns);
    }
}
