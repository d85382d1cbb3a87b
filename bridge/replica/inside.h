#pragma once

#include "core/backoff.h"
#include "model/digest.h"
#include "model/event_log.h"
#include "model/stream_table.h"
#include "model/sync.h"
#include "replica/follower.h"

/* Shared only by the files of this folder.  Each file calls only files below it:
 *
 *     order.c               events and heartbeats in order
 *     follower.c            the table of streams, and timeouts
 *     repair.c, buckets.c   requests, and their answers
 *     apply.c               one event, whatever its id
 *     state.c               what is missing, and the resulting state
 *     list.c                the lists of blocks, and their digests */

/* One list of a stream: the blocks of a tier, or the window list. */
struct follow_list {
    struct kvb_digest *digest;    /* owned; NULL: there is no list */
    struct kvb_block_set *window; /* owned; NULL: its blocks are in the slot of the index */
    kvb_slot_ref slot;            /* owned */
};

/* What a stream lacks. */
enum follow_need {
    need_nothing,
    need_range,   /* some events; the list is frozen until they arrive */
    need_sums,    /* the list differs in unknown buckets; it is frozen */
    need_buckets, /* the list differs in known buckets; it is frozen */
    need_snapshot /* all blocks; the list was emptied, and live events fill it until then */
};

/* The repair of a stream: what is needed, and the request for it. */
struct follow_repair {
    enum follow_need need;
    uint64_t since_ns;           /* when the need arose */
    bool is_requested;           /* a request is under way */
    uint32_t request;            /* its number, part of the token */
    uint64_t deadline_ns;        /* when its next chunk must arrive */
    struct kvb_backoff requests; /* whether the newest one failed, when the next may be sent */
    uint32_t next_chunk;
    unsigned rounds;              /* ranges requested for the same hole */
    struct kvb_event_log *buffer; /* owned: the reorder buffer, or events after a snapshot */
    struct kvb_bucket_set buckets;
    struct kvb_router_batch patch;             /* owned: blocks of these buckets received so far */
    struct follow_list hidden[KVB_LIST_COUNT]; /* the snapshot received so far */
    uint64_t hidden_seed;                      /* of their digests */
};

/* What the heartbeats of a stream say about its bridge.
 *
 *     state     three heartbeats missing    a heartbeat    a goodbye
 *     -------   ------------------------    -----------    ---------
 *     alive     silent                      alive          stopped
 *     silent    -                           alive          stopped
 *     stopped   -                           alive          stopped
 */
enum bridge_liveness { bridge_alive, bridge_silent, bridge_stopped };

/* So many epochs before the one that is followed are known as old: their messages are dropped.  A
 * message that arrives again after more epochs than that seems to begin a new one, and hides the
 * living one for two periods. */
enum { max_old_epochs = 4 };

struct kvb_follow {
    struct kvb_follower shown;
    bool has_epoch;
    kvb_epoch epoch; /* of the events applied last */
    size_t old_epoch_count;
    kvb_epoch old_epochs[max_old_epochs]; /* those before it, newest first */
    uint64_t epoch_ns;                    /* when the first message of the epoch was accepted */
    uint64_t rival_ns; /* newest heartbeat of a second running bridge; 0: there is none */
    bool has_cleared;
    uint64_t cleared_id;          /* the newest `cleared` applied */
    uint64_t newest_id;           /* newest id received or missed; 0: none in this epoch */
    enum kvb_stream_reason loss;  /* NONE: no event is missing since a `cleared` */
    bool is_subset;               /* false: ids jumped before a heartbeat or epoch was known */
    bool is_proven;               /* a heartbeat had our last id and our counts */
    enum kvb_stream_reason doubt; /* STALE for this reason until proven; NONE: not STALE */
    enum bridge_liveness bridge;
    unsigned heartbeats_ahead;                /* in a row */
    unsigned heartbeats_behind;               /* in a row */
    uint64_t advanced_ns;                     /* when the newest event was applied */
    uint64_t alive_ns;                        /* start of the time of silence */
    uint64_t down_ns;                         /* when it went DOWN */
    uint64_t settled_id;                      /* heartbeats of earlier events are not compared */
    unsigned differs_in_a_row;                /* heartbeats that found the list to differ */
    uint64_t digest_seed;                     /* of the digests; 0: the bridge keeps none */
    struct follow_list lists[KVB_LIST_COUNT]; /* what is shown */
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
    size_t next_requested; /* the first stream of the next round of requests */
    size_t open_requests;  /* requests under way */
    size_t needing;        /* streams that lack something */
    /* List of the streams without heartbeats, ordered by their newest event. */
    uint32_t oldest_unheard; /* 1 + number; 0: there are none */
    uint32_t newest_unheard;
    size_t unheard;
    uint64_t next_scan_ns;
    uint64_t generation; /* grows when a stream is added or removed */
    uint64_t traits;     /* grows when a property changes that queries select streams by */
    bool is_nats_away;
    bool is_lagging;
    bool is_unread;
    struct kvb_follower_counters counters;
};

