#include "core/clock.h"
#include "stream/inside.h"

static const uint64_t next_reply_ns = 500 * KVB_NS_PER_MS;
static const uint64_t odd_every_ns = KVB_NS_PER_S; /* as probes */

/* A replayed batch may overtake its live copy, because they come on two connections.  At most this
 * many do; if there are more, their live copies were lost. */
enum { max_overtakers = 16 };

/* The most that one jump of the sequence number counts: a larger jump is nonsense and no loss, and
 * two of them would make the counter wrap around. */
static const uint64_t max_counted_missed = UINT32_MAX;

/* Max rounds in a row without a new batch, for a replay that may be another engine's. */
enum { max_doubted_rounds = 2 };

/* ---- Live batches ---- */

enum batch_kind {
    batch_next,      /* apply it */
    batch_duplicate, /* seen: drop it */
    batch_ahead,     /* a batch before it is missing */
    batch_broken,    /* the next, but undecodable: the engine may have a good copy */
    batch_odd        /* an old number with other bytes, or too old to tell */
};

[[gnu::hot]] static enum batch_kind
classify_batch(const struct kvb_stream *stream, const struct stream_arrival *arrival)
{
    if (!stream->has_last) {
        const bool is_live_only = !stream->options.has_replay || stream->origin == origin_foreign;
        return kvb_stream_is_base(arrival) || is_live_only ? batch_next : batch_ahead;
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

/* The missing batches cannot be recovered: restart the list with this batch. */
static kvb_status go_on_from(
    struct stream_step *step, const struct stream_arrival *arrival, enum batch_kind kind,
    enum kvb_stream_reason cause)
{
    KVB_TRY(
        kind == batch_odd ? kvb_stream_begin_incarnation(step, cause)
                          : kvb_stream_restart_list(step, cause));
    return kvb_stream_apply(step, arrival);
}

static kvb_status apply_buffered_as_suffix(struct stream_step *step, enum kvb_stream_reason cause);

/* Buffers a live batch until the replay ends.  When the buffer is full the replay is given up:
 * the buffered batches become the beginning of a new list. */
static kvb_status buffer_batch(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    if (kvb_reorder_buffer_add(
            &stream->reorder_buffer, arrival->seq, arrival->fingerprint, arrival->batch) ==
        KVB_OK) {
        return KVB_OK;
    }
    stream->counters.buffer_refused++;
    step->out->drops_replay |= replay_is_in_flight(&stream->replay);
    stream->replay = (struct replay){ 0 };
    KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_GONE));
    KVB_TRY(apply_buffered_as_suffix(step, KVB_REASON_GONE));
    if (kvb_reorder_buffer_add(
            &stream->reorder_buffer, arrival->seq, arrival->fingerprint, arrival->batch) ==
        KVB_OK) {
        return apply_buffered_as_suffix(step, KVB_REASON_GONE);
    }
    if (kvb_reorder_buffer_oldest(&stream->reorder_buffer) || stream->unfinished.is_there) {
        return KVB_OK; /* dropped: the next batch shows the gap */
    }
    const enum batch_kind kind = classify_batch(stream, arrival);
    return kind == batch_next ? kvb_stream_apply(step, arrival)
                              : go_on_from(step, arrival, kind, KVB_REASON_GONE);
}

