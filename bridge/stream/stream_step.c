#include "core/clock.h"
#include "stream/stream_inside.h"

/* Times of the state machine.  The engine is asked at most once a second, and
 * for its whole buffer at most once in ten: a replay stops its publishing. */
static const uint64_t probe_every_ns = KVB_NS_PER_S;
static const uint64_t replay_deadline_ns = 2 * KVB_NS_PER_S;
static const uint64_t next_reply_ns = 500 * KVB_NS_PER_MS;
static const uint64_t full_replay_every_ns = 10 * KVB_NS_PER_S;
static const uint64_t most_back_off_ns = 30 * KVB_NS_PER_S;

enum { most_fruitless_rounds = 5 };

/* ---- Asking for replays ---- */

/* Asks from the last batch applied, or from the beginning when there is none. */
static void want_replay(struct stream_step *step, bool is_probe)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    step->out->drops_replay |= replay->is_in_flight;
    replay->is_wanted = true;
    replay->is_in_flight = false;
    replay->is_probe = is_probe;
    replay->has_answered = false;
    replay->is_blind = !stream->has_last;
    replay->from = stream->has_last ? stream->last_seq : 0;
    replay->not_before_ns =
        replay->is_blind && stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
}

/* As above, because something is missing; gives up after some rounds without a
 * new batch: what is missing is nowhere. */
static bool want_missing(struct stream_step *step)
{
    struct replay *replay = &step->stream->replay;

    replay->fruitless = replay->applied > 0 ? 0 : replay->fruitless + 1;
    replay->applied = 0;
    if (replay->fruitless > most_fruitless_rounds) {
        replay->fruitless = 0;
        return false;
    }
    want_replay(step, false);
    return true;
}

/* Asks for the whole buffer although something is listed already: what an
 * unanswered replay left out may still be there. */
static void want_everything(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    want_replay(step, true);
    stream->replay.is_blind = true;
    stream->replay.from = 0;
    stream->replay.not_before_ns = stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
}

bool kvb_stream_wants_replay(const struct kvb_stream *stream, uint64_t now_ns, uint64_t *out_from)
{
    *out_from = stream->replay.from;
    return stream->replay.is_wanted && stream->is_connected &&
           now_ns >= stream->replay.not_before_ns;
}

void kvb_stream_replay_started(struct kvb_stream *stream, uint64_t now_ns)
{
    struct replay *replay = &stream->replay;

    replay->is_wanted = false;
    replay->is_in_flight = true;
    replay->applied = 0;
    replay->deadline_ns = now_ns + replay_deadline_ns;
    stream->heard_ns = now_ns; /* the next probe is due a second from now */
    stream->counters.replays_requested++;
    if (replay->is_blind) {
        stream->full_ns = now_ns;
    }
}

bool kvb_stream_is_replaying(const struct kvb_stream *stream)
{
    return stream->replay.is_in_flight;
}

/* ---- Live batches ---- */

enum standing_of_batch {
    batch_next,      /* apply it */
    batch_duplicate, /* seen: drop it */
    batch_ahead,     /* something before it is missing */
    batch_odd        /* an old number with other bytes, or too old to tell */
};

static enum standing_of_batch
judge(const struct kvb_stream *stream, const struct stream_arrival *arrival)
{
    if (!stream->has_last) {
        return kvb_stream_is_base(arrival) || !stream->options.has_replay ? batch_next
                                                                          : batch_ahead;
    }
    if (arrival->seq == stream->last_seq + 1) {
        return batch_next;
    }
    if (arrival->seq > stream->last_seq) {
        return batch_ahead;
    }
    return kvb_fingerprints_match(&stream->fingerprints, arrival->seq, arrival->fingerprint)
               ? batch_duplicate
               : batch_odd;
}

/* Nothing can bring what is missing: go on from this batch. */
static kvb_status go_on_from(
    struct stream_step *step, const struct stream_arrival *arrival, enum standing_of_batch standing,
    enum kvb_stream_reason flaw)
{
    KVB_TRY(
        standing == batch_odd ? kvb_stream_begin_other_life(step, flaw)
                              : kvb_stream_begin_again(step, flaw));
    return kvb_stream_apply(step, arrival);
}

static void count_gap(struct kvb_stream *stream, const struct stream_arrival *arrival)
{
    stream->counters.gaps++;
    stream->counters.batches_missed += arrival->seq - (stream->has_last ? stream->last_seq + 1 : 0);
}

