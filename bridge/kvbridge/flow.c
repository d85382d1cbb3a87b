#include "core/clock.h"
#include "kvbridge/ingest.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/shown.h"
#include "stream/stream.h"
#include "stream/turn.h"
#include "wire/engine/batch.h"

/* Longest time for one rank's replies in a turn: other engines wait, and libzmq buffers the other
 * replays meanwhile. */
static const uint64_t replies_turn_ns = 2 * KVB_NS_PER_MS;

/* Longest time for slices of unfinished batches in a turn: the sockets wait meanwhile. */
static const uint64_t work_turn_ns = 4 * KVB_NS_PER_MS;

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&bridge->shown->metrics, metric, more);
}

/* ---- The list of ranks with slices left ---- */

static void join_line(struct bridge_ingest *ingest, struct bridge_rank *rank)
{
    if (rank->is_busy) {
        return;
    }
    rank->is_busy = true;
    rank->next_busy = NULL;
    if (ingest->last_busy) {
        ingest->last_busy->next_busy = rank;
    } else {
        ingest->first_busy = rank;
    }
    ingest->last_busy = rank;
}

void kvb_bridge_drop_work(struct bridge_ingest *ingest, struct bridge_rank *rank)
{
    struct bridge_rank *before = NULL;

    if (!rank->is_busy) {
        return;
    }
    for (struct bridge_rank *at = ingest->first_busy; at != rank; at = at->next_busy) {
        before = at;
    }
    if (before) {
        before->next_busy = rank->next_busy;
    } else {
        ingest->first_busy = rank->next_busy;
    }
    if (ingest->last_busy == rank) {
        ingest->last_busy = before;
    }
    rank->is_busy = false;
}

/* ---- Output of a step ---- */

void kvb_bridge_publish_output(void *context, struct kvb_served *served)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_rank_of(served);

    if (served->output.has_more) {
        join_line(bridge->ingest, rank);
    }
    kvb_bridge_publish_step(bridge, rank);
}

void kvb_bridge_stop_replay(void *context, struct kvb_served *served)
{
    (void)context;
    kvb_source_replay_stop(kvb_bridge_rank_of(served)->source);
}

/* ---- Input ---- */

/* Reads the clocks once for a run of messages, not for each message. */
static void begin_run(struct bridge_ingest *ingest)
{
    ingest->run =
        (struct bridge_run){ .began_ns = kvb_clock_monotonic_ns(), .wall_us = kvb_clock_wall_us() };
    ingest->server.wall_us = ingest->run.wall_us;
}

/* Publishes the events of the run, and counts them. */
static void end_run(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    kvb_bridge_flush_events(bridge, rank);
    const uint64_t took_ns = kvb_clock_monotonic_ns() - bridge->ingest->run.began_ns;

    kvb_bridge_count_run(rank, &bridge->ingest->run, took_ns);
    kvb_turn_use(&rank->served.turn, took_ns);
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

/* Converts a received batch to an input of the stream.  The input borrows the payload and `events`,
 * into which the batch is decoded. */
static struct kvb_stream_input read_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_source_batch *batch,
    struct kvb_event_batch *events)
{
    struct kvb_stream_input input = { .seq = batch->seq,
                                      .fingerprint = kvb_hash128(batch->payload, 0),
                                      .batch = events };

    if (kvb_engine_batch_decode_further(batch->payload, rank->habits, events) != KVB_OK) {
        count(bridge, kvb_bridge_payloads_refused, 1);
        input.batch = NULL;
        return input;
    }
    if (events->has_rank && events->rank != rank->dp_rank) {
        count(bridge, kvb_bridge_rank_mismatches, 1); /* the connection's rank is used */
    }
    rank->habits = events->habits;
    place_unknown_media(bridge, rank, events);
    kvb_stream_expect(rank->served.stream, events);
    return input;
}

static void step_batch(
    struct bridge_ingest *ingest, struct bridge_rank *rank, enum kvb_stream_input_kind kind,
    struct kvb_stream_input *input, uint64_t now_ns)
{
    input->kind = kind;
    input->now_ns = now_ns;
    kvb_serve_step(&ingest->server, &rank->served, input);
    rank->applied_ns = now_ns;
    note_batch(&ingest->run, input);
}

/* Logs once that several engines are connected to the rank's port.  Their batches cannot be
 * distinguished, so the stream is DOWN until only one is connected. */
static void warn_of_crowd(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_crowded)
{
    if (is_crowded && !rank->is_crowded) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "several engines are connected to one port: give each a port of its own", "events",
            rank->settings.events, "worker", KVB_LOG_U64(rank->worker_id), NULL);
    }
    rank->is_crowded = is_crowded;
}

