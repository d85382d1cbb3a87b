#pragma once

#include "core/backoff.h"
#include "model/event_log.h"
#include "stream/fingerprints.h"
#include "stream/reorder_buffer.h"
#include "stream/stream.h"

/* The internal structure of a stream, only for the files of this folder. */

/* Whether the replay endpoint belongs to this publisher.  The configuration says so; a batch that
 * came both live and by replay proves it.
 *
 *     unknown -- a live batch is found in the replay ------------> found
 *        ^    \-- one is not, or with other bytes --> foreign --/
 *        +--- another incarnation, another connection <-----/
 */
enum replay_origin {
    origin_unknown, /* no live batch was found in it yet */
    origin_found,   /* it is this engine's */
    origin_foreign  /* it is another engine's: its batches are not applied */
};

/* What a replay is for.  The engine sends all batches that it keeps, from the requested one on.
 *
 *     purpose      from                          known to be missing        state meanwhile
 *     ----------   ---------------------------   ------------------------   -----------------
 *     missing      the last batch                what follows it, or what   SYNCING
 *                                                may: an END is confirmed
 *     history      0: nothing is listed          everything                 SYNCING
 *     probe        the last batch                nothing                    as before
 *     walk         an older batch, to compare    nothing                    as before
 *                  several with live ones
 *     first        1: is it the engine's first   nothing                    as before
 *                  batch?
 *     everything   0, although there is a list   nothing                    as before
 *
 * After a reconnection all of them but history and everything begin with the last two batches, and
 * the stream is DOWN until these are proven. */
enum replay_purpose {
    replay_for_missing,
    replay_for_history,
    replay_as_probe,
    replay_as_walk,
    replay_for_first,
    replay_for_everything
};

/* The progress of the newest replay.
 *
 *     idle ---------> wanted -- started --> requested -- a reply --> answering
 *      ^                ^                      |                        |
 *      |                |                     END                      END
 *      +-- given up     +-- something is       v                        v
 *          (from any)       missing          idle                     ended
 *                           (from any)
 */
enum replay_phase {
    replay_idle,      /* none, or the newest ended without a reply */
    replay_wanted,    /* to be requested when it is this stream's turn */
    replay_requested, /* no reply has come yet */
    replay_answering, /* replies come */
    replay_ended /* it ended after some replies; they lacked the batches of the reorder buffer */
};

struct replay {
    enum replay_phase phase;
    enum replay_purpose purpose;
    uint64_t from;
    bool has_found;   /* a batch that no one knew to be missing */
    bool keeps_state; /* what it brings may have overtaken its live copy: no loss is known */
    bool is_proven;   /* it contained the newest applied batch, or none was applied */
    bool met_new_incarnation;     /* in its answers */
    uint64_t wanted_ns;           /* since then */
    uint64_t deadline_ns;         /* in flight: no reply until then is a failure */
    uint64_t not_before_ns;       /* wanted: earliest time of the request */
    unsigned unproductive_rounds; /* rounds in a row that brought nothing new */
    uint64_t applied;             /* batches that this round brought */
    bool is_verified;             /* in flight: a batch of this list came live from the publisher */
    size_t buffered_before;       /* buffered batches that came before the request went out */
    uint64_t overtakers;          /* batches that a probe and the round after it brought */
};

/* Buffered batches are applied in slices.  This says what the next slice does. */
enum drain {
    drain_nothing,      /* no batch waits, or all wait for a replay */
    drain_what_follows, /* at a gap, request a replay */
    drain_everything    /* at a gap, restart the list */
};

/* What is stored about a batch when all of it was applied. */
struct batch_origin {
    bool is_live;
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    uint64_t connection; /* the connection that delivered it */
};

/* A batch that is too much work for one step: its rest waits for the next steps.  It counts as
 * applied at its end; until then all other batches of the stream wait. */
struct unfinished_batch {
    bool is_there;
    struct batch_origin origin;
    struct kvb_event_batch batch; /* owned */
    size_t next_event;
};

static inline bool replay_is_in_flight(const struct replay *replay)
{
    return replay->phase == replay_requested || replay->phase == replay_answering;
}

/* It was requested although no batch was known to be missing. */
static inline bool replay_is_probing(const struct replay *replay)
{
    return replay->purpose >= replay_as_probe;
}

/* ... and still none is. */
static inline bool replay_is_probe(const struct replay *replay)
{
    return replay_is_probing(replay) && !replay->has_found;
}

