#pragma once

#include "core/hash.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "model/router_batch.h"
#include "model/stream.h"
#include "model/sync.h"
#include "stream/advertised_names.h"
#include "stream/mirror/mirror.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One stream of one engine, from its sequence numbers to the events published for routers.
 *
 *     engine's batches, replays, connection ---> step() ---> router events, state
 *
 * The sequence number alone proves nothing: an engine restarts at 0, and may pass our number
 * while it is disconnected.  So every replay is requested from the last applied batch,
 * inclusive, and its first reply must have the same hash of its bytes; after a reconnection, the
 * first two replies.  If equal, the engine is the same incarnation and the missed batches follow.
 * Otherwise the engine restarted or no longer keeps the batch: the list restarts.
 *
 * The replay's address does not prove that the publisher replies there: a stream is not EXACT
 * before a batch that came live was found in a replay.  The first is searched for at once, later
 * ones once a minute, with those before them that came since (64 at most).
 *
 *     live, seq = last + 1        apply
 *     live, seq > last + 1        gap: hold it, ask for a replay from last
 *     live, seq <= last           its old hash: duplicate.  else: hold it, ask
 *     live, cannot be read        hold it, ask: the engine may have a good copy
 *     live, not connected         drop it: the replay after UP has it
 *     quarantined                 drop all, say PARTIAL(overload); a replay after the release
 *     quiet for 1 s, reconnected  ask (the lost tail shows)
 *     while a replay runs         hold what is live, apply when it ends
 *     reconnected, unproven       DOWN until the last two batches came by replay
 *     a batch of much work        apply a slice of it in each step; hold what is live
 *
 * A loss that cannot be repaired clears the stream (a new epoch, opened by `cleared`), and it
 * goes on from there.  A set that starts empty and receives any later part of the history is a
 * subset of what the engine holds; the state PARTIAL says so.
 *
 * Pure: no clock, no I/O; time and randomness come with the inputs.
 * Threads: the caller locks.
 * Memory:  the mirror, 32 KiB of fingerprints, and held batches up to a ceiling. */
struct kvb_stream;

/* The source and the destination of a stream; its checkpoints contain hashes of them. */
enum kvb_stream_place {
    KVB_PLACE_NAMESPACE,
    KVB_PLACE_COMPONENT,
    KVB_PLACE_EVENTS,
    KVB_PLACE_REPLAY,
    KVB_PLACE_TOPIC,
    KVB_PLACE_UNKNOWN_MEDIUM,
    KVB_PLACE_REANNOUNCE,
    KVB_PLACE_COUNT
};

struct kvb_stream_options {
    uint64_t worker_id;
    uint32_t dp_rank;
    char model[kvb_model_bytes + 1];
    uint32_t block_size;   /* for heartbeats until the engine's events show its own */
    uint64_t total_blocks; /* device blocks of the engine; 0 = not known */
    bool has_replay;       /* without: UNVERIFIED, never EXACT */
    bool is_store;         /* a store and no engine, whatever its events show */
    enum kvb_profile profile;
    size_t max_held_bytes;
    size_t slice_work;     /* 0: kvb_stream_slice_work; of one deployment always the same */
    size_t max_log_blocks; /* of the newest events, kept for readers that missed some */
    uint8_t seed[16];      /* random: epochs are drawn from it */
    uint64_t places[KVB_PLACE_COUNT]; /* hashes of each: checkpoints of another place are
                                       * not its own */
    struct kvb_mirror_options mirror;
};

/* What one step applies at most: an event is 1, each block that it stores, removes, names or
 * clears 1, and 64 tokens 1.  Some 3 ms when every block misses the cache. */
enum { kvb_stream_slice_work = 8192 };

/* KVB_TOO_LARGE an option out of range, KVB_NO_MEMORY.  The caller owns it. */
kvb_status kvb_stream_new(const struct kvb_stream_options *options, struct kvb_stream **out_stream);
void kvb_stream_free(struct kvb_stream *stream);

