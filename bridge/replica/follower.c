#include "replica/follower.h"

#include "core/array.h"
#include "core/clock.h"
#include "core/limits.h"
#include "replica/inside.h"

#include <stdlib.h>
#include <string.h>

enum {
    missing_heartbeats = 3,
    unheard_part = 8, /* streams without heartbeats get at most 1/8 of max_streams */
    /* Bridges can be configured to 100 ms, but a busy machine easily misses three of those. */
    min_period_ms = 500,
    max_period_ms = 60000
};

kvb_status
kvb_followers_new(const struct kvb_followers_options *options, struct kvb_followers **out_followers)
{
    struct kvb_followers *followers = calloc(1, sizeof *followers);

    if (!followers) {
        return KVB_NO_MEMORY;
    }
    followers->options = *options;
    kvb_stream_table_init(&followers->names, options->max_streams, options->hash_key);
    *out_followers = followers;
    return KVB_OK;
}

static struct kvb_follow *follow_at(const struct kvb_followers *followers, size_t number)
{
    const bool is_used =
        number < followers->names.limit && followers->names.entries[number].is_used;

    return is_used ? &followers->follows[number] : NULL;
}

/* The followers one after the other, in the order of their numbers; NULL: no more.  *next is 0 to
 * begin with. */
static struct kvb_follow *next_follow(const struct kvb_followers *followers, size_t *next)
{
    struct kvb_follow *follow = NULL;

    while (!follow && *next < followers->names.limit) {
        follow = follow_at(followers, (*next)++);
    }
    return follow;
}

static void end_follow(struct kvb_followers *followers, struct kvb_follow *follow)
{
    kvb_follow_need_nothing(followers, follow);
    kvb_event_log_free(follow->repair.buffer);
    kvb_router_batch_done(&follow->repair.patch);
    kvb_follow_free_lists(followers, follow);
}

void kvb_followers_free(struct kvb_followers *followers)
{
    if (!followers) {
        return;
    }
    size_t next = 0;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        end_follow(followers, follow);
    }
    kvb_stream_table_done(&followers->names);
    free(followers->changed);
    free(followers->follows);
    free(followers->slot_owners);
    free(followers);
}

/* ---- Streams without heartbeats ---- */

static void append_unheard(struct kvb_followers *followers, uint32_t place)
{
    struct kvb_follow *follow = &followers->follows[place - 1];

    follow->older_unheard = followers->newest_unheard;
    follow->newer_unheard = 0;
    if (followers->newest_unheard != 0) {
        followers->follows[followers->newest_unheard - 1].newer_unheard = place;
    } else {
        followers->oldest_unheard = place;
    }
    followers->newest_unheard = place;
    followers->unheard++;
}

void kvb_follow_leave_unheard(struct kvb_followers *followers, struct kvb_follow *follow)
{
    struct kvb_follow *follows = followers->follows;

    if (follow->older_unheard != 0) {
        follows[follow->older_unheard - 1].newer_unheard = follow->newer_unheard;
    } else {
        followers->oldest_unheard = follow->newer_unheard;
    }
    if (follow->newer_unheard != 0) {
        follows[follow->newer_unheard - 1].older_unheard = follow->older_unheard;
    } else {
        followers->newest_unheard = follow->older_unheard;
    }
    followers->unheard--;
}

void kvb_follow_touch_unheard(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns)
{
    kvb_follow_leave_unheard(followers, follow);
    append_unheard(followers, 1 + (uint32_t)(follow - followers->follows));
    follow->alive_ns = now_ns;
}

static void forget_stream(struct kvb_followers *followers, uint32_t number)
{
    struct kvb_follow *follow = &followers->follows[number];

    if (!follow->shown.has_heartbeat) {
        kvb_follow_leave_unheard(followers, follow);
    }
    end_follow(followers, follow);
    kvb_stream_table_remove(&followers->names, number);
    followers->generation++;
    followers->counters.forgotten++;
}

static kvb_status add_follow(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_heartbeat,
    uint64_t now_ns, struct kvb_follow **out_follow)
{
    const size_t share = followers->options.max_streams / unheard_part;
    const bool is_full = followers->names.count >= followers->options.max_streams;
    uint32_t number = 0;

    /* Streams without heartbeats must not take the places of streams of kvbridge. */
    if (followers->unheard > 0 && (is_full || (!is_heartbeat && followers->unheard >= share))) {
        forget_stream(followers, followers->oldest_unheard - 1);
    }
    followers->generation++; /* the array may move even when adding fails */
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
    append_unheard(followers, 1 + number);
    *out_follow = follow;
    return KVB_OK;
}

kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_heartbeat,
    uint64_t now_ns, struct kvb_follow **out_follow)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&followers->names, id, &number) == KVB_OK) {
        *out_follow = &followers->follows[number];
        return KVB_OK;
    }
    const kvb_status status = add_follow(followers, id, is_heartbeat, now_ns, out_follow);
    if (status != KVB_OK) {
        followers->counters.streams_refused++;
    }
    return status;
}

void kvb_followers_set_doubted(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_doubted,
    uint64_t now_ns)
{
    uint32_t number = 0;

    if (kvb_stream_table_find(&followers->names, id, &number) == KVB_OK &&
        followers->follows[number].shown.is_doubted != is_doubted) {
        followers->follows[number].shown.is_doubted = is_doubted;
        kvb_follow_classify(followers, &followers->follows[number], now_ns);
    }
}