static kvb_status apply_held_as_suffix(struct stream_step *step, enum kvb_stream_reason flaw);

/* Holds a live batch until the replay ends.  Above the ceiling the wait is over:
 * what is held becomes the beginning of a new list. */
static kvb_status hold(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    if (kvb_held_add(&stream->held, arrival->seq, arrival->fingerprint, arrival->batch) == KVB_OK) {
        return KVB_OK;
    }
    stream->counters.held_refused++;
    step->out->drops_replay |= stream->replay.is_in_flight;
    stream->replay = (struct replay){ 0 };
    KVB_TRY(kvb_stream_begin_again(step, KVB_REASON_GONE));
    KVB_TRY(apply_held_as_suffix(step, KVB_REASON_GONE));
    const enum standing_of_batch standing = judge(stream, arrival);
    return standing == batch_next ? kvb_stream_apply(step, arrival)
                                  : go_on_from(step, arrival, standing, KVB_REASON_GONE);
}

static kvb_status take_live(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    stream->heard_ns = step->in->now_ns;
    if (stream->replay.is_in_flight || (stream->replay.is_wanted && !stream->replay.is_probe)) {
        return hold(step, arrival);
    }
    const enum standing_of_batch standing = judge(stream, arrival);
    switch (standing) {
    case batch_next:
        KVB_TRY(kvb_stream_apply(step, arrival));
        if (!stream->replay.is_blind) {
            stream->replay.from = stream->last_seq; /* of a probe that waits */
        }
        return KVB_OK;
    case batch_duplicate:
        stream->counters.duplicates++;
        return KVB_OK;
    case batch_ahead:
        count_gap(stream, arrival);
        break;
    case batch_odd:
        break;
    }
    if (!stream->options.has_replay) {
        return go_on_from(step, arrival, standing, KVB_REASON_GONE);
    }
    stream->replay.fruitless = 0;
    stream->replay.applied = 0;
    want_replay(step, false);
    return hold(step, arrival);
}

/* ---- The replay's replies ---- */

/* The first reply to a request from the beginning: the list begins here. */
static kvb_status begin_with(struct stream_step *step, const struct stream_arrival *arrival)
{
    if (step->stream->has_last) {
        KVB_TRY(kvb_stream_begin_again(step, KVB_REASON_GONE)); /* a second try at all of it */
    }
    step->stream->replay.applied++;
    step->stream->replay.is_probe = false; /* history under way: no state stands */
    step->stream->flaw = KVB_REASON_GONE;  /* unless it is the base: apply looks */
    return kvb_stream_apply(step, arrival);
}

/* The first reply must be the batch we asked from, by its bytes. */
static kvb_status take_first_reply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    replay->has_answered = true;
    if (replay->is_blind) {
        return begin_with(step, arrival);
    }
    if (arrival->seq == replay->from) {
        if (kvb_fingerprints_match(&stream->fingerprints, arrival->seq, arrival->fingerprint)) {
            stream->is_unproven = false;
            return KVB_OK; /* proven: the rest is what we missed */
        }
        KVB_TRY(kvb_stream_begin_other_life(step, KVB_REASON_REPLAYING));
        kvb_held_clear(&stream->held);
        stream->full_ns = 0; /* another publisher: its ration is untouched */
        want_replay(step, false);
        return KVB_OK;
    }
    /* The engine keeps nothing as old as that: this is its oldest batch. */
    KVB_TRY(kvb_stream_begin_other_life(step, KVB_REASON_GONE));
    kvb_held_clear(&stream->held);
    return begin_with(step, arrival);
}

/* A number is missing inside the replay.  Just after the batch we asked from, it
 * is missing in the engine itself; further on, the reply was cut: ask again. */
static kvb_status take_hole(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (replay->applied > 0 && want_missing(step)) {
        return KVB_OK;
    }
    KVB_TRY(kvb_stream_begin_again(step, KVB_REASON_HOLE));
    replay->applied++;
    return kvb_stream_apply(step, arrival);
}