enum kvb_stream_input_kind {
    KVB_INPUT_UP,         /* the engine's socket is connected */
    KVB_INPUT_DOWN,       /* it is not */
    KVB_INPUT_LIVE,       /* a batch from the PUB socket */
    KVB_INPUT_REPLAY,     /* a batch from the replay socket */
    KVB_INPUT_REPLAY_END, /* the replay says that it is complete */
    KVB_INPUT_REPLAY_CUT, /* no more replies are taken, though there was no END */
    KVB_INPUT_QUARANTINE, /* from here on its batches are dropped: stream/turn.h */
    KVB_INPUT_RELEASE,    /* they are accepted again */
    KVB_INPUT_TICK        /* time passes; at least every 100 ms */
};

struct kvb_stream_input {
    enum kvb_stream_input_kind kind;
    uint64_t now_ns;  /* monotonic */
    uint64_t wall_us; /* where a new epoch's event ids begin */
    /* KVB_INPUT_LIVE and KVB_INPUT_REPLAY: */
    uint64_t seq;
    struct kvb_hash128 fingerprint;      /* of the payload's bytes, seed 0 */
    const struct kvb_event_batch *batch; /* borrowed; NULL: it cannot be read */
};

/* Owned by the caller and reused; {0} to begin with. */
struct kvb_stream_output {
    struct kvb_router_batch events; /* to publish, in order, ids set, one epoch */
    /* State, reason, epoch, or what its events show of the engine and its blocks: send a
     * heartbeat now. */
    bool is_changed;
    bool drops_replay; /* a replay in flight is of no more use */
    bool has_more;     /* batches wait that could be applied: give a TICK soon */
};

/* Replaces *output.  Ordinary trouble (gaps, poison, full ceilings) is dealt with
 * and shows in state and counters.
 * KVB_NO_MEMORY  output could not be filled: what was to be published is lost;
 *                announce the stream again */
kvb_status kvb_stream_step(
    struct kvb_stream *stream, const struct kvb_stream_input *input,
    struct kvb_stream_output *output);

void kvb_stream_output_done(struct kvb_stream_output *output);

/* Prefetches the memory that the batch will need when it is applied.  Changes nothing, whatever
 * the batch contains. */
void kvb_stream_expect(const struct kvb_stream *stream, const struct kvb_event_batch *batch);

/* Something outside says that the engine may have restarted: the next TICK requests a probe, unless
 * a replay runs or a pause after failed ones has not ended. */
void kvb_stream_suspect_restart(struct kvb_stream *stream);

/* Is a replay to be requested now, and from which seq?  True until the caller has sent the
 * request and reported that. */
bool kvb_stream_wants_replay(const struct kvb_stream *stream, uint64_t now_ns, uint64_t *out_from);
void kvb_stream_replay_started(struct kvb_stream *stream, uint64_t now_ns);
bool kvb_stream_is_replaying(const struct kvb_stream *stream);

/* Why it is wanted, or runs; the most urgent last. */
enum kvb_replay_need {
    KVB_REPLAY_PROBE,   /* nothing is missing that we knew of */
    KVB_REPLAY_HISTORY, /* nothing is listed: the engine is asked for all that it keeps */
    KVB_REPLAY_MISSING, /* something is, and until it comes the list stands still */
    KVB_REPLAY_PROOF,   /* connected again: the last two batches show whether this is the engine
                         * that is listed, and until then it is DOWN */
};
enum kvb_replay_need kvb_stream_replay_need(const struct kvb_stream *stream);
uint64_t kvb_stream_replay_wanted_ns(const struct kvb_stream *stream);

/* Begins a new epoch: the next published events open it.  is_withdrawn: routers see the stream
 * as empty, whatever it holds, until the next epoch; heartbeats count no blocks meanwhile. */
void kvb_stream_open_epoch(struct kvb_stream *stream, uint64_t wall_us, bool is_withdrawn);

/* How an epoch's first events tell readers that the blocks they held are void. */
enum kvb_opening {
    KVB_OPENING_CLEARED, /* one `cleared` */
    KVB_OPENING_REMOVED, /* removals of all that they may hold */
    KVB_OPENING_NONE     /* they are not void: what is held is published once more */
};

struct kvb_stream_telling {
    enum kvb_opening opening;
    const struct kvb_advertised_names *advertised; /* for KVB_OPENING_REMOVED; borrowed */
    size_t max_chunk_blocks;
    /* Takes the chunks; ids are set. */
    kvb_status (*visit)(void *context, const struct kvb_router_batch *chunk);
    void *context;
};

