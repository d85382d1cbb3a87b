#include "sim.h"

#include <string.h>

/* What routers are told, and when all of it anew: daemon/bridge_tell.c, the heartbeats of
 * bridge_report.c and the answers of sync_desk.c.  Whoever changes those changes this. */

enum { chunk_blocks = 16, busy_ms = 200 };

static const uint64_t announce_again_ns = 500 * KVB_NS_PER_MS;

static struct sim_bridge *bridge_of(struct sim_world *world, const struct sim_rank *rank)
{
    return &world->bridges[sim_bridge_of(world, rank->stream_number)];
}

static bool is_announcing_never(const struct sim_world *world)
{
    return world->reannounce == KVB_REANNOUNCE_NEVER ||
           (world->reannounce == KVB_REANNOUNCE_AUTO && world->profile == KVB_PROFILE_PROTOBUF);
}

static bool has_cleared(const struct kvb_router_batch *events)
{
    for (size_t i = 0; i < events->event_count; i++) {
        if (events->events[i].kind == KVB_ROUTER_CLEARED) {
            return true;
        }
    }
    return false;
}

static void retell_siblings(struct sim_world *world, const struct sim_rank *rank)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        struct sim_rank *sibling = &world->ranks[i];
        if (sibling != rank && sibling->is_announced &&
            sim_worker_of(world, i) == sim_worker_of(world, rank->stream_number)) {
            sibling->is_retelling_due = world->profile == KVB_PROFILE_JSON;
        }
    }
}

static kvb_status
publish(struct sim_world *world, struct sim_rank *rank, const struct kvb_router_batch *events)
{
    sim_telling_epoch(world, rank, &events->epoch);
    if (rank->told) {
        KVB_TRY(kvb_told_note(rank->told, events, world->now_ns));
    }
    if (!bridge_of(world, rank)->nats.is_connected) {
        return KVB_IO;
    }
    sim_publish(world, rank->stream_number, SIM_EVENTS, NULL, events);
    return KVB_OK;
}

void sim_tell_step(struct sim_world *world, struct sim_rank *rank)
{
    const struct kvb_router_batch *events = &rank->output.events;

    if (!rank->is_announced || rank->is_withdrawn || events->event_count == 0) {
        if (rank->told) {
            (void)kvb_told_note(rank->told, events, world->now_ns); /* memory is not tested */
        }
        return;
    }
    const bool is_cleared = has_cleared(events);
    if (is_cleared && rank->told) {
        rank->is_announced = false;
        rank->needs_epoch = true;
        rank->announce_ns = world->now_ns;
        return;
    }
    if (publish(world, rank, events) != KVB_OK) {
        rank->is_announced = false;
    } else if (is_cleared) {
        retell_siblings(world, rank);
    }
}

/* ---- Telling all ---- */

struct telling {
    struct sim_world *world;
    struct sim_rank *rank;
};

static kvb_status publish_chunk(void *context, const struct kvb_router_batch *chunk)
{
    const struct telling *telling = context;

    sim_story_tell(&telling->rank->story, chunk);
    return publish(telling->world, telling->rank, chunk);
}

static kvb_status tell_all(struct sim_world *world, struct sim_rank *rank, enum kvb_opening opening)
{
    struct telling context = { .world = world, .rank = rank };
    const struct kvb_stream_telling telling = { .opening = opening,
                                                .told = rank->told,
                                                .max_chunk_blocks = chunk_blocks,
                                                .visit = publish_chunk,
                                                .context = &context };
    return kvb_stream_tell(rank->stream, &telling);
}

static void beat_opening(struct sim_world *world, struct sim_rank *rank)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    beat.state = KVB_STREAM_SYNCING;
    beat.reason = KVB_REASON_REPLAYING;
    memset(beat.tiers, 0, sizeof beat.tiers);
    sim_telling_epoch(world, rank, &beat.epoch);
    sim_publish(world, rank->stream_number, SIM_BEAT, &beat, NULL);
}

static void announce(struct sim_world *world, struct sim_rank *rank, bool is_withdrawn)
{
    struct kvb_heartbeat beat;

    kvb_stream_open_epoch(rank->stream, sim_wall_us(world, rank->stream_number), is_withdrawn);
    kvb_stream_heartbeat(rank->stream, &beat);
    sim_story_open(&rank->story, &beat.epoch, beat.epoch_first_id);
    sim_note(
        world, "stream %u is announced%s", rank->stream_number, is_withdrawn ? " as away" : "");
    if (rank->told) {
        beat_opening(world, rank);
    }
    const kvb_status status =
        tell_all(world, rank, rank->told ? KVB_OPENING_REMOVED : KVB_OPENING_CLEARED);
    rank->is_announced = status == KVB_OK;
    rank->needs_epoch = status != KVB_OK;
    rank->is_withdrawn = is_withdrawn;
    rank->is_retelling_due = false;
    rank->is_beat_due = true;
    rank->announce_ns = world->now_ns + announce_again_ns;
    retell_siblings(world, rank);
}