/* What a live batch means, case by case. */
static kvb_status on_live(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;
    const uint64_t now_ns = step->in->now_ns;
    const bool waits_for_replay =
        replay_is_in_flight(replay) || (replay->phase == replay_wanted && !replay_is_probe(replay));

    if (!link_is_connected(stream->link) && stream->options.has_replay) {
        return KVB_OK; /* its incarnation is unknown; the replay after the next UP brings it */
    }
    stream->received_ns = now_ns;
    stream->silent_ns = now_ns;
    kvb_stream_settle_tail(stream, arrival->seq);
    if (stream->unfinished.is_there) {
        /* Behind the unfinished batch.  When the buffer is full this one is dropped: the next
         * batch, or a probe, shows the gap. */
        const bool is_buffered = kvb_reorder_buffer_add(
                                     &stream->reorder_buffer, arrival->seq, arrival->fingerprint,
                                     arrival->batch) == KVB_OK;
        stream->counters.buffer_refused += !is_buffered;
        if (is_buffered && !waits_for_replay && stream->drain == drain_nothing) {
            stream->drain = drain_what_follows;
        }
        return KVB_OK;
    }
    if (waits_for_replay || stream->drain != drain_nothing) {
        return buffer_batch(step, arrival);
    }
    const enum batch_kind kind = classify_batch(stream, arrival);
    switch (kind) {
    case batch_next:
        return kvb_stream_apply(step, arrival);
    case batch_duplicate:
        stream->counters.duplicates++;
        kvb_stream_note_fingerprint(stream, arrival, true);
        return KVB_OK;
    case batch_ahead: {
        /* how many came before the first is not known: some engines count from a clock */
        const uint64_t missed = stream->has_last ? arrival->seq - stream->last_seq - 1 : 0;
        stream->counters.gaps++;
        stream->counters.batches_missed +=
            missed < max_counted_missed ? missed : max_counted_missed;
        break;
    }
    case batch_broken:
    case batch_odd:
        break;
    }
    if (!stream->options.has_replay) {
        return go_on_from(step, arrival, kind, KVB_REASON_GONE);
    }
    replay->unproductive_rounds = 0;
    replay->applied = 0;
    kvb_stream_want_replay(step, false);
    if (kind == batch_odd) {
        /* The first odd batch causes a request at once.  Later ones are rate-limited, because an
         * engine may repeat many old numbers. */
        const uint64_t next_ns = stream->odd_ns > 0 ? stream->odd_ns + odd_every_ns : 0;
        replay->not_before_ns = replay->not_before_ns > next_ns ? replay->not_before_ns : next_ns;
        stream->odd_ns = next_ns > now_ns ? next_ns : now_ns;
    }
    return buffer_batch(step, arrival);
}

/* ---- The replay's replies ---- */

/* The engine has no batch before number 1. */
static void accept_one_as_first(struct kvb_stream *stream)
{
    stream->history = history_whole;
    stream->cause = KVB_REASON_NONE;
    stream->first_number = first_is_one;
}

/* The first reply to a request from the beginning: the list begins here. */
static kvb_status begin_with(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (stream->has_last) {
        KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_GONE)); /* a full replay of a known list */
    }
    if (stream->origin == origin_found) {
        stream->origin = origin_unknown; /* until it brings a batch that came live */
    }
    replay->applied++;
    replay->is_proven = true;
    replay->purpose = replay_for_history; /* it is loading: the state changes */
    replay->keeps_state = false;
    stream->history = history_part; /* unless it is the base: apply looks */
    stream->cause = KVB_REASON_GONE;
    stream->one_at_seq = 0;
    if (arrival->seq == 1 && stream->first_number != first_is_zero) {
        if (stream->was_empty) {
            accept_one_as_first(stream); /* it published nothing before */
        } else {
            stream->history = history_from_one;
            stream->first_number =
                stream->first_number == first_unknown ? first_may_be_one : stream->first_number;
        }
    }
    return kvb_stream_apply(step, arrival);
}

/* The replay lacks a batch that came live, and never contained one: its replies come from another
 * engine.  A list that contains any of them restarts, from live batches alone. */
static kvb_status give_up_foreign(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const bool stands = replay_is_probe(&stream->replay) && !stream->list.lists_replayed;

    stream->origin = origin_foreign;
    stream->is_tail_unseen = false; /* no replay can show it; the list is not EXACT anyway */
    step->out->drops_replay = true;
    stream->replay = (struct replay){ 0 };
    kvb_stream_back_off(step);
    if (!stands) {
        kvb_fingerprints_clear(&stream->fingerprints);
        KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_NO_BASE));
    } else if (stream->history != history_whole) {
        stream->cause = KVB_REASON_NO_BASE;
    }
    stream->drain_cause = KVB_REASON_NO_BASE;
    if (kvb_reorder_buffer_oldest(
            &stream->reorder_buffer)) { /* soon, and not as what a replay brought */
        stream->drain = stands ? drain_what_follows : drain_everything;
    }
    return KVB_OK;
}

/* The first requested batch came live on the current connection, and no batch of this list was
 * ever found in the replay.  So its absence shows that the replay is another engine's, not that
 * the engine restarted. */
