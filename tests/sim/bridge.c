#include "sim.h"

#include "core/own.h"

#include <stdlib.h>
#include <string.h>

/* The ingest thread of one bridge: daemon/bridge_loop.c and bridge_flow.c, without the
 * sockets.  Whoever changes those changes this. */

enum { most_replays_at_once = 8, run = 64, replies_a_turn = 256, sync_chunks_a_turn = 4 };

static const uint64_t tick_ns = 50 * KVB_NS_PER_MS;
static const uint64_t beat_ns = KVB_NS_PER_S;
static const uint64_t wanted_beat_ns = 200 * KVB_NS_PER_MS;
static const uint64_t after_connect_ns = 1200 * KVB_NS_PER_MS;
static const uint64_t listen_ns = 1500 * KVB_NS_PER_MS; /* the profile guard's */

uint64_t sim_wall_us(const struct sim_world *world, size_t stream)
{
    return world->now_ns / 1000 + world->bridges[sim_bridge_of(world, stream)].wall_us;
}

static bool is_of(const struct sim_world *world, size_t stream, size_t bridge)
{
    return sim_bridge_of(world, stream) == bridge;
}

/* ---- Life and death ---- */

static void open_stream(struct sim_world *world, size_t number)
{
    struct sim_rank *rank = &world->ranks[number];
    struct sim_bridge *bridge = &world->bridges[sim_bridge_of(world, number)];
    struct kvb_stream_options options = {
        .worker_id = sim_worker_of(world, number),
        .dp_rank = sim_rank_of(world, number),
        .block_size = 4,
        .total_blocks = world->knows_total ? world->engines[number].blocks - 1 : 0,
        .has_replay = world->engines[number].has_replay,
        .profile = world->profile,
        .max_held_bytes = 1 << 20,
        .max_log_blocks = world->log_blocks,
        .mirror = { .max_blocks = 4096, .tiers = 1U << KVB_TIER_DEVICE },
    };

    for (size_t i = 0; i < sizeof options.seed; i++) {
        options.seed[i] = (uint8_t)kvb_random_next(&bridge->dice);
    }
    if (kvb_stream_new(&options, &rank->stream) != KVB_OK ||
        (world->clear == KVB_CLEAR_REMOVED && kvb_told_new(8192, &rank->told) != KVB_OK)) {
        abort();
    }
    rank->needs_epoch = true;
    rank->story.held_count = 0;
    rank->story.sum = 0;
    rank->story.told_to = 0;
    sim_restore(world, rank);
}

static void close_stream(struct sim_rank *rank)
{
    kvb_stream_free(rank->stream);
    kvb_told_free(rank->told);
    kvb_stream_output_done(&rank->output);
    const struct sim_story story = rank->story;
    *rank = (struct sim_rank){ .stream_number = rank->stream_number, .story = story };
}

void sim_bridge_begin(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    bridge->is_up = true;
    bridge->next_tick_ns = world->now_ns;
    bridge->nats = (struct sim_client){ .try_ns = world->now_ns };
    bridge->connects_seen = 0;
    bridge->open_ns = 0;
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            open_stream(world, i);
        }
    }
    sim_note(world, "bridge %zu begins", number);
}

void sim_bridge_end(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            close_stream(&world->ranks[i]);
            sim_link_bridge_gone(world, i);
        }
    }
    kvb_router_batch_done(&bridge->chunk);
    memset(bridge->jobs, 0, sizeof bridge->jobs);
    bridge->is_up = false;
}

/* It begins again in sim_bridge_begin(), with new seeds. */
void sim_bridge_crash(struct sim_world *world, size_t number)
{
    sim_note(world, "bridge %zu crashes", number);
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            sim_disk_crash(world, &world->ranks[i]);
        }
    }
    sim_client_lose(world, &world->bridges[number].nats);
    sim_bridge_end(world, number);
}

static bool may_publish(const struct sim_world *world, const struct sim_bridge *bridge)
{
    return bridge->nats.is_connected && bridge->open_ns > 0 && world->now_ns >= bridge->open_ns;
}

void sim_bridge_stop(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];
    const bool is_heard = may_publish(world, bridge);

    sim_note(world, "bridge %zu stops", number);
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number) && is_heard) {
            sim_tell_goodbye(world, &world->ranks[i]);
        }
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            sim_save_all(world, &world->ranks[i]);
        }
    }
    sim_bridge_end(world, number);
    bridge->nats.is_connected = false; /* what was said is sent first */
}

/* ---- In ---- */

static void step(struct sim_world *world, struct sim_rank *rank, struct kvb_stream_input *input)
{
    input->now_ns = world->now_ns;
    input->wall_us = sim_wall_us(world, rank->stream_number);
    if (kvb_stream_step(rank->stream, input, &rank->output) != KVB_OK) {
        abort(); /* memory is not what is tested here */
    }
    if (rank->output.drops_replay) {
        sim_link_stop_asking(&world->links[rank->stream_number]);
    }
    rank->is_beat_due |= rank->output.is_changed;
    if (rank->output.has_more) {
        world->bridges[sim_bridge_of(world, rank->stream_number)].next_tick_ns = world->now_ns;
    }
    sim_check_rank(world, rank);
    sim_tell_step(world, rank);
}

static void
step_kind(struct sim_world *world, struct sim_rank *rank, enum kvb_stream_input_kind kind)
{
    struct kvb_stream_input input = { .kind = kind };
    step(world, rank, &input);
}

