#include "core/clock.h"
#include "daemon/bridge_inside.h"
#include "wire/engine_batch.h"

enum { replies_a_turn = 256 };

/* Other engines wait meanwhile, and other replays pile up inside libzmq. */
static const uint64_t replies_turn_ns = 2 * KVB_NS_PER_MS;

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&bridge->metrics, metric, more);
}

static void
step(struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *input)
{
    input->wall_us = bridge->run.wall_us;
    if (kvb_stream_step(rank->stream, input, &rank->output) != KVB_OK) {
        rank->is_announced = false; /* memory is out: what was to be said is lost */
        rank->needs_epoch = true;
    }
    if (rank->output.drops_replay) {
        kvb_source_replay_stop(rank->source);
    }
    rank->is_beat_due |= rank->output.is_changed;
    bridge->is_round_due |=
        rank->output.is_changed || rank->output.drops_replay || input->kind == KVB_INPUT_REPLAY_END;
    if (rank->output.has_more) {
        bridge->next_tick_ns = input->now_ns; /* the next slice in the next turn */
    }
    kvb_bridge_tell_step(bridge, rank, input->now_ns);
}

static void step_kind(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_stream_input_kind kind,
    uint64_t now_ns)
{
    struct kvb_stream_input input = { .kind = kind, .now_ns = now_ns };
    step(bridge, rank, &input);
}

/* ---- In ---- */

/* One look at each clock for a run of messages, not for each of them. */
static void begin_run(struct kvb_bridge *bridge)
{
    bridge->run =
        (struct bridge_run){ .began_ns = kvb_clock_monotonic_ns(), .wall_us = kvb_clock_wall_us() };
}

/* What it brought is published, and counted. */
static void end_run(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_bridge_tell_rest(bridge, rank);
    kvb_bridge_count_run(rank, &bridge->run, kvb_clock_monotonic_ns() - bridge->run.began_ns);
}

static void count_kinds(const struct kvb_event_batch *batch, uint64_t *kinds)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        kinds[batch->events[i].kind]++;
    }
}

static void note_batch(struct bridge_run *run, const struct kvb_stream_input *input)
{
    if (!input->batch) {
        run->unreadable++;
        return;
    }
    run->events += input->batch->event_count;
    if (input->kind == KVB_INPUT_LIVE) {
        count_kinds(input->batch, run->live_events);
        run->has_live = true;
        run->timestamp_s = input->batch->timestamp_s;
    }
}

static void place_unknown_media(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, struct kvb_event_batch *batch)
{
    if (batch->unknown_media > 0) {
        count(bridge, kvb_bridge_unknown_media, batch->unknown_media);
        kvb_event_batch_place_unknown(batch, rank->unknown_medium);
    }
}

/* What the batch is to the stream, decoded into `events`: borrowed, like the payload. */
static struct kvb_stream_input read_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_source_batch *batch,
    struct kvb_event_batch *events)
{
    struct kvb_stream_input input = { .seq = batch->seq,
                                      .fingerprint = kvb_hash128(batch->payload, 0),
                                      .batch = events };

    if (kvb_engine_batch_decode(batch->payload, events) != KVB_OK) {
        count(bridge, kvb_bridge_payloads_refused, 1);
        input.batch = NULL;
        return input;
    }
    if (events->has_rank && events->rank != rank->dp_rank) {
        count(bridge, kvb_bridge_rank_mismatches, 1); /* the connection is right */
    }
    place_unknown_media(bridge, rank, events);
    kvb_stream_expect(rank->stream, events);
    return input;
}

static void step_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_stream_input_kind kind,
    struct kvb_stream_input *input, uint64_t now_ns)
{
    input->kind = kind;
    input->now_ns = now_ns;
    step(bridge, rank, input);
    rank->applied_ns = now_ns;
    note_batch(&bridge->run, input);
}

/* While two engines are connected the stream is as good as without any. */
static void warn_of_crowd(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_crowded)
{
    char worker[24];

    if (is_crowded && !rank->is_crowded) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "several engines are connected to one port: give each a port of its own", "events",
            rank->settings.events, "worker", kvb_log_u64(worker, rank->worker_id), NULL);
    }
    rank->is_crowded = is_crowded;
}

