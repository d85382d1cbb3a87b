#pragma once

#include "model/digest.h"
#include "model/event_log.h"
#include "model/stream_table.h"
#include "model/sync.h"
#include "replica/follower.h"

/* Shared by the files of this room only.  Calls go downwards:
 *
 *     order.c               events and heartbeats in order
 *     follower.c            the table of streams, and time
 *     repair.c, buckets.c   requests, and their answers
 *     apply.c               one event, whatever its id
 *     state.c               what is missing, and the state that follows
 *     list.c                what is listed, and its digest */

/* What a stream lacks. */
enum follow_need {
    need_nothing,
    need_range,   /* some events: the list is frozen until they come */
    need_sums,    /* the list differs, not yet known in which buckets: it is frozen */
    need_buckets, /* the list differs in these buckets: it is frozen */
    need_snapshot /* everything: the list was emptied, and live events fill it meanwhile */
};

/* The repair of a stream: what is needed, and the request for it. */
struct follow_repair {
    enum follow_need need;
    uint64_t since_ns;      /* when the need arose */
    bool is_requested;      /* a request is under way */
    uint32_t request;       /* its number, part of the token */
    uint64_t deadline_ns;   /* of its next chunk */
    uint64_t not_before_ns; /* of the next request */
    uint32_t next_chunk;
    unsigned failures;          /* in a row */
    unsigned rounds;            /* ranges requested for the same hole */
    struct kvb_event_log *held; /* owned: the reorder buffer, or events after a snapshot */
    struct kvb_bucket_set buckets;
    struct kvb_router_batch patch;   /* owned: blocks of these buckets received so far */
    bool has_hidden[KVB_LIST_COUNT]; /* the snapshot received so far */
    kvb_slot_ref hidden[KVB_TIER_COUNT];
    struct kvb_block_set *hidden_window;               /* owned, with has_hidden */
    struct kvb_digest *hidden_digests[KVB_LIST_COUNT]; /* owned; one for each hidden list */
    uint64_t hidden_seed;                              /* of the hidden digests */
};

/* What the heartbeats of a stream say of its bridge.
 *
 *     state     three heartbeats missing    a heartbeat    a goodbye
 *     -------   ------------------------    -----------    ---------
 *     alive     silent                      alive          stopped
 *     silent    -                           alive          stopped
 *     stopped   -                           alive          stopped
 */
enum bridge_liveness { bridge_alive, bridge_silent, bridge_stopped };

struct kvb_follow {
    struct kvb_follower shown;
    bool has_epoch;
    kvb_epoch epoch; /* of the events applied last */
    bool has_old_epoch;
    kvb_epoch old_epoch; /* the previous one: its messages are dropped as old */
    uint64_t epoch_ns;   /* since when the epoch is followed */
    uint64_t rival_ns;   /* newest heartbeat of a second, running bridge; 0: there is none */
    bool has_cleared;
    uint64_t cleared_id;          /* the newest `cleared` applied */
    uint64_t newest_id;           /* received, or counted as missed; 0: none in this epoch */
    enum kvb_stream_reason loss;  /* NONE: nothing is missing since a `cleared` */
    bool is_subset;               /* false: ids jumped before a heartbeat or epoch was known */
    bool is_proven;               /* a heartbeat had our last id and our counts */
    enum kvb_stream_reason doubt; /* STALE for this reason until proven; NONE: not STALE */
    enum bridge_liveness bridge;
    unsigned heartbeats_ahead;                  /* in a row */
    unsigned heartbeats_behind;                 /* in a row */
    uint64_t advanced_ns;                       /* when the newest event was applied */
    uint64_t alive_ns;                          /* silence is counted from here */
    uint64_t down_ns;                           /* when it went DOWN */
    uint64_t settled_id;                        /* heartbeats of earlier events are not compared */
    unsigned differs_in_a_row;                  /* heartbeats that found the list to differ */
    uint64_t digest_seed;                       /* of the digests; 0: the bridge keeps none */
    struct kvb_digest *digests[KVB_LIST_COUNT]; /* owned; one for each list */
    struct kvb_block_set *window;               /* owned; the same as shown.window; or NULL */
    struct follow_repair repair;
    /* Links of the list of streams without heartbeats, 1 + number; 0: the end. */
    uint32_t older_unheard;
    uint32_t newer_unheard;
};

struct kvb_followers {
    struct kvb_followers_options options;
    struct kvb_stream_table names;
    struct kvb_follow *follows; /* owned; by the number of the name */
    size_t follow_capacity;
    uint32_t *slot_owners; /* owned; by slot: 1 + number * KVB_LIST_COUNT + tier, or 0 */
    size_t slot_owner_count;
    size_t slot_owner_capacity;
    uint8_t *changed; /* owned: scratch of one event, a byte for each block that changed */
    size_t changed_capacity;
    size_t window_blocks;  /* in all window lists */
    size_t next_requested; /* the stream at which the next round of requests starts */
    size_t open_requests;  /* requests under way */
    size_t needing;        /* streams that lack something */
    /* List of the streams without heartbeats, ordered by their newest event. */
    uint32_t oldest_unheard; /* 1 + number; 0: there are none */
    uint32_t newest_unheard;
    size_t unheard;
    uint64_t next_scan_ns;
    uint64_t generation; /* grows when a stream is added or removed */
    uint64_t traits;     /* grows when a property changes by which queries select streams */
    bool is_nats_away;
    bool is_lagging;
    struct kvb_follower_counters counters;
};

