#include "replica/inside.h"

/* Applies events to the lists as they come; order.c and repair.c put them in order.  After each
 * event the list is compared with the newest heartbeat. */

enum { apply_chunk_blocks = 8192 };

bool kvb_follow_is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch)
{
    for (size_t i = 0; i < follow->old_epoch_count; i++) {
        if (kvb_epoch_is_same(&follow->old_epochs[i], epoch)) {
            return true;
        }
    }
    return false;
}

void kvb_follow_note_proof(struct kvb_follow *follow)
{
    follow->is_proven = true;
    follow->doubt = KVB_REASON_NONE;
    follow->differs_in_a_row = 0;
}

void kvb_follow_recall(const struct kvb_followers *followers, struct kvb_follow *follow)
{
    const struct kvb_heartbeat *heartbeat = &follow->shown.heartbeat;

    /* Not where there is nothing to prove, where something is known to be missing, or where the
     * heartbeat is of another event than the last one applied. */
    if ((follow->is_proven && follow->doubt == KVB_REASON_NONE) ||
        follow->loss != KVB_REASON_NONE || !follow->shown.has_heartbeat ||
        heartbeat->last_id != follow->shown.last_id || heartbeat->last_id < follow->settled_id ||
        !kvb_epoch_is_same(&follow->epoch, &heartbeat->epoch)) {
        return;
    }
    if (kvb_follow_has_counts(followers, follow, heartbeat)) {
        kvb_follow_note_proof(follow);
    }
}

/* After a `cleared` the list is complete, whatever its id is.  In JSON, which names
 * no epoch, it may have opened a new epoch, so a list that was proven stays proven
 * only when the epoch is named and the id is the next one. */
static void apply_cleared(
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

/* Some blocks were not stored, but no removal was missed: the list is still a subset. */
static void note_missing(struct kvb_followers *followers, struct kvb_follow *follow)
{
    followers->counters.blocks_refused++;
    follow->is_proven = false;
    if (follow->loss == KVB_REASON_NONE) {
        follow->loss = KVB_REASON_MEMORY;
    }
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
        /* The list was emptied where the removal found no room, so that nothing false is listed. */
        if (kvb_follow_remove(followers, follow, batch, event) != KVB_OK) {
            note_missing(followers, follow);
        }
        break;
    case KVB_ROUTER_CLEARED:
        apply_cleared(followers, follow, batch, event);
        break;
    }
    follow->shown.has_last_id = true;
    follow->shown.last_id = event->event_id;
    kvb_follow_recall(followers, follow);
    followers->counters.events_applied++;
}

bool kvb_repair_apply_buffered(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t to_id)
{
    struct kvb_router_batch batch = { 0 };
    uint64_t first = 0;
    uint64_t last = 0;
    const bool has_any = kvb_event_log_range(follow->repair.buffer, &first, &last);
    const uint64_t end = has_any && last < to_id ? last : to_id;

    /* Nothing in the buffer is wanted. */
    if (end <= follow->shown.last_id || (!has_any && to_id == UINT64_MAX)) {
        return to_id == UINT64_MAX || follow->shown.last_id >= to_id;
    }
    if (!has_any || first > follow->shown.last_id + 1) {
        return false;
    }
    /* In chunks, because a batch has a limit; the log ends one where an event is missing. */
    bool is_whole = true;
    for (uint64_t next = follow->shown.last_id + 1; next <= end && is_whole;) {
        kvb_router_batch_reset(&batch);
        is_whole =
            kvb_event_log_read(
                follow->repair.buffer, next, end, apply_chunk_blocks, &batch, &next) == KVB_OK;
        for (size_t i = 0; i < batch.event_count && is_whole; i++) {
            kvb_follow_apply(followers, follow, &batch, &batch.events[i]);
        }
    }
    kvb_router_batch_done(&batch);
    return is_whole && (to_id == UINT64_MAX || follow->shown.last_id >= to_id);
}
