#pragma once

#include "core/hash.h"
#include "core/status.h"
#include "model/event_batch.h"
#include "model/load.h"
#include "model/router_batch.h"
#include "model/speculation.h"
#include "model/stream.h"
#include "model/sync.h"
#include "stream/mirror/mirror.h"
#include "stream/mirror/picture.h"
#include "stream/mirror/shown.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One stream of one engine: turns the engine's numbered batches into the events that are published
 * for routers.
 *
 *     engine's batches, replays, connection ---> step() ---> router events, state
 *
 * The sequence number alone proves nothing: an engine restarts at 0, and may pass our number while
 * it is disconnected.  So every replay begins with the last applied batch, and its first reply must
 * have the same hash as that batch; after a reconnection, the first two replies must.  If the
 * hashes are equal, the engine is the same incarnation, and the missed batches follow.  Otherwise
 * the engine restarted or no longer keeps the batch: the list restarts.
 *
 * The replay's address does not prove that it belongs to the publisher.  So a stream is not EXACT
 * before a batch that came live was found in a replay.  The first batch is looked for at once.
 * Later looks come once a minute, and compare all batches since the last look (at most 64).
 *
 *     live, seq = last + 1        apply
 *     live, seq > last + 1        gap: buffer it, ask for a replay from last
 *     live, seq <= last           same hash: a duplicate; else: buffer it, ask
 *     live, cannot be read        buffer it, ask: the engine may have a good copy
 *     live, not connected         drop it: the replay after UP has it
 *     quiet for 1 s, reconnected  ask (the newest batches may be lost); while it stays quiet, again
 *                                 after 1 s, from 4 s on after a quarter of the silence, <= 1 min
 *     while a replay runs         buffer live batches, apply them when it ends
 *     reconnected, unproven       DOWN until a replay has brought the last two batches
 *     this process was stopped    SYNCING until a replay shows which batches came meanwhile
 *     asleep, cache discarded     UNVERIFIED and withdrawn until the engine clears: page_watch.h
 *     a large batch               apply a slice of it in each step; buffer live batches
 *
 * A loss that cannot be repaired clears the stream (a new epoch, opened by `cleared`), and it goes
 * on from there.  A list that starts empty and receives any later part of the history is a subset
 * of what the engine holds: its state is PARTIAL.
 *
 * Pure: no clock, no I/O; time and randomness come with the inputs.
 * Threads: the caller locks.
 * Memory:  the mirror, 32 KiB of fingerprints, and buffered batches up to a limit. */
struct kvb_stream;
struct kvb_event_log;

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
    uint32_t block_size; /* for heartbeats, until the engine's events show the real one */
    /* Blocks at the end of a held prefix that the engine does not use, while its blocks have no
     * lookahead.  KVB_DROP_DETECT: as kvb_stream_note_speculation() finds. */
    uint32_t speculative_drop;
    uint32_t speculative_drop_groups; /* bit g: group number g drops; 0: see stream.c */
    uint64_t total_blocks;            /* device blocks of the engine; 0 = not known */
    bool has_replay;                  /* false: the stream is UNVERIFIED, never EXACT */
    bool is_store;                    /* the source is a store, whatever its events show */
    bool is_without_salts; /* no prompt has a salt, an adapter or an image that events leave out */
    bool has_hidden_pools; /* as kvb_stream_note_hidden_pools() */
    enum kvb_offload_removals offload_removals;
    unsigned formats; /* in which the events are published */
    size_t max_buffered_bytes;
    size_t slice_work;     /* 0: kvb_stream_slice_work; the same in all bridges of a deployment */
    size_t max_log_blocks; /* blocks of the newest events, kept for readers that missed some */
    uint8_t seed[16];      /* random: the seed of the epochs */
    uint64_t places[KVB_PLACE_COUNT]; /* hashes of each: checkpoints of another place are
                                       * not its own */
    struct kvb_mirror_options mirror;
};

/* Largest work of one step.  An event counts 1, each block that it stores, removes, names or clears
 * counts 1, and 64 tokens count 1.  The step takes about 3 ms when every block misses the cache. */
enum { kvb_stream_slice_work = 8192 };

/* KVB_TOO_LARGE an option out of range, KVB_NO_MEMORY.  The caller owns it. */
kvb_status kvb_stream_new(const struct kvb_stream_options *options, struct kvb_stream **out_stream);
void kvb_stream_free(struct kvb_stream *stream);

/* Begins to republish the stream: before a checkpoint is restored, if there is one.  Returns as
 * kvb_mirror_show() does. */
