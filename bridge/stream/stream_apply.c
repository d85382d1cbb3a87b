#include "core/clock.h"
#include "stream/stream_inside.h"

#include <string.h>

/* Where one life after the other is found, the answers are not those of the engine that
 * publishes: each request would find the next.  The first is looked into at once. */
static const uint64_t soon_ns = 10 * KVB_NS_PER_S;
static const uint64_t first_calm_ns = KVB_NS_PER_S;
static const uint64_t most_calm_ns = 30 * KVB_NS_PER_S;

kvb_status kvb_stream_begin_again(struct stream_step *step, enum kvb_stream_reason flaw)
{
    struct kvb_stream *stream = step->stream;

    kvb_mirror_restart(stream->mirror);
    stream->has_last = false;
    stream->is_heard_live = false;
    stream->is_complete = false;
    stream->flaw = flaw;
    stream->has_skipped = false;
    stream->has_unknown_event = false;
    stream->replay.keeps_state = false;
    stream->counters.clears++;
    kvb_stream_next_epoch(stream, step->in->wall_us);
    kvb_router_batch_reset(&step->out->events);
    return kvb_router_batch_add_event(
        &step->out->events, &(struct kvb_router_event){ .kind = KVB_ROUTER_CLEARED });
}

static void note_strange_answer(struct kvb_stream *stream, uint64_t now_ns)
{
    const bool is_soon = stream->other_life_ns > 0 && now_ns - stream->other_life_ns < soon_ns;
    const uint64_t doubled = stream->calm_ns > 0 ? 2 * stream->calm_ns : first_calm_ns;

    stream->calm_ns = !is_soon ? 0 : doubled < most_calm_ns ? doubled : most_calm_ns;
    stream->other_life_ns = now_ns;
    stream->replay.met_other_life = true;
}

kvb_status kvb_stream_begin_other_life(struct stream_step *step, enum kvb_stream_reason flaw)
{
    struct kvb_stream *stream = step->stream;
    const enum kvb_stream_input_kind kind = step->in->kind;

    if (kind == KVB_INPUT_REPLAY || kind == KVB_INPUT_REPLAY_END) {
        note_strange_answer(stream, step->in->now_ns);
    }
    stream->counters.restarts++;
    kvb_fingerprints_clear(&stream->fingerprints);
    return kvb_stream_begin_again(step, flaw);
}

/* ---- Applying ---- */

static bool clears_all(const struct kvb_event_batch *batch, size_t at)
{
    return batch->events[at].kind == KVB_EVENT_CLEARED && batch->events[at].all_tiers;
}

bool kvb_stream_is_base(const struct stream_arrival *arrival)
{
    const struct kvb_event_batch *batch = arrival->batch;
    const uint64_t first_seq = batch && batch->counts_from_one ? 1 : 0;

    return arrival->seq == first_seq || arrival->seq == 0 ||
           (batch && batch->event_count > 0 && clears_all(batch, 0));
}

void kvb_stream_take_as_complete(struct kvb_stream *stream)
{
    stream->is_complete = true;
    stream->flaw = KVB_REASON_NONE;
    stream->has_skipped = false;
    stream->has_unknown_event = false;
}

static kvb_status note_skip(struct stream_step *step, const struct kvb_engine_event *event)
{
    struct kvb_stream *stream = step->stream;
    const enum kvb_skip skip = event->skip;

    if (skip == KVB_SKIP_NOT_PREFIX && event->group_kind == KVB_GROUP_OTHER) {
        kvb_mirror_meet_other_group(stream->mirror, event);
    }

    stream->counters.skipped[skip]++;
    switch (kvb_skip_effect(skip)) {
    case KVB_EFFECT_NONE:
        break;
    case KVB_EFFECT_MISSING:
        stream->has_skipped = true;
        break;
    case KVB_EFFECT_UNVERIFIED:
        stream->has_unknown_event = true;
        break;
    case KVB_EFFECT_PHANTOM:
        return kvb_stream_begin_again(step, KVB_REASON_POISON);
    }
    return KVB_OK;
}

/* What the mirror itself passed over. */
static uint64_t passed_over(const struct kvb_stream *stream)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    return counts->self_parents + counts->no_tokens + counts->shapes_refused +
           counts->groups_refused;
}

/* A store tells of the blocks of all models that it serves; an event without a name is taken
 * for one of the stream's. */
static bool is_of_other_model(
    const struct kvb_stream *stream, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    const char *own = stream->options.model;
    const kvb_span name = kvb_event_batch_text(batch, event->model_name);
    const size_t len = strlen(own);

    return name.len > 0 && len > 0 && (name.len != len || memcmp(name.data, own, len) != 0);
}

/* Objects under keys are a store's, and so are the maps with an event_type, which stores alone
 * write; of the latter an engine's would be about its device. */
static bool is_of_store(const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    return event->key != 0 || (batch->counts_from_one && event->tier != KVB_TIER_DEVICE);
}

static kvb_status
apply_event(struct stream_step *step, const struct kvb_event_batch *batch, size_t at)
{
    struct kvb_stream *stream = step->stream;
    const uint64_t passed_before = passed_over(stream);

    stream->has_objects |= is_of_store(batch, &batch->events[at]);
    if (batch->events[at].kind == KVB_EVENT_SKIPPED) {
        return note_skip(step, &batch->events[at]);
    }
    if (is_of_other_model(stream, batch, &batch->events[at])) {
        return note_skip(step, &(struct kvb_engine_event){ .skip = KVB_SKIP_OTHER_MODEL });
    }
    kvb_mirror_set_whole(
        stream->mirror, stream->is_complete && !stream->has_skipped && !stream->has_unknown_event);
    stream->counters.events_applied++;
    stream->counters.events_of[batch->events[at].kind]++;
    if (kvb_mirror_apply(stream->mirror, batch, at, &step->out->events) != KVB_OK) {
        return kvb_stream_begin_again(step, KVB_REASON_MEMORY); /* a ceiling, or memory is out */
    }
    if (clears_all(batch, at)) {
        kvb_stream_take_as_complete(stream);
    }
    stream->has_skipped |= passed_over(stream) != passed_before;
    return KVB_OK;
}

static kvb_status apply_events(struct stream_step *step, const struct stream_arrival *arrival)
{
    if (!arrival->batch) {
        step->stream->counters.poison++;
        return kvb_stream_begin_again(step, KVB_REASON_POISON);
    }
    kvb_mirror_begin_batch(step->stream->mirror, arrival->batch, &step->out->events);
    for (size_t at = 0; at < arrival->batch->event_count; at++) {
        KVB_TRY(apply_event(step, arrival->batch, at));
    }
    return KVB_OK;
}

kvb_status kvb_stream_apply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    if (!stream->has_last && !stream->is_complete && kvb_stream_is_base(arrival)) {
        kvb_stream_take_as_complete(stream);
    } else if (!stream->has_last && stream->is_complete && !kvb_stream_is_base(arrival)) {
        stream->is_complete = false; /* an empty history, and now not its first batch */
        stream->flaw = KVB_REASON_GONE;
    }
    KVB_TRY(apply_events(step, arrival));
    stream->has_last = true;
    stream->last_seq = arrival->seq;
    stream->last_connection = stream->connections;
    stream->is_heard_live |= step->in->kind != KVB_INPUT_REPLAY;
    kvb_fingerprints_put(&stream->fingerprints, arrival->seq, arrival->fingerprint);
    stream->counters.batches_applied++;
    return KVB_OK;
}
