#include "core/clock.h"
#include "stream/stream_inside.h"

static const uint64_t next_reply_ns = 500 * KVB_NS_PER_MS;
static const uint64_t odd_every_ns = KVB_NS_PER_S; /* as probes */

/* A reply may overtake the live copy of its batch, for they come on two connections: so many
 * in the time that this takes.  More were lost on the way. */
enum { max_overtakers = 16 };

/* Of what was held, one step brings at most so much, or one batch. */
enum { slice_events = 8192, slice_blocks = 1 << 17 };

/* ---- Live batches ---- */

enum standing_of_batch {
    batch_next,      /* apply it */
    batch_duplicate, /* seen: drop it */
    batch_ahead,     /* something before it is missing */
    batch_broken,    /* the next, but not to be read: the engine may have a good copy */
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
        return arrival->batch || !stream->options.has_replay ? batch_next : batch_broken;
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
    /* how many came before the first is not known: some engines count from a clock */
    stream->counters.batches_missed += stream->has_last ? arrival->seq - stream->last_seq - 1 : 0;
}

static kvb_status apply_held_as_suffix(struct stream_step *step, enum kvb_stream_reason flaw);
static kvb_status go_on_draining(struct stream_step *step);

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
    if (kvb_held_add(&stream->held, arrival->seq, arrival->fingerprint, arrival->batch) == KVB_OK) {
        return apply_held_as_suffix(step, KVB_REASON_GONE);
    }
    if (kvb_held_oldest(&stream->held)) {
        return KVB_OK; /* dropped: the next batch shows the gap */
    }
    const enum standing_of_batch standing = judge(stream, arrival);
    return standing == batch_next ? kvb_stream_apply(step, arrival)
                                  : go_on_from(step, arrival, standing, KVB_REASON_GONE);
}

/* The first is looked into at once; those of an engine that repeats its past are not
 * worth a question each. */
static void ration_odd(struct kvb_stream *stream, uint64_t now_ns)
{
    struct replay *replay = &stream->replay;
    const uint64_t next_ns = stream->odd_ns > 0 ? stream->odd_ns + odd_every_ns : 0;

    if (replay->not_before_ns < next_ns) {
        replay->not_before_ns = next_ns;
    }
    stream->odd_ns = next_ns > now_ns ? next_ns : now_ns;
}