static bool is_foreign(const struct kvb_stream *stream)
{
    return stream->origin == origin_foreign ||
           (stream->origin == origin_unknown && stream->last_connection == stream->connections &&
            kvb_fingerprints_is_live(&stream->fingerprints, stream->last_seq));
}

/* The engine no longer keeps the first requested batch, or another incarnation began with this
 * batch: in both cases the reply is the engine's whole buffer. */
static kvb_status begin_history(struct stream_step *step, const struct stream_arrival *arrival)
{
    KVB_TRY(kvb_stream_begin_incarnation(step, KVB_REASON_GONE));
    kvb_reorder_buffer_clear(&step->stream->reorder_buffer);
    return begin_with(step, arrival);
}

/* Another incarnation of the engine replies, or the engine restarted during the replay. */
static kvb_status replay_new_incarnation(struct stream_step *step)
{
    KVB_TRY(kvb_stream_begin_incarnation(step, KVB_REASON_REPLAYING));
    kvb_reorder_buffer_clear(&step->stream->reorder_buffer);
    kvb_stream_want_replay(step, false);
    return KVB_OK;
}

/* The replay repeats a batch that was applied already. */
static void note_repeated(struct kvb_stream *stream, const struct stream_arrival *arrival)
{
    kvb_stream_note_fingerprint(stream, arrival, false);
    if (stream->replay.is_proven || arrival->seq != stream->last_seq) {
        return;
    }
    stream->replay.is_proven = true;
    stream->link = stream->link == link_proving ? link_up : stream->link;
    stream->is_unproven = false;
    if (replay_is_walk(&stream->replay)) {
        stream->verified_seq = stream->last_seq;
    }
}

/* The replay was requested from batch 1 on: whether it begins with that shows if the engine's
 * buffer has ever dropped a batch. */
static void settle_first_number(struct kvb_stream *stream, bool has_one)
{
    if (stream->first_number == first_may_be_one) {
        stream->first_number = first_unknown;
    }
    if (stream->history != history_from_one) {
        return;
    }
    stream->history = history_part;
    if (has_one) {
        accept_one_as_first(stream);
    }
}

/* The first reply must have the same bytes as the first requested batch.  If the engine's buffer
 * has wrapped past that one, a newer applied batch proves the same. */
static kvb_status on_first_reply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    const struct kvb_reordered_batch *oldest = kvb_reorder_buffer_oldest(&stream->reorder_buffer);
    struct replay *replay = &stream->replay;

    replay->phase = replay_answering;
    if (replay_is_full(replay)) {
        return begin_with(step, arrival);
    }
    if (kvb_fingerprints_match(&stream->fingerprints, arrival->seq, arrival->fingerprint)) {
        if (replay->purpose == replay_for_first) {
            settle_first_number(stream, arrival->seq == 1);
        }
        note_repeated(stream, arrival);
        return KVB_OK; /* the newest batch is proven: only missed batches follow */
    }
    /* A walk may begin later than requested: with the oldest batch in the engine's buffer. */
    const bool is_known = replay_is_walk(replay) && arrival->seq <= stream->last_seq;
    if (arrival->seq == replay->from || is_known) {
        if (is_foreign(stream)) {
            return give_up_foreign(step);
        }
        if (kvb_stream_is_base(arrival)) {
            return begin_history(step, arrival);
        }
        stream->full_ns = 0; /* another publisher: it was asked for no full replay yet */
        return replay_new_incarnation(step);
    }
    /* The engine's buffer has wrapped past the first requested batch.  If a live batch follows that
     * one directly, nothing was lost and nothing is proven: the next probe compares a newer batch.
     */
    if (replay_is_probe(replay) && oldest && oldest->seq == stream->last_seq + 1) {
        step->out->drops_replay = true;
        stream->replay = (struct replay){ 0 };
        stream->drain = drain_what_follows;
        return KVB_OK;
    }
    return stream->origin == origin_foreign ? give_up_foreign(step) : begin_history(step, arrival);
}