/* Publishes the opening, then all blocks of the stream, parents first; only the opening if the
 * stream is withdrawn.  Called after kvb_stream_open_epoch(), for the first announcement and
 * whenever published events may have been lost.  Stops with the status of visit when that is not
 * KVB_OK.  KVB_NO_MEMORY. */
kvb_status kvb_stream_publish(struct kvb_stream *stream, const struct kvb_stream_telling *telling);

/* A refresh: what the stream holds in the device tier is stored once more, in the same epoch,
 * a part at a time between steps; see kvb_mirror_refresh_begin().  Not while it is withdrawn,
 * and only where the events of steps are published at once.  No batch makes the event ids of a
 * refresh: a stream restored from a checkpoint must then open an epoch before it publishes.
 * KVB_NO_MEMORY. */
kvb_status kvb_stream_refresh_begin(struct kvb_stream *stream);
void kvb_stream_refresh_end(struct kvb_stream *stream);

/* Replaces *out by at most max_blocks blocks (>= 1), signed, to be published; it may be
 * empty.  After an error, or when *out_is_done, the refresh is to be ended. */
kvb_status kvb_stream_refresh_step(
    struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out, bool *out_is_done);

/* What to publish about the stream. */
void kvb_stream_heartbeat(const struct kvb_stream *stream, struct kvb_heartbeat *out_heartbeat);

struct kvb_stream_counters {
    uint64_t batches_applied; /* live and replayed */
    uint64_t events_applied;
    uint64_t events_of[KVB_EVENT_SKIPPED]; /* these, by kind */
    uint64_t duplicates;
    uint64_t gaps;
    uint64_t batches_missed; /* numbers that were jumped over; of one jump 2^32 - 1 at most */
    uint64_t replays_requested;
    uint64_t replays_completed;
    uint64_t replays_failed; /* no answer in time */
    uint64_t batches_replayed;
    uint64_t restarts; /* another incarnation of the engine was found */
    uint64_t clears;   /* begun again, for whatever reason */
    uint64_t poison;   /* batches that could not be read */
    uint64_t buffer_refused;
    uint64_t skipped[KVB_SKIP_COUNT];
};

/* Borrowed; valid until the stream is freed. */
const struct kvb_stream_counters *kvb_stream_count(const struct kvb_stream *stream);
const struct kvb_mirror_counts *kvb_stream_mirror_count(const struct kvb_stream *stream);

/* True when an empty list was published to routers, whatever the stream holds. */
bool kvb_stream_is_withdrawn(const struct kvb_stream *stream);

/* Quarantined, or not caught up since: its list is old, so an empty list is to be published. */
bool kvb_stream_is_overloaded(const struct kvb_stream *stream);

/* Connected, and the list waits neither for the engine's proof nor for missing batches. */
bool kvb_stream_is_settled(const struct kvb_stream *stream);

/* A batch that came live was found in the replay: so the replay is the publisher's. */
bool kvb_stream_has_base(const struct kvb_stream *stream);

/* The epoch that is published now. */
kvb_epoch kvb_stream_epoch(const struct kvb_stream *stream);

/* The newest event's id. */
uint64_t kvb_stream_last_id(const struct kvb_stream *stream);

/* The newest seq applied; false when there is none yet. */
bool kvb_stream_last_seq(const struct kvb_stream *stream, uint64_t *out_seq);

/* ---- Giving readers what they missed ---- */

/* One request being answered; chunk by chunk, so that a large one never holds up the
 * engine's events.  {0} to begin with. */
struct kvb_sync_job {
    struct kvb_sync_request request;
    kvb_epoch epoch;     /* when it was begun: another one ends it */
    uint64_t barrier_id; /* snapshot, digest */
    uint64_t next_id;    /* range */
    size_t place;        /* snapshot: of the mirror's walk */
    uint32_t chunk;
};

void kvb_sync_job_begin(
    struct kvb_sync_job *job, const struct kvb_stream *stream,
    const struct kvb_sync_request *request);

/* Makes the next chunk: at most about max_blocks blocks.  events, reused, carries them;
 * *out_reply borrows from it and from the stream until the next call.  The job is done
 * after the chunk that is_last.
 * KVB_TOO_LARGE, KVB_NO_MEMORY of events: the job is to be given up. */
kvb_status kvb_sync_job_step(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *out_reply);
