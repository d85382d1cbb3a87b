#include "stream/follower.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "stream/follower_inside.h"

#include <stdlib.h>
#include <string.h>

enum { missing_heartbeats = 3, max_slot_owners = 1 << 20 };

kvb_status
kvb_followers_new(const struct kvb_followers_options *options, struct kvb_followers **out_followers)
{
    struct kvb_followers *followers = calloc(1, sizeof *followers);

    if (!followers) {
        return KVB_NO_MEMORY;
    }
    followers->options = *options;
    kvb_stream_table_init(&followers->names, options->max_streams);
    *out_followers = followers;
    return KVB_OK;
}

static struct kvb_follow *follow_at(const struct kvb_followers *followers, size_t number)
{
    const bool is_used =
        number < followers->names.limit && followers->names.entries[number].is_used;

    return is_used ? &followers->follows[number] : NULL;
}

static void free_lists(struct kvb_followers *followers, struct kvb_follow *follow)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (follow->shown.has_slot[tier]) {
            const kvb_slot_ref slot = follow->shown.slots[tier];
            kvb_prefix_index_slot_free(followers->options.index, slot);
            followers->slot_owners[slot.value] = 0;
            follow->shown.has_slot[tier] = false;
        }
    }
    kvb_follow_free_window(followers, follow->window);
    follow->window = NULL;
    follow->shown.window = NULL;
    for (int list = 0; list < KVB_LIST_COUNT; list++) {
        free(follow->digests[list]);
        follow->digests[list] = NULL;
    }
}

static void end_follow(struct kvb_followers *followers, struct kvb_follow *follow)
{
    kvb_follow_need_nothing(followers, follow);
    kvb_event_log_free(follow->repair.held);
    kvb_router_batch_done(&follow->repair.patch);
    free_lists(followers, follow);
}

void kvb_followers_free(struct kvb_followers *followers)
{
    if (!followers) {
        return;
    }
    for (size_t i = 0; i < followers->names.limit; i++) {
        struct kvb_follow *follow = follow_at(followers, i);
        if (follow) {
            end_follow(followers, follow);
        }
    }
    kvb_stream_table_done(&followers->names);
    free(followers->changed);
    free(followers->follows);
    free(followers->slot_owners);
    free(followers);
}

static kvb_status add_follow(
    struct kvb_followers *followers, const struct kvb_stream_id *id, uint64_t now_ns,
    struct kvb_follow **out_follow)
{
    uint32_t number = 0;

    followers->generation++; /* the array may move even when nobody comes */
    KVB_TRY(kvb_array_reserve(
        &followers->follows, &followers->follow_capacity, followers->names.count + 1,
        sizeof *followers->follows, kvb_max_streams + 1));
    KVB_TRY(kvb_stream_table_add(&followers->names, id, &number));
    struct kvb_follow *follow = &followers->follows[number];
    *follow = (struct kvb_follow){
        .shown = { .id = *id },
        .loss = KVB_REASON_JOINED_LATE,
        .is_subset = true, /* nothing is listed yet */
        .alive_ns = now_ns,
    };
    *out_follow = follow;
    return KVB_OK;
}

kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, uint64_t now_ns,
    struct kvb_follow **out_follow)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&followers->names, id, &number) == KVB_OK) {
        *out_follow = &followers->follows[number];
        return KVB_OK;
    }
    const kvb_status status = add_follow(followers, id, now_ns, out_follow);
    if (status != KVB_OK) {
        followers->counters.streams_refused++;
    }
    return status;
}

static kvb_status make_room_for_owner(struct kvb_followers *followers, uint32_t slot)
{
    const size_t need = (size_t)slot + 1;

    KVB_TRY(kvb_array_reserve(
        &followers->slot_owners, &followers->slot_owner_capacity, need,
        sizeof *followers->slot_owners, max_slot_owners));
    if (need > followers->slot_owner_count) {
        memset(
            followers->slot_owners + followers->slot_owner_count, 0,
            (need - followers->slot_owner_count) * sizeof *followers->slot_owners);
        followers->slot_owner_count = need;
    }
    return KVB_OK;
}

static kvb_status make_digest(struct kvb_digest **digest)
{
    if (!*digest) {
        *digest = calloc(1, sizeof **digest);
    }
    return *digest ? KVB_OK : KVB_NO_MEMORY;
}

kvb_status kvb_follow_draw_slot(struct kvb_followers *followers, kvb_slot_ref *out_slot)
{
    kvb_slot_ref slot = { 0 };

    KVB_TRY(kvb_prefix_index_slot_new(followers->options.index, &slot));
    const kvb_status status = make_room_for_owner(followers, slot.value);
    if (status != KVB_OK) {
        kvb_prefix_index_slot_free(followers->options.index, slot);
        return status;
    }
    *out_slot = slot;
    return KVB_OK;
}

