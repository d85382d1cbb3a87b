#pragma once

#include "model/stream_table.h"
#include "model/sync.h"
#include "stream/digest.h"
#include "stream/event_log.h"
#include "stream/follower.h"

/* What follower.c (table, slots, time) and follower_order.c (order of events and
 * heartbeats) share.  Nobody else includes it. */

/* What a stream lacks. */
enum follow_need {
    need_nothing,
    need_range,   /* some events: the list stands still before them */
    need_sums,    /* the list differs, nobody knows where: it stands still */
    need_buckets, /* it differs in these buckets */
    need_snapshot /* everything: the list was emptied, and grows by what comes */
};

/* Getting it. */
struct follow_repair {
    enum follow_need need;
    uint64_t since_ns;      /* when it came to lack it */
    bool is_asked;          /* a request is under way */
    uint32_t request;       /* its number, part of the token */
    uint64_t deadline_ns;   /* of its next chunk */
    uint64_t not_before_ns; /* of the next request */
    uint32_t next_chunk;
    unsigned failures;          /* in a row */
    unsigned rounds;            /* ranges asked for the same hole */
    struct kvb_event_log *held; /* owned: events that wait, or that follow a snapshot */
    struct kvb_bucket_set buckets;
    struct kvb_router_batch patch;   /* owned: what is in them, so far */
    bool has_hidden[KVB_LIST_COUNT]; /* the snapshot so far */
    kvb_slot_ref hidden[KVB_TIER_COUNT];
    struct kvb_block_set *hidden_window;               /* owned, with has_hidden */
    struct kvb_digest *hidden_digests[KVB_LIST_COUNT]; /* owned; beside each hidden list */
    uint64_t hidden_seed;                              /* of them */
};

struct kvb_follow {
    struct kvb_follower shown;
    bool has_epoch;
    kvb_epoch epoch; /* of what was applied last */
    bool has_old_epoch;
    kvb_epoch old_epoch; /* the one before: what still comes of it is old */
    uint64_t epoch_ns;   /* since when the epoch is followed */
    uint64_t rival_ns;   /* the newest heartbeat of another bridge that lives; 0: none does */
    bool has_cleared;
    uint64_t cleared_id;         /* the newest `cleared` applied */
    enum kvb_stream_reason loss; /* NONE: nothing is missing since a `cleared` */
    bool is_subset;              /* false: ids jumped and nobody could say why */
    bool is_proven;              /* a heartbeat had our last id and our counts */
    bool must_prove;             /* NATS was away since */
    bool is_silent;
    bool is_bye;
    unsigned heartbeats_ahead;                  /* in a row */
    uint64_t alive_ns;                          /* when silence began to count */
    uint64_t down_ns;                           /* when it went DOWN */
    uint64_t settled_id;                        /* the list is nobody's truth before this event */
    unsigned differs_in_a_row;                  /* heartbeats that found another list */
    uint64_t digest_seed;                       /* of the digests; 0: the bridge keeps none */
    struct kvb_digest *digests[KVB_LIST_COUNT]; /* owned; beside each list */
    struct kvb_block_set *window;               /* owned; what is shown of it; or NULL */
    struct follow_repair repair;
};

struct kvb_followers {
    struct kvb_followers_options options;
    struct kvb_stream_table names;
    struct kvb_follow *follows; /* owned; by the number of the name */
    size_t follow_capacity;
    uint32_t *slot_owners; /* owned; by slot: 1 + number * KVB_LIST_COUNT + tier, or 0 */
    size_t slot_owner_count;
    size_t slot_owner_capacity;
    uint8_t *changed; /* owned: scratch of a store, a byte a block */
    size_t changed_capacity;
    size_t window_blocks; /* in all window lists */
    size_t next_asked;    /* whose turn it is to ask first */
    size_t asked;         /* requests under way */
    size_t needing;       /* streams that lack something */
    uint64_t next_scan_ns;
    uint64_t generation; /* streams that came or went */
    uint64_t traits;     /* and what queries choose them by changed */
    bool is_nats_away;
    struct kvb_follower_counters counters;
};

/* Finds or begins the follower of a stream. */
kvb_status kvb_follow_get(
    struct kvb_followers *followers, const struct kvb_stream_id *id, uint64_t now_ns,
    struct kvb_follow **out_follow);

/* Does the stream have this list, perhaps empty, and a digest beside it? */
bool kvb_follow_has_list(const struct kvb_follow *follow, enum kvb_tier list);

/* Draws a slot that can be owned.  KVB_TOO_LARGE: the index has none.
 * KVB_NO_MEMORY. */
kvb_status kvb_follow_draw_slot(struct kvb_followers *followers, kvb_slot_ref *out_slot);

/* Makes a list with its digest when it is needed first: for a tier a slot is drawn.
 * KVB_TOO_LARGE: the index has none.  KVB_NO_MEMORY. */