static kvb_status take_reply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (!replay->is_in_flight) {
        return KVB_OK; /* of a replay that was given up */
    }
    replay->deadline_ns = step->in->now_ns + next_reply_ns;
    stream->counters.batches_replayed++;
    if (!replay->has_answered) {
        return take_first_reply(step, arrival);
    }
    switch (judge(stream, arrival)) {
    case batch_next:
        replay->applied++;
        replay->is_probe = false;
        return kvb_stream_apply(step, arrival);
    case batch_duplicate:
        return KVB_OK;
    case batch_ahead:
        return take_hole(step, arrival);
    case batch_odd:
        break;
    }
    KVB_TRY(kvb_stream_begin_other_life(step, KVB_REASON_REPLAYING)); /* it restarted meanwhile */
    kvb_held_clear(&stream->held);
    want_replay(step, false);
    return KVB_OK;
}

/* ---- The replay's end ---- */

static struct stream_arrival arrival_of(const struct kvb_held_batch *held)
{
    return (struct stream_arrival){ .seq = held->seq,
                                    .fingerprint = held->fingerprint,
                                    .batch = held->is_readable ? &held->batch : NULL };
}

/* The oldest held batch does not follow: ask again, or go on without. */
static kvb_status take_held_misfit(
    struct stream_step *step, const struct stream_arrival *arrival, enum standing_of_batch standing)
{
    if (want_missing(step)) {
        return KVB_OK;
    }
    KVB_TRY(go_on_from(step, arrival, standing, KVB_REASON_HOLE));
    kvb_held_drop_oldest(&step->stream->held);
    return KVB_OK;
}

/* Applies what was held while it follows.  Ends: each round drops a batch or
 * wants a replay. */
static kvb_status apply_held(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_held_batch *held = NULL;
         !stream->replay.is_wanted && (held = kvb_held_oldest(&stream->held));) {
        const struct stream_arrival arrival = arrival_of(held);
        const enum standing_of_batch standing = judge(stream, &arrival);
        if (standing == batch_ahead || standing == batch_odd) {
            KVB_TRY(take_held_misfit(step, &arrival, standing));
            continue;
        }
        stream->counters.duplicates += standing == batch_duplicate;
        if (standing == batch_next) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        }
        kvb_held_drop_oldest(&stream->held);
    }
    return KVB_OK;
}

/* Applies all that was held, whatever is missing between. */
static kvb_status apply_held_as_suffix(struct stream_step *step, enum kvb_stream_reason flaw)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_held_batch *held = NULL; (held = kvb_held_oldest(&stream->held));) {
        const struct stream_arrival arrival = arrival_of(held);
        const enum standing_of_batch standing = judge(stream, &arrival);
        if (standing == batch_next || !stream->has_last) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        } else if (standing != batch_duplicate) {
            KVB_TRY(go_on_from(step, &arrival, standing, flaw));
        }
        kvb_held_drop_oldest(&stream->held);
    }
    return KVB_OK;
}

static kvb_status take_replay_end(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (!replay->is_in_flight) {
        return KVB_OK;
    }
    replay->is_in_flight = false;
    stream->counters.replays_completed++;
    stream->back_off_ns = 0;
    stream->is_unproven = false;
    if (!replay->has_answered && !replay->is_blind) {
        /* It no longer has the batch we asked from: another life, shorter than ours. */
        KVB_TRY(kvb_stream_begin_other_life(step, KVB_REASON_REPLAYING));
        kvb_held_clear(&stream->held);
        stream->full_ns = 0;
        want_replay(step, false);
        return KVB_OK;
    }
    if (!replay->has_answered && !stream->has_last) {
        kvb_stream_take_as_complete(stream); /* it has published nothing yet */
        stream->full_ns = 0;                 /* and nothing was asked of it */
    }
    const bool is_tail_seen = replay->applied == 0 || kvb_held_oldest(&stream->held);
    KVB_TRY(apply_held(step));
    if (replay->is_wanted) {
        return KVB_OK;
    }
    replay->fruitless = 0;
    if (!is_tail_seen) {
        want_replay(step, false); /* END comes after a cut reply too */
        return KVB_OK;
    }
    if (!stream->is_complete && stream->flaw == KVB_REASON_REPLAY_FAILED) {
        want_everything(step);
    }
    return KVB_OK;
}

/* ---- Time, connection ---- */

static void back_off(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const uint64_t doubled = stream->back_off_ns * 2;

    stream->back_off_ns = stream->back_off_ns == 0     ? probe_every_ns
                          : doubled < most_back_off_ns ? doubled
                                                       : most_back_off_ns;
    stream->heard_ns = step->in->now_ns;
}

/* No answer in time.  What was missing is given up; where nothing was, the list
 * stays, unproven. */