kvb_status kvb_stream_show(struct kvb_stream *stream, uint32_t block_size);

/* What readers of engines have been shown; NULL: nothing is republished.  Borrowed. */
struct kvb_shown *kvb_stream_shown(const struct kvb_stream *stream);

/* Says whether the engine's replies have a topic: before 0.26, vLLM's have none, and it cannot
 * announce a block again. */
void kvb_stream_note_reply_form(struct kvb_stream *stream, bool has_topic);

enum kvb_stream_input_kind {
    KVB_INPUT_UP,         /* the engine's socket is connected */
    KVB_INPUT_DOWN,       /* it is not */
    KVB_INPUT_LIVE,       /* a batch from the PUB socket */
    KVB_INPUT_REPLAY,     /* a batch from the replay socket */
    KVB_INPUT_REPLAY_END, /* the engine says that the replay is complete */
    KVB_INPUT_REPLAY_CUT, /* no more replies are accepted, although there was no END */
    KVB_INPUT_PAUSE,      /* this process did not run: what the engine sent may wait unread */
    KVB_INPUT_TICK        /* time passes: kvb_stream_due_ns() */
};

struct kvb_stream_input {
    enum kvb_stream_input_kind kind;
    uint64_t now_ns;  /* monotonic */
    uint64_t wall_us; /* where the event ids of a new epoch begin */
    /* KVB_INPUT_LIVE and KVB_INPUT_REPLAY: */
    uint64_t seq;
    struct kvb_hash128 fingerprint;      /* of the payload's bytes, seed 0 */
    const struct kvb_event_batch *batch; /* borrowed; NULL: it cannot be read */
};

/* Owned by the caller and reused; {0} to begin with. */
struct kvb_stream_output {
    struct kvb_router_batch events; /* to publish, in order, ids set, one epoch */
    /* The state, the reason, the epoch or the stream's description has changed: send a heartbeat
     * now. */
    bool is_changed;
    bool drops_replay; /* the replay under way is no longer needed */
    bool has_more;     /* waiting batches can be applied: pass a TICK soon */
};

/* Replaces *output.  Ordinary faults (gaps, unreadable batches, full buffers) are handled here;
 * state and counters show them.
 * KVB_NO_MEMORY  output could not be filled: what was to be published is lost;
 *                announce the stream again */
kvb_status kvb_stream_step(
    struct kvb_stream *stream, const struct kvb_stream_input *input,
    struct kvb_stream_output *output);

void kvb_stream_output_done(struct kvb_stream_output *output);

/* Prefetches the memory that the batch will need when it is applied.  Changes nothing, whatever
 * the batch contains. */
void kvb_stream_expect(const struct kvb_stream *stream, const struct kvb_event_batch *batch);

/* The caller suspects that the engine has restarted: the next TICK requests a probe, unless a
 * replay runs or a pause after failed replays has not ended.  Without a replay endpoint nothing can
 * prove the list: the next TICK restarts it. */
void kvb_stream_suspect_restart(struct kvb_stream *stream);

/* The engine reports its sleep, in an answer to a request of asked_ns.  A discarded cache is
 * cleared by an AllBlocksCleared that the engine publishes only with its next step; until then the
 * stream is UNVERIFIED(asleep) and to be withdrawn.  An engine that is awake and goes on without
 * having cleared anything has kept its cache: its list is announced again. */
void kvb_stream_note_sleep(
    struct kvb_stream *stream, enum kvb_engine_sleep sleep, uint64_t asked_ns);

/* The engine's memory contradicts the list: UNVERIFIED(occupancy) until the engine clears all or
 * restarts, because events that were never numbered are in no replay.  False: it is noted
 * already. */
bool kvb_stream_note_misfit(struct kvb_stream *stream);

/* Why no batches come live, as stream/silence.h finds it: UNVERIFIED with this reason until one
 * does, or NONE is noted.  False: it is noted already. */
bool kvb_stream_note_silence(struct kvb_stream *stream, enum kvb_stream_reason reason);

/* True: a batch of this list came live. */
bool kvb_stream_has_live(const struct kvb_stream *stream);

/* True: the replay lacks batches that came live, so it is another engine's, or has no buffer. */
bool kvb_stream_is_replay_foreign(const struct kvb_stream *stream);

/* A metrics page that was requested at asked_ns counts so many resets of the cache more than the
 * page before.  UNVERIFIED(reset) until a clear of all comes live for each, or a live batch a
 * second later.  Returns whether that is new. */