static kvb_status on_reply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (!replay_is_in_flight(replay)) {
        return KVB_OK; /* of a replay that was given up */
    }
    stream->counters.batches_replayed++;
    const enum batch_kind kind =
        replay_has_answered(replay) ? classify_batch(stream, arrival) : batch_next;
    if (kind != batch_duplicate) { /* an engine that repeats one for ever meets the deadline */
        replay->deadline_ns = step->in->now_ns + next_reply_ns;
    }
    if (!replay_has_answered(replay)) {
        return on_first_reply(step, arrival);
    }
    if (!replay->is_proven && kind != batch_duplicate) {
        return replay_new_incarnation(step); /* its last batches are not those that were applied */
    }
    switch (kind) {
    case batch_next:
    case batch_broken: /* the engine has no readable copy */
        replay->applied++;
        stream->silent_ns = step->in->now_ns;
        kvb_stream_note_tail(stream, arrival->seq, step->in->now_ns);
        replay->has_found = true;
        replay->keeps_state &= ++replay->overtakers <= max_overtakers;
        return kvb_stream_apply(step, arrival);
    case batch_duplicate:
        note_repeated(stream, arrival);
        return KVB_OK;
    case batch_ahead:
        /* A number is missing inside the replay.  Right after the first requested batch, the engine
         * itself lacks it; further on, the reply was cut: request again. */
        if (replay->applied > 0 && kvb_stream_want_missing(step)) {
            return KVB_OK;
        }
        KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_HOLE));
        replay->applied++;
        return kvb_stream_apply(step, arrival);
    case batch_odd:
        break;
    }
    return replay_new_incarnation(step); /* it restarted meanwhile */
}

/* ---- The replay's end ---- */

static struct stream_arrival buffered_arrival(const struct kvb_reordered_batch *oldest)
{
    return (struct stream_arrival){ .seq = oldest->seq,
                                    .fingerprint = oldest->fingerprint,
                                    .batch = oldest->is_readable ? &oldest->batch : NULL,
                                    .is_oldest_buffered = true };
}

static void drop_oldest_buffered(struct kvb_stream *stream)
{
    kvb_reorder_buffer_drop_oldest(&stream->reorder_buffer);
    stream->replay.buffered_before -= stream->replay.buffered_before > 0;
}

/* The oldest buffered batch does not follow, or is undecodable: request again, or restart the
 * list with it. */
static kvb_status
resolve_misfit(struct stream_step *step, const struct stream_arrival *arrival, enum batch_kind kind)
{
    /* Its bytes differ from a replay that may be another engine's: only a few more rounds are
     * made. */
    const bool is_doubted = kind == batch_odd && step->stream->origin == origin_unknown &&
                            step->stream->replay.unproductive_rounds >= max_doubted_rounds;
    if (!is_doubted && kvb_stream_want_missing(step)) {
        return KVB_OK;
    }
    KVB_TRY(go_on_from(step, arrival, kind, KVB_REASON_HOLE));
    drop_oldest_buffered(step->stream);
    return KVB_OK;
}

/* The replay was requested after this batch had come, and still contained an earlier live batch:
 * an older number is then a repetition, or from an earlier incarnation.  An undecodable batch has
 * only a sequence number, and that one was already applied. */
static bool is_left_behind(
    const struct kvb_stream *stream, const struct kvb_reordered_batch *oldest, enum batch_kind kind)
{
    const struct replay *replay = &stream->replay;

    return kind == batch_odd && replay_has_answered(replay) && replay->buffered_before > 0 &&
           (replay->is_verified || !oldest->is_readable);
}

/* The oldest buffered batch; NULL when there is none, or this step may do no more work. */
static const struct kvb_reordered_batch *next_buffered(const struct stream_step *step)
{
    return kvb_stream_is_step_full(step) ? NULL
                                         : kvb_reorder_buffer_oldest(&step->stream->reorder_buffer);
}

/* True when buffered work is left for the next steps. */
static bool has_buffered_work(const struct kvb_stream *stream)
{
    return stream->unfinished.is_there || kvb_reorder_buffer_oldest(&stream->reorder_buffer);
}

/* Applies a slice of the buffered batches, up to the first gap.  Ends: each round drops a batch
 * or requests a replay. */