kvb_status
kvb_follow_new_window(const struct kvb_followers *followers, struct kvb_block_set **out_window)
{
    struct kvb_block_set *window = malloc(sizeof *window);

    if (!window) {
        return KVB_NO_MEMORY;
    }
    kvb_block_set_init(window, kvb_max_stream_blocks, followers->options.hash_key);
    *out_window = window;
    return KVB_OK;
}

void kvb_follow_clear_window(struct kvb_followers *followers, struct kvb_block_set *window)
{
    if (window) {
        followers->window_blocks -= window->count;
        kvb_block_set_clear(window);
    }
}

void kvb_follow_free_window(struct kvb_followers *followers, struct kvb_block_set *window)
{
    kvb_follow_clear_window(followers, window);
    free(window);
}

bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list)
{
    return list == KVB_LIST_WINDOW ? follow->window != NULL : follow->shown.has_slot[list];
}

kvb_status
kvb_follow_make_list(struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier list)
{
    kvb_slot_ref slot = { 0 };

    if (kvb_follow_has_list(follow, list)) {
        return KVB_OK;
    }
    KVB_TRY(make_digest(&follow->digests[list]));
    if (list == KVB_LIST_WINDOW) {
        KVB_TRY(kvb_follow_new_window(followers, &follow->window));
        follow->shown.window = follow->window;
        return KVB_OK;
    }
    KVB_TRY(kvb_follow_draw_slot(followers, &slot));
    kvb_follow_own_slot(followers, follow, list, slot);
    return KVB_OK;
}

void kvb_follow_own_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref slot)
{
    const uint32_t number = (uint32_t)(follow - followers->follows);

    followers->slot_owners[slot.value] = 1 + (number * KVB_LIST_COUNT) + (uint32_t)tier;
    follow->shown.slots[tier] = slot;
    follow->shown.has_slot[tier] = true;
}

void kvb_follow_swap_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref *slot)
{
    const kvb_slot_ref old = follow->shown.slots[tier];

    followers->slot_owners[old.value] = 0;
    kvb_follow_own_slot(followers, follow, tier, *slot);
    *slot = old;
}

void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow)
{
    for (int tier = 0; tier < KVB_TIER_COUNT; tier++) {
        if (follow->shown.has_slot[tier]) {
            kvb_prefix_index_slot_clear(followers->options.index, follow->shown.slots[tier]);
        }
    }
    kvb_follow_clear_window(followers, follow->window);
    for (int list = 0; list < KVB_LIST_COUNT; list++) {
        if (kvb_follow_has_list(follow, (enum kvb_tier)list)) {
            *follow->digests[list] = (struct kvb_digest){ 0 };
        }
    }
}

/* ---- State ---- */

struct verdict {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
};

static bool is_down(const struct kvb_follow *follow, struct verdict *out_verdict)
{
    const struct kvb_follower *shown = &follow->shown;

    if (follow->is_bye) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_BRIDGE_STOPPED };
    } else if (follow->is_silent) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, KVB_REASON_SILENT };
    } else if (shown->has_heartbeat && shown->heartbeat.state == KVB_STREAM_DOWN) {
        *out_verdict = (struct verdict){ KVB_STREAM_DOWN, shown->heartbeat.reason };
    } else {
        return false;
    }
    return true;
}

