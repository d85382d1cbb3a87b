#include "core/clock.h"
#include "kvbridge/checkpoints.h"
#include "kvbridge/ingest.h"
#include "kvbridge/parts.h"
#include "kvbridge/publisher.h"
#include "kvbridge/shown.h"
#include "stream/stream.h"
#include "wire/engine/batch.h"

/* One rank's sockets: what is read there, for a run of the thread (stream/serve.h). */

/* Longest time for one rank's replies in a turn: other engines wait, and libzmq buffers the other
 * replays meanwhile. */
static const uint64_t replies_turn_ns = 2 * KVB_NS_PER_MS;

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&bridge->shown->metrics, metric, more);
}

/* ---- A run ---- */

void kvb_bridge_begin_run(struct bridge_ingest *ingest)
{
    ingest->run =
        (struct bridge_run){ .began_ns = kvb_clock_monotonic_ns(), .wall_us = kvb_clock_wall_us() };
    ingest->server.clock_ns = ingest->run.began_ns;
    ingest->server.wall_us = ingest->run.wall_us;
    /* A run without live batches must not find those of the one before. */
    ingest->received.count = 0;
}

void kvb_bridge_end_run(
    struct bridge_ingest *ingest, struct bridge_rank *rank, uint64_t *out_took_ns)
{
    struct bridge_run *run = &ingest->run;

    if (run->replies_until_ns > 0) {
        kvb_source_replay_drain(rank->source); /* those that came meanwhile */
    }
    ingest->server.clock_ns = kvb_clock_monotonic_ns();
    *out_took_ns = ingest->server.clock_ns - run->began_ns;
    kvb_bridge_count_run(rank, run, *out_took_ns);
}

static void note_batch(struct bridge_run *run, const struct kvb_event_batch *batch, bool is_live)
{
    if (!batch) {
        run->unreadable++;
        return;
    }
    run->events += batch->event_count;
    if (is_live) {
        for (size_t i = 0; i < batch->event_count; i++) {
            run->live_events[batch->events[i].kind]++;
        }
        run->has_live = true;
        run->timestamp_s = batch->timestamp_s;
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
        /* The stream needs its number all the same: an unreadable batch is a gap that it knows
         * of. */
        input.batch = NULL;
        return input;
    }
    if (events->has_rank && events->rank != rank->dp_rank) {
        count(bridge, kvb_bridge_rank_mismatches, 1); /* the connection's rank is used */
    }
    rank->habits = events->habits;
    if (events->unknown_media > 0) {
        count(bridge, kvb_bridge_unknown_media, events->unknown_media);
        kvb_event_batch_place_unknown(events, rank->unknown_medium);
    }
    /* Prefetches only: the batches before it are not applied yet, and may change what it means. */
    kvb_stream_expect(rank->served.stream, events);
    return input;
}

/* ---- Live ---- */

size_t kvb_bridge_receive(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    struct bridge_received *received = &bridge->ingest->received;
    uint64_t refused = 0;

    received->count = kvb_source_receive(rank->source, received->batches, &refused);
    received->next = 0;
    count(bridge, kvb_bridge_batches_received, received->count + refused);
    count(bridge, kvb_bridge_frames_refused, refused);
    kvb_metric_add(&rank->metrics, kvb_rank_error_consume, refused);
    return received->count;
}

/* Logs once that several engines are connected to the rank's port.  Their batches cannot be
 * distinguished, so the stream is DOWN until only one is connected. */
static void warn_of_crowd(struct kvb_bridge *bridge, struct bridge_rank *rank, bool is_crowded)
{
    if (is_crowded && !rank->is_crowded) {
        kvb_log_write(
            bridge->log, KVB_LOG_WARNING, "bridge",
            "several engines are connected to one port: give each a port of its own", "events",
            rank->part->events, "worker", KVB_LOG_U64(rank->worker_id), NULL);
    }
    rank->is_crowded = is_crowded;
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

struct kvb_link_report kvb_bridge_read_monitor(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    const struct kvb_source_link link = kvb_source_read_monitor(rank->source);

    warn_of_crowd(bridge, rank, link.is_crowded);
    keep_own(bridge, rank);
    return (struct kvb_link_report){ .was_lost = link.was_lost, .is_up = link.is_up };
}

bool kvb_bridge_next_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *out_input)
{
    struct bridge_ingest *ingest = bridge->ingest;
    struct bridge_received *received = &ingest->received;
    const size_t at = received->next;

    if (at == received->count) {
        return false;
    }
    /* Each batch is decoded before its predecessor is applied: decoding prefetches the memory that
     * applying needs, which arrives meanwhile.  The first call of a run decodes two. */
    for (size_t ahead = at == 0 ? 0 : at + 1; ahead <= at + 1 && ahead < received->count; ahead++) {
        received->inputs[ahead % 2] =
            read_batch(bridge, rank, &received->batches[ahead], &ingest->batches[ahead % 2]);
    }
    received->next++;
    *out_input = received->inputs[at % 2];
    note_batch(&ingest->run, out_input->batch, true);
    rank->applied_ns = ingest->server.now_ns;
    return true;
}