/* ---- Time ---- */

uint64_t
kvb_follow_period_ns(const struct kvb_followers *followers, const struct kvb_heartbeat *heartbeat)
{
    const uint64_t said_ms =
        heartbeat->period_ms > 0 ? heartbeat->period_ms : followers->options.heartbeat_ms;
    const uint64_t min_ms = said_ms > min_period_ms ? said_ms : min_period_ms;

    return (min_ms < max_period_ms ? min_ms : max_period_ms) * KVB_NS_PER_MS;
}

static uint64_t silence_ns(const struct kvb_followers *followers, const struct kvb_follow *follow)
{
    return missing_heartbeats * kvb_follow_period_ns(followers, &follow->shown.heartbeat);
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
    const uint64_t forget_ns = followers->options.forget_ms * KVB_NS_PER_MS;

    if (followers->is_nats_away || followers->is_lagging || followers->is_unread) {
        return; /* heartbeats are missing because of this process */
    }
    while (followers->oldest_unheard != 0 &&
           now_ns - followers->follows[followers->oldest_unheard - 1].alive_ns >= forget_ns) {
        forget_stream(followers, followers->oldest_unheard - 1);
    }
    size_t next = 0;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        const uint64_t limit_ns = silence_ns(followers, follow);
        if (follow->shown.has_heartbeat && follow->bridge == bridge_alive &&
            now_ns - follow->alive_ns >= limit_ns) {
            follow->bridge = bridge_silent;
            followers->counters.silent++;
            kvb_follow_classify(followers, follow, now_ns);
        }
        /* A second bridge that says nothing has gone. */
        if (follow->rival_ns > 0 && now_ns - follow->rival_ns >= limit_ns) {
            follow->rival_ns = 0;
            kvb_follow_classify(followers, follow, now_ns);
        }
        kvb_follow_repair_tick(followers, follow, now_ns);
        if (is_long_dead(followers, follow, now_ns)) {
            forget_stream(followers, (uint32_t)(follow - followers->follows));
        }
    }
}

void kvb_followers_nats_away(struct kvb_followers *followers, uint64_t now_ns)
{
    size_t next = 0;

    followers->is_nats_away = true;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        /* Detecting a frozen server by pings takes seconds.  A bridge that seemed silent just
         * before was silent because of the server. */
        if (follow->bridge == bridge_silent &&
            now_ns - follow->alive_ns < 2 * silence_ns(followers, follow)) {
            follow->bridge = bridge_alive;
        }
        kvb_follow_classify(followers, follow, follow->down_ns); /* never makes it DOWN */
    }
}

void kvb_followers_nats_back(struct kvb_followers *followers, uint64_t now_ns)
{
    size_t next = 0;

    followers->is_nats_away = false;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        follow->alive_ns = now_ns;
        follow->heartbeats_ahead = 0;
        kvb_follow_request_again(followers, follow, now_ns);
        follow->doubt = follow->shown.has_heartbeat ? KVB_REASON_NATS_AWAY : KVB_REASON_NONE;
        kvb_follow_classify(followers, follow, now_ns);
    }
}

/* When the lag ends, heartbeats that waited have been applied in order with the events before
 * them: silence is counted from now, and no list needs to be proven again. */
void kvb_followers_set_lagging(struct kvb_followers *followers, bool is_lagging, uint64_t now_ns)
{
    if (followers->is_lagging == is_lagging) {
        return;
    }
    followers->is_lagging = is_lagging;
    size_t next = 0;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        follow->alive_ns = is_lagging ? follow->alive_ns : now_ns;
        kvb_follow_classify(followers, follow, now_ns);
    }
}

void kvb_followers_set_unread(struct kvb_followers *followers, bool is_unread, uint64_t now_ns)
{
    if (followers->is_unread == is_unread) {
        return;
    }
    followers->is_unread = is_unread;
    size_t next = 0;
    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        kvb_follow_classify(followers, follow, now_ns);
    }
}

void kvb_followers_messages_dropped(struct kvb_followers *followers, uint64_t now_ns)
{
    size_t next = 0;

    for (struct kvb_follow *follow; (follow = next_follow(followers, &next));) {
        if (follow->shown.has_heartbeat) {
            follow->doubt = KVB_REASON_LAGGING;
            kvb_follow_classify(followers, follow, now_ns);
        }
    }
}

/* ---- Reading ---- */

size_t kvb_followers_limit(const struct kvb_followers *followers)
{
    return followers->names.limit;
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

const struct kvb_follower *
kvb_followers_find(const struct kvb_followers *followers, const struct kvb_stream_id *id)
{
    uint32_t number = 0;

    return kvb_stream_table_find(&followers->names, id, &number) == KVB_OK
               ? &followers->follows[number].shown
               : NULL;
}

struct kvb_stream_key kvb_followers_key(const struct kvb_followers *followers, uint32_t number)
{
    struct kvb_stream_key key = kvb_stream_table_key(&followers->names, number);

    key.id = &followers->follows[number].shown.id; /* the caller reads the follower too */
    return key;
}

void kvb_followers_counters(
    const struct kvb_followers *followers, struct kvb_follower_counters *out_counters)
{
    *out_counters = followers->counters;
}
