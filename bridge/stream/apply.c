#include "core/clock.h"
#include "stream/inside.h"

#include <string.h>

/* When several changes of incarnation are found within this time, the replies probably come from
 * another engine than the publisher, and each replay would find one more change.  So replays wait
 * after a change of incarnation, but not after the first. */
static const uint64_t soon_ns = 10 * KVB_NS_PER_S;
static const uint64_t first_cooldown_ns = KVB_NS_PER_S;
static const uint64_t max_cooldown_ns = 30 * KVB_NS_PER_S;

/* Batches that were on their way when a reset was noted may be older than it. */
static const uint64_t reset_lasts_ns = KVB_NS_PER_S;

void kvb_stream_next_epoch(struct kvb_stream *stream, uint64_t wall_us)
{
    uint8_t bytes[sizeof stream->options.seed + sizeof stream->epochs];

    stream->epochs++;
    memcpy(bytes, stream->options.seed, sizeof stream->options.seed);
    memcpy(bytes + sizeof stream->options.seed, &stream->epochs, sizeof stream->epochs);
    const struct kvb_hash128 hash =
        kvb_hash128((kvb_span){ .data = bytes, .len = sizeof bytes }, 0);
    memcpy(stream->epoch.bytes, &hash, sizeof stream->epoch.bytes);
    stream->digest_seed = kvb_hash64((kvb_span){ .data = bytes, .len = sizeof bytes }, 1);
    const struct kvb_digest_key key = { .worker_id = stream->options.worker_id,
                                        .dp_rank = stream->options.dp_rank,
                                        .seed = stream->digest_seed };
    kvb_mirror_begin_digest(stream->mirror, &key);
    if (stream->log) {
        kvb_event_log_begin_range(stream->log);
    }
    const uint64_t last_id = stream->last_id + stream->ids_unknown;
    stream->ids_unknown = 0;
    stream->epoch_first_id = wall_us > last_id ? wall_us : last_id + 1;
    stream->last_id = stream->epoch_first_id - 1; /* the `cleared` will take the first */
}

kvb_status kvb_stream_restart_list(struct stream_step *step, enum kvb_stream_reason cause)
{
    struct kvb_stream *stream = step->stream;

    if (stream->first_number == first_may_be_one) {
        stream->first_number = first_unknown; /* it may be again, in the next run */
    } else if (stream->has_last && stream->first_number == first_unknown) {
        /* A run that was not seen from its beginning on: engines count from 0, as a rule.  If the
         * next run's batch 0 is lost, its batch 1 must not pass for the first. */
        stream->first_number = first_is_zero;
    }
    kvb_mirror_restart(stream->mirror);
    stream->has_last = false;
    stream->tail_first = stream->tail_end = 0;
    if (stream->link == link_proving) {
        stream->link = link_up; /* nothing is left to prove */
    }
    stream->history = history_part;
    stream->cause = cause;
    stream->list = (struct list_facts){ 0 };
    stream->replay.keeps_state = false;
    stream->counters.clears++;
    kvb_stream_next_epoch(stream, step->in->wall_us);
    kvb_router_batch_reset(&step->out->events);
    return kvb_router_batch_add_event(
        &step->out->events, &(struct kvb_router_event){ .kind = KVB_ROUTER_CLEARED });
}