static void step_batch(
    struct sim_world *world, struct sim_rank *rank, enum kvb_stream_input_kind kind,
    const struct sim_flying *item)
{
    const struct sim_batch *batch = &world->engines[item->engine].batches[item->batch];
    struct kvb_stream_input input = {
        .kind = kind, .seq = batch->seq, .fingerprint = batch->fingerprint, .batch = &batch->batch
    };

    if (batch->is_poison || item->is_corrupt) {
        input.batch = NULL;
    }
    input.fingerprint.high ^= (uint64_t)item->is_corrupt << 63;
    sim_note(
        world, "stream %u gets %s seq %lu of life %u", rank->stream_number,
        kind == KVB_INPUT_LIVE ? "live" : "reply", batch->seq, batch->life);
    step(world, rank, &input);
}

static void follow_link(struct sim_world *world, struct sim_rank *rank)
{
    const struct sim_link_news link = sim_link_read_monitor(world, rank->stream_number);

    if (rank->is_up && (link.was_lost || !link.is_up)) {
        sim_note(world, "stream %u is down", rank->stream_number);
        step_kind(world, rank, KVB_INPUT_DOWN);
        rank->is_up = false;
        rank->down_ns = world->now_ns;
    }
    if (!rank->is_up && link.is_up) {
        sim_note(world, "stream %u is up", rank->stream_number);
        step_kind(world, rank, KVB_INPUT_UP);
        rank->is_up = true;
        rank->down_ns = 0;
    }
}

static void take_live(struct sim_world *world, struct sim_rank *rank)
{
    struct sim_flying items[run];
    size_t count = 0;

    while (count < run && sim_link_receive(world, rank->stream_number, &items[count])) {
        count++;
    }
    follow_link(world, rank); /* after the run of batches that it may contradict */
    for (size_t i = 0; i < count; i++) {
        step_batch(world, rank, KVB_INPUT_LIVE, &items[i]);
    }
}

static void take_replies(struct sim_world *world, struct sim_rank *rank)
{
    const size_t number = rank->stream_number;
    struct sim_flying item;

    for (int i = 0; i < replies_a_turn && sim_link_reply(world, number, &item); i++) {
        if (item.batch == UINT32_MAX) {
            sim_note(world, "stream %zu gets END%s", number, item.is_corrupt ? ", cut" : "");
            sim_link_stop_asking(&world->links[number]);
            step_kind(world, rank, item.is_corrupt ? KVB_INPUT_REPLAY_CUT : KVB_INPUT_REPLAY_END);
        } else {
            step_batch(world, rank, KVB_INPUT_REPLAY, &item);
        }
    }
}

/* ---- Time ---- */

static void follow_nats(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    if (bridge->nats.connects == bridge->connects_seen) {
        return;
    }
    bridge->connects_seen = bridge->nats.connects;
    if (bridge->open_ns == 0) {
        bridge->open_ns = world->now_ns + listen_ns;
    }
    sim_lose_touch(world, number, world->now_ns + after_connect_ns);
}

static void start_replays(struct sim_world *world, size_t number)
{
    size_t running = 0;

    for (size_t i = 0; i < world->stream_count; i++) {
        running += is_of(world, i, number) && kvb_stream_is_replaying(world->ranks[i].stream);
    }
    for (size_t i = 0; i < world->stream_count && running < most_replays_at_once; i++) {
        struct kvb_stream *stream = world->ranks[i].stream;
        uint64_t from = 0;
        if (is_of(world, i, number) && kvb_stream_wants_replay(stream, world->now_ns, &from)) {
            sim_link_ask(world, i, from);
            kvb_stream_replay_started(stream, world->now_ns);
            running++;
        }
    }
}

static void tell_routers(struct sim_world *world, size_t number)
{
    sim_tell_streams(world, number);
    for (size_t i = 0; i < world->stream_count; i++) {
        struct sim_rank *rank = &world->ranks[i];
        const uint64_t wait_ns = rank->is_beat_wanted ? wanted_beat_ns : beat_ns;
        if (is_of(world, i, number) && rank->is_announced &&
            (rank->is_beat_due || world->now_ns - rank->beat_ns >= wait_ns)) {
            rank->beat_ns = world->now_ns;
            sim_beat(world, rank, false);
        }
    }
}

static void take_time(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    follow_nats(world, number);
    if (world->now_ns >= bridge->next_tick_ns) {
        bridge->next_tick_ns = world->now_ns + tick_ns;
        for (size_t i = 0; i < world->stream_count; i++) {
            if (is_of(world, i, number)) {
                step_kind(world, &world->ranks[i], KVB_INPUT_TICK);
            }
        }
    }
    start_replays(world, number);
    if (may_publish(world, bridge)) {
        tell_routers(world, number);
    } else {
        sim_lose_touch(world, number, 0);
    }
}

void sim_bridge_turn(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    if (!bridge->is_up && world->now_ns >= bridge->up_ns) {
        sim_bridge_begin(world, number);
    }
    if (!bridge->is_up || bridge->is_frozen) {
        return;
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            take_replies(world, &world->ranks[i]);
            take_live(world, &world->ranks[i]);
        }
    }
    take_time(world, number);
    for (int i = 0; i < sync_chunks_a_turn; i++) {
        sim_work_jobs(world, number);
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            sim_save(world, &world->ranks[i]);
        }
    }
}