static kvb_status apply_buffered(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_reordered_batch *oldest = NULL;
         stream->replay.phase != replay_wanted && (oldest = next_buffered(step));) {
        const struct stream_arrival arrival = buffered_arrival(oldest);
        const enum batch_kind kind = classify_batch(stream, &arrival);
        const bool is_old = kind == batch_duplicate || is_left_behind(stream, oldest, kind);
        /* A replay that was requested after a broken batch came shows that there is no good copy.
         */
        const bool is_next =
            kind == batch_next || (kind == batch_broken && stream->replay.buffered_before > 0);
        if (!is_old && !is_next) {
            KVB_TRY(resolve_misfit(step, &arrival, kind));
            continue;
        }
        stream->counters.duplicates += is_old;
        step->work += is_old;
        if (kind == batch_duplicate) {
            kvb_stream_note_fingerprint(stream, &arrival, true);
        }
        if (is_next) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        }
        drop_oldest_buffered(stream);
    }
    stream->drain = stream->replay.phase != replay_wanted && has_buffered_work(stream)
                        ? drain_what_follows
                        : drain_nothing;
    return KVB_OK;
}

/* Applies a slice of the buffered batches, across gaps. */
static kvb_status apply_buffered_as_suffix(struct stream_step *step, enum kvb_stream_reason cause)
{
    struct kvb_stream *stream = step->stream;

    for (const struct kvb_reordered_batch *oldest = NULL; (oldest = next_buffered(step));) {
        const struct stream_arrival arrival = buffered_arrival(oldest);
        const enum batch_kind kind = classify_batch(stream, &arrival);
        step->work += kind == batch_duplicate;
        if (kind == batch_next || kind == batch_broken || !stream->has_last) {
            KVB_TRY(kvb_stream_apply(step, &arrival));
        } else if (kind != batch_duplicate) {
            KVB_TRY(go_on_from(step, &arrival, kind, cause));
        }
        kvb_reorder_buffer_drop_oldest(&stream->reorder_buffer);
    }
    stream->drain = has_buffered_work(stream) ? drain_everything : drain_nothing;
    stream->drain_cause = cause;
    return KVB_OK;
}

/* True when the connection that delivered the last batch is still open, and no later batch is of
 * another incarnation. */
static bool is_same_process(const struct kvb_stream *stream)
{
    const struct kvb_reordered_batch *oldest = kvb_reorder_buffer_oldest(&stream->reorder_buffer);

    if (oldest) {
        const struct stream_arrival arrival = buffered_arrival(oldest);
        if (classify_batch(stream, &arrival) == batch_odd) {
            return false;
        }
    }
    return stream->last_connection == stream->connections;
}

/* True when the END shows that no batch follows.  An END comes after a cut reply, too.  So a replay
 * that brought new batches, or only those of a reconnection's proof, is requested once more. */
static bool is_tail_seen(const struct kvb_stream *stream)
{
    const struct replay *replay = &stream->replay;
    const bool is_proof_alone =
        !replay_is_full(replay) && !replay_is_walk(replay) && replay->from < stream->last_seq;

    return (replay->applied == 0 && !is_proof_alone) ||
           kvb_reorder_buffer_oldest(&stream->reorder_buffer);
}

/* What an end means, case by case. */
static kvb_status on_replay_end(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;

    if (!replay_is_in_flight(replay)) {
        return KVB_OK;
    }
    const bool has_answered = replay_has_answered(replay);
    stream->was_empty |= replay_is_full(replay) && !has_answered && !stream->has_last;
    replay->phase = has_answered ? replay_ended : replay_idle;
    stream->counters.replays_completed++;
    stream->unanswered = (struct kvb_backoff){ 0 };
    stream->is_unproven = false;
    if (!has_answered && !replay_is_full(replay)) {
        /* It was requested from an applied batch, and the END came alone: another engine replies,
         * or this one's buffer has no room, and the list stays unproven. */
        if (is_foreign(stream)) {
            return give_up_foreign(step);
        }
        if (is_same_process(stream)) {
            stream->is_unproven = true;
            kvb_stream_back_off(step);
            return apply_buffered(step);
        }
    }
    if (!replay->is_proven && !replay_is_full(replay)) {
        /* It does not have the last of our batches: another incarnation, shorter than ours. */
        stream->full_ns = 0;
        return replay_new_incarnation(step);
    }
    if (!has_answered && !stream->has_last) {
        stream->cause = KVB_REASON_NO_BASE; /* it has published nothing yet, or keeps nothing */
        stream->full_ns = 0;                /* an empty replay does not count for the limit */
    }
    const bool has_seen_tail = is_tail_seen(stream);
    KVB_TRY(apply_buffered(step));
    if (stream->history == history_from_one && stream->one_at_seq == 0) {
        stream->one_at_seq = stream->last_seq;
    }
    if (replay->phase == replay_wanted) {
        return KVB_OK;
    }
    replay->unproductive_rounds = 0;
    if (!has_seen_tail) {
        kvb_stream_want_confirmation(step);
        return KVB_OK;
    }
    stream->is_tail_unseen = false;
    const bool may_be_there = stream->cause == KVB_REASON_REPLAY_FAILED ||
                              (stream->cause == KVB_REASON_NO_BASE && stream->has_last);
    if (stream->history != history_whole && may_be_there &&
        stream->drain == drain_nothing) { /* else: after the next probe */
        kvb_stream_want_everything(step);
    }
    return KVB_OK;
}