/* There is no batch to compare with. */
static inline bool replay_is_full(const struct replay *replay)
{
    return replay->purpose == replay_for_history || replay->purpose == replay_for_everything;
}

/* It begins with a batch before those of a probe, so its first reply may be any of them. */
static inline bool replay_is_walk(const struct replay *replay)
{
    return replay->purpose == replay_as_walk || replay->purpose == replay_for_first;
}

static inline bool replay_has_answered(const struct replay *replay)
{
    return replay->phase == replay_answering || replay->phase == replay_ended;
}

/* The connection to the engine, as the inputs UP and DOWN say.
 *
 *     new --------+                        a list            proven, or begun anew
 *     restored ---+--- UP ---+---------------------> proving ---------------------> up
 *     away -------+          +--------------------------------------------------->  up
 *       ^                      none                     |                            |
 *       +----------------------------- DOWN ------------+------------- DOWN ---------+
 *
 * While it is proving, every listed block may be gone: another process may listen there now. */
enum engine_link {
    link_new,      /* never connected so far */
    link_restored, /* likewise; readers may have the list of the process before */
    link_proving,  /* connected; the last batches of the list are not proven */
    link_up,       /* connected */
    link_away
};

static inline bool link_is_connected(enum engine_link link)
{
    return link == link_proving || link == link_up;
}

/* Whether the engine has discarded its cache without an event.
 *
 *     published --- it sleeps ---> discarded --- it is awake ---> waking
 *      ^                            |     ^------ it sleeps -------'  |
 *      +-- all is cleared, live ----+---------------------------------+
 *      +-- another incarnation -----+---------------------------------+
 *      +-- a live batch: it has kept its cache -----------------------+
 */
enum engine_cache { cache_published, cache_discarded, cache_waking };

/* What readers must know to use the list.  After each change a heartbeat is sent at once.  Without
 * it readers would count blocks that a sliding window makes unusable, or hash with the wrong block
 * size.
 */
struct stream_description {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    uint64_t epochs;
    size_t windows; /* kinds of groups with a window or chunks: each keeps its place */
    bool has_full;
    size_t shape_count;
    struct kvb_block_shape shape;
    bool is_paired, has_objects;
    uint32_t chunk_blocks;
    uint32_t drop; /* of speculation */
    enum kvb_stream_reason tier_reasons[KVB_TIER_COUNT];
};

/* The whole list, while it is being published. */
struct stream_listing {
    bool opens_epoch;           /* `cleared` is the next chunk */
    bool is_done;               /* no block follows */
    struct kvb_picture picture; /* owned */
};

/* How much of what the engine has published since it started is in the list.
 *
 *                  a replay of everything begins with batch 1
 *     part --------------------------------------------------> from_one
 *      | ^                                                      |  |
 *      | +---- the list begins anew; batch 1 is gone -----------+  |
 *      |                                                           |
 *      +-- it begins with the engine's first batch; all is cleared +-- batch 1 is the first
 *      v                                                           v
 *     whole <------------------------------------------------------+
 *
 * A list that begins anew is part, from whole too.  from_one: either there is no batch 0, or the
 * engine's buffer had just dropped it; then it drops batch 1 with the next one.  So batch 1 shows
 * that there is none, if it is still there when newer ones than one_at_seq were published. */
enum list_history { history_part, history_from_one, history_whole };

/* The number of the first batch of each run of the engine.  Unknown: the one run that is known was
 * not seen from its beginning on.  May be one: the list of this run began with batch 1. */
enum first_number { first_unknown, first_may_be_one, first_is_zero, first_is_one };

/* Facts about the list, forgotten when it begins anew. */
struct list_facts {
    bool is_received_live;  /* a batch of it came live: it is the publisher's own */
    bool lists_replayed;    /* a batch of it came by replay, or on another connection */
    bool has_skipped;       /* a BlockStored event was not understood */
    bool has_unknown_event; /* an event of an unknown type came */
};

/* Facts about the incarnation of the engine, forgotten with it. */
struct life_facts {
    enum engine_cache cache;
    bool has_misfit;           /* kvb_stream_note_misfit() */
    bool lacks_salts;          /* its events do not name salts */
    bool is_ambiguous;         /* its hashes and contents do not belong together one to one */
    bool has_hashes_of_pages;  /* its hashes are those of pages alone: they are no chain */
    bool has_reset;            /* kvb_stream_note_resets() */
    uint64_t unclaimed_clears; /* live clears of all that no noted reset explains */
    unsigned removal_tiers;    /* bit t: a removal from tier t came */
};

