#pragma once

#include "model/event_log.h"
#include "stream/fingerprints.h"
#include "stream/reorder_buffer.h"
#include "stream/stream.h"

/* The inside of a stream, for the stream_*.c files alone. */

/* Does the replay endpoint belong to this publisher?  The configuration claims so; a batch that
 * came both live and by replay proves it.
 *
 *     unknown -- a live batch is found in the replay ------------> found
 *        ^    \-- one is not, or with other bytes --> foreign --/
 *        +--- another incarnation, another connection <-----/
 */
enum replay_origin {
    origin_unknown, /* nothing that came live was found in it yet */
    origin_found,   /* it is this engine's */
    origin_foreign  /* it is another engine's: its batches are not applied */
};

/* Where the newest replay is.
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
    replay_ended      /* after its replies: what lies in the reorder buffer was not in them */
};

struct replay {
    enum replay_phase phase;
    bool is_probe;            /* no batch was known to be missing */
    bool keeps_state;         /* none is known to be missing now: the state does not change */
    bool met_new_incarnation; /* in its answers */
    bool is_full_replay;      /* requested from 0: there is no batch to compare with */
    bool is_proven;           /* it contained the newest applied batch, or none was applied */
    bool is_walk;             /* requested from an older batch, to compare several */
    uint64_t from;
    uint64_t wanted_ns;           /* since then */
    uint64_t deadline_ns;         /* in flight: no reply until then is a failure */
    uint64_t not_before_ns;       /* wanted: rationed until then */
    unsigned unproductive_rounds; /* rounds in a row that brought nothing new */
    uint64_t applied;             /* batches that this round brought */
    bool is_verified;             /* in flight: a batch of this list came live from the publisher */
    size_t buffered_before;       /* held batches that came before the request went out */
    uint64_t overtakers;          /* batches that a probe and the round after it brought */
};

/* Buffered batches are applied in slices.  This says how the next slice goes on. */
enum drain {
    drain_nothing,      /* no batch waits, or all wait for a replay */
    drain_what_follows, /* at a gap, request a replay */
    drain_everything    /* at a gap, restart the list */
};

/* What is noted of a batch when all of it was applied. */
struct batch_origin {
    bool is_live;
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    uint64_t connection; /* on which it came */
};

/* A batch that is more work than one step may do: the rest waits for the next steps.  Until
 * its end it does not count as applied, and everything of the stream waits behind it. */
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

static inline bool replay_has_answered(const struct replay *replay)
{
    return replay->phase == replay_answering || replay->phase == replay_ended;
}

/* The connection to the engine, as the inputs UP and DOWN say. */
enum engine_link {
    engine_connecting, /* never connected so far */
    engine_connected,
    engine_away
};

/* Whether the stream is served.
 *
 *     served -- QUARANTINE --> quarantined -- RELEASE --> catching up --+
 *        ^                         ^--------- QUARANTINE ------'        |
 *        +---------------- all that came meanwhile was fetched ---------+
 */
enum stream_share { share_served, share_quarantined, share_catching_up };

/* What readers must know to use the list.  A heartbeat says it at once when it changes: until
 * then they would count blocks that a sliding window makes unusable, or hash with the wrong shape.
 */
struct stream_description {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    uint64_t epochs;
    uint32_t window_tokens;
    size_t shape_count;
    struct kvb_block_shape shape;
    bool is_paired, has_objects;
};

struct kvb_stream {
    struct kvb_stream_options options;
    struct kvb_mirror *mirror; /* owned */

    enum engine_link link;
    enum stream_share share;

    /* How far we are. */
    bool has_last;
    uint64_t last_seq;
    uint64_t connections;     /* so far */
    uint64_t last_connection; /* the one on which the last batch came */
    struct kvb_fingerprint_ring fingerprints;
    struct kvb_reorder_buffer reorder_buffer;
    struct unfinished_batch unfinished;
    enum drain drain;
    enum kvb_stream_reason drain_cause; /* of drain_everything */
    struct replay replay;
    enum replay_origin origin;
    bool is_reconnected;   /* since then the engine has not proven its last batches */
    bool lists_replayed;   /* a batch of this list came by replay, or on another connection */
    uint64_t looked_ns;    /* the newest look for live batches in the replay; 0 = none yet */
    uint64_t verified_seq; /* the newest that such a look has compared */
    uint64_t received_ns;  /* the newest live batch, or proof that there is none */
    uint64_t requested_ns; /* the newest replay begun or given up */
    uint64_t full_ns;      /* the newest replay from the beginning that this publisher was asked
                            * for, as far as we can tell publishers apart; 0 = never */
    uint64_t back_off_ns;
    uint64_t incarnation_ns; /* the newest change of incarnation; 0 = none yet */
    uint64_t cooldown_ns;    /* no request for so long after it */
    uint64_t odd_ns;         /* the newest request because of an odd batch; 0 = none yet */
    bool is_received_live;   /* a batch of this list came live: it is the publisher's own */

