#pragma once

#include "core/ref.h"
#include "core/status.h"
#include "index/block_set.h"
#include "index/index.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "model/sync.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The replica of all streams in an aggregator.  It puts the events of bridges in order, applies
 * them to the index, and derives the state of each stream: how far its list may be trusted.
 *
 *     events, heartbeats --> follower of the stream --> index slot per tier,
 *                                                       and the window list: a plain set
 *     clock, NATS lost   -->   state, reason
 *
 * Invariant: the list of a stream here is always a subset of the bridge's list.  Wherever a removal
 * may have been missed (a gap in the event ids, a new epoch without its first event, counts that
 * differ) the list is emptied, and the next events fill it again.  A subset with as many blocks as
 * the bridge counts is equal, so a heartbeat with our last id and our counts proves the list.  The
 * stream then takes the state that the bridge reports.
 *
 *     what happens                         state until a heartbeat proves it
 *     first seen after the epoch began     PARTIAL(joined_late)
 *     a hole in the ids                    PARTIAL(missed_events)
 *     two heartbeats in a row ahead of us  PARTIAL(missed_events)
 *     our last id, other counts            PARTIAL(differs)
 *     we applied an id above the last id   PARTIAL(differs)
 *     of two heartbeats
 *     the index is full, or the window     PARTIAL(memory), until there is room again
 *     lists are
 *     `cleared`                            complete again: SYNCING, or as before
 *                                          when nothing was missing
 *     no heartbeat yet                     UNVERIFIED(no_heartbeat)
 *     blocks in a window list, but the     UNVERIFIED(groups)
 *     heartbeat knows no window
 *     one of the four epochs before still  UNVERIFIED(two_bridges): the list follows the
 *     has heartbeats one period after the  newer epoch, unless that has had no heartbeat
 *     new epoch began                      for two periods
 *     three heartbeats missing             DOWN(silent)
 *     goodbye of the bridge                DOWN(bridge_stopped)
 *     would be EXACT or PARTIAL, but its   UNVERIFIED(audit)
 *     engine delivers fewer cache hits
 *     than the list promises
 *     NATS is lost, then until proven      STALE(nats_away); a stream that is DOWN stays
 *     again                                DOWN, unless it fell silent just before
 *     messages wait here too long or were  STALE(lagging); a stream that is DOWN stays
 *     dropped, then until proven again     DOWN
 *
 * Forged messages have no lasting effect.  The bridge's next two heartbeats contradict an event or
 * a heartbeat that did not come from the bridge, and the list is fetched again.  Event ids far
 * above the last id of the newest heartbeat are refused.
 *
 * Each heartbeat carries its period; a value below half a second counts as half a second,
 * one above a minute as a minute.
 *
 * The events of a stream are taken in one format only, and those of the other are dropped: protobuf
 * if the newest heartbeat names it, else JSON.  Before the first heartbeat it is JSON until a batch
 * of protobuf comes; that names an epoch, so the list begins anew.  A bridge begins an epoch when
 * it changes its formats, so what is missed on the way is noticed as any missed epoch.
 *
 * JSON streams without heartbeats come from bridges other than kvbridge: their ids may repeat, jump
 * and go back, and all of their events are applied.  They may take at most an eighth of
 * max_streams.  A further one replaces the stream that was silent for longest.
 *
 * Repair, when sends_requests is set: a request for what is missing goes to the bridge, and
 * the stream is SYNCING, with the reason above, until the answer is applied.
 *
 *     a hole, or behind a heartbeat    requests the missing events; live events wait in the
 *                                      reorder buffer; the list stays as it is for at most
 *                                      1.5 s
 *     our last id, another digest      requests the buckets that differ; live events wait
 *                                      likewise
 *     anything else, or the bridge no  empties the list as above and requests a snapshot of
 *     longer has the events            all blocks, which is built in hidden lists and
 *                                      swapped in as a whole
 *
 * When the bridge does not answer, the request is repeated with exponential backoff, and the
 * stream is PARTIAL meanwhile.
 *
 * Threads: the caller locks.  No clock, no I/O: now is an argument, monotonic ns,
 * and never goes back.
 * Memory:  about 4 KiB a stream and 4 KiB for each tier in use, for at most
 *          max_streams streams; about 16 bytes for each block of a window list; during a
 *          repair up to 1.5 MiB of events, and 4 KiB for each tier of a snapshot. */