static kvb_status take_replay_failure(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const bool was_probe = stream->replay.is_probe;

    stream->counters.replays_failed++;
    step->out->drops_replay = true;
    stream->replay = (struct replay){ 0 };
    back_off(step);
    if (was_probe) {
        stream->is_unproven = true;
        return apply_held(step);
    }
    if (stream->has_last) {
        KVB_TRY(kvb_stream_begin_again(step, KVB_REASON_REPLAY_FAILED));
    }
    stream->is_complete = false;
    stream->flaw = KVB_REASON_REPLAY_FAILED;
    return apply_held_as_suffix(step, KVB_REASON_REPLAY_FAILED);
}

static kvb_status take_tick(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const struct replay *replay = &stream->replay;
    const uint64_t now_ns = step->in->now_ns;

    if (replay->is_in_flight && now_ns >= replay->deadline_ns) {
        /* An engine that is quicker than its socket drops replies, END among them:
         * what came is proven, the rest is asked for again. */
        return replay->has_answered && want_missing(step) ? KVB_OK : take_replay_failure(step);
    }
    const bool is_busy = replay->is_in_flight || replay->is_wanted;
    const uint64_t wait_ns = stream->back_off_ns > 0 ? stream->back_off_ns : probe_every_ns;
    if (stream->options.has_replay && stream->is_connected && !is_busy &&
        now_ns >= stream->heard_ns + wait_ns) {
        want_replay(step, true);
    }
    return KVB_OK;
}

static kvb_status take_up(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    const bool is_unproved = !stream->options.has_replay && stream->has_last;

    stream->is_connected = true;
    stream->was_connected = true;
    stream->heard_ns = step->in->now_ns;
    stream->full_ns = 0; /* it may be another process: its ration is untouched */
    stream->back_off_ns = 0;
    kvb_held_clear(&stream->held); /* of before, perhaps of another life */
    if (stream->options.has_replay) {
        stream->replay = (struct replay){ 0 };
        want_replay(step, false);
    }
    return is_unproved ? kvb_stream_begin_other_life(step, KVB_REASON_GONE) : KVB_OK;
}

static kvb_status take_down(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    stream->is_connected = false;
    step->out->drops_replay |= stream->replay.is_in_flight;
    stream->replay = (struct replay){ 0 };
    kvb_held_clear(&stream->held); /* the replay after the next UP has them */
    return KVB_OK;
}

static kvb_status take_input(struct stream_step *step)
{
    const struct stream_arrival arrival = { .seq = step->in->seq,
                                            .fingerprint = step->in->fingerprint,
                                            .batch = step->in->batch };

    switch (step->in->kind) {
    case KVB_INPUT_UP:
        return take_up(step);
    case KVB_INPUT_DOWN:
        return take_down(step);
    case KVB_INPUT_LIVE:
        return take_live(step, &arrival);
    case KVB_INPUT_REPLAY:
        return take_reply(step, &arrival);
    case KVB_INPUT_REPLAY_END:
        return take_replay_end(step);
    case KVB_INPUT_TICK:
        return take_tick(step);
    }
    return KVB_OK;
}

/* Gives the step's events their ids and the stream's identity. */
static void sign_events(struct kvb_stream *stream, struct kvb_router_batch *events)
{
    events->worker_id = stream->options.worker_id;
    events->dp_rank = stream->options.dp_rank;
    events->has_epoch = true;
    events->epoch = stream->epoch;
    for (size_t i = 0; i < events->event_count; i++) {
        events->events[i].event_id = ++stream->last_id;
    }
}

kvb_status kvb_stream_step(
    struct kvb_stream *stream, const struct kvb_stream_input *input,
    struct kvb_stream_output *output)
{
    struct stream_step step = { .stream = stream, .in = input, .out = output };
    const uint64_t epochs_before = stream->epochs;
    enum kvb_stream_state state_before = KVB_STREAM_DOWN;
    enum kvb_stream_state state = KVB_STREAM_DOWN;
    enum kvb_stream_reason reason_before = KVB_REASON_NONE;
    enum kvb_stream_reason reason = KVB_REASON_NONE;

    kvb_router_batch_reset(&output->events);
    output->drops_replay = false;
    kvb_stream_state(stream, &state_before, &reason_before);
    const kvb_status status = take_input(&step);
    kvb_stream_state(stream, &state, &reason);
    output->is_changed =
        state != state_before || reason != reason_before || stream->epochs != epochs_before;
    sign_events(stream, &output->events);
    return status;
}