kvb_status kvb_follow_make_list(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier list);

/* An empty window list.  KVB_NO_MEMORY. */
kvb_status
kvb_follow_new_window(const struct kvb_followers *followers, struct kvb_block_set **out_window);

/* Empties a window list; frees it too.  NULL is fine. */
void kvb_follow_clear_window(struct kvb_followers *followers, struct kvb_block_set *window);
void kvb_follow_free_window(struct kvb_followers *followers, struct kvb_block_set *window);

/* The slot, drawn so, becomes that of the tier, which had none. */
void kvb_follow_own_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref slot);

/* The slot of the tier and *slot, drawn so, change places. */
void kvb_follow_swap_slot(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_tier tier,
    kvb_slot_ref *slot);

/* Empties all lists of the stream. */
void kvb_follow_clear(struct kvb_followers *followers, struct kvb_follow *follow);

/* State and reason from all the rest. */
void kvb_follow_judge(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* ---- follower_list.c: what is listed, and its digest ---- */

/* Has the memory fetch what this event will change, which comes soon. */
void kvb_follow_expect(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Applies blocks to the stream's list.  KVB_OK unless some found no room; where there is
 * none for what a removal leaves, nothing is left. */
kvb_status kvb_follow_store(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);
kvb_status kvb_follow_remove(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* Adds a stored event to the snapshot that is built out of sight.
 * KVB_BAD_INPUT  another event   KVB_TOO_LARGE, KVB_NO_MEMORY */
kvb_status kvb_follow_hide(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* What was built out of sight takes the place of what is listed.  Errors as above. */
kvb_status kvb_follow_show_hidden(struct kvb_followers *followers, struct kvb_follow *follow);

/* Gives up what was built out of sight, or what it took the place of. */
void kvb_follow_drop_hidden(struct kvb_followers *followers, struct follow_repair *repair);

/* From here on digests have this seed; 0 for none. */
void kvb_follow_begin_digest(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t seed);

/* Is what is listed what the heartbeat counts? */
bool kvb_follow_has_counts(
    const struct kvb_followers *followers, const struct kvb_follow *follow,
    const struct kvb_heartbeat *heartbeat);

/* ---- follower_order.c ---- */

/* Something may be missing, removals among it: what is listed can no longer be called
 * a subset, so it goes. */
void kvb_follow_lose(
    struct kvb_followers *followers, struct kvb_follow *follow, enum kvb_stream_reason reason,
    uint64_t now_ns);

/* The epoch before the one that is followed. */
bool kvb_follow_is_old_epoch(const struct kvb_follow *follow, const kvb_epoch *epoch);

/* Applies one event, whatever its id. */
void kvb_follow_apply(
    struct kvb_followers *followers, struct kvb_follow *follow,
    const struct kvb_router_batch *batch, const struct kvb_router_event *event);

/* The newest heartbeat may have come before its events, which a repair then brought: it
 * proves the list when that has come as far, and nobody waits for the next one. */
void kvb_follow_recall(const struct kvb_followers *followers, struct kvb_follow *follow);

/* ---- follower_repair.c ---- */

/* Events are missing behind the last one applied, up to the first that waits or else
 * to the newest heartbeat's.  Where they cannot be asked for, the stream loses its list. */
void kvb_follow_need_range(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);
void kvb_follow_need_snapshot(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The list is another than the bridge's.  Where it cannot ask in which buckets, or did so
 * in vain, the stream loses it. */
void kvb_follow_need_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* Does the list stand still? */
bool kvb_follow_waits(const struct kvb_follow *follow);

/* Nothing is missing any more. */
void kvb_follow_need_nothing(struct kvb_followers *followers, struct kvb_follow *follow);

/* Answers that were under way are lost: what is needed is asked for anew. */
void kvb_follow_ask_again(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* A live event that has to wait; true when it must not be applied now. */
bool kvb_follow_hold(
    struct kvb_follow *follow, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event);

/* Finds requests that were not answered and holes that stay. */
void kvb_follow_repair_tick(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The request came to nothing: again, after a pause that doubles. */
void kvb_repair_fail(struct kvb_followers *followers, struct kvb_follow *follow, uint64_t now_ns);

/* The request under way is over; what waits stays. */
void kvb_repair_stop_asking(struct kvb_followers *followers, struct follow_repair *repair);

/* Applies the events that waited up to to_id, or to the last.  False: one of them, or
 * one before them, is not there. */
bool kvb_repair_apply_held(
    struct kvb_followers *followers, struct kvb_follow *follow, uint64_t to_id);

/* ---- follower_buckets.c ---- */
void kvb_repair_take_sums(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

/* Blocks of the buckets: kept until the last chunk, which puts them in place of what
 * is listed there. */
void kvb_repair_take_patch(
    struct kvb_followers *followers, struct kvb_follow *follow, const struct kvb_sync_reply *reply,
    uint64_t now_ns);
