#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "index/block_set.h"
#include "index/prefix_index.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "model/sync.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The aggregator's side of every stream: orders what bridges publish, keeps the
 * index in step, and says how far each stream's list may be trusted.
 *
 *     events, heartbeats --> follower of the stream --> index slot per tier,
 *                                                       and the window list: a plain set
 *     clock, NATS away   -->   state, reason
 *
 * One rule carries the rest: what is listed is always a subset of what the
 * bridge lists.  Wherever a removal may have been missed (a hole in the ids, a
 * new epoch whose beginning was not seen, counts that differ) the stream is
 * emptied and filled again by what follows.  A subset with as many blocks as the
 * bridge counts is equal, so a heartbeat with our last id and our counts proves
 * the stream, however it began, and its state becomes the bridge's own.
 *
 *     what happens                         state until a heartbeat proves it
 *     first seen after the epoch began     PARTIAL(joined_late)
 *     a hole in the ids                    PARTIAL(missed_events)
 *     two heartbeats ahead of us           PARTIAL(missed_events)
 *     our last id, other counts            PARTIAL(differs)
 *     the index is full, or the window     PARTIAL(memory)
 *     lists are
 *     `cleared`                            complete again: SYNCING, or as before
 *                                          when nothing was missing
 *     no heartbeat yet                     UNVERIFIED(no_heartbeat)
 *     blocks of a window list, and no      UNVERIFIED(groups)
 *     heartbeat that tells of windows
 *     heartbeats of the epoch before,      UNVERIFIED(two_bridges): what is listed is
 *     a heartbeat's time after its end     what the one says whose epoch came later
 *     three heartbeats missing             DOWN(silent)
 *     goodbye of the bridge                DOWN(bridge_stopped)
 *     NATS away, and until proven after    STALE(nats_away); what is DOWN stays so,
 *                                          unless it fell silent just before
 *
 * JSON streams without heartbeats come from bridges that are not ours: their ids
 * may repeat, jump and go back; all of it is applied.
 *
 * Repair, when `asks` is set: what is missing is asked of the bridge, and the stream
 * is SYNCING with the reason above until it came.
 *
 *     a hole, or behind a heartbeat    the events of the hole; what comes meanwhile
 *                                      waits, what is listed stays for 1.5 s at most
 *     our last id, another digest      the buckets that differ; the same
 *     anything else, and where the     emptied, as above, and a snapshot of all that is
 *     events are gone                  held, built out of sight and swapped in whole
 *
 * A bridge that does not answer is asked again, ever more seldom; the stream is
 * PARTIAL then.
 *
 * Threads: the caller locks.  No clock, no I/O: now is an argument, monotonic ns,
 * and never goes back.
 * Memory:  about 900 bytes a stream and 4 KiB for each tier in use, at most
 *          max_streams; some 16 for each block of a window list; while something is missing, up
 * to 1.5 MiB of events, and 4 KiB for each tier of a snapshot that comes. */
struct kvb_followers;

struct kvb_followers_options {
    size_t max_streams;             /* cut at kvb_max_streams */
    uint64_t heartbeat_ms;          /* how often bridges say it; 1000 */
    uint64_t forget_ms;             /* DOWN and silent for that long: removed */
    bool asks;                      /* bridges are asked for what is missing */
    struct kvb_prefix_index *index; /* borrowed; outlives the followers */
    size_t max_window_blocks;       /* in all window lists together */
    uint64_t hash_key;              /* of those, as the index's */
};

/* What answers read of one stream. */
struct kvb_follower {
    struct kvb_stream_id id;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    bool has_heartbeat;
    struct kvb_heartbeat heartbeat; /* the newest; zero without one */
    bool has_last_id;
    uint64_t last_id; /* the newest event applied */
    bool has_slot[KVB_TIER_COUNT];
    kvb_slot_ref slots[KVB_TIER_COUNT];
    /* The window list; NULL: nothing was ever in it. */
    const struct kvb_block_set *window;
};

/* On KVB_OK the caller owns *out_followers.  KVB_NO_MEMORY. */
kvb_status kvb_followers_new(
    const struct kvb_followers_options *options, struct kvb_followers **out_followers);

