#include "sim.h"

/* stream/advertiser.h with a simulated NATS. Chunks are small, so that faults can occur between two
 * of them. */

enum { chunk_blocks = 16 };

void sim_advertise_begin(const struct sim_world *world, struct sim_rank *rank)
{
    const struct kvb_advertiser_options options = {
        .publishes_json = kvb_formats_have(world->formats, KVB_FORMAT_JSON),
        .reannounce = world->reannounce,
        .down_clear_ns = world->down_clear_ms * KVB_NS_PER_MS,
        .heartbeat_ns = KVB_NS_PER_S,
        .max_chunk_blocks = chunk_blocks
    };

    kvb_advertiser_init(&rank->served.advertiser, &options, rank->served.stream);
}

/* ---- Publishing ---- */

struct rank_port {
    struct sim_world *world;
    struct sim_rank *rank;
};

static kvb_status publish(void *context, const struct kvb_router_batch *events)
{
    const struct rank_port *to = context;
    const unsigned stream = to->rank->stream_number;

    sim_telling_epoch(to->world, to->rank, &events->epoch);
    if (!to->world->bridges[sim_bridge_of(to->world, stream)].nats.is_connected) {
        return KVB_IO;
    }
    sim_publish(to->world, stream, SIM_EVENTS, NULL, events);
    return KVB_OK;
}

/* The first chunk of an announcement opens an epoch. */
static void note_epoch(const struct rank_port *to, const struct kvb_router_batch *chunk)
{
    struct sim_rank *rank = to->rank;

    if (!sim_story_is_of(&rank->story, &chunk->epoch)) {
        sim_story_open(&rank->story, &chunk->epoch, chunk->events[0].event_id);
        sim_note(
            to->world, "stream %u is announced%s", rank->stream_number,
            kvb_stream_is_withdrawn(rank->served.stream) ? " as away" : "");
    }
}

/* The events of a step are recorded with the step: sim_check_rank(). */
static kvb_status publish_chunk(void *context, const struct kvb_router_batch *chunk)
{
    const struct rank_port *to = context;

    note_epoch(to, chunk);
    sim_story_take(&to->rank->story, chunk);
    return publish(context, chunk);
}

static kvb_status flush(void *context)
{
    (void)context; /* messages are sent at once */
    return KVB_OK;
}

static void note_siblings(struct sim_world *world, const struct sim_rank *rank)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        struct sim_rank *sibling = &world->ranks[i];
        if (sibling != rank &&
            sim_worker_of(world, i) == sim_worker_of(world, rank->stream_number)) {
            kvb_advertiser_sibling_cleared(&sibling->served.advertiser);
            kvb_serve_wake(&world->bridges[sim_bridge_of(world, i)].server, &sibling->served);
        }
    }
}

void sim_publish_step(struct sim_world *world, struct sim_rank *rank)
{
    struct rank_port to = { .world = world, .rank = rank };
    const struct kvb_advertiser_port port = { .publish = publish, .flush = flush, .context = &to };

    if (kvb_advertiser_step(&rank->served.advertiser, &rank->served.output.events, &port)) {
        note_siblings(world, rank);
    }
}

static void
advertise(struct sim_world *world, struct sim_rank *rank, enum kvb_advertiser_action action)
{
    struct rank_port to = { .world = world, .rank = rank };
    const struct kvb_advertiser_port port = { .publish = publish_chunk,
                                              .flush = flush,
                                              .context = &to };

    if (action == KVB_ADVERTISER_REPUBLISH) {
        sim_void_checkpoint(world, rank);
    }
    if (kvb_advertiser_do(
            &rank->served.advertiser, action, &port, world->now_ns,
            sim_wall_us(world, rank->stream_number))) {
        note_siblings(world, rank);
    }
}

void sim_advertise_stream(struct sim_world *world, struct sim_rank *rank)
{
    const struct kvb_advertiser_input input = {
        .now_ns = world->now_ns,
        .down_ns = kvb_connection_away_ns(&rank->served.connection),
        .is_proven = kvb_checkpoint_is_proven(&rank->checkpoint, rank->served.stream)
    };

    advertise(world, rank, kvb_advertiser_next(&rank->served.advertiser, &input));
}

void sim_beat(struct sim_world *world, struct sim_rank *rank, bool is_bye)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->served.stream, &beat);
    beat.is_bye = is_bye;
    sim_telling_epoch(world, rank, &beat.epoch);
    sim_note(
        world, "stream %u says %s %s at %lu", rank->stream_number,
        kvb_stream_state_name(beat.state), kvb_stream_reason_name(beat.reason), beat.last_id);
    sim_check_beat(world, rank, &beat);
    sim_publish(world, rank->stream_number, SIM_BEAT, &beat, NULL);
    kvb_advertiser_beat_sent(&rank->served.advertiser);
}

void sim_say_goodbye(struct sim_world *world, struct sim_rank *rank)
{
    advertise(world, rank, kvb_advertiser_last(&rank->served.advertiser));
    sim_beat(world, rank, true);
}