static kvb_status take_live(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    if (!stream->is_connected && stream->options.has_replay) {
        return KVB_OK; /* of which life?  The replay after the next UP has it, if it counts */
    }
    stream->heard_ns = step->in->now_ns;
    if (stream->replay.is_in_flight || (stream->replay.is_wanted && !stream->replay.is_probe)) {
        return hold(step, arrival);
    }
    if (stream->drain != drain_nothing) {
        KVB_TRY(hold(step, arrival));
        return go_on_draining(step);
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
    case batch_broken:
    case batch_odd:
        break;
    }
    if (!stream->options.has_replay) {
        return go_on_from(step, arrival, standing, KVB_REASON_GONE);
    }
    stream->replay.fruitless = 0;
    stream->replay.applied = 0;
    kvb_stream_want_replay(step, false);
    if (standing == batch_odd) {
        ration_odd(stream, step->in->now_ns);
    }
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
    step->stream->replay.keeps_state = false;
    step->stream->flaw = KVB_REASON_GONE; /* unless it is the base: apply looks */
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
        kvb_stream_want_replay(step, false);
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

    if (replay->applied > 0 && kvb_stream_want_missing(step)) {
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
    stream->counters.batches_replayed++;
    const enum standing_of_batch standing =
        replay->has_answered ? judge(stream, arrival) : batch_next;
    if (standing != batch_duplicate) { /* who repeats itself for ever ends in time */
        replay->deadline_ns = step->in->now_ns + next_reply_ns;
    }
    if (!replay->has_answered) {
        return take_first_reply(step, arrival);
    }
    switch (standing) {
    case batch_next:
    case batch_broken: /* so the engine has no better one */
        replay->applied++;
        replay->is_probe = false;
        replay->keeps_state &= ++replay->overtakers <= max_overtakers;
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
    kvb_stream_want_replay(step, false);
    return KVB_OK;
}

/* ---- The replay's end ---- */

static struct stream_arrival arrival_of(const struct kvb_held_batch *held)
{
    return (struct stream_arrival){ .seq = held->seq,
                                    .fingerprint = held->fingerprint,
                                    .batch = held->is_readable ? &held->batch : NULL };
}

static void drop_oldest_held(struct kvb_stream *stream)
{
    kvb_held_drop_oldest(&stream->held);
    stream->replay.held_before -= stream->replay.held_before > 0;
}

/* The oldest held batch does not follow, or cannot be read: ask again, or go on without. */
static kvb_status take_held_misfit(
    struct stream_step *step, const struct stream_arrival *arrival, enum standing_of_batch standing)
{
    if (kvb_stream_want_missing(step)) {
        return KVB_OK;
    }
    KVB_TRY(go_on_from(step, arrival, standing, KVB_REASON_HOLE));
    drop_oldest_held(step->stream);
    return KVB_OK;
}

/* The engine was asked after the batch had come, and still knew the batch that came live
 * before: what is older is told twice, or by a life that is over.  What cannot be read
 * says nothing but its number, and that one is listed. */
static bool is_left_behind(
    const struct kvb_stream *stream, const struct kvb_held_batch *held,
    enum standing_of_batch standing)
{
    const struct replay *replay = &stream->replay;

    return standing == batch_odd && replay->has_answered && replay->held_before > 0 &&
           (replay->is_vouched || !held->is_readable);
}

/* Was the engine asked for it since it came?  Then there is nothing better. */
static bool is_beyond_repair(const struct kvb_stream *stream, enum standing_of_batch standing)
{
    return standing == batch_broken && stream->replay.held_before > 0;
}

/* Would the batch make the output larger than a slice?  A first one never does. */
static bool is_slice_full(const struct stream_step *step, const struct kvb_held_batch *held)
{
    const struct kvb_router_batch *out = &step->out->events;

    return out->event_count > 0 && (out->event_count + held->batch.event_count > slice_events ||
                                    out->block_count + held->batch.hash_count > slice_blocks);
}

/* The oldest of what is held, while there is any and this step has room for it. */
static const struct kvb_held_batch *next_held(const struct stream_step *step)
{
    const struct kvb_held_batch *held = kvb_held_oldest(&step->stream->held);

    return held && !is_slice_full(step, held) ? held : NULL;
}

/* Applies what was held while it follows, a slice of it.  Ends: each round drops a
 * batch or wants a replay. */
static kvb_status apply_held(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_held_batch *held = NULL;
         !stream->replay.is_wanted && (held = next_held(step));) {
        const struct stream_arrival arrival = arrival_of(held);
        const enum standing_of_batch standing = judge(stream, &arrival);
        const bool is_old = standing == batch_duplicate || is_left_behind(stream, held, standing);
        const bool is_next = standing == batch_next || is_beyond_repair(stream, standing);
        if (!is_old && !is_next) {
            KVB_TRY(take_held_misfit(step, &arrival, standing));
            continue;
        }
        stream->counters.duplicates += is_old;
        if (is_next) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        }
        drop_oldest_held(stream);
    }
    stream->drain = !stream->replay.is_wanted && kvb_held_oldest(&stream->held) ? drain_what_follows
                                                                                : drain_nothing;
    return KVB_OK;
}

/* Applies all that was held, whatever is missing between, a slice of it. */
static kvb_status apply_held_as_suffix(struct stream_step *step, enum kvb_stream_reason flaw)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_held_batch *held = NULL; (held = next_held(step));) {
        const struct stream_arrival arrival = arrival_of(held);
        const enum standing_of_batch standing = judge(stream, &arrival);
        if (standing == batch_next || standing == batch_broken || !stream->has_last) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        } else if (standing != batch_duplicate) {
            KVB_TRY(go_on_from(step, &arrival, standing, flaw));
        }
        kvb_held_drop_oldest(&stream->held);
    }
    stream->drain = kvb_held_oldest(&stream->held) ? drain_everything : drain_nothing;
    stream->drain_flaw = flaw;
    return KVB_OK;
}

/* The next slice. */
static kvb_status go_on_draining(struct stream_step *step)
{
    const struct kvb_stream *stream = step->stream;

    return stream->drain == drain_everything ? apply_held_as_suffix(step, stream->drain_flaw)
                                             : apply_held(step);
}

/* The connection on which the last batch came still stands, and nothing that came since
 * is of another life. */
static bool is_same_process(const struct kvb_stream *stream)
{
    const struct kvb_held_batch *held = kvb_held_oldest(&stream->held);

    if (held) {
        const struct stream_arrival arrival = arrival_of(held);
        if (judge(stream, &arrival) == batch_odd) {
            return false;
        }
    }
    return stream->last_connection == stream->connections;
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
    if (!replay->has_answered && !replay->is_blind && is_same_process(stream)) {
        /* It keeps nothing: its buffer is of no size, or another's answers.  Nothing
         * proves the list, nothing speaks against it. */
        stream->is_unproven = true;
        kvb_stream_back_off(step);
        return apply_held(step);
    }
    if (!replay->has_answered && !replay->is_blind) {
        /* It no longer has the batch we asked from: another life, shorter than ours. */
        KVB_TRY(kvb_stream_begin_other_life(step, KVB_REASON_REPLAYING));
        kvb_held_clear(&stream->held);
        stream->full_ns = 0;
        kvb_stream_want_replay(step, false);
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
        kvb_stream_want_confirmation(step); /* END comes after a cut reply too */
        return KVB_OK;
    }
    if (!stream->is_complete && stream->flaw == KVB_REASON_REPLAY_FAILED &&
        stream->drain == drain_nothing) { /* else: after the next probe */
        kvb_stream_want_everything(step);
    }
    return KVB_OK;
}