/* The monitor is read after the run of batches that it may contradict. */
static void follow_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const struct kvb_source_link link = kvb_source_read_monitor(rank->source);

    warn_of_crowd(bridge, rank, link.is_crowded);
    if (rank->is_up && (link.was_lost || !link.is_up)) {
        step_kind(bridge, rank, KVB_INPUT_DOWN, now_ns);
        rank->is_up = false;
        rank->down_ns = now_ns;
    }
    if (!rank->is_up && link.is_up) {
        step_kind(bridge, rank, KVB_INPUT_UP, now_ns);
        rank->is_up = true;
        rank->down_ns = 0;
        kvb_log_backoff_end(&rank->renewal_log);
        kvb_bridge_look_again(bridge, rank->origin);
    }
}

/* Of those received, those that are the engine's own, in their order. */
static size_t keep_own(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, struct kvb_source_batch *batches,
    size_t received)
{
    size_t own = 0;

    for (size_t i = 0; i < received; i++) {
        if (kvb_source_is_of_engine(rank->source, &batches[i])) {
            batches[own++] = batches[i];
        }
    }
    count(bridge, kvb_bridge_strangers_refused, received - own);
    return own;
}

/* Each is decoded before the one before it is applied: the memory that it will need is on
 * its way meanwhile. */
static void apply_run(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_source_batch *batches,
    size_t received, uint64_t now_ns)
{
    struct kvb_stream_input inputs[2];

    for (size_t i = 0; i < received + 1; i++) {
        if (i < received) {
            inputs[i % 2] = read_batch(bridge, rank, &batches[i], &bridge->batches[i % 2]);
        }
        if (i > 0) {
            step_batch(bridge, rank, KVB_INPUT_LIVE, &inputs[(i - 1) % 2], now_ns);
        }
    }
}

void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;

    begin_run(bridge);
    const size_t received = kvb_source_receive(rank->source, batches, &refused);

    follow_link(bridge, rank, now_ns);
    count(bridge, kvb_bridge_batches_received, received + refused);
    count(bridge, kvb_bridge_frames_refused, refused);
    kvb_metric_add(&rank->metrics, kvb_rank_error_consume, refused);
    apply_run(bridge, rank, batches, keep_own(bridge, rank, batches, received), now_ns);
    end_run(bridge, rank);
}

/* Returns KVB_AGAIN when no reply is there. */
static kvb_status take_reply(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { .seq = 0 };
    const kvb_status status = kvb_source_replay_receive(rank->source, &kind, &batch);

    if (status == KVB_BAD_INPUT) {
        count(bridge, kvb_bridge_replies_refused, 1);
        kvb_metric_add(&rank->metrics, kvb_rank_error_reply, 1);
        kvb_source_replay_stop(rank->source); /* its END would prove nothing: the deadline tells */
        return KVB_AGAIN;
    }
    KVB_TRY(status);
    if (kind == KVB_REPLY_BATCH) {
        struct kvb_stream_input input = read_batch(bridge, rank, &batch, &bridge->batches[0]);
        step_batch(bridge, rank, KVB_INPUT_REPLAY, &input, now_ns);
        return KVB_OK;
    }
    kvb_source_replay_stop(rank->source);
    count(bridge, kvb_bridge_replays_cut, kind == KVB_REPLY_CUT);
    step_kind(
        bridge, rank, kind == KVB_REPLY_CUT ? KVB_INPUT_REPLAY_CUT : KVB_INPUT_REPLAY_END, now_ns);
    return KVB_OK;
}

void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    begin_run(bridge);
    kvb_source_replay_drain(rank->source);
    for (int i = 0; i < replies_a_turn && take_reply(bridge, rank, now_ns) == KVB_OK; i++) {
        if (kvb_clock_monotonic_ns() >= bridge->run.began_ns + replies_turn_ns) {
            break;
        }
    }
    kvb_source_replay_drain(rank->source);
    end_run(bridge, rank);
}

/* After a protocol error libzmq would never connect again. */
static void renew_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const char *reason = "";
    char worker[24];
    char dp_rank[24];
    const kvb_status status = kvb_source_renew(rank->source, now_ns, &reason);

    if (status == KVB_AGAIN || !kvb_log_backoff_due(&rank->renewal_log, now_ns)) {
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge",
        status == KVB_OK ? "the connection to an engine was given up, and is opened anew"
                         : "the connection to an engine was given up, and cannot be opened",
        "reason", reason, "events", rank->settings.events, "worker",
        kvb_log_u64(worker, rank->worker_id), "dp_rank", kvb_log_u64(dp_rank, rank->dp_rank), NULL);
}

void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    renew_link(bridge, rank, now_ns);
    begin_run(bridge);
    step_kind(bridge, rank, KVB_INPUT_TICK, now_ns);
    end_run(bridge, rank);
}