/* Finds or begins the follower of a stream, for an event or for a heartbeat. */
kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_heartbeat,
    uint64_t now_ns, struct kvb_follow **out_follow);

/* The list of streams without heartbeats: touch moves a stream to its newest end when an event
 * came, leave takes it out when its first heartbeat came. */
void kvb_follow_touch_unheard(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
void kvb_follow_leave_unheard(struct kvb_followers *followers, struct kvb_follow *follow);

/* The period of a stream's heartbeats, from one of them, within limits. */
uint64_t
kvb_follow_period_ns(const struct kvb_followers *followers, const struct kvb_heartbeat *heartbeat);

/* ---- replica/list.c: what is listed, and its digest ---- */

/* True when the stream has this list, perhaps empty, with its digest. */
bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list);

/* Frees all lists of the stream, and their digests. */
void kvb_follow_free_lists(struct kvb_followers *followers, struct kvb_follow *follow);

/* Empties all lists of the stream. */
void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow);

/* Prefetches the memory that applying this event, soon, will change. */
void kvb_follow_expect(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Apply an event to the stream's list.  KVB_OK unless there was no room for some blocks.
 * When a removal finds no room for what remains of the list, the list is emptied. */
kvb_status kvb_follow_store(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);
kvb_status kvb_follow_remove(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Adds a stored event to the hidden lists, in which a snapshot is built.
 * KVB_BAD_INPUT  not a stored event   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_follow_hide(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Swaps the hidden lists with the visible ones.  Errors as above. */
kvb_status kvb_follow_show_hidden(struct kvb_followers *followers, struct kvb_follow *follow);

/* Frees the hidden lists: an unfinished snapshot, or the old lists after the swap. */
void kvb_follow_drop_hidden(struct kvb_followers *followers, struct follow_repair *repair);

/* Computes the digests of all lists anew with this seed; 0 for none. */
void kvb_follow_begin_digest(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t seed);

/* True when the lists have the heartbeat's counts and, if the bridge keeps them, digests. */
bool kvb_follow_has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat);

/* ---- replica/state.c: what is missing, and the state that follows ---- */

/* Creates the reorder buffer unless it exists; false without memory. */
bool kvb_repair_can_hold(struct follow_repair *repair);

/* For a stream that lacks blocks for want of memory: true when there may be enough by now. */
bool kvb_follow_may_fit(const struct kvb_followers *followers, const struct kvb_follow *follow);

/* Events are missing after the last one applied, up to the first in the reorder buffer, or
 * else to that of the newest heartbeat.  Empties the list where they cannot be requested. */
void kvb_follow_need_range(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The list differs from the bridge's.  Empties it where the bridge cannot say in which buckets,
 * or where earlier repairs of buckets did not help. */
void kvb_follow_need_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* True while the list is frozen and live events go to the reorder buffer. */
bool kvb_follow_waits(const struct kvb_follow *follow);

/* Nothing is missing any more. */
void kvb_follow_need_nothing(struct kvb_followers *followers, struct kvb_follow *follow);

/* Answers under way are lost: requests again what is needed. */
void kvb_follow_request_again(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* Puts a live event into the reorder buffer if it has to wait there, or if it may follow a
 * snapshot; true when it must not be applied now. */
bool kvb_follow_hold(
    struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event);

/* Ends the request under way; the reorder buffer stays. */
void kvb_repair_stop_request(struct kvb_followers *followers, struct follow_repair *repair);

/* Events may be missing, removals among them, so the list may not be a subset any more: empties
 * it and, where requests are sent, requests a snapshot. */
void kvb_follow_lose(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason,
    uint64_t now_ns);

/* Derives state and reason from all other fields. */
void kvb_follow_classify(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* ---- replica/apply.c ---- */

/* True for the epoch before the one that is followed. */
bool kvb_follow_is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch);

/* Applies one event, whatever its id. */
void kvb_follow_apply(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Notes that a heartbeat had our last id and our counts. */
void kvb_follow_note_proof(struct kvb_follow *follow);

/* Compares the list with the newest heartbeat again.  The heartbeat may have come before its
 * events; once a repair has brought them it proves the list, without waiting for the next one. */
void kvb_follow_recall(const struct kvb_followers *followers, struct kvb_follow *follow);

/* Applies events of the reorder buffer up to to_id, or to the last.  False: one of them, or
 * one before them, is missing. */
bool kvb_repair_apply_buffered(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t to_id);

/* ---- replica/repair.c ---- */

/* Ends requests that were not answered in time, and repairs that froze a list for too long. */
void kvb_follow_repair_tick(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The request failed: it is repeated after a pause that doubles (exponential backoff). */
void kvb_repair_fail(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* ---- replica/buckets.c ---- */

/* Compares the bridge's bucket sums with ours; the next request is for buckets that differ. */
void kvb_repair_take_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

/* Collects the blocks of the buckets until the last chunk, then replaces what is listed in
 * these buckets. */

void kvb_repair_take_patch(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);