kvb_status kvb_stream_begin_incarnation(struct stream_step *step, enum kvb_stream_reason cause)
{
    struct kvb_stream *stream = step->stream;
    const uint64_t now_ns = step->in->now_ns;
    const enum kvb_stream_input_kind kind = step->in->kind;

    if (kind == KVB_INPUT_REPLAY || kind == KVB_INPUT_REPLAY_END) {
        /* An answer has shown it: the next replays wait, unless it is the first such answer. */
        const bool is_soon =
            stream->incarnation_ns > 0 && now_ns - stream->incarnation_ns < soon_ns;
        const uint64_t doubled =
            stream->cooldown_ns > 0 ? 2 * stream->cooldown_ns : first_cooldown_ns;
        stream->cooldown_ns = !is_soon ? 0 : doubled < max_cooldown_ns ? doubled : max_cooldown_ns;
        stream->incarnation_ns = now_ns;
        stream->replay.met_new_incarnation = true;
    }
    stream->counters.restarts++;
    stream->origin = origin_unknown;
    stream->looked_ns = 0;
    stream->verified_seq = 0;
    stream->life = (struct life_facts){ .cache = cache_published };
    kvb_fingerprints_clear(&stream->fingerprints);
    return kvb_stream_restart_list(step, cause);
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

/* The list counts as complete, whatever was skipped before. */
static void count_as_complete(struct kvb_stream *stream)
{
    stream->history = history_whole;
    stream->cause = KVB_REASON_NONE;
    stream->list.has_skipped = false;
    stream->list.has_unknown_event = false;
}

/* The mirror has cleared all. */
static void note_clear(struct stream_step *step)
{
    struct kvb_stream *stream = step->stream;
    const struct unfinished_batch *rest = &stream->unfinished;

    count_as_complete(stream);
    /* A replayed clear may be older than what is known of the engine's cache. */
    if (rest->is_there ? rest->origin.is_live : step->in->kind != KVB_INPUT_REPLAY) {
        stream->life.cache = cache_published;
        stream->cleared_ns = step->in->now_ns;
        stream->life.has_misfit = false;
        stream->life.unclaimed_clears += !stream->life.has_reset;
        stream->life.has_reset = false;
    }
}

static kvb_status note_skip(struct stream_step *step, const struct kvb_engine_event *event)
{
    struct kvb_stream *stream = step->stream;
    const enum kvb_skip skip = event->skip;

    if (skip == KVB_SKIP_NOT_PREFIX && !kvb_group_kind_has_rule(event->group_kind)) {
        kvb_mirror_meet_other_group(stream->mirror, event);
    }

    stream->counters.skipped[skip]++;
    switch (kvb_skip_effect(skip)) {
    case KVB_EFFECT_NONE:
        break;
    case KVB_EFFECT_MISSING:
        stream->list.has_skipped = true;
        break;
    case KVB_EFFECT_UNVERIFIED:
        stream->list.has_unknown_event = true;
        break;
    case KVB_EFFECT_PHANTOM:
        return kvb_stream_restart_list(step, KVB_REASON_POISON);
    }
    return KVB_OK;
}

/* Counts what the mirror itself skipped. */
static uint64_t passed_over(const struct kvb_stream *stream)
{
    const struct kvb_mirror_counts *counts = kvb_mirror_count(stream->mirror);
    return counts->self_parents + counts->no_tokens + counts->shapes_refused +
           counts->groups_refused + counts->names_refused;
}

/* A store publishes the blocks of all models that it serves.  An event without a model name
 * counts as one of the stream's model. */
static bool is_of_other_model(
    const struct kvb_stream *stream, const struct kvb_event_batch *batch,
    const struct kvb_engine_event *event)
{
    const char *own = stream->options.model;
    const kvb_span name = kvb_event_batch_text(batch, event->model_name);
    const size_t len = strlen(own);

    if (name.len == 0 || len == 0) {
        return false;
    }
    /* A key has the last part of the name alone, as in "org/model". */
    const char *slash = strrchr(own, '/');
    const char *last = event->family && slash ? slash + 1 : own;

    return !kvb_span_is(name, own) && !kvb_span_is(name, last);
}

/* *out_is_skipped: the event is not for the mirror. */
static kvb_status begin_event(
    struct stream_step *step, const struct kvb_event_batch *batch, size_t at, bool *out_is_skipped)
{
    struct kvb_stream *stream = step->stream;
    const struct kvb_engine_event *event = &batch->events[at];
    const struct kvb_engine_event of_other_model = { .skip = KVB_SKIP_OTHER_MODEL };

    /* Only stores publish objects under keys.  Only stores write maps with an event_type, too,
     * unless the event is about the device tier: then an engine wrote it. */
    stream->has_objects |= event->key != 0 || event->skip == KVB_SKIP_UNKNOWN_KEY ||
                           (batch->counts_from_one && event->tier != KVB_TIER_DEVICE);
    *out_is_skipped = event->kind == KVB_EVENT_SKIPPED || is_of_other_model(stream, batch, event);
    if (*out_is_skipped) {
        return note_skip(step, event->kind == KVB_EVENT_SKIPPED ? event : &of_other_model);
    }
    kvb_mirror_set_whole(
        stream->mirror, stream->history == history_whole && !stream->list.has_skipped &&
                            !stream->list.has_unknown_event);
    stream->counters.events_applied++;
    stream->counters.events_of[event->kind]++;
    stream->life.lacks_salts |= event->lacks_salts;
    stream->life.has_hashes_of_pages |= event->is_hash_of_page;
    stream->list.has_skipped |= event->is_salt_unsure; /* then its name is that of other blocks */
    if (event->kind == KVB_EVENT_REMOVED) {
        stream->life.removal_tiers |= 1U << event->tier;
    }
    return KVB_OK;
}

/* The event, or its next part, as much of it as *work allows; on return, *work is the work
 * done. */
static kvb_status apply_event_part(
    struct stream_step *step, const struct kvb_event_batch *batch, size_t at, uint64_t *work)
{
    struct kvb_stream *stream = step->stream;
    bool is_skipped = false;

    if (!kvb_mirror_is_unfinished(stream->mirror)) {
        KVB_TRY(begin_event(step, batch, at, &is_skipped));
    }
    if (is_skipped) {
        *work = 0;
        return KVB_OK;
    }
    const uint64_t passed_before = passed_over(stream);
    const uint64_t ambiguous_before = kvb_mirror_count(stream->mirror)->ambiguous;
    if (kvb_mirror_apply(stream->mirror, batch, at, work, &step->out->events) != KVB_OK) {
        return kvb_stream_restart_list(step, KVB_REASON_MEMORY); /* a ceiling, or memory is out */
    }
    if (clears_all(batch, at)) {
        note_clear(step);
    }
    stream->list.has_skipped |= passed_over(stream) != passed_before;
    stream->life.is_ambiguous |= kvb_mirror_count(stream->mirror)->ambiguous != ambiguous_before;
    return KVB_OK;
}

/* ---- Slices ----
 *
 *     batch   [ event event event | event event | large ... | ... event | event ... ]
 *             one step             one step      one step    one step    one step
 *
 * The cuts depend only on the batch and the list, and no router event crosses a cut.  So the
 * same batches make the same event ids, whenever the steps run. */

static uint64_t slice_work(const struct kvb_stream *stream)
{
    return stream->options.slice_work > 0 ? stream->options.slice_work : kvb_stream_slice_work;
}

bool kvb_stream_is_step_full(const struct stream_step *step)
{
    return step->stream->unfinished.is_there || step->work >= slice_work(step->stream);
}

/* Applies events from *next on, up to one slice of work.  An event that is more work than one
 * slice begins in a slice of its own. */
[[gnu::hot]] static kvb_status
apply_event_slice(struct stream_step *step, const struct kvb_event_batch *batch, size_t *next)
{
    const struct kvb_mirror *mirror = step->stream->mirror;
    const uint64_t max_work = slice_work(step->stream);
    bool is_cut = false;

    kvb_mirror_begin_batch(step->stream->mirror, &step->out->events);
    for (uint64_t work = 0; *next < batch->event_count && work < max_work && !is_cut;) {
        const struct kvb_engine_event *event = &batch->events[*next];
        const uint64_t whole =
            1 + event->hash_count + event->token_count / kvb_mirror_tokens_a_unit;
        if (work > 0 && work + whole > max_work) {
            break;
        }
        uint64_t done = max_work - work;
        KVB_TRY(apply_event_part(step, batch, *next, &done));
        work += 1 + done;
        step->work += 1 + done;
        is_cut = kvb_mirror_is_unfinished(mirror);
        *next += !is_cut;
    }
    return KVB_OK;
}

/* Keeps the rest of the batch for the next steps.  Without memory for a copy, the rest is
 * applied at once. */
static bool keep_rest(
    struct stream_step *step, const struct stream_arrival *arrival, size_t next,
    const struct batch_origin *origin)
{
    struct kvb_stream *stream = step->stream;
    const struct kvb_reorder_buffer *buffer = &stream->reorder_buffer;
    struct unfinished_batch rest = { .is_there = true, .origin = *origin, .next_event = next };

    if (arrival->is_oldest_buffered) {
        kvb_reorder_buffer_take_batch(&stream->reorder_buffer, &rest.batch);
    } else if (
        buffer->bytes + kvb_event_batch_bytes(arrival->batch) > buffer->max_bytes ||
        kvb_event_batch_copy(arrival->batch, &rest.batch) != KVB_OK) {
        return false;
    }
    stream->unfinished = rest;
    return true;
}

[[gnu::hot]] static void finish_batch(struct kvb_stream *stream, const struct batch_origin *done)
{
    const struct stream_arrival arrival = { .seq = done->seq, .fingerprint = done->fingerprint };
    /* A batch that came live before a reconnection proves nothing after it. */
    const bool is_live_here = done->is_live && done->connection == stream->connections;

    if (stream->life.cache == cache_waking && done->is_live) {
        stream->life.cache =
            cache_published; /* awake, and nothing was cleared: the cache was kept */
    }
    if (done->is_live && stream->received_ns >= stream->reset_ns + reset_lasts_ns) {
        stream->life.has_reset = false; /* its clear would have come before this batch, or in it */
    }
    stream->has_last = true;
    stream->last_seq = done->seq;
    if (done->seq == 0) {
        stream->first_number = first_is_zero;
    }
    stream->last_connection = done->connection;
    if (done->is_live) {
        stream->list.is_received_live = true;
        stream->silence = KVB_REASON_NONE;
    }
    stream->list.lists_replayed |= !is_live_here;
    kvb_stream_note_fingerprint(stream, &arrival, is_live_here);
    stream->counters.batches_applied++;
    kvb_stream_want_from_last(stream); /* a replay may have been wanted before the end */
}

void kvb_stream_drop_unfinished(struct kvb_stream *stream)
{
    kvb_event_batch_done(&stream->unfinished.batch);
    stream->unfinished = (struct unfinished_batch){ 0 };
}

kvb_status kvb_stream_go_on(struct stream_step *step)
{
    struct unfinished_batch *rest = &step->stream->unfinished;
    const kvb_status status = apply_event_slice(step, &rest->batch, &rest->next_event);

    if (status == KVB_OK && rest->next_event < rest->batch.event_count) {
        return KVB_OK;
    }
    if (status == KVB_OK) {
        finish_batch(step->stream, &rest->origin);
    }
    kvb_stream_drop_unfinished(step->stream);
    return status;
}

[[gnu::hot]] kvb_status
kvb_stream_apply(struct stream_step *step, const struct stream_arrival *arrival)
{
    struct kvb_stream *stream = step->stream;

    if (!stream->has_last && stream->history != history_whole && kvb_stream_is_base(arrival)) {
        count_as_complete(stream);
    }
    const struct batch_origin origin = { .is_live = step->in->kind != KVB_INPUT_REPLAY,
                                         .seq = arrival->seq,
                                         .fingerprint = arrival->fingerprint,
                                         .connection = stream->connections };
    const size_t events = arrival->batch ? arrival->batch->event_count : 0;
    size_t next = 0;

    step->work++;
    if (!arrival->batch) {
        stream->counters.poison++;
        KVB_TRY(kvb_stream_restart_list(step, KVB_REASON_POISON));
    } else {
        if (arrival->is_oldest_buffered) { /* prefetch again: the cache has lost it since it came */
            kvb_stream_expect(stream, arrival->batch);
        }
        KVB_TRY(apply_event_slice(step, arrival->batch, &next));
    }
    if (next < events && keep_rest(step, arrival, next, &origin)) {
        return KVB_OK;
    }
    while (next < events) {
        KVB_TRY(apply_event_slice(step, arrival->batch, &next));
    }
    finish_batch(stream, &origin);
    return KVB_OK;
}