/* Finds the follower of a stream, or creates it, for an event or for a heartbeat. */
kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_heartbeat,
    uint64_t now_ns, struct kvb_follow **out_follow);

/* The list of streams without heartbeats: touch moves a stream to the newest end after an event;
 * leave removes a stream after its first heartbeat. */
void kvb_follow_touch_unheard(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
void kvb_follow_leave_unheard(struct kvb_followers *followers, struct kvb_follow *follow);

/* The period that a heartbeat names, within limits. */
uint64_t
kvb_follow_period_ns(const struct kvb_followers *followers, const struct kvb_heartbeat *heartbeat);

/* ---- replica/list.c: the lists of blocks, and their digests ---- */

/* True when the stream has this list, perhaps empty, with its digest. */
bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list);

/* Frees all lists of the stream, and their digests. */
void kvb_follow_free_lists(struct kvb_followers *followers, struct kvb_follow *follow);

/* Empties all lists of the stream. */
void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow);

/* Prefetches the memory that this event will change when it is applied. */
void kvb_follow_expect(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Apply an event to the stream's list.  Not KVB_OK: there was no room for some blocks.  When a
 * removal finds no room for the remaining blocks, the list is emptied. */
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

/* Exchanges the hidden lists and the visible ones. */
void kvb_follow_show_hidden(struct kvb_followers *followers, struct kvb_follow *follow);

/* Frees the hidden lists: an unfinished snapshot, or the old lists after the swap. */
void kvb_follow_drop_hidden(struct kvb_followers *followers, struct follow_repair *repair);

/* Computes the digests of all lists again, with this seed; seed 0: no digests. */
void kvb_follow_begin_digest(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t seed);

/* True when the lists have the heartbeat's counts and, if the bridge keeps them, digests. */
bool kvb_follow_has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat);

/* ---- replica/state.c: what is missing, and the resulting state ---- */

/* Creates the reorder buffer unless it exists; false without memory. */
bool kvb_repair_has_buffer(struct follow_repair *repair);

/* For a stream that lacks blocks because memory was full: true when there may be enough memory
 * now. */
bool kvb_follow_may_fit(const struct kvb_followers *followers, const struct kvb_follow *follow);

/* Events are missing after the last one applied, up to the first in the reorder buffer or, if it is
 * empty, up to the last id of the newest heartbeat.  Empties the list when they cannot be
 * requested. */
void kvb_follow_need_range(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The list differs from the bridge's.  Empties it when the bridge cannot say in which buckets, or
 * when earlier repairs of buckets did not help. */
void kvb_follow_need_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* True while the list is frozen and live events go to the reorder buffer. */
bool kvb_follow_waits(const struct kvb_follow *follow);

/* Notes that nothing is missing now. */
void kvb_follow_need_nothing(struct kvb_followers *followers, struct kvb_follow *follow);

/* Pending answers are lost: requests again what is needed. */
void kvb_follow_request_again(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* Puts a live event into the reorder buffer if it must wait there, or if a snapshot may need it
 * later.  True: the event must not be applied now. */
bool kvb_follow_buffer(
    struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event);

/* Ends the open request; the reorder buffer is kept. */
void kvb_repair_stop_request(struct kvb_followers *followers, struct follow_repair *repair);

/* Events, perhaps removals, may be missing, so the list may no longer be a subset.  Empties it and
 * requests a snapshot if requests are sent. */
void kvb_follow_lose(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason,
    uint64_t now_ns);

/* Derives the state and the reason from all other fields. */
void kvb_follow_classify(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* ---- replica/apply.c ---- */

/* True for an epoch before the one that is followed, if it is still known. */
bool kvb_follow_is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch);

/* Applies one event, whatever its id. */
void kvb_follow_apply(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Notes that a heartbeat had our last id and our counts. */
void kvb_follow_note_proof(struct kvb_follow *follow);

/* Compares the list with the newest heartbeat again.  The heartbeat may have arrived before its
 * events.  After a repair has brought them, the heartbeat proves the list, and no other one is
 * needed. */
void kvb_follow_recall(const struct kvb_followers *followers, struct kvb_follow *follow);

/* Applies events of the reorder buffer up to to_id, or all of them.  False: an event between them
 * or before them is missing. */
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
void kvb_repair_compare_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

/* Collects the blocks of the buckets until the last chunk, then replaces what is listed in
 * these buckets. */
void kvb_repair_add_to_patch(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);
