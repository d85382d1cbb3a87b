#include "core/clock.h"
#include "stream/inside.h"

/* When a replay is requested, and from which batch: at most once a second, and for the whole
 * buffer at most once in ten, because the engine does not publish during a replay. */
static const uint64_t probe_every_ns = KVB_NS_PER_S;
static const uint64_t tail_settles_ns = KVB_NS_PER_S; /* longer than a batch is under way */
static const uint64_t max_probe_pause_ns = 60 * KVB_NS_PER_S;
static const uint64_t replay_deadline_ns = 2 * KVB_NS_PER_S;
static const uint64_t full_replay_every_ns = 10 * KVB_NS_PER_S;
static const uint64_t strange_cooldown_ns = 4 * KVB_NS_PER_S; /* four incarnations within seconds */
static const struct kvb_backoff_range after_no_answer = { .first_ns = KVB_NS_PER_S,
                                                          .longest_ns = 30 * KVB_NS_PER_S };

static const uint64_t look_every_ns = 60 * KVB_NS_PER_S;
static const uint64_t never_ns = UINT64_MAX;

enum { max_unproductive_rounds = 5 };

/* A probe waits for so large a part of the silence so far. */
enum { silence_divisor = 4 };

/* Two incarnations of an engine whose batches have no timestamp may send equal bytes.  So after a
 * reconnection this many of the last batches must match. */
enum { proof_batches = 2 };

/* A walk compares the live batches since the last walk, at most this many: the replay contains
 * every batch from the first of them on, and the engine does not publish meanwhile. */
enum { look_batches = 64 };

/* The first of the newest batches, at most so many, as far as each is known and none is before
 * floor. */
static uint64_t walk_back(const struct kvb_stream *stream, uint64_t batches, uint64_t floor)
{
    uint64_t from = stream->last_seq;

    while (--batches > 0 && from > floor && kvb_fingerprints_has(&stream->fingerprints, from - 1)) {
        from--;
    }
    return from;
}

static bool is_last_live(const struct kvb_stream *stream)
{
    return stream->has_last && kvb_fingerprints_is_live(&stream->fingerprints, stream->last_seq);
}

/* True: a replay from batch 1 on shows whether it is the engine's first. */
static bool is_one_to_prove(const struct kvb_stream *stream)
{
    return stream->history == history_from_one && stream->one_at_seq > 0 &&
           stream->last_seq > stream->one_at_seq && stream->link != link_proving &&
           kvb_fingerprints_has(&stream->fingerprints, 1);
}

/* What a replay is for that is wanted now; see enum replay_purpose. */
static enum replay_purpose
purpose_of(const struct kvb_stream *stream, bool is_probe, uint64_t now_ns)
{
    if (!stream->has_last) {
        return is_probe ? replay_for_everything : replay_for_history;
    }
    if (!is_probe) {
        return replay_for_missing;
    }
    if (is_one_to_prove(stream)) {
        return replay_for_first;
    }
    return stream->origin == origin_found && kvb_stream_is_look_due(stream, now_ns)
               ? replay_as_walk
               : replay_as_probe;
}

static uint64_t from_where(const struct kvb_stream *stream)
{
    if (!stream->has_last) {
        return 0;
    }
    if (stream->link == link_proving) {
        return walk_back(stream, proof_batches, 0);
    }
    switch (stream->replay.purpose) {
    case replay_for_history:
    case replay_for_everything:
        return 0;
    case replay_for_first:
        return 1;
    case replay_as_walk:
        return walk_back(stream, look_batches, stream->verified_seq);
    case replay_for_missing:
    case replay_as_probe:
        break;
    }
    return stream->last_seq;
}