/* ---- Time, connection ---- */

/* What is missing does not come, or not soon: the list grows from what is held, and what
 * is left out is asked for when that is allowed. */
static kvb_status go_on_without(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    stream->replay = (struct replay){ 0 };
    if (stream->has_last) {
        KVB_TRY(kvb_stream_begin_again(step, KVB_REASON_REPLAY_FAILED));
    }
    stream->is_complete = false;
    stream->flaw = KVB_REASON_REPLAY_FAILED;
    return apply_held_as_suffix(step, KVB_REASON_REPLAY_FAILED);
}

/* No answer in time.  What was missing is given up; where nothing was, the list
 * stays, unproven. */
static kvb_status take_replay_failure(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const bool was_probe = stream->replay.is_probe;

    stream->counters.replays_failed++;
    step->out->drops_replay = true;
    kvb_stream_back_off(step);
    if (was_probe) {
        stream->replay = (struct replay){ 0 };
        stream->is_unproven = true;
        return apply_held(step);
    }
    return go_on_without(step);
}

/* The replies ended before their END: an engine that is quicker than its socket drops
 * some, END among them, or we could take no more.  What came is proven, the rest is
 * asked for again. */
static kvb_status take_replay_cut(struct stream_step *step)
{
    const struct replay *replay = &step->stream->replay;

    if (!replay->is_in_flight || (replay->has_answered && kvb_stream_want_missing(step))) {
        return KVB_OK;
    }
    return take_replay_failure(step);
}

static kvb_status take_tick(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const struct replay *replay = &stream->replay;
    const uint64_t now_ns = step->in->now_ns;

    if (replay->is_in_flight && now_ns >= replay->deadline_ns) {
        return take_replay_cut(step);
    }
    if (kvb_stream_is_put_off(stream, now_ns)) {
        return go_on_without(step);
    }
    if (stream->drain != drain_nothing) {
        return go_on_draining(step);
    }
    const bool is_busy = replay->is_in_flight || replay->is_wanted;
    if (stream->options.has_replay && stream->is_connected && !is_busy &&
        kvb_stream_is_probe_due(stream, now_ns)) {
        kvb_stream_want_replay(step, true);
    }
    return KVB_OK;
}

static kvb_status take_up(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    const bool is_unproved = !stream->options.has_replay && stream->has_last;

    stream->is_connected = true;
    stream->was_connected = true;
    stream->connections++;
    stream->heard_ns = step->in->now_ns;
    stream->full_ns = 0; /* it may be another process: its ration is untouched */
    stream->odd_ns = 0;
    stream->back_off_ns = 0;
    if (stream->options.has_replay) {
        stream->replay = (struct replay){ 0 };
        kvb_stream_want_replay(step, false);
    }
    return is_unproved ? kvb_stream_begin_other_life(step, KVB_REASON_GONE) : KVB_OK;
}

static kvb_status take_down(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    stream->is_connected = false;
    step->out->drops_replay |= stream->replay.is_in_flight;
    stream->replay = (struct replay){ 0 };
    kvb_held_clear(&stream->held); /* as what comes before the next UP */
    stream->drain = drain_nothing;
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
    case KVB_INPUT_REPLAY_CUT:
        return take_replay_cut(step);
    case KVB_INPUT_TICK:
        return take_tick(step);
    }
    return KVB_OK;
}

kvb_status kvb_stream_step(
    struct kvb_stream *stream, const struct kvb_stream_input *input,
    struct kvb_stream_output *output)
{
    struct stream_step step = { .stream = stream, .in = input, .out = output };
    const struct stream_description before = kvb_stream_describe(stream);

    kvb_router_batch_reset(&output->events);
    output->drops_replay = false;
    const kvb_status status = take_input(&step);
    const struct stream_description now = kvb_stream_describe(stream);
    output->is_changed = !kvb_stream_is_same_description(&now, &before);
    output->has_more = stream->drain != drain_nothing;
    kvb_stream_sign(stream, &output->events);
    return status;
}