/* ---- Replies ---- */

enum kvb_serve_reply kvb_bridge_next_reply(
    struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *out_input)
{
    struct bridge_ingest *ingest = bridge->ingest;
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { .seq = 0 };

    /* Replies are moved out of libzmq at the first one that a run reads, and at its end. */
    if (ingest->run.replies_until_ns == 0) {
        kvb_source_replay_drain(rank->source);
        ingest->run.replies_until_ns = kvb_clock_monotonic_ns() + replies_turn_ns;
    } else if (kvb_clock_monotonic_ns() >= ingest->run.replies_until_ns) {
        return KVB_SERVE_NO_REPLY; /* the next turn takes the others */
    }
    const kvb_status status = kvb_source_replay_receive(rank->source, &kind, &batch);
    if (status == KVB_BAD_INPUT) {
        count(bridge, kvb_bridge_replies_refused, 1);
        kvb_metric_add(&rank->metrics, kvb_rank_error_reply, 1);
        return KVB_SERVE_REFUSED;
    }
    if (status != KVB_OK) {
        return KVB_SERVE_NO_REPLY;
    }
    /* A cut is the bridge's own, and shows nothing of how the engine writes replies. */
    if (kind != KVB_REPLY_CUT) {
        kvb_stream_note_reply_form(rank->served.stream, batch.has_topic);
    }
    if (kind != KVB_REPLY_BATCH) {
        count(bridge, kvb_bridge_replays_cut, kind == KVB_REPLY_CUT);
        return kind == KVB_REPLY_CUT ? KVB_SERVE_CUT : KVB_SERVE_END;
    }
    *out_input = read_batch(bridge, rank, &batch, &ingest->batches[0]);
    note_batch(&ingest->run, out_input->batch, false);
    rank->applied_ns = ingest->server.now_ns;
    return KVB_SERVE_BATCH;
}

/* ---- Publishing ---- */

kvb_status kvb_bridge_publish_events(
    struct kvb_bridge *bridge, struct bridge_rank *rank, const struct kvb_router_batch *events)
{
    /* Before the first of them leaves: a checkpoint of another epoch must not survive it. */
    kvb_bridge_telling_epoch(bridge, rank, &events->epoch);
    return kvb_event_publisher_add(
        &bridge->publisher->events, events, kvb_stream_log(rank->served.stream));
}

/* ---- The connection ---- */

/* Sets the reason in /state why the engine's host name cannot be resolved, or why the bridge cannot
 * connect or listen; why "" removes it. */
static void show_link_trouble(struct bridge_rank *rank, const char *why)
{
    struct rank_trouble *trouble = &rank->trouble;

    /* What is known of an unreachable engine says more, and stays. */
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
void kvb_bridge_tend_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const char *reason = "";
    const kvb_status status = kvb_source_renew(rank->source, now_ns, &reason);

    if (status == KVB_BAD_INPUT) {
        kvb_metric_add(&bridge->shown->metrics, kvb_bridge_addresses_refused, 1);
    }
    show_link_trouble(rank, status == KVB_OK ? "" : reason);
    /* Renewals repeat for as long as the engine is away; the log tells of fewer and fewer of
     * them. */
    if (status == KVB_AGAIN || !kvb_log_backoff_due(&rank->renewal_log, now_ns)) {
        return;
    }
    kvb_log_write(
        bridge->log, KVB_LOG_WARNING, "bridge", say_renewal(status), "reason", reason, "events",
        rank->part->events, "worker", KVB_LOG_U64(rank->worker_id), "dp_rank",
        KVB_LOG_U64(rank->dp_rank), NULL);
}