void kvb_stream_want_replay(struct stream_step *step, bool is_probe)
{
    struct kvb_stream *stream = step->stream;
    struct replay *replay = &stream->replay;
    const uint64_t now_ns = step->in->now_ns;

    /* One that is under way is given up: this one begins at a later batch, or for another reason.
     */
    step->out->drops_replay |= replay_is_in_flight(replay);
    stream->is_restart_suspected = false;
    replay->phase = replay_wanted;
    replay->purpose = purpose_of(stream, is_probe, now_ns);
    replay->from = from_where(stream);
    replay->wanted_ns = now_ns;
    replay->has_found = false;
    replay->keeps_state = is_probe;
    replay->overtakers = 0;
    replay->is_proven = false;
    replay->not_before_ns =
        replay_is_full(replay) && stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
    /* The round that confirms an END does not wait, because the list does not change until then.
     * It waits only after several changes of incarnation in a row. */
    const bool is_strange =
        replay->met_new_incarnation && stream->cooldown_ns > strange_cooldown_ns;
    const bool may_wait = replay_is_full(replay) || is_probe || is_strange;
    if (may_wait && stream->cooldown_ns > 0 &&
        replay->not_before_ns < stream->incarnation_ns + stream->cooldown_ns) {
        replay->not_before_ns = stream->incarnation_ns + stream->cooldown_ns;
    }
}

/* A walk keeps its older first batch: its replay contains the newest one, too. */
void kvb_stream_want_from_last(struct kvb_stream *stream)
{
    struct replay *replay = &stream->replay;

    if (replay->phase == replay_wanted && !replay_is_full(replay) && !replay_is_walk(replay)) {
        replay->from = from_where(stream);
    }
}

/* The round after a probe keeps the state, like the probe: replies that may have overtaken their
 * live copies show no loss, and an idle engine takes 100 ms to reply. */
void kvb_stream_want_confirmation(struct stream_step *step)
{
    struct replay *replay = &step->stream->replay;
    const bool keeps_state = replay->keeps_state;
    const uint64_t overtakers = replay->overtakers;

    kvb_stream_want_replay(step, false);
    replay->keeps_state = keeps_state;
    replay->overtakers = overtakers;
}

bool kvb_stream_want_missing(struct stream_step *step)
{
    struct replay *replay = &step->stream->replay;

    /* Some engines never have what is missing: they dropped it before it reached their buffer. */
    replay->unproductive_rounds = replay->applied > 0 ? 0 : replay->unproductive_rounds + 1;
    replay->applied = 0;
    if (replay->unproductive_rounds > max_unproductive_rounds) {
        replay->unproductive_rounds = 0;
        return false;
    }
    kvb_stream_want_replay(step, false);
    return true;
}

/* Requests the whole buffer although batches were applied already: the engine may still have
 * those that an unanswered replay should have brought. */
void kvb_stream_want_everything(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    kvb_stream_want_replay(step, true);
    stream->replay.purpose = replay_for_everything;
    stream->replay.from = 0;
    stream->replay.not_before_ns = stream->full_ns > 0 ? stream->full_ns + full_replay_every_ns : 0;
}

bool kvb_stream_wants_replay(const struct kvb_stream *stream, uint64_t now_ns, uint64_t *out_from)
{
    *out_from = stream->replay.from;
    return stream->replay.phase == replay_wanted && link_is_connected(stream->link) &&
           !stream->unfinished.is_there && now_ns >= stream->replay.not_before_ns;
}

enum kvb_replay_need kvb_stream_replay_need(const struct kvb_stream *stream)
{
    return stream->link == link_proving       ? KVB_REPLAY_PROOF
           : replay_is_probe(&stream->replay) ? KVB_REPLAY_PROBE
           : replay_is_full(&stream->replay)  ? KVB_REPLAY_HISTORY
                                              : KVB_REPLAY_MISSING;
}

uint64_t kvb_stream_replay_wanted_ns(const struct kvb_stream *stream)
{
    return stream->replay.wanted_ns;
}

/* True when the request waits longer than a reply may take: earlier replies that brought nothing
 * have used up the rate limit. */