/* The newest heartbeat is older than the first window: answers take the model for one without,
 * and all that is held for usable. */
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
    if (followers->is_nats_away || follow->must_prove) {
        return (struct verdict){ KVB_STREAM_STALE, KVB_REASON_NATS_AWAY };
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

void kvb_follow_judge(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
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

/* ---- Time ---- */

static uint64_t silence_ns(const struct kvb_followers *followers)
{
    return missing_heartbeats * followers->options.heartbeat_ms * KVB_NS_PER_MS;
}

static void
find_silence(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (follow->shown.has_heartbeat && !follow->is_silent &&
        now_ns - follow->alive_ns >= silence_ns(followers)) {
        follow->is_silent = true;
        followers->counters.silent++;
        kvb_follow_judge(followers, follow, now_ns);
    }
}

static void
find_end_of_rival(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (follow->rival_ns > 0 && now_ns - follow->rival_ns >= silence_ns(followers)) {
        follow->rival_ns = 0;
        kvb_follow_judge(followers, follow, now_ns);
    }
}

static bool is_long_dead(
    const struct kvb_followers *followers, const struct kvb_follow *follow, uint64_t now_ns)
{
    const uint64_t since_ns =
        follow->down_ns > follow->alive_ns ? follow->down_ns : follow->alive_ns;

    return follow->shown.state == KVB_STREAM_DOWN &&
           now_ns - since_ns >= followers->options.forget_ms * KVB_NS_PER_MS;
}

void kvb_followers_tick(struct kvb_followers *followers, uint64_t now_ns)
{
    if (followers->is_nats_away) {
        return; /* their silence is not their fault */
    }
    for (size_t i = 0; i < followers->names.limit; i++) {
        struct kvb_follow *follow = follow_at(followers, i);
        if (!follow) {
            continue;
        }
        find_silence(followers, follow, now_ns);
        find_end_of_rival(followers, follow, now_ns);
        kvb_follow_repair_tick(followers, follow, now_ns);
        if (is_long_dead(followers, follow, now_ns)) {
            end_follow(followers, follow);
            kvb_stream_table_remove(&followers->names, (uint32_t)i);
            followers->generation++;
            followers->counters.forgotten++;
        }
    }
}

/* Pings take seconds to find out that a server has frozen.  A silence that was found
 * just before was the server's. */
static void
forgive_silence(const struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    if (now_ns - follow->alive_ns < 2 * silence_ns(followers)) {
        follow->is_silent = false;
    }
}

void kvb_followers_nats_away(struct kvb_followers *followers, uint64_t now_ns)
{
    followers->is_nats_away = true;
    for (size_t i = 0; i < followers->names.limit; i++) {
        struct kvb_follow *follow = follow_at(followers, i);
        if (follow) {
            forgive_silence(followers, follow, now_ns);
            kvb_follow_judge(followers, follow, follow->down_ns); /* nothing goes DOWN by this */
        }
    }
}

void kvb_followers_nats_back(struct kvb_followers *followers, uint64_t now_ns)
{
    followers->is_nats_away = false;
    for (size_t i = 0; i < followers->names.limit; i++) {
        struct kvb_follow *follow = follow_at(followers, i);
        if (follow) {
            follow->alive_ns = now_ns;
            follow->heartbeats_ahead = 0;
            kvb_follow_ask_again(followers, follow, now_ns);
            follow->must_prove = follow->shown.has_heartbeat;
            kvb_follow_judge(followers, follow, now_ns);
        }
    }
}

/* ---- Reading ---- */

size_t kvb_followers_limit(const struct kvb_followers *followers)
{
    return followers->names.limit;
}

size_t kvb_followers_count(const struct kvb_followers *followers)
{
    return followers->names.count;
}

uint64_t kvb_followers_generation(const struct kvb_followers *followers)
{
    return followers->generation;
}

uint64_t kvb_followers_traits(const struct kvb_followers *followers)
{
    return followers->generation + followers->traits; /* neither ever falls */
}

const struct kvb_follower *kvb_followers_at(const struct kvb_followers *followers, size_t number)
{
    const struct kvb_follow *follow = follow_at(followers, number);

    return follow ? &follow->shown : NULL;
}

kvb_status kvb_followers_of_slot(
    const struct kvb_followers *followers, kvb_slot_ref slot, uint32_t *out_number,
    enum kvb_tier *out_tier)
{
    if (slot.value >= followers->slot_owner_count || followers->slot_owners[slot.value] == 0) {
        return KVB_NOT_FOUND;
    }
    const uint32_t owner = followers->slot_owners[slot.value] - 1;
    *out_number = owner / KVB_LIST_COUNT;
    *out_tier = (enum kvb_tier)(owner % KVB_LIST_COUNT);
    return KVB_OK;
}

uint64_t kvb_followers_blocks(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier)
{
    if (tier == KVB_LIST_WINDOW) {
        return follower->window ? follower->window->count : 0;
    }
    return follower->has_slot[tier]
               ? kvb_prefix_index_slot_blocks(followers->options.index, follower->slots[tier])
               : 0;
}

void kvb_followers_each_block(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier,
    void (*visit)(void *context, kvb_block_hash block), void *context)
{
    if (tier == KVB_LIST_WINDOW) {
        if (follower->window) {
            kvb_block_set_each(follower->window, visit, context);
        }
    } else if (follower->has_slot[tier]) {
        kvb_prefix_index_each_block(
            followers->options.index, follower->slots[tier], visit, context);
    }
}

uint64_t kvb_followers_window_blocks(const struct kvb_followers *followers)
{
    return followers->window_blocks;
}

void kvb_followers_counters(
    const struct kvb_followers *followers, struct kvb_follower_counters *out_counters)
{
    *out_counters = followers->counters;
}