/* ---- Within a batch ---- */

/* Applies the next slice.  A replay's deadline is extended, because its replies wait for the
 * batch's end. */
static kvb_status go_on_applying(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    KVB_TRY(kvb_stream_go_on(step));
    stream->replay.deadline_ns = step->in->now_ns + next_reply_ns;
    return KVB_OK;
}

/* Callers should not give a reply before the batch is finished; one that comes is handled here. */
static kvb_status finish_applying(struct stream_step *step)
{
    while (step->stream->unfinished.is_there) {
        KVB_TRY(go_on_applying(step));
    }
    return KVB_OK;
}

/* ---- Time, connection ---- */

/* The missing batches do not come, or not soon: the buffered ones are applied, and the missing
 * ones are requested when the rate limit allows. */
static kvb_status go_on_without(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    stream->replay = (struct replay){ 0 };
    if (stream->has_last) {
        KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_REPLAY_FAILED));
    }
    stream->history = history_part;
    stream->cause = KVB_REASON_REPLAY_FAILED;
    return apply_buffered_as_suffix(step, KVB_REASON_REPLAY_FAILED);
}

/* The replies ended without END: an engine that writes faster than its socket sends drops some,
 * or the receive limit was reached.  The received batches are proven, the rest is requested
 * again. */
static kvb_status on_replay_cut(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const bool was_probe = replay_is_probe(&stream->replay);

    if (!replay_is_in_flight(&stream->replay) ||
        (replay_has_answered(&stream->replay) && kvb_stream_want_missing(step))) {
        return KVB_OK;
    }
    /* No reply in time, or none that goes on.  Missing batches are given up; if none were missing,
     * the list stays, unproven. */
    stream->counters.replays_failed++;
    step->out->drops_replay = true;
    kvb_stream_back_off(step);
    if (!was_probe) {
        return go_on_without(step);
    }
    stream->replay = (struct replay){ 0 };
    stream->is_unproven = true;
    return apply_buffered(step);
}

/* Without a replay nothing can prove the list of an engine that may have restarted. */
static kvb_status settle_suspicion(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const bool is_lost = stream->is_restart_suspected && stream->has_last;

    stream->is_restart_suspected = false;
    return is_lost ? kvb_stream_begin_incarnation(step, KVB_REASON_GONE) : KVB_OK;
}

static kvb_status on_tick(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const struct replay *replay = &stream->replay;
    const uint64_t now_ns = step->in->now_ns;

    if (stream->unfinished.is_there) {
        return go_on_applying(step);
    }
    if (replay_is_in_flight(replay) && now_ns >= replay->deadline_ns) {
        return on_replay_cut(step);
    }
    if (kvb_stream_is_put_off(stream, now_ns)) {
        return go_on_without(step);
    }
    if (stream->drain == drain_everything) {
        return apply_buffered_as_suffix(step, stream->drain_cause);
    }
    if (stream->drain == drain_what_follows) {
        return apply_buffered(step);
    }
    if (stream->origin == origin_found && stream->looked_ns == 0) {
        stream->looked_ns = now_ns; /* found without a walk: the next walk is a minute away */
    }
    if (!stream->options.has_replay) {
        return settle_suspicion(step);
    }
    const bool is_busy = replay_is_in_flight(replay) || replay->phase == replay_wanted;
    if (link_is_connected(stream->link) && !is_busy &&
        (kvb_stream_is_probe_due(stream, now_ns) || kvb_stream_is_look_due(stream, now_ns))) {
        kvb_stream_want_replay(step, true);
    }
    return KVB_OK;
}