static void tell_stream(struct sim_world *world, struct sim_rank *rank)
{
    const uint64_t limit_ns = world->down_clear_ms * KVB_NS_PER_MS;
    const bool is_away =
        limit_ns > 0 && rank->down_ns > 0 && world->now_ns - rank->down_ns >= limit_ns;

    if (!rank->is_announced && !rank->needs_epoch && is_announcing_never(world)) {
        rank->is_announced = true;
        rank->is_beat_due = true;
    }
    if (!rank->is_announced && !sim_is_proven(rank) && !is_away) {
        return;
    }
    if (!rank->is_announced || rank->is_withdrawn != is_away) {
        if (world->now_ns >= rank->announce_ns) {
            announce(world, rank, is_away);
        }
    } else if (rank->is_retelling_due) {
        rank->is_retelling_due = false;
        sim_void_checkpoint(world, rank);
        rank->is_announced = tell_all(world, rank, KVB_OPENING_NONE) == KVB_OK;
    } else if (rank->told && !sim_is_saving(world, rank)) {
        kvb_told_forget(rank->told, world->now_ns);
    }
}

void sim_tell_streams(struct sim_world *world, size_t bridge)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        if (sim_bridge_of(world, i) == bridge) {
            tell_stream(world, &world->ranks[i]);
        }
    }
}

void sim_lose_touch(struct sim_world *world, size_t bridge, uint64_t from_ns)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        struct sim_rank *rank = &world->ranks[i];
        if (sim_bridge_of(world, i) == bridge) {
            rank->is_announced = false;
            rank->announce_ns = from_ns > rank->announce_ns ? from_ns : rank->announce_ns;
        }
    }
}

void sim_beat(struct sim_world *world, struct sim_rank *rank, bool is_bye)
{
    struct kvb_heartbeat beat;

    kvb_stream_heartbeat(rank->stream, &beat);
    beat.is_bye = is_bye;
    sim_telling_epoch(world, rank, &beat.epoch);
    sim_note(
        world, "stream %u says %s %s at %lu", rank->stream_number,
        kvb_stream_state_name(beat.state), kvb_stream_reason_name(beat.reason), beat.last_id);
    sim_check_beat(world, rank, &beat);
    sim_publish(world, rank->stream_number, SIM_BEAT, &beat, NULL);
    rank->is_beat_due = false;
    rank->is_beat_wanted = false;
}

void sim_tell_goodbye(struct sim_world *world, struct sim_rank *rank)
{
    if (world->profile == KVB_PROFILE_JSON && !rank->needs_epoch) {
        announce(world, rank, true);
    }
    sim_beat(world, rank, true);
}

/* ---- Answering what readers ask ---- */

void sim_bridge_hear_ask(struct sim_world *world, size_t number, const struct sim_message *ask)
{
    struct sim_bridge *bridge = &world->bridges[number];
    struct sim_job job = { .is_used = true,
                           .aggregator = ask->to_aggregator,
                           .aggregator_life = ask->aggregator_life,
                           .stream_number = ask->stream_number,
                           .token = ask->token };

    if (sim_active(world, SIM_BUSY, (unsigned)number)) {
        const struct kvb_sync_reply reply = { .answer = KVB_SYNC_BUSY,
                                              .worker_id = sim_worker_of(world, job.stream_number),
                                              .dp_rank = sim_rank_of(world, job.stream_number),
                                              .is_last = true,
                                              .retry_ms = busy_ms };
        sim_answer(world, &job, &reply);
        return;
    }
    for (size_t i = 0; i < sim_jobs; i++) {
        if (!bridge->jobs[i].is_used) {
            kvb_sync_job_begin(&job.job, world->ranks[job.stream_number].stream, &ask->request);
            bridge->jobs[i] = job;
            return;
        }
    }
}

void sim_work_jobs(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];
    struct sim_job *job = &bridge->jobs[kvb_random_below(&bridge->dice, sim_jobs)];
    struct kvb_sync_reply reply = { .is_last = true };

    if (!job->is_used) {
        return;
    }
    if (kvb_sync_job_step(
            &job->job, world->ranks[job->stream_number].stream, chunk_blocks, &bridge->chunk,
            &reply) != KVB_OK ||
        !bridge->nats.is_connected) {
        job->is_used = false;
        return;
    }
    sim_answer(world, job, &reply);
    job->is_used = !reply.is_last;
    world->ranks[job->stream_number].is_beat_wanted |= reply.is_last;
}