/* A stream is in four states at once, each drawn above:
 *
 *     link      is the engine there?                       new, restored, proving, up, away
 *     history   how much of what it published is listed?   part, from_one, whole
 *     replay    what was it asked for, and has it come?    phase x purpose; origin: is it its own?
 *     told      what do readers know?                      nothing, all, with a gap
 *                                                          (stream/advertiser.h)
 *
 * What routers read of it is derived from all of them, by the table of verdicts in stream.c. */
struct kvb_stream {
    struct kvb_stream_options options;
    struct kvb_mirror *mirror; /* owned */

    /* ---- Link ---- */
    enum engine_link link;
    uint64_t away_ns;     /* since when it is restored or away */
    uint64_t connections; /* so far */
    uint64_t received_ns; /* when a live batch last came, or a replay showed that there is none */
    uint64_t silent_ns;   /* since then no batch came, live or new by replay; or the connection */
    bool was_empty;       /* a replay of everything brought nothing, on this connection */

    /* ---- History ---- */
    enum list_history history;
    enum kvb_stream_reason cause; /* why it is not whole */
    enum first_number first_number;
    uint64_t one_at_seq; /* the newest batch when it was the first; 0: the replay has not ended */
    bool has_last;       /* batches were applied, last_seq the newest of them */
    uint64_t last_seq;
    uint64_t last_connection; /* the connection that delivered it */
    struct kvb_fingerprint_ring fingerprints;
    struct list_facts list;
    struct life_facts life;
    uint64_t cleared_ns;            /* when a live batch last cleared all */
    uint64_t reset_ns;              /* when life.has_reset was noted */
    bool has_hidden_pools;          /* kvb_stream_note_hidden_pools() */
    bool has_objects;               /* an event of a store came: it counts as a store */
    enum kvb_stream_reason silence; /* kvb_stream_note_silence() */
    enum kvb_speculation speculation[KVB_SPECULATION_SOURCE_COUNT]; /* as each source shows it */

    /* Batches that wait. */
    struct kvb_reorder_buffer reorder_buffer;
    struct unfinished_batch unfinished;
    enum drain drain;
    enum kvb_stream_reason drain_cause; /* of drain_everything */

    /* ---- Replay ---- */
    struct replay replay;
    enum replay_origin origin;
    uint64_t looked_ns;    /* when live batches were last looked for in a replay; 0 = never */
    uint64_t verified_seq; /* the newest batch that such a look has compared */
    /* Batches that a probe has brought and that have not come live yet: the numbers from tail_first
     * to before tail_end.  They may still be under way. */
    uint64_t tail_first;
    uint64_t tail_end;
    uint64_t tail_ns;      /* when the probe brought the first of them */
    uint64_t requested_ns; /* when a replay last began or was given up */
    uint64_t full_ns;      /* the newest replay from the beginning that this publisher was asked
                            * for, as far as we can tell publishers apart; 0 = never */
    struct kvb_backoff unanswered; /* replays; its pause counts from the newest request */
    uint64_t incarnation_ns;       /* when a restart was last found; 0 = never */
    uint64_t cooldown_ns;          /* no request for this time after a restart */
    uint64_t odd_ns;               /* the last request because of an odd batch; 0 = none */
    /* Why a probe is owed. */
    bool is_unproven;          /* the last one proved nothing */
    bool is_tail_unseen;       /* since a pause of this process none has shown the newest batch */
    bool is_restart_suspected; /* kvb_stream_suspect_restart(), until the next replay is wanted */

    /* ---- Told ---- */
    bool is_withdrawn; /* an empty list was published */
    kvb_epoch epoch;
    uint64_t epochs; /* number of epochs so far */
    uint64_t digest_seed;
    struct kvb_event_log *log; /* owned: the newest events, for readers that missed some */
    uint64_t epoch_first_id;
    uint64_t last_id;
    uint64_t ids_unknown; /* ids that the previous process may have used after its checkpoint */
    struct stream_listing listing;
    struct kvb_picture refresh;          /* owned; of the device tier, while one is under way */
    struct stream_description described; /* kvb_stream_describe() */

    struct kvb_stream_counters counters;
};

/* One input while it is handled. */
struct stream_step {
    struct kvb_stream *stream;
    const struct kvb_stream_input *in;
    struct kvb_stream_output *out;
    uint64_t work; /* done so far, in units of kvb_stream_slice_work */
};

