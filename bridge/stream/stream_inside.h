#pragma once

#include "stream/event_log.h"
#include "stream/fingerprints.h"
#include "stream/held.h"
#include "stream/stream.h"

/* The inside of a stream, for the stream_*.c files alone. */

struct replay {
    bool is_wanted;
    bool is_in_flight;
    bool is_probe;       /* nothing was missing that we knew of */
    bool keeps_state;    /* nor is it now: the state stands */
    bool has_answered;   /* the first reply came */
    bool met_other_life; /* in its answers */
    bool is_blind;       /* asked from 0 without anything to compare with */
    uint64_t from;
    uint64_t deadline_ns;   /* in flight: no reply until then is a failure */
    uint64_t not_before_ns; /* wanted: rationed until then */
    unsigned fruitless;     /* rounds in a row that brought nothing new */
    uint64_t applied;       /* batches that this round brought */
    bool is_vouched;        /* in flight: from a list that is the publisher's own */
    size_t held_before;     /* held batches that came before the request went out */
    uint64_t overtakers;    /* batches that a probe and the round after it brought */
};

/* What was held goes to the mirror in slices: what is left goes on so. */
enum drain {
    drain_nothing,      /* nothing waits, or it waits for a replay */
    drain_what_follows, /* a gap asks for a replay */
    drain_everything    /* a gap begins the list again */
};

struct kvb_stream {
    struct kvb_stream_options options;
    struct kvb_mirror *mirror; /* owned */

    bool is_connected;
    bool was_connected;

    /* How far we are. */
    bool has_last;
    uint64_t last_seq;
    uint64_t connections;     /* so far */
    uint64_t last_connection; /* the one on which the last batch came */
    struct kvb_fingerprint_ring fingerprints;
    struct kvb_held held;
    enum drain drain;
    enum kvb_stream_reason drain_flaw; /* of drain_everything */
    struct replay replay;
    uint64_t heard_ns; /* the newest live batch, or proof that there is none */
    uint64_t asked_ns; /* the newest replay begun or given up */
    uint64_t full_ns;  /* the newest replay from the beginning; 0 = never */
    uint64_t back_off_ns;
    uint64_t other_life_ns; /* the newest change of life; 0 = none yet */
    uint64_t calm_ns;       /* how long to ask nothing after it */
    uint64_t odd_ns;        /* the newest question because of an odd batch; 0 = none yet */
    bool is_heard_live;     /* a batch of this list came live: it is the publisher's own */

    /* How complete it is. */
    bool is_complete;            /* history since the base was seen whole */
    enum kvb_stream_reason flaw; /* why not */
    bool has_skipped;            /* a Stored was not understood */
    bool has_unknown_event;
    bool is_unproven; /* the last probe got no answer */
    bool has_objects; /* its events were a store's: it is one, and stays one */

    /* What routers were told. */
    kvb_epoch epoch;
    uint64_t epochs; /* drawn so far */
    uint64_t digest_seed;
    struct kvb_event_log *log; /* owned: the newest events, for readers that missed some */
    uint64_t epoch_first_id;
    uint64_t last_id;
    uint64_t ids_unknown; /* that a predecessor may have given after its checkpoint */
    bool is_withdrawn;    /* they were told that nothing is held */

    struct kvb_stream_counters counters;
};

/* One input on its way through the machine. */
struct stream_step {
    struct kvb_stream *stream;
    const struct kvb_stream_input *in;
    struct kvb_stream_output *out;
};

/* A batch to be judged or applied, live or held or replayed. */
struct stream_arrival {
    uint64_t seq;
    struct kvb_hash128 fingerprint;
    const struct kvb_event_batch *batch; /* NULL: it cannot be read */
};

/* ---- stream_ask.c: when the engine is asked ---- */

/* Asks from the last batch applied, or from the beginning when there is none. */
void kvb_stream_want_replay(struct stream_step *step, bool is_probe);

/* The round that confirms an END whose replies brought something. */
void kvb_stream_want_confirmation(struct stream_step *step);

/* As above, because something is missing; false after some rounds without a new batch:
 * what is missing is nowhere. */
bool kvb_stream_want_missing(struct stream_step *step);

/* Asks for the whole buffer although something is listed already. */
void kvb_stream_want_everything(struct stream_step *step);

/* A request came to nothing: the next one later. */
void kvb_stream_back_off(struct stream_step *step);

/* What is missing may not be asked for soon. */
bool kvb_stream_is_put_off(const struct kvb_stream *stream, uint64_t now_ns);

/* May the tail be lost, or is an answer owed? */
bool kvb_stream_is_probe_due(const struct kvb_stream *stream, uint64_t now_ns);

/* ---- stream_apply.c ---- */

/* Forgets what was listed and opens a new epoch.  What the step was about to
 * publish in the old one is dropped: the `cleared` supersedes it. */
kvb_status kvb_stream_begin_again(struct stream_step *step, enum kvb_stream_reason flaw);

/* The same, because the engine lives another life than the one we followed. */
kvb_status kvb_stream_begin_other_life(struct stream_step *step, enum kvb_stream_reason flaw);

/* History is whole from here: an engine's first batch, or one that begins by
 * clearing everything. */
bool kvb_stream_is_base(const struct stream_arrival *arrival);

/* The history that was seen is whole, whatever was skipped before. */
void kvb_stream_take_as_complete(struct kvb_stream *stream);

/* Takes the batch as the next one, or as the first. */
kvb_status kvb_stream_apply(struct stream_step *step, const struct stream_arrival *arrival);

/* A replay is wanted or under way for something that is known to be missing. */
bool kvb_stream_is_syncing(const struct kvb_stream *stream);

/* Draws the next epoch and sets where its event ids begin. */
void kvb_stream_next_epoch(struct kvb_stream *stream, uint64_t wall_us);

/* Gives events their ids and the stream's identity. */
void kvb_stream_sign(struct kvb_stream *stream, struct kvb_router_batch *events);

void kvb_stream_state(
    const struct kvb_stream *stream, enum kvb_stream_state *out_state,
    enum kvb_stream_reason *out_reason);

/* Of the device's blocks; where it has none yet, of those that came first. */
struct kvb_block_shape kvb_stream_main_shape(const struct kvb_stream *stream);

/* What readers must know to use the list.  A heartbeat says it at once when it changes: until
 * then they would count blocks that a window leaves unusable, or find none of another shape. */
struct stream_description {
    enum kvb_stream_state state;
    enum kvb_stream_reason reason;
    uint64_t epochs;
    uint32_t window_tokens;
    size_t shape_count;
    struct kvb_block_shape shape;
    bool is_paired, has_objects;
};

struct stream_description kvb_stream_describe(const struct kvb_stream *stream);
bool kvb_stream_is_same_description(
    const struct stream_description *a, const struct stream_description *b);
