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

kvb_status sim_publish_events(
    struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *events)
{
    sim_telling_epoch(world, rank, &events->epoch);
    if (!world->bridges[sim_bridge_of(world, rank->stream_number)].nats.is_connected) {
        return KVB_IO;
    }
    sim_publish(world, rank->stream_number, SIM_EVENTS, NULL, events);
    return KVB_OK;
}

/* The first chunk of an announcement opens an epoch. */
static void
note_epoch(struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *chunk)
{
    if (!sim_story_is_of(&rank->story, &chunk->epoch)) {
        sim_story_open(&rank->story, &chunk->epoch, chunk->events[0].event_id);
        sim_note(
            world, "stream %u is announced%s", rank->stream_number,
            kvb_stream_is_withdrawn(rank->served.stream) ? " as away" : "");
    }
}

/* The events of a step are recorded with the step: sim_check_rank(). */
kvb_status sim_publish_chunk(
    struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *chunk)
{
    note_epoch(world, rank, chunk);
    sim_story_take(&rank->story, chunk);
    return sim_publish_events(world, rank, chunk);
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
}
