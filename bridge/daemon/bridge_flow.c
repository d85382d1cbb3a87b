#include "core/clock.h"
#include "daemon/bridge_inside.h"
#include "wire/engine_batch.h"

static const uint64_t announce_again_ns = 500 * KVB_NS_PER_MS;

enum { announce_chunk_blocks = 4096, replies_a_turn = 256 };

static void count(struct kvb_bridge *bridge, enum kvb_bridge_metric metric, uint64_t more)
{
    kvb_metric_add(&bridge->metrics, metric, more);
}

/* ---- Out ---- */

static kvb_status publish_chunk(void *context, const struct kvb_router_batch *chunk)
{
    struct kvb_bridge *bridge = context;
    return kvb_event_publisher_publish(&bridge->events, chunk);
}

void kvb_bridge_announce(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const kvb_status status = kvb_stream_announce(
        rank->stream, kvb_clock_wall_us(), announce_chunk_blocks, publish_chunk, bridge);

    count(bridge, kvb_bridge_announcements, 1);
    rank->is_announced = status == KVB_OK;
    rank->announce_ns = now_ns + announce_again_ns;
    rank->is_beat_due = true;
}

/* What is not published now is made up for by the announcement to come. */
static void publish_events(struct kvb_bridge *bridge, struct bridge_rank *rank)
{
    if (!rank->is_announced || rank->output.events.event_count == 0) {
        return;
    }
    if (kvb_event_publisher_publish(&bridge->events, &rank->output.events) != KVB_OK) {
        rank->is_announced = false;
    }
}

static void
step(struct kvb_bridge *bridge, struct bridge_rank *rank, struct kvb_stream_input *input)
{
    input->wall_us = kvb_clock_wall_us();
    if (kvb_stream_step(rank->stream, input, &rank->output) != KVB_OK) {
        rank->is_announced = false; /* memory is out: what was to be said is lost */
    }
    if (rank->output.drops_replay) {
        kvb_source_replay_stop(rank->source);
    }
    rank->is_beat_due |= rank->output.is_changed;
    publish_events(bridge, rank);
}

static void step_kind(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_stream_input_kind kind,
    uint64_t now_ns)
{
    struct kvb_stream_input input = { .kind = kind, .now_ns = now_ns };
    step(bridge, rank, &input);
}

/* ---- In ---- */

static void step_batch(
    struct kvb_bridge *bridge, struct bridge_rank *rank, enum kvb_stream_input_kind kind,
    const struct kvb_source_batch *batch, uint64_t now_ns)
{
    struct kvb_stream_input input = { .kind = kind,
                                      .now_ns = now_ns,
                                      .seq = batch->seq,
                                      .fingerprint = kvb_hash128(batch->payload, 0),
                                      .batch = &bridge->batch };

    if (kvb_engine_batch_decode(batch->payload, &bridge->batch) != KVB_OK) {
        count(bridge, kvb_bridge_payloads_refused, 1);
        input.batch = NULL;
    } else if (bridge->batch.has_rank && bridge->batch.rank != rank->dp_rank) {
        count(bridge, kvb_bridge_rank_mismatches, 1); /* the connection is right */
    }
    step(bridge, rank, &input);
    rank->applied_ns = now_ns;
}

/* The monitor is read after the run of batches that it may contradict. */
static void follow_link(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    const struct kvb_source_link link = kvb_source_read_monitor(rank->source);

    if (rank->is_up && (link.was_lost || !link.is_up)) {
        step_kind(bridge, rank, KVB_INPUT_DOWN, now_ns);
        rank->is_up = false;
    }
    if (!rank->is_up && link.is_up) {
        step_kind(bridge, rank, KVB_INPUT_UP, now_ns);
        rank->is_up = true;
    }
}

bool kvb_bridge_take_live(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    struct kvb_source_batch batches[kvb_source_run];
    uint64_t refused = 0;
    const size_t received = kvb_source_receive(rank->source, batches, &refused);

    follow_link(bridge, rank, now_ns);
    count(bridge, kvb_bridge_batches_received, received + refused);
    count(bridge, kvb_bridge_frames_refused, refused);
    for (size_t i = 0; i < received; i++) {
        step_batch(bridge, rank, KVB_INPUT_LIVE, &batches[i], now_ns);
    }
    return received + refused == kvb_source_run;
}

/* Returns KVB_AGAIN when no reply is there. */
static kvb_status take_reply(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    enum kvb_source_reply kind = KVB_REPLY_END;
    struct kvb_source_batch batch = { .seq = 0 };
    const kvb_status status = kvb_source_replay_receive(rank->source, &kind, &batch);

    if (status == KVB_BAD_INPUT) {
        count(bridge, kvb_bridge_replies_refused, 1);
        kvb_source_replay_stop(rank->source); /* its END would prove nothing: the deadline tells */
        return KVB_AGAIN;
    }
    KVB_TRY(status);
    if (kind == KVB_REPLY_BATCH) {
        step_batch(bridge, rank, KVB_INPUT_REPLAY, &batch, now_ns);
        return KVB_OK;
    }
    kvb_source_replay_stop(rank->source);
    step_kind(bridge, rank, KVB_INPUT_REPLAY_END, now_ns);
    return KVB_OK;
}

bool kvb_bridge_take_replies(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    for (int i = 0; i < replies_a_turn; i++) {
        if (take_reply(bridge, rank, now_ns) != KVB_OK) {
            return false;
        }
    }
    return true;
}

void kvb_bridge_tick_rank(struct kvb_bridge *bridge, struct bridge_rank *rank, uint64_t now_ns)
{
    step_kind(bridge, rank, KVB_INPUT_TICK, now_ns);
}

/* ---- Load ---- */

static struct bridge_rank *rank_of_sample(
    struct kvb_bridge *bridge, const struct bridge_load *load, const struct kvb_load_sample *sample)
{
    for (size_t i = 0; i < load->rank_count; i++) {
        struct bridge_rank *rank = &bridge->ranks[load->first_rank + i];
        if (!sample->has_rank || rank->dp_rank == sample->dp_rank) {
            return rank; /* a sample without a rank speaks for the first */
        }
    }
    return NULL;
}

static void keep_sample(
    struct kvb_bridge *bridge, const struct bridge_load *load, const struct kvb_load_sample *sample,
    uint64_t now_ns)
{
    struct bridge_rank *rank = rank_of_sample(bridge, load, sample);

    if (!rank) {
        count(bridge, kvb_bridge_load_refused, 1); /* a rank that is not configured */
        return;
    }
    count(bridge, kvb_bridge_load_samples, 1);
    rank->load = sample->load;
    if (rank->load.request_total_slots == 0) {
        rank->load.request_total_slots = rank->total_slots;
    }
    rank->has_load = true;
    rank->load_ns = now_ns;
}

void kvb_bridge_take_loads(struct kvb_bridge *bridge, struct bridge_load *load, uint64_t now_ns)
{
    struct kvb_load_sample sample;

    for (int i = 0; i < kvb_source_run; i++) {
        const kvb_status status = kvb_load_source_receive(load->source, &sample);
        if (status == KVB_BAD_INPUT) {
            count(bridge, kvb_bridge_load_refused, 1);
        } else if (status == KVB_OK) {
            keep_sample(bridge, load, &sample, now_ns);
        } else {
            return;
        }
    }
}