    /* How complete it is. */
    bool is_complete;             /* history since the base was seen whole */
    enum kvb_stream_reason cause; /* why not */
    bool has_skipped;             /* a Stored was not understood */
    bool has_unknown_event;
    bool is_unproven;          /* the last probe proved nothing */
    bool is_restart_suspected; /* kvb_stream_suspect_restart(), until the next replay is wanted */
    bool has_objects;          /* its events were a store's: it is one, and stays one */

    /* What was published to routers. */
    kvb_epoch epoch;
    uint64_t epochs; /* drawn so far */
    uint64_t digest_seed;
    struct kvb_event_log *log; /* owned: the newest events, for readers that missed some */
    uint64_t epoch_first_id;
    uint64_t last_id;
    uint64_t ids_unknown; /* that a predecessor may have given after its checkpoint */
    bool is_withdrawn;    /* an empty list was published */
    struct stream_description described; /* kvb_stream_describe() */

    struct kvb_stream_counters counters;
};

/* One input on its way through the machine. */
struct stream_step {
    struct kvb_stream *stream;
    const struct kvb_stream_input *in;
    struct kvb_stream_output *out;
    uint64_t work; /* done so far: kvb_stream_slice_work */
};

/* A batch to be classified or applied: live, buffered or replayed. */
struct stream_arrival {
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    const struct kvb_event_batch *batch; /* NULL: it cannot be read */
    bool is_oldest_buffered;             /* it lies in stream->reorder_buffer: no copy is needed */
};

/* ---- stream/request.c: when a replay is requested ---- */

/* Requests a replay from the last batch applied, or from the beginning when there is none. */
void kvb_stream_want_replay(struct stream_step *step, bool is_probe);

/* A batch was applied while a replay was wanted: the replay now begins with that batch. */
void kvb_stream_want_from_last(struct kvb_stream *stream);

/* Requests one more replay, after one that brought batches: it shows that no more follow. */
void kvb_stream_want_confirmation(struct stream_step *step);

/* Requests a replay of missing batches.  False after some rounds that brought no new batch: the
 * engine does not have them. */
bool kvb_stream_want_missing(struct stream_step *step);

/* Requests the engine's whole buffer although batches were applied already. */
void kvb_stream_want_everything(struct stream_step *step);

/* A request failed: the next one waits longer (exponential back-off). */
void kvb_stream_back_off(struct stream_step *step);

/* True when the missing batches may not be requested soon. */
bool kvb_stream_is_put_off(const struct kvb_stream *stream, uint64_t now_ns);

/* Is a probe due: may the newest batches be lost, or did the last replay leave a doubt? */
bool kvb_stream_is_probe_due(const struct kvb_stream *stream, uint64_t now_ns);

/* Is a live batch to be looked for in the replay? */
bool kvb_stream_is_look_due(const struct kvb_stream *stream, uint64_t now_ns);

/* A new connection: batches that came before it prove nothing about its replay. */
void kvb_stream_note_connection(struct kvb_stream *stream);

/* Stores the fingerprint of a batch that is applied or came again.  A batch that came both live
 * and by replay proves that the replay is the publisher's. */
void kvb_stream_note_fingerprint(
    struct kvb_stream *stream, const struct stream_arrival *arrival, bool is_live);

/* Reconnected, and the engine has not yet proven that it is the same incarnation: every listed
 * block may be gone. */
bool kvb_stream_is_incarnation_unproven(const struct kvb_stream *stream);

/* ---- stream/apply.c ---- */

/* Draws the next epoch and sets where its event ids begin. */
void kvb_stream_next_epoch(struct kvb_stream *stream, uint64_t wall_us);

/* Forgets what was listed and opens a new epoch.  What the step was about to
 * publish in the old one is dropped: the `cleared` supersedes it. */
kvb_status kvb_stream_restart_list(struct stream_step *step, enum kvb_stream_reason cause);

/* The same, because the engine has restarted: it is another incarnation than before. */
kvb_status kvb_stream_begin_incarnation(struct stream_step *step, enum kvb_stream_reason cause);

/* History is whole from here: an engine's first batch, or one that begins by
 * clearing everything. */
bool kvb_stream_is_base(const struct stream_arrival *arrival);

/* Takes the batch as the next one, or as the first.  A large one is unfinished after it. */
kvb_status kvb_stream_apply(struct stream_step *step, const struct stream_arrival *arrival);

/* The next slice of the unfinished batch; there is one. */
kvb_status kvb_stream_go_on(struct stream_step *step);

/* Forgets the rest of the unfinished batch, if there is one: the list must begin again. */
void kvb_stream_drop_unfinished(struct kvb_stream *stream);

/* Has this step used up its work budget? */
bool kvb_stream_is_step_full(const struct stream_step *step);

/* A replay is wanted or under way for something that is known to be missing. */
bool kvb_stream_is_syncing(const struct kvb_stream *stream);

/* Gives events their ids and the stream's identity. */
void kvb_stream_sign(struct kvb_stream *stream, struct kvb_router_batch *events);

void kvb_stream_state(
    const struct kvb_stream *stream, enum kvb_stream_state *out_state,
    enum kvb_stream_reason *out_reason);

/* Describes the stream as it is now; true when the description has changed since the last call.
 * Called by whatever changes it: at the end of each step, and outside of steps. */
bool kvb_stream_describe(struct kvb_stream *stream);
