#pragma once

#include "model/stream_table.h"
#include "stream/follower.h"

/* What follower.c (table, slots, time) and follower_order.c (order of events and
 * heartbeats) share.  Nobody else includes it. */

struct kvb_follow {
    struct kvb_follower shown;
    bool has_epoch;
    kvb_epoch epoch; /* of what was applied last */
    bool has_old_epoch;
    kvb_epoch old_epoch; /* the one before: what still comes of it is old */
    bool has_cleared;
    uint64_t cleared_id;         /* the newest `cleared` applied */
    enum kvb_stream_reason loss; /* NONE: nothing is missing since a `cleared` */
    bool is_subset;              /* false: ids jumped and nobody could say why */
    bool is_proven;              /* a heartbeat had our last id and our counts */
    bool must_prove;             /* NATS was away since */
    bool is_silent;
    bool is_bye;
    unsigned heartbeats_ahead; /* in a row */
    uint64_t alive_ns;         /* when silence began to count */
    uint64_t down_ns;          /* when it went DOWN */
};

struct kvb_followers {
    struct kvb_followers_options options;
    struct kvb_stream_table names;
    struct kvb_follow *follows; /* owned; by the number of the name */
    size_t follow_capacity;
    uint32_t *slot_owners; /* owned; by slot: 1 + number * KVB_TIER_COUNT + tier, or 0 */
    size_t slot_owner_count;
    size_t slot_owner_capacity;
    bool is_nats_away;
    struct kvb_follower_counters counters;
};

/* Finds or begins the follower of a stream. */
kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, uint64_t now_ns,
    struct kvb_follow **out_follow);

/* The slot of a tier, drawn when it is needed first.  KVB_TOO_LARGE: the index
 * has none.  KVB_NO_MEMORY. */
kvb_status kvb_follow_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref *out_slot);

/* Empties the stream in every tier. */
void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow);

/* State and reason from all the rest. */
void kvb_follow_judge(
    const struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