struct kvb_connection_update kvb_bridge_read_monitor(void *context, struct kvb_served *served)
{
    struct bridge_rank *rank = kvb_bridge_rank_of(served);
    const struct kvb_source_link link = kvb_source_read_monitor(rank->source);

    warn_of_crowd(context, rank, link.is_crowded);
    return (struct kvb_connection_update){ .was_lost = link.was_lost, .is_up = link.is_up };
}

void kvb_bridge_connection_changed(void *context, struct kvb_served *served, bool is_up)
{
    struct bridge_rank *rank = kvb_bridge_rank_of(served);

    if (is_up) {
        kvb_log_backoff_end(&rank->renewal_log);
        kvb_bridge_rediscover(context, rank->origin);
    }
}

/* Keeps the received batches that come from the rank's engine, in order, and counts the others. */
static void keep_own(struct kvb_bridge *bridge, const struct bridge_rank *rank)
{
    struct bridge_received *received = &bridge->ingest->received;
    size_t own = 0;

    for (size_t i = 0; i < received->count; i++) {
        if (kvb_source_is_of_engine(rank->source, &received->batches[i])) {
            received->batches[own++] = received->batches[i];
        }
    }
    count(bridge, kvb_bridge_strangers_refused, received->count - own);
    received->count = own;
}

size_t kvb_bridge_receive(void *context, struct kvb_served *served)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_rank_of(served);
    uint64_t refused = 0;
    const size_t received =
        kvb_source_receive(rank->source, bridge->ingest->received.batches, &refused);

    bridge->ingest->received.count = received;
    count(bridge, kvb_bridge_batches_received, received + refused);
    count(bridge, kvb_bridge_frames_refused, refused);
    kvb_metric_add(&rank->metrics, kvb_rank_error_consume, refused);
    return received;
}

/* Each batch is decoded before its predecessor is applied: decoding prefetches the memory that
 * applying needs, which arrives meanwhile. */
void kvb_bridge_apply_received(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_rank_of(served);
    const struct bridge_received *received = &bridge->ingest->received;
    struct kvb_stream_input inputs[2];

    keep_own(bridge, rank);
    for (size_t i = 0; i < received->count + 1; i++) {
        if (i < received->count) {
            inputs[i % 2] =
                read_batch(bridge, rank, &received->batches[i], &bridge->ingest->batches[i % 2]);
        }
        if (i > 0) {
            step_batch(bridge->ingest, rank, KVB_INPUT_LIVE, &inputs[(i - 1) % 2], now_ns);
        }
    }
}

void kvb_bridge_pass_over_received(void *context, struct kvb_served *served)
{
    struct kvb_bridge *bridge = context;

    keep_own(bridge, kvb_bridge_rank_of(served));
    count(bridge, kvb_bridge_batches_unread, bridge->ingest->received.count);
}

void kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    begin_run(bridge->ingest);
    kvb_serve_live(&bridge->ingest->server, &rank->served, now_ns);
    end_run(bridge, rank);
}

enum kvb_serve_reply
kvb_bridge_take_reply(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    struct bridge_rank *rank = kvb_bridge_rank_of(served);
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { .seq = 0 };

    if (bridge->ingest->has_reply && kvb_clock_monotonic_ns() >= bridge->ingest->replies_until_ns) {
        return KVB_SERVE_NO_REPLY;
    }
    bridge->ingest->has_reply = true;
    const kvb_status status = kvb_source_replay_receive(rank->source, &kind, &batch);
    if (status == KVB_BAD_INPUT) {
        count(bridge, kvb_bridge_replies_refused, 1);
        kvb_metric_add(&rank->metrics, kvb_rank_error_reply, 1);
        return KVB_SERVE_REFUSED;
    }
    if (status != KVB_OK) {
        return KVB_SERVE_NO_REPLY;
    }
    if (kind != KVB_REPLY_CUT) {
        kvb_stream_note_reply_form(rank->served.stream, batch.has_topic);
    }
    if (kind != KVB_REPLY_BATCH) {
        count(bridge, kvb_bridge_replays_cut, kind == KVB_REPLY_CUT);
        return kind == KVB_REPLY_CUT ? KVB_SERVE_CUT : KVB_SERVE_END;
    }
    struct kvb_stream_input input = read_batch(bridge, rank, &batch, &bridge->ingest->batches[0]);
    step_batch(bridge->ingest, rank, KVB_INPUT_REPLAY, &input, now_ns);
    return KVB_SERVE_BATCH;
}

void kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    begin_run(bridge->ingest);
    kvb_source_replay_drain(rank->source);
    bridge->ingest->replies_until_ns = kvb_clock_monotonic_ns() + replies_turn_ns;
    bridge->ingest->has_reply = false;
    kvb_serve_replies(&bridge->ingest->server, &rank->served, now_ns);
    kvb_source_replay_drain(rank->source);
    end_run(bridge, rank);
}

/* Sets the reason in /state why the engine's host name cannot be resolved, or why the bridge cannot
 * connect or listen; why "" removes it. */
static void show_link_trouble(struct bridge_rank *rank, const char *why)
{
    struct rank_trouble *trouble = &rank->trouble;

    if (!trouble->is_unreachable && (why[0] != '\0' || trouble->why.text[0] != '\0')) {
        kvb_detail_set(&trouble->why, "%s", why);
    }
}

static const char *say_renewal(kvb_status status)
{
    switch (status) {
    case KVB_OK:
        return "libzmq gave up the connection to an engine; connecting again";
    case KVB_BAD_INPUT:
        return "an engine's address is not allowed; trying again";
    case KVB_NOT_FOUND:
        return "an engine's host name cannot be resolved; trying again";
    default:
        return "libzmq gave up the connection to an engine, and connecting again failed";
    }
}

/* Opens the first connection when its host name is resolved, and opens it again when libzmq does
 * not, as after a protocol error. */
static void renew_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const char *reason = "";
    const kvb_status status = kvb_source_renew(rank->source, now_ns, &reason);

    if (status == KVB_BAD_INPUT) {
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_addresses_refused, 1);
    }
    show_link_trouble(rank, status == KVB_OK ? "" : reason);
    if (status == KVB_AGAIN || !kvb_log_backoff_due(&rank->renewal_log, now_ns)) {
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", say_renewal(status), "reason", reason, "events",
        rank->settings.events, "worker", KVB_LOG_U64(rank->worker_id), "dp_rank",
        KVB_LOG_U64(rank->dp_rank), NULL);
}

static void say_quarantine(
    struct kvb_bridge *bridge, const struct bridge_rank *rank, enum kvb_turn_verdict verdict)
{
    const bool begins = verdict == KVB_TURN_QUARANTINE;

    kvb_log_write(
        bridge->log, begins ? KVB_LOG_WARNING : KVB_LOG_INFO, "bridge",
        begins ? "an engine uses more than its share of the thread: its stream is quarantined"
               : "the quarantine of a stream is over: a replay fetches what it missed",
        "wait_ms", KVB_LOG_U64(rank->served.turn.back_off_ns / KVB_NS_PER_MS), "worker",
        KVB_LOG_U64(rank->worker_id), "dp_rank", KVB_LOG_U64(rank->dp_rank), "events",
        rank->settings.events, NULL);
}

void kvb_bridge_share_changed(
    void *context, struct kvb_served *served, enum kvb_turn_verdict verdict)
{
    count(context, kvb_bridge_quarantines, verdict == KVB_TURN_QUARANTINE);
    say_quarantine(context, kvb_bridge_rank_of(served), verdict);
}

void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const uint64_t others = bridge->ingest->server.live_runs - rank->served.live_runs;

    renew_link(bridge, rank, now_ns);
    begin_run(bridge->ingest);
    kvb_serve_share(&bridge->ingest->server, &rank->served, others, now_ns, now_ns);
    kvb_serve_tick(&bridge->ingest->server, &rank->served, now_ns);
    end_run(bridge, rank);
}

/* Applies slices of unfinished batches, one rank after the other (round robin), until the time is
 * over.  True: some are left. */
bool kvb_bridge_work_slices(void *context, uint64_t now_ns)
{
    struct kvb_bridge *bridge = context;
    const uint64_t began_ns =
        kvb_clock_monotonic_ns(); /* now_ns was read before the sockets were served */

    for (now_ns = began_ns; bridge->ingest->first_busy && now_ns < began_ns + work_turn_ns;
         now_ns = kvb_clock_monotonic_ns()) {
        struct bridge_rank *rank = bridge->ingest->first_busy;
        kvb_bridge_drop_work(bridge->ingest, rank);
        begin_run(bridge->ingest);
        kvb_serve_kind(&bridge->ingest->server, &rank->served, KVB_INPUT_TICK, now_ns);
        end_run(bridge, rank);
    }
    return bridge->ingest->first_busy != NULL;
}