bool kvb_stream_is_put_off(const struct kvb_stream *stream, uint64_t now_ns)
{
    const struct replay *replay = &stream->replay;

    return replay->phase == replay_wanted && !replay_is_probe(replay) &&
           replay->not_before_ns > now_ns + replay_deadline_ns;
}

/* ---- The newest batches, which a probe has brought ---- */

/* Batches come live in order: those below the number were lost, if a probe had to bring them. */
static void count_lost_tail(struct kvb_stream *stream, uint64_t before)
{
    if (stream->tail_first < stream->tail_end && before > stream->tail_first) {
        const uint64_t end = before < stream->tail_end ? before : stream->tail_end;
        stream->counters.batches_missed += end - stream->tail_first;
        stream->tail_first = end;
    }
}

void kvb_stream_settle_tail(struct kvb_stream *stream, uint64_t live_seq)
{
    count_lost_tail(stream, live_seq);
    stream->tail_first += live_seq == stream->tail_first && live_seq < stream->tail_end;
}

void kvb_stream_note_tail(struct kvb_stream *stream, uint64_t seq, uint64_t now_ns)
{
    const bool continues = !replay_is_probe(&stream->replay) &&
                           stream->tail_first < stream->tail_end && seq == stream->tail_end;

    /* It came live, too: what the probe has brought before it did not. */
    if (kvb_reorder_buffer_spans(&stream->reorder_buffer, seq)) {
        kvb_stream_settle_tail(stream, seq);
    } else if (continues) {
        stream->tail_end++;
    } else if (replay_is_probing(&stream->replay)) {
        stream->tail_first = seq;
        stream->tail_end = seq + 1;
        stream->tail_ns = now_ns;
    }
}

void kvb_stream_replay_started(struct kvb_stream *stream, uint64_t now_ns)
{
    struct replay *replay = &stream->replay;

    if (now_ns >= stream->tail_ns + tail_settles_ns) {
        count_lost_tail(stream, UINT64_MAX);
    }
    replay->phase = replay_requested;
    replay->met_new_incarnation = false;
    replay->applied = 0;
    replay->is_verified = !replay_is_full(replay) && stream->list.is_received_live;
    replay->buffered_before = kvb_reorder_buffer_count(&stream->reorder_buffer);
    replay->deadline_ns = now_ns + replay_deadline_ns;
    stream->received_ns = now_ns; /* the next probe is due a second from now */
    stream->requested_ns = now_ns;
    if (replay_is_walk(replay) || (stream->origin != origin_found && is_last_live(stream))) {
        stream->looked_ns = now_ns;
    }
    stream->counters.replays_requested++;
    if (replay_is_full(replay)) {
        stream->full_ns = now_ns;
    }
}

bool kvb_stream_is_replaying(const struct kvb_stream *stream)
{
    return replay_is_in_flight(&stream->replay);
}

void kvb_stream_back_off(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;

    (void)kvb_backoff_fail(&stream->unanswered, &after_no_answer, step->in->now_ns);
    stream->received_ns = step->in->now_ns;
    stream->requested_ns = step->in->now_ns;
}

/* The pauses between probes of a silent stream: 1 s in the first 4 s, then a quarter of the
 * silence, up to a minute.  A probe costs the bridge 0.3 ms and stops the engine's publishing, and
 * on a connection that stands, libzmq loses a batch only behind others that still arrive: these
 * end the silence.  So the growing pauses are for losses that are not libzmq's. */
static uint64_t probe_pause_ns(const struct kvb_stream *stream)
{
    const uint64_t pause_ns = stream->received_ns > stream->silent_ns
                                  ? (stream->received_ns - stream->silent_ns) / silence_divisor
                                  : 0;

    return pause_ns < probe_every_ns       ? probe_every_ns
           : pause_ns < max_probe_pause_ns ? pause_ns
                                           : max_probe_pause_ns;
}

/* A quiet stream may have lost its newest batches.  After an unanswered replay a probe is due
 * even while batches arrive, because a busy engine is never quiet. */