/* Gives all slots back to the index.  NULL is fine. */
void kvb_followers_free(struct kvb_followers *followers);

/* Events of one stream.  id carries the names of the subject; worker and rank
 * are the payload's.
 * KVB_TOO_LARGE  a new stream above max_streams: nothing is followed, counted
 * KVB_NO_MEMORY  as KVB_TOO_LARGE
 * An index without room is no error here: the stream is PARTIAL(memory). */
kvb_status kvb_followers_apply(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_router_batch *batch, uint64_t now_ns);

/* Errors as kvb_followers_apply(). */
kvb_status kvb_followers_heartbeat(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns);

/* Finds the silent and forgets the long dead. */
void kvb_followers_tick(struct kvb_followers *followers, uint64_t now_ns);

/* Our own connection to NATS was lost; or it is back, and what was published
 * meanwhile is lost. */
void kvb_followers_nats_away(struct kvb_followers *followers, uint64_t now_ns);
void kvb_followers_nats_back(struct kvb_followers *followers, uint64_t now_ns);

/* ---- Asking bridges ---- */

struct kvb_follower_ask {
    struct kvb_stream_id id;
    struct kvb_sync_request request;
    uint64_t token; /* of this request; goes with each reply to it */
};

/* The next request to be sent now, and counted as sent; false when there is none.
 * Which streams are asked first goes around. */
bool kvb_followers_next_ask(
    struct kvb_followers *followers, uint64_t now_ns, struct kvb_follower_ask *out_ask);

/* One chunk of an answer.  Those of a request that is over are dropped. */
void kvb_followers_reply(
    struct kvb_followers *followers, uint64_t token, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

/* ---- Reading ---- */

/* Streams are numbered 0 .. limit - 1 with holes: NULL there.  Borrowed until
 * the next change. */
size_t kvb_followers_limit(const struct kvb_followers *followers);
const struct kvb_follower *kvb_followers_at(const struct kvb_followers *followers, size_t number);
size_t kvb_followers_count(const struct kvb_followers *followers);

/* Another number than before when a stream came or went: what is borrowed, and any order
 * of theirs, is to be made anew. */
uint64_t kvb_followers_generation(const struct kvb_followers *followers);

/* The same, and when what a heartbeat says of a stream's model, block shapes, window, names
 * or kind changed, whether it has a heartbeat, or whether it is DOWN. */
uint64_t kvb_followers_traits(const struct kvb_followers *followers);

/* Whose slot is it?  KVB_NOT_FOUND: nobody's. */
kvb_status kvb_followers_of_slot(
    const struct kvb_followers *followers, kvb_slot_ref slot, uint32_t *out_number,
    enum kvb_tier *out_tier);

/* Blocks that the stream lists in the tier, or in the window list. */
uint64_t kvb_followers_blocks(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier);

/* Calls visit(context, block) for each of them, in no particular order. */
void kvb_followers_each_block(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* Blocks in all window lists, those of snapshots that come included. */
uint64_t kvb_followers_window_blocks(const struct kvb_followers *followers);

struct kvb_follower_counters {
    uint64_t events_applied;
    uint64_t events_old;     /* repeated, or of an epoch that is over: dropped */
    uint64_t holes;          /* ids that jumped */
    uint64_t blocks_refused; /* stored events the index had no room for, in part */
    uint64_t heartbeats;
    uint64_t heartbeats_late; /* found ahead of us */
    uint64_t differs;         /* our last id, other counts */
    uint64_t epochs_missed;   /* epochs whose `cleared` was not seen */
    uint64_t rivals;          /* streams found to have two bridges */
    uint64_t silent;
    uint64_t forgotten;
    uint64_t streams_refused;
    uint64_t ranges_asked;
    uint64_t ranges_filled;
    uint64_t snapshots_asked;
    uint64_t snapshots_taken;
    uint64_t digests_asked;
    uint64_t digests_repaired;
    uint64_t buckets_differ; /* a fault of ours, wherever it comes from */
    uint64_t asks_failed;    /* refused, broken, or not answered in time */
};

void kvb_followers_counters(
    const struct kvb_followers *followers, struct kvb_follower_counters *out_counters);