static kvb_status on_up(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    /* The unfinished batch was received completely, and is applied to its end.  But if the list
     * began with it, or no replay can prove it, the list restarts. */
    if (stream->unfinished.is_there && !(stream->has_last && stream->options.has_replay)) {
        kvb_stream_drop_unfinished(stream);
        KVB_TRY(kvb_stream_begin_incarnation(step, KVB_REASON_GONE));
    }
    const bool is_unproved = !stream->options.has_replay && stream->has_last;

    stream->connections++;
    stream->was_empty = false;
    stream->received_ns = step->in->now_ns;
    stream->silent_ns = step->in->now_ns;
    stream->odd_ns = 0;
    stream->unanswered = (struct kvb_backoff){ 0 };
    stream->is_tail_unseen = false; /* the replay that is requested now shows it, too */
    kvb_stream_note_connection(stream);
    if (stream->options.has_replay) {
        stream->replay = (struct replay){ 0 };
        kvb_stream_want_replay(step, false);
    }
    return is_unproved ? kvb_stream_begin_incarnation(step, KVB_REASON_GONE) : KVB_OK;
}

static kvb_status on_down(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    if (link_is_connected(stream->link)) {
        stream->link = link_away;
        stream->away_ns = step->in->now_ns;
    }
    step->out->drops_replay |= replay_is_in_flight(&stream->replay);
    stream->replay = (struct replay){ 0 };
    kvb_reorder_buffer_clear(&stream->reorder_buffer); /* dropped like batches before the next UP */
    stream->drain = drain_nothing;
    return KVB_OK;
}

/* What came meanwhile waits in libzmq or in the network, and the monitor may not have reported yet
 * that the engine has gone.  A list that may be EXACT is not before the engine's own replay, asked
 * for after the pause, shows where the engine is. */
static kvb_status on_pause(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    if (!stream->options.has_replay || !link_is_connected(stream->link) || !stream->has_last ||
        stream->origin == origin_foreign) {
        return KVB_OK; /* not EXACT now; after the next UP a replay is requested anyway */
    }
    stream->is_tail_unseen = true;
    stream->is_restart_suspected = true; /* the next tick requests it */
    if (replay_is_in_flight(&stream->replay)) {
        kvb_stream_want_replay(step, replay_is_probe(&stream->replay)); /* its replies may be old */
    }
    return KVB_OK;
}

static kvb_status handle_input(struct stream_step *step)
{
    const struct stream_arrival arrival = { .seq = step->in->seq,
                                            .fingerprint = step->in->fingerprint,
                                            .batch = step->in->batch };

    switch (step->in->kind) {
    case KVB_INPUT_UP:
        return on_up(step);
    case KVB_INPUT_DOWN:
        return on_down(step);
    case KVB_INPUT_LIVE:
        return on_live(step, &arrival);
    case KVB_INPUT_REPLAY:
        KVB_TRY(finish_applying(step));
        return on_reply(step, &arrival);
    case KVB_INPUT_REPLAY_END:
        KVB_TRY(finish_applying(step));
        return on_replay_end(step);
    case KVB_INPUT_REPLAY_CUT:
        KVB_TRY(finish_applying(step));
        return on_replay_cut(step);
    case KVB_INPUT_PAUSE:
        return on_pause(step);
    case KVB_INPUT_TICK:
        return on_tick(step);
    }
    return KVB_OK;
}

[[gnu::hot]] kvb_status kvb_stream_step(
    struct kvb_stream *stream, const struct kvb_stream_input *input,
    struct kvb_stream_output *output)
{
    struct stream_step step = { .stream = stream, .in = input, .out = output };

    kvb_router_batch_reset(&output->events);
    output->drops_replay = false;
    const kvb_status status = handle_input(&step);
    output->is_changed = kvb_stream_describe(stream);
    output->has_more = stream->drain != drain_nothing || stream->unfinished.is_there;
    kvb_stream_sign(stream, &output->events);
    return status;
}