static uint64_t probe_ns(const struct kvb_stream *stream)
{
    const bool is_suffix =
        stream->history != history_whole && stream->cause == KVB_REASON_REPLAY_FAILED;
    const bool is_owed = stream->is_unproven || is_suffix || stream->is_tail_unseen ||
                         is_one_to_prove(stream) || stream->origin == origin_foreign;

    if (stream->origin == origin_foreign && !stream->has_last) {
        return never_ns; /* every batch of the reply would be another engine's */
    }
    if (stream->unanswered.pause_ns > 0) {
        return (is_owed ? stream->requested_ns : stream->received_ns) + stream->unanswered.pause_ns;
    }
    return stream->is_restart_suspected ? 0
           : is_owed                    ? stream->requested_ns + probe_every_ns
                                        : stream->received_ns + probe_pause_ns(stream);
}

bool kvb_stream_is_probe_due(const struct kvb_stream *stream, uint64_t now_ns)
{
    return now_ns >= probe_ns(stream);
}

void kvb_stream_suspect_restart(struct kvb_stream *stream)
{
    stream->is_restart_suspected = true;
}

/* ---- Whether the replay endpoint belongs to the publisher ---- */

/* The first live batch is searched for in the replay at once, and again until it or a later one
 * is found; after that once a minute, if live batches have come since. */
static uint64_t look_ns(const struct kvb_stream *stream)
{
    const bool is_found = stream->origin == origin_found;

    if (stream->origin == origin_foreign || stream->unanswered.pause_ns > 0 ||
        !is_last_live(stream)) {
        return never_ns; /* a probe that is due anyway shows the same */
    }
    if (is_found && stream->verified_seq == stream->last_seq) {
        return never_ns;
    }
    return stream->looked_ns == 0 ? 0
                                  : stream->looked_ns + (is_found ? look_every_ns : probe_every_ns);
}

bool kvb_stream_is_look_due(const struct kvb_stream *stream, uint64_t now_ns)
{
    return now_ns >= look_ns(stream);
}

/* ---- What is due ---- */

uint64_t kvb_stream_due_ns(const struct kvb_stream *stream)
{
    if (stream->replay.phase == replay_wanted || replay_is_in_flight(&stream->replay) ||
        stream->drain != drain_nothing || stream->unfinished.is_there ||
        (stream->origin == origin_found && stream->looked_ns == 0)) {
        return 0;
    }
    if (!stream->options.has_replay) {
        return stream->is_restart_suspected ? 0 : never_ns;
    }
    const uint64_t next_probe_ns = probe_ns(stream);
    const uint64_t next_look_ns = look_ns(stream);
    return !link_is_connected(stream->link) ? never_ns
           : next_probe_ns < next_look_ns   ? next_probe_ns
                                            : next_look_ns;
}

void kvb_stream_note_connection(struct kvb_stream *stream)
{
    /* The address is the same, so it is still the engine's replay; but which incarnation's is to be
     * proven. */
    const bool is_kept = stream->has_last && stream->origin == origin_found;

    stream->origin = is_kept ? origin_found : origin_unknown;
    stream->link = stream->has_last ? link_proving : link_up;
    stream->list.lists_replayed |= stream->has_last;
    stream->looked_ns = 0;
    stream->verified_seq = 0;
    kvb_fingerprints_reconnect(&stream->fingerprints);
}

[[gnu::hot]] void kvb_stream_note_fingerprint(
    struct kvb_stream *stream, const struct stream_arrival *arrival, bool is_live)
{
    struct kvb_fingerprint_ring *ring = &stream->fingerprints;
    const bool is_again = kvb_fingerprints_match(ring, arrival->seq, arrival->fingerprint);
    const bool was_live = is_again && kvb_fingerprints_is_live(ring, arrival->seq);

    if (is_again && was_live != is_live) {
        stream->origin = origin_found;
    }
    kvb_fingerprints_put(ring, arrival->seq, arrival->fingerprint, is_live || was_live);
}