bool kvb_stream_note_resets(struct kvb_stream *stream, uint64_t resets, uint64_t asked_ns);

/* The model has blocks of which no event tells: UNVERIFIED(groups) from then on.  Returns whether
 * that is new. */
bool kvb_stream_note_hidden_pools(struct kvb_stream *stream);

/* What a source shows of how the engine speculates; KVB_SPECULATION_UNKNOWN: nothing any more.
 * While nothing decides whether the engine drops a block, a list with blocks is
 * UNVERIFIED(speculation), unless their hashes have lookahead.  Without effect where
 * speculative_drop is configured. */
void kvb_stream_note_speculation(
    struct kvb_stream *stream, enum kvb_speculation_source source, enum kvb_speculation found);

/* What is known of it now. */
struct kvb_speculation_finding {
    enum kvb_speculation speculation;
    enum kvb_speculation_source source;
    uint32_t drop;   /* blocks of full attention; 0 also while it is undecided */
    const char *why; /* a sentence; borrowed for ever, and the same pointer for the same sentence */
};

struct kvb_speculation_finding kvb_stream_speculation(const struct kvb_stream *stream);

/* True: a replay is to be requested now, from *out_from.  It stays true until
 * kvb_stream_replay_started() is called. */
bool kvb_stream_wants_replay(const struct kvb_stream *stream, uint64_t now_ns, uint64_t *out_from);
void kvb_stream_replay_started(struct kvb_stream *stream, uint64_t now_ns);
bool kvb_stream_is_replaying(const struct kvb_stream *stream);

/* When the next tick has something to do, if no other input and no call of kvb_stream_note_*() or
 * kvb_stream_suspect_restart() comes before.  0: at once, also while a replay is wanted or runs;
 * UINT64_MAX: never. */
uint64_t kvb_stream_due_ns(const struct kvb_stream *stream);

/* Why a replay is wanted or runs; the most urgent reason is the last. */
enum kvb_replay_need {
    KVB_REPLAY_PROBE,   /* no batch is known to be missing */
    KVB_REPLAY_HISTORY, /* the list is empty: the engine is asked for all batches that it keeps */
    KVB_REPLAY_MISSING, /* batches are missing; until they arrive the list does not change */
    KVB_REPLAY_PROOF,   /* reconnected: DOWN until the last two batches show whether the engine
                         * has restarted */
};
enum kvb_replay_need kvb_stream_replay_need(const struct kvb_stream *stream);
uint64_t kvb_stream_replay_wanted_ns(const struct kvb_stream *stream);

/* Begins a new epoch: the next published events open it.  is_withdrawn: routers see the stream as
 * empty until the next epoch, and heartbeats report no blocks. */
void kvb_stream_open_epoch(struct kvb_stream *stream, uint64_t wall_us, bool is_withdrawn);

/* The whole list, parents first, for readers that lack it: chunk after chunk, between two steps.
 * Called after kvb_stream_open_epoch(), for the first announcement and whenever published events
 * may have been lost.  opens_epoch: `cleared` comes first; else readers keep the blocks that they
 * hold. A withdrawn stream has no more than that.  KVB_NO_MEMORY */
kvb_status kvb_stream_list_begin(struct kvb_stream *stream, bool opens_epoch);

/* Replaces *out by the next chunk, of at most max_blocks blocks, ids set; no events: there is none.
 * KVB_NO_MEMORY */
kvb_status
kvb_stream_list_next(struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out);
void kvb_stream_list_end(struct kvb_stream *stream);

/* A refresh publishes the blocks of the device tier once more, in the same epoch, a part at a time
 * between steps; see stream/mirror/picture.h.  It must not run while the stream is withdrawn,
 * nor where the events of a step are not published at once.  The event ids of a refresh do not come
 * from batches, so a stream that is restored from a checkpoint must open an epoch before it
 * publishes.  KVB_NO_MEMORY. */
kvb_status kvb_stream_refresh_begin(struct kvb_stream *stream);
void kvb_stream_refresh_end(struct kvb_stream *stream);

/* Replaces *out by at most max_blocks blocks (>= 1), with event ids, to be published; it may be
 * empty.  After an error, or when *out_is_done, call kvb_stream_refresh_end(). */
kvb_status kvb_stream_refresh_step(
    struct kvb_stream *stream, size_t max_blocks, struct kvb_router_batch *out, bool *out_is_done);

/* Fills the heartbeat that is to be published. */
void kvb_stream_heartbeat(const struct kvb_stream *stream, struct kvb_heartbeat *out_heartbeat);