/* A batch to be classified or applied: live, buffered or replayed. */
struct stream_arrival {
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    const struct kvb_event_batch *batch; /* NULL: it cannot be read */
    bool is_oldest_buffered;             /* it is in stream->reorder_buffer: no copy is needed */
};

/* ---- stream/request.c: when a replay is requested ---- */

/* Requests a replay from the last batch applied, or from the beginning when there is none. */
void kvb_stream_want_replay(struct stream_step *step, bool is_probe);

/* A batch was applied while a replay was wanted: the replay now begins with that batch. */
void kvb_stream_want_from_last(struct kvb_stream *stream);

/* Requests one more replay after a replay that brought batches, to see that no more follow. */
void kvb_stream_want_confirmation(struct stream_step *step);

/* Requests a replay of missing batches.  False after some rounds that brought no new batch: the
 * engine does not have them. */
bool kvb_stream_want_missing(struct stream_step *step);

/* Requests the engine's whole buffer although batches were applied already. */
void kvb_stream_want_everything(struct stream_step *step);

/* A request failed: the next one waits longer (exponential back-off). */
void kvb_stream_back_off(struct stream_step *step);

/* What a probe alone has brought is missed: a replayed batch begins or continues that tail, unless
 * it has come live, too, and is buffered; a live batch settles it up to its number. */
void kvb_stream_note_tail(struct kvb_stream *stream, uint64_t seq, uint64_t now_ns);
void kvb_stream_settle_tail(struct kvb_stream *stream, uint64_t live_seq);

/* True when the missing batches may not be requested soon. */
bool kvb_stream_is_put_off(const struct kvb_stream *stream, uint64_t now_ns);

/* True when a probe is due: the newest batches may be lost, or the last replay proved nothing. */
bool kvb_stream_is_probe_due(const struct kvb_stream *stream, uint64_t now_ns);

/* True when a live batch is to be looked for in the replay. */
bool kvb_stream_is_look_due(const struct kvb_stream *stream, uint64_t now_ns);

/* A new connection: batches that came before it prove nothing about its replay. */
void kvb_stream_note_connection(struct kvb_stream *stream);

/* Stores the fingerprint of a batch that is applied or came again.  A batch that came both live
 * and by replay proves that the replay is the publisher's. */
void kvb_stream_note_fingerprint(
    struct kvb_stream *stream, const struct stream_arrival *arrival, bool is_live);

/* ---- stream/apply.c ---- */

/* Draws the next epoch and sets where its event ids begin. */
void kvb_stream_next_epoch(struct kvb_stream *stream, uint64_t wall_us);

/* Forgets what was listed and opens a new epoch.  Events of this step in the old epoch are dropped:
 * the `cleared` replaces them. */
kvb_status kvb_stream_restart_list(struct stream_step *step, enum kvb_stream_reason cause);

/* The same, after a restart of the engine: a new incarnation. */
kvb_status kvb_stream_begin_incarnation(struct stream_step *step, enum kvb_stream_reason cause);

/* True when the history is complete from this batch on: it is the engine's first batch, or begins
 * by clearing all blocks. */
bool kvb_stream_is_base(const struct stream_arrival *arrival);

/* Applies the batch as the next one, or as the first.  A large batch is unfinished afterwards. */
kvb_status kvb_stream_apply(struct stream_step *step, const struct stream_arrival *arrival);

/* Applies the next slice of the unfinished batch, which must exist. */
kvb_status kvb_stream_go_on(struct stream_step *step);

/* Drops the rest of the unfinished batch, if there is one.  The list must then be restarted. */
void kvb_stream_drop_unfinished(struct kvb_stream *stream);

/* True when this step has used its work budget. */
bool kvb_stream_is_step_full(const struct stream_step *step);

/* ---- stream/stream.c: what routers read of it ---- */

/* Sets the ids of events and the stream's identity, and keeps the events in the log. */
void kvb_stream_sign(struct kvb_stream *stream, struct kvb_router_batch *events);

void kvb_stream_state(
    const struct kvb_stream *stream, enum kvb_stream_state *out_state,
    enum kvb_stream_reason *out_reason);

/* Describes the stream as it is now; true when the description has changed since the last call.
 * Called after each change: at the end of each step, and outside of steps. */
bool kvb_stream_describe(struct kvb_stream *stream);