struct kvb_followers;

struct kvb_followers_options {
    size_t max_streams;             /* at most kvb_max_streams; a larger value is lowered */
    uint64_t heartbeat_ms;          /* for heartbeats without a period; 1000 */
    uint64_t forget_ms;             /* a stream that was DOWN or silent for this time is removed */
    bool sends_requests;            /* request missing data from bridges */
    struct kvb_prefix_index *index; /* borrowed; outlives the followers */
    size_t max_window_blocks;       /* in all window lists together */
    uint64_t hash_key;              /* of all hash tables here; the index uses the same */
};

/* The part of a stream that queries read. */
struct kvb_follower {
    struct kvb_stream_id id;
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    bool has_heartbeat;
    struct kvb_heartbeat heartbeat; /* the newest; all zero if there was none */
    enum kvb_format format;         /* of the events that are applied */
    bool has_last_id;
    uint64_t last_id; /* the newest event applied */
    bool has_slot[KVB_TIER_COUNT];
    kvb_slot_ref slots[KVB_TIER_COUNT];
    /* The window list: the blocks that all sliding-window groups hold; NULL: it was never used. */
    const struct kvb_block_set *window;
    /* The list is EXACT or PARTIAL, or would be but for the audit: what it lists is held. */
    bool is_claimed;
    bool is_doubted; /* the audit contradicts the list */
    uint64_t claim;  /* changes when the list is emptied and when it is no longer claimed: what was
                        concluded from it before is void */
};

/* On KVB_OK the caller owns *out_followers.  KVB_NO_MEMORY. */
kvb_status kvb_followers_new(
    const struct kvb_followers_options *options, struct kvb_followers **out_followers);

/* Returns all slots to the index.  NULL is fine. */
void kvb_followers_free(struct kvb_followers *followers);

/* Events of one stream.  id carries the names of the subject; worker and rank
 * are the payload's.
 * KVB_TOO_LARGE  a new stream, but max_streams streams have heartbeats already: it is not
 *                followed, and streams_refused counts it
 * KVB_NO_MEMORY  as KVB_TOO_LARGE
 * A full index is not an error here: the stream becomes PARTIAL(memory). */
kvb_status kvb_followers_apply(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_router_batch *batch, uint64_t now_ns);

/* True: the stream's events are taken from protobuf, so this one in JSON need not even be decoded;
 * it is counted as unused. */
bool kvb_followers_skip_json(struct kvb_followers *followers, const struct kvb_stream_id *id);

/* Errors as kvb_followers_apply(). */
kvb_status kvb_followers_heartbeat(
    struct kvb_followers *followers, const struct kvb_stream_id *id,
    const struct kvb_heartbeat *heartbeat, uint64_t now_ns);

/* The audit found that the engine does not deliver what the list promises, or that it does again.
 * An unknown stream is left out. */
void kvb_followers_set_doubted(
    struct kvb_followers *followers, const struct kvb_stream_id *id, bool is_doubted,
    uint64_t now_ns);

/* Marks silent streams DOWN, removes streams that were DOWN for long, and ends requests that were
 * not answered in time. */
void kvb_followers_tick(struct kvb_followers *followers, uint64_t now_ns);

/* The connection to NATS was lost, or was restored.  Messages published in between are lost. */
void kvb_followers_nats_away(struct kvb_followers *followers, uint64_t now_ns);
void kvb_followers_nats_back(struct kvb_followers *followers, uint64_t now_ns);

/* is_lagging: received messages wait too long before they are applied. */
void kvb_followers_set_lagging(struct kvb_followers *followers, bool is_lagging, uint64_t now_ns);

/* is_unread: this process did not run for a while, and has not read yet what came meanwhile.  Lists
 * are STALE(lagging) as above.  Afterwards the heartbeats that waited have been read, so a stream
 * that had none of them has been silent: the next tick makes it DOWN if that was for long enough.
 */
void kvb_followers_set_unread(struct kvb_followers *followers, bool is_unread, uint64_t now_ns);