struct kvb_stream_counters {
    uint64_t batches_applied; /* live and replayed */
    uint64_t events_applied;
    uint64_t events_of[KVB_EVENT_SKIPPED]; /* applied events, by kind */
    uint64_t duplicates;
    uint64_t gaps;
    uint64_t batches_missed; /* missing sequence numbers; one jump counts at most 2^32 - 1 */
    uint64_t replays_requested;
    uint64_t replays_completed;
    uint64_t replays_failed; /* no answer in time */
    uint64_t batches_replayed;
    uint64_t restarts; /* another incarnation of the engine was found */
    uint64_t clears;   /* the list was restarted, for any reason */
    uint64_t poison;   /* batches that could not be read */
    uint64_t buffer_refused;
    uint64_t skipped[KVB_SKIP_COUNT];
};

/* Borrowed; valid until the stream is freed. */
const struct kvb_stream_counters *kvb_stream_count(const struct kvb_stream *stream);
const struct kvb_served_names *kvb_stream_adapters(const struct kvb_stream *stream);
const struct kvb_mirror_counts *kvb_stream_mirror_count(const struct kvb_stream *stream);

/* A sentence about why the stream is UNVERIFIED for this reason; NULL: the reason says it all. */
const char *kvb_stream_why(const struct kvb_stream *stream, enum kvb_stream_reason reason);

/* True when an empty list was published to routers. */
bool kvb_stream_is_withdrawn(const struct kvb_stream *stream);

/* True while the engine has discarded its cache without an event: an empty list is to be
 * published. */
bool kvb_stream_is_cache_discarded(const struct kvb_stream *stream);

/* What the monitor of the connection has reported since it was read last. */
struct kvb_link_report {
    bool was_lost;
    bool is_up;
};

/* The input that follows from the report; false: none.  Call it again after that step, with the
 * same *report.  A connection may be lost and made again before the monitor is read: then DOWN
 * comes first and UP after that, because another process may listen there now. */
bool kvb_stream_link_input(
    const struct kvb_stream *stream, struct kvb_link_report *report,
    enum kvb_stream_input_kind *out_kind);

/* The stream was restored from a checkpoint: readers may have its list from before. */
void kvb_stream_note_restored(struct kvb_stream *stream, uint64_t now_ns);

bool kvb_stream_is_connected(const struct kvb_stream *stream);

/* Since when the engine of a list that readers may have has been unreachable; 0: it is connected,
 * or never was. */
uint64_t kvb_stream_away_ns(const struct kvb_stream *stream);

/* True when the engine is connected, it has proven that it is the same incarnation, and no batches
 * are missing. */
bool kvb_stream_is_settled(const struct kvb_stream *stream);

/* True when a batch that came live was found in the replay, so the replay belongs to the
 * publisher. */
bool kvb_stream_has_base(const struct kvb_stream *stream);

uint64_t kvb_stream_worker_id(const struct kvb_stream *stream);

/* The epoch that is published now. */
kvb_epoch kvb_stream_epoch(const struct kvb_stream *stream);

/* The log of what is published: events that were just made are its newest.  NULL: there is none
 * (max_log_blocks). */
const struct kvb_event_log *kvb_stream_log(const struct kvb_stream *stream);

/* The newest seq applied; false when there is none yet. */
bool kvb_stream_last_seq(const struct kvb_stream *stream, uint64_t *out_seq);

/* ---- Answers to readers that missed events ---- */

/* A request that is being answered, chunk by chunk, so that a large answer does not delay the
 * engine's events.  {0} to begin with. */
struct kvb_sync_job {
    struct kvb_sync_request request;
    kvb_epoch epoch;            /* the stream's epoch at the start; a new epoch ends the job */
    uint64_t barrier_id;        /* snapshot, digest */
    uint64_t next_id;           /* range */
    struct kvb_picture picture; /* snapshot */
    uint32_t chunk;
};

void kvb_sync_job_begin(
    struct kvb_sync_job *job, const struct kvb_stream *stream,
    const struct kvb_sync_request *request);

/* Makes the next chunk, with about max_blocks blocks at most.  events is scratch space that holds
 * them; *out_reply borrows from it and from the stream until the next call.  The job is done after
 * the chunk that is_last.  KVB_TOO_LARGE, KVB_NO_MEMORY of events: drop the job. */
kvb_status kvb_sync_job_step(
    struct kvb_sync_job *job, const struct kvb_stream *stream, size_t max_blocks,
    struct kvb_router_batch *events, struct kvb_sync_reply *out_reply);
