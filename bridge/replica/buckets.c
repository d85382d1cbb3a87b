#include "replica/inside.h"

/* Anti-entropy by hash buckets.  A list that differs from the bridge's although no event is
 * missing should not occur; a forged message can cause it.  The digests of 256 buckets show
 * where it differs, and only those buckets are fetched:
 *
 *     sums of the bridge, at event S    apply the events up to S, then compare the sums; if
 *                                       events after S were applied before, the bridge did
 *                                       not send them
 *     blocks of the buckets that differ, from a walk that began at event B
 *                                       apply the events up to B, replace what is listed in
 *                                       these buckets, then apply the events after B in
 *                                       order */

static const struct kvb_hash128 nothing[kvb_digest_buckets];

/* Marks the buckets that differ in some list; returns how many differ in each, summed. */
static size_t find_differing(
    const struct kvb_follow *follow, const struct kvb_sync_reply *reply, struct kvb_bucket_set *out)
{
    size_t count = 0;

    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        const bool has_list = kvb_follow_has_list(follow, (enum kvb_tier)tier);
        const struct kvb_hash128 *own = has_list ? follow->lists[tier].digest->buckets : nothing;
        const struct kvb_hash128 *other = reply->sums[tier] ? reply->sums[tier] : nothing;
        for (size_t i = 0; i < kvb_digest_buckets; i++) {
            if (own[i].low != other[i].low || own[i].high != other[i].high) {
                out->words[i / 64] |= UINT64_C(1) << (i % 64);
                count++;
            }
        }
    }
    return count;
}

/* Goes on with the events in the reorder buffer. */
static void finish_sync(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    kvb_repair_stop_request(followers, &follow->repair);
    if (kvb_repair_apply_buffered(followers, follow, UINT64_MAX)) {
        kvb_follow_need_nothing(followers, follow);
    } else {
        follow->repair.need = need_range; /* some of them are lost */
        follow->repair.since_ns = now_ns;
    }
}

void kvb_repair_compare_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    struct follow_repair *repair = &follow->repair;
    struct kvb_bucket_set differing = { { 0 } };

    if (repair->need != need_sums || reply->digest_seed != follow->digest_seed ||
        !kvb_repair_apply_buffered(followers, follow, reply->last_id)) {
        kvb_repair_fail(followers, follow, now_ns); /* events up to the sums may come later */
        return;
    }
    /* Both lists are as of the event of the sums now, unless ours is beyond it. */
    const size_t count = find_differing(follow, reply, &differing);
    const bool is_beyond = follow->shown.last_id > reply->last_id;
    followers->counters.buckets_differ += count;
    if (is_beyond) { /* the bridge's own events with lower ids were dropped as old */
        follow->shown.last_id = reply->last_id;
    }
    if (count == 0) {
        finish_sync(followers, follow, now_ns);
        return;
    }
    if (is_beyond) {
        kvb_follow_lose(followers, follow, KVB_REASON_DIFFERS, now_ns);
        return;
    }
    kvb_repair_stop_request(followers, repair);
    repair->need = need_buckets;
    repair->buckets = differing;
}

/* ---- The blocks of the buckets ---- */

/* Collects the blocks of one tier that are in these buckets, as a removed event. */
struct listed {
    const struct kvb_bucket_set *buckets;
    struct kvb_digest_key key;
    enum kvb_tier tier;
    struct kvb_router_batch batch; /* owned: one removed event */
    kvb_status status;
};

static void list_block(void *context, kvb_block_hash block)
{
    struct listed *listed = context;
    const size_t bucket = kvb_digest_bucket(&listed->key, listed->tier, block);

    if (listed->status == KVB_OK && listed->buckets->words[bucket / 64] >> (bucket % 64) & 1) {
        listed->status = kvb_router_batch_add_block(&listed->batch, block, (kvb_tokens_hash){ 0 });
    }
}

static kvb_status
empty_buckets(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier)
{
    const struct kvb_router_event removed = { .kind = KVB_ROUTER_REMOVED, .tier = tier };
    struct listed listed = { .buckets = &follow->repair.buckets,
                             .key = { .worker_id = follow->shown.id.worker_id,
                                      .dp_rank = follow->shown.id.dp_rank,
                                      .seed = follow->digest_seed },
                             .tier = tier };

    if (!kvb_follow_has_list(follow, tier)) {
        return KVB_OK;
    }
    listed.status = kvb_router_batch_add_event(&listed.batch, &removed);
    kvb_followers_each_block(followers, &follow->shown, tier, list_block, &listed);
    if (listed.status == KVB_OK) {
        listed.status =
            kvb_follow_remove(followers, follow, &listed.batch, &listed.batch.events[0]);
    }
    kvb_router_batch_done(&listed.batch);
    return listed.status;
}

/* Replaces what is listed in the buckets. */
static kvb_status apply_patch(struct kvb_followers *followers, struct kvb_follow *follow)
{
    const struct kvb_router_batch *patch = &follow->repair.patch;

    for (size_t tier = 0; tier < KVB_LIST_COUNT; tier++) {
        KVB_TRY(empty_buckets(followers, follow, (enum kvb_tier)tier));
    }
    for (size_t i = 0; i < patch->event_count; i++) {
        KVB_TRY(kvb_follow_store(followers, follow, patch, &patch->events[i]));
    }
    return KVB_OK;
}

/* KVB_BAD_INPUT: not all of it are stored events. */
static kvb_status
append_blocks(struct kvb_router_batch *patch, const struct kvb_router_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        const struct kvb_router_event *event = &batch->events[i];
        if (event->kind != KVB_ROUTER_STORED) {
            return KVB_BAD_INPUT;
        }
        KVB_TRY(kvb_router_batch_add_event(patch, event));
        for (size_t at = event->block_at; at < event->block_at + event->block_count; at++) {
            KVB_TRY(kvb_router_batch_add_block(patch, batch->blocks[at], batch->tokens[at]));
        }
    }
    return KVB_OK;
}

void kvb_repair_add_to_patch(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns)
{
    const bool is_good =
        !reply->events || append_blocks(&follow->repair.patch, reply->events) == KVB_OK;

    if (is_good && !reply->is_last) {
        return;
    }
    /* The blocks are those of the barrier: first the events up to there. */
    if (!is_good || !kvb_repair_apply_buffered(followers, follow, reply->barrier_id)) {
        kvb_repair_fail(followers, follow, now_ns);
        return;
    }
    if (apply_patch(followers, follow) != KVB_OK) {
        kvb_follow_lose(followers, follow, KVB_REASON_MEMORY, now_ns); /* half done */
        return;
    }
    followers->counters.digests_repaired++;
    follow->is_proven = false;
    follow->settled_id = reply->last_id;
    finish_sync(followers, follow, now_ns);
}