/* Messages of unknown streams were dropped before they reached this process. */
void kvb_followers_messages_dropped(struct kvb_followers *followers, uint64_t now_ns);

/* ---- Requests to bridges ---- */

struct kvb_follower_request {
    struct kvb_stream_id id;
    struct kvb_sync_request request;
    uint64_t token; /* identifies this request; passed back with each reply to it */
};

/* Writes the next request that is due and counts it as sent; false when there is none.
 * Streams take turns (round robin). */
bool kvb_followers_next_request(
    struct kvb_followers *followers, uint64_t now_ns, struct kvb_follower_request *out_due);

/* Applies one chunk of an answer.  A chunk for a request that has ended is dropped. */
void kvb_followers_reply(
    struct kvb_followers *followers, uint64_t token, const struct kvb_sync_reply *reply,
    uint64_t now_ns);

/* ---- Reading ---- */

/* Streams have numbers from 0 to limit - 1; NULL: this number is not in use.  Borrowed until the
 * next change. */
size_t kvb_followers_limit(const struct kvb_followers *followers);
const struct kvb_follower *kvb_followers_at(const struct kvb_followers *followers, size_t number);
const struct kvb_follower *
kvb_followers_find(const struct kvb_followers *followers, const struct kvb_stream_id *id);
/* The key of a number that is in use; borrowed until the next change. */
struct kvb_stream_key kvb_followers_key(const struct kvb_followers *followers, uint32_t number);

/* Changes whenever a stream is added or removed: borrowed pointers, and any order computed from the
 * streams, are then invalid. */
uint64_t kvb_followers_generation(const struct kvb_followers *followers);

/* Changes with the generation, and when a heartbeat changes a stream's model, block shapes, window,
 * names or kind, or whether facts of its worker are known, when its first heartbeat arrives, and
 * when the stream becomes DOWN or is no longer DOWN. */
uint64_t kvb_followers_traits(const struct kvb_followers *followers);

/* Finds the stream and tier that own a slot.  KVB_NOT_FOUND: no stream owns it. */
kvb_status kvb_followers_of_slot(
    const struct kvb_followers *followers, kvb_slot_ref slot, uint32_t *out_number,
    enum kvb_tier *out_tier);

/* Number of blocks of the stream in the tier, or in the window list. */
uint64_t kvb_followers_blocks(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier);

/* Calls visit(context, block) for each of these blocks, in no particular order. */
void kvb_followers_each_block(
    const struct kvb_followers *followers, const struct kvb_follower *follower, enum kvb_tier tier,
    void (*visit)(void *context, kvb_block_hash block), void *context);

/* Number of blocks in all window lists, including unfinished snapshots. */
uint64_t kvb_followers_window_blocks(const struct kvb_followers *followers);

struct kvb_follower_counters {
    uint64_t events_applied;
    uint64_t events_old;     /* dropped: repeated, or of an earlier epoch */
    uint64_t events_unused;  /* of the format that is not taken */
    uint64_t events_ahead;   /* refused: id far above that of the newest heartbeat */
    uint64_t holes;          /* jumps of event ids */
    uint64_t events_missed;  /* missing ids, found by a jump or a heartbeat; each is counted once */
    uint64_t blocks_refused; /* events that were not applied completely: too little memory */
    uint64_t heartbeats;
    uint64_t heartbeats_late; /* heartbeats ahead of the last id applied */
    uint64_t contradicted;    /* lists with ids above those of the bridge's heartbeats */
    uint64_t differs;         /* heartbeats with our last id but other counts or digests */
    uint64_t epochs_missed;   /* epochs whose `cleared` was not seen */
    uint64_t rivals;          /* times a stream was found to have two bridges */
    uint64_t silent;
    uint64_t forgotten;
    uint64_t streams_refused;
    uint64_t ranges_requested;
    uint64_t ranges_filled;
    uint64_t snapshots_requested;
    uint64_t snapshots_taken;
    uint64_t digests_requested;
    uint64_t digests_repaired;
    uint64_t buckets_differ;  /* must stay 0: no event was missing, but the lists differ */
    uint64_t requests_failed; /* refused, broken, or not answered in time */
};

void kvb_followers_counters(
    const struct kvb_followers *followers, struct kvb_follower_counters *out_counters);
