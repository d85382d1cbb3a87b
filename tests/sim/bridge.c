#include "sim.h"

#include "core/own.h"

#include <stdlib.h>
#include <string.h>

/* The functions that stream/serve.h calls, for a simulated bridge: links in place of sockets, a
 * simulated NATS, and virtual time. */

enum {
    sync_chunks_a_turn = 4,
    slices_a_turn = 64,
    /* faults are shorter than quarantines, so the clock of kvb_turn runs this many times faster */
    turn_clock = 8
};

static uint64_t wall_us_of(const struct sim_bridge *bridge)
{
    return bridge->world->now_ns / 1000 + bridge->wall_us;
}

uint64_t sim_wall_us(const struct sim_world *world, size_t stream)
{
    return wall_us_of(&world->bridges[sim_bridge_of(world, stream)]);
}

static bool is_of(const struct sim_world *world, size_t stream, size_t bridge)
{
    return sim_bridge_of(world, stream) == bridge;
}

/* ---- One rank ---- */

static struct sim_rank *rank_of(struct kvb_served *served)
{
    return (struct sim_rank *)(void *)served; /* served is its first member */
}

static void step_batch(
    struct sim_bridge *bridge, struct kvb_served *served, enum kvb_stream_input_kind kind,
    const struct sim_flying *item)
{
    struct sim_world *world = bridge->world;
    const struct sim_batch *batch = &world->engines[item->engine].batches[item->batch];
    struct kvb_stream_input input = { .kind = kind,
                                      .now_ns = world->now_ns,
                                      .seq = batch->seq,
                                      .fingerprint = batch->fingerprint,
                                      .batch = &batch->batch };

    if (batch->is_poison || item->is_corrupt) {
        input.batch = NULL;
    }
    input.fingerprint.high ^= (uint64_t)item->is_corrupt << 63;
    sim_note(
        world, "stream %u gets %s seq %lu of life %u", rank_of(served)->stream_number,
        kind == KVB_INPUT_LIVE ? "live" : "reply", batch->seq, batch->life);
    kvb_serve_step(&bridge->server, served, &input);
}

static size_t receive(void *context, struct kvb_served *served)
{
    struct sim_bridge *bridge = context;
    const size_t number = rank_of(served)->stream_number;

    bridge->received_count = 0;
    while (bridge->received_count < sim_live &&
           sim_link_receive(bridge->world, number, &bridge->received[bridge->received_count])) {
        bridge->received_count++;
    }
    return bridge->received_count;
}

static void apply_received(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct sim_bridge *bridge = context;

    (void)now_ns;
    for (size_t i = 0; i < bridge->received_count; i++) {
        step_batch(bridge, served, KVB_INPUT_LIVE, &bridge->received[i]);
    }
}

static void pass_over_received(void *context, struct kvb_served *served)
{
    (void)context;
    (void)served;
}

static struct kvb_connection_update read_monitor(void *context, struct kvb_served *served)
{
    const struct sim_bridge *bridge = context;

    return sim_link_read_monitor(bridge->world, rank_of(served)->stream_number);
}

static enum kvb_serve_reply take_reply(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct sim_bridge *bridge = context;
    const unsigned number = rank_of(served)->stream_number;
    struct sim_flying item;

    (void)now_ns;
    if (!sim_link_reply(bridge->world, number, &item)) {
        return KVB_SERVE_NO_REPLY;
    }
    if (item.batch == UINT32_MAX) {
        sim_note(bridge->world, "stream %u gets END%s", number, item.is_corrupt ? ", cut" : "");
        return item.is_corrupt ? KVB_SERVE_CUT : KVB_SERVE_END;
    }
    step_batch(bridge, served, KVB_INPUT_REPLAY, &item);
    return KVB_SERVE_BATCH;
}

static void stop_replay(void *context, struct kvb_served *served)
{
    const struct sim_bridge *bridge = context;

    sim_link_stop_request(&bridge->world->links[rank_of(served)->stream_number]);
}

static bool start_replay(void *context, struct kvb_served *served, uint64_t from, uint64_t now_ns)
{
    const struct sim_bridge *bridge = context;

    (void)now_ns;
    sim_link_request(bridge->world, rank_of(served)->stream_number, from);
    return true;
}

static void publish_step(void *context, struct kvb_served *served)
{
    const struct sim_bridge *bridge = context;

    sim_check_rank(bridge->world, rank_of(served));
    sim_publish_step(bridge->world, rank_of(served));
}

static void connection_changed(void *context, struct kvb_served *served, bool is_up)
{
    const struct sim_bridge *bridge = context;
    struct sim_rank *rank = rank_of(served);
    const struct sim_link *link = &bridge->world->links[rank->stream_number];

    sim_note(bridge->world, "stream %u is %s", rank->stream_number, is_up ? "up" : "down");
    if (is_up) {
        rank->knows_life = link->monitor_count == 0;
        rank->up_life = link->life;
    }
}

static void share_changed(void *context, struct kvb_served *served, enum kvb_turn_verdict verdict)
{
    const struct sim_bridge *bridge = context;

    sim_note(
        bridge->world, "stream %u is %s", rank_of(served)->stream_number,
        verdict == KVB_TURN_QUARANTINE ? "quarantined" : "released");
}

/* ---- All ranks ---- */

static size_t rank_count(void *context)
{
    const struct sim_bridge *bridge = context;

    return bridge->world->stream_count;
}

static struct kvb_served *served_rank(void *context, size_t number)
{
    struct sim_bridge *bridge = context;

    return is_of(bridge->world, number, bridge->number) ? &bridge->world->ranks[number].served
                                                        : NULL;
}

/* Other streams are served in every step. */
static void take_share(struct sim_bridge *bridge, struct sim_rank *rank)
{
    const struct sim_world *world = bridge->world;
    const bool is_heavy = sim_active(bridge->world, SIM_OVERLOAD, rank->stream_number) != NULL;

    kvb_turn_use(&rank->served.turn, is_heavy ? turn_clock * sim_step_ns : 0);
    kvb_serve_share(
        &bridge->server, &rank->served, world->steps, turn_clock * world->now_ns, world->now_ns);
}

static void take_sockets(void *context, uint64_t now_ns)
{
    struct sim_bridge *bridge = context;

    for (size_t i = 0; i < bridge->world->stream_count; i++) {
        struct kvb_served *served = served_rank(bridge, i);
        if (served) {
            kvb_serve_replies(&bridge->server, served, now_ns);
            kvb_serve_live(&bridge->server, served, now_ns);
            take_share(bridge, rank_of(served));
        }
    }
}

/* Applies one slice of each stream that has one, repeatedly. */
static bool work_slices(void *context, uint64_t now_ns)
{
    struct sim_bridge *bridge = context;

    for (int round = 0; round < slices_a_turn; round++) {
        for (size_t i = 0; i < bridge->world->stream_count; i++) {
            struct kvb_served *served = served_rank(bridge, i);
            if (served && served->output.has_more) {
                kvb_serve_kind(&bridge->server, served, KVB_INPUT_TICK, now_ns);
            }
        }
    }
    return false;
}

static void tick_rank(void *context, struct kvb_served *served, uint64_t now_ns)
{
    struct sim_bridge *bridge = context;

    kvb_serve_tick(&bridge->server, served, now_ns);
}

static bool advertise(void *context, struct kvb_served *served, uint64_t now_ns)
{
    const struct sim_bridge *bridge = context;

    (void)now_ns;
    sim_advertise_stream(bridge->world, rank_of(served));
    return true;
}

static void send_beat(void *context, struct kvb_served *served)
{
    const struct sim_bridge *bridge = context;

    sim_beat(bridge->world, rank_of(served), false);
}

/* Nothing else is periodic. */
static void do_nothing(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
}

static uint64_t nats_connects(void *context)
{
    const struct sim_bridge *bridge = context;

    return bridge->nats.connects;
}

static void connected(void *context, uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
}

static bool may_publish(void *context, uint64_t now_ns)
{
    const struct sim_bridge *bridge = context;

    (void)now_ns;
    return bridge->nats.is_connected;
}

static const struct kvb_serve_world outside = {
    .receive = receive,
    .apply_received = apply_received,
    .pass_over_received = pass_over_received,
    .read_monitor = read_monitor,
    .take_reply = take_reply,
    .stop_replay = stop_replay,
    .start_replay = start_replay,
    .publish_step = publish_step,
    .connection_changed = connection_changed,
    .share_changed = share_changed,
    .tick_rank = tick_rank,
    .advertise = advertise,
    .beat = send_beat,
    .rank_count = rank_count,
    .rank = served_rank,
    .take_sockets = take_sockets,
    .work_slices = work_slices,
    .tick = do_nothing,
    .connects = nats_connects,
    .connected = connected,
    .may_publish = may_publish,
    .publish_due = do_nothing,
};

/* ---- Metrics pages ---- */

enum { pages_every_steps = 50 };

/* The metrics page of an engine, as vLLM writes it. The process differs in each incarnation. */
static void read_page(struct sim_world *world, struct sim_rank *rank)
{
    const struct sim_engine *engine = &world->engines[rank->stream_number];
    struct kvb_engine_stats stats;

    kvb_engine_stats(engine->engine, &stats);
    struct kvb_load_sample sample = {
        .load = stats.load,
        .stats = 1U << KVB_FIGURE_TOTAL_BLOCKS | 1U << KVB_FIGURE_WAITING |
                 1U << KVB_FIGURE_ACTIVE_BLOCKS | 1U << KVB_FIGURE_ACTIVE_SLOTS,
        .signs = { .sleep = stats.is_asleep ? KVB_SLEEP_DISCARDED : KVB_SLEEP_AWAKE,
                   .started_s = 1000 + 10 * (double)engine->life,
                   .is_total_sure = true,
                   .counts_running = true },
    };
    const unsigned signs = kvb_page_watch_read(
        &rank->page_watch, rank->served.stream,
        &(struct kvb_page_reading){ &sample, world->now_ns, world->now_ns });
    kvb_serve_wake(
        &world->bridges[sim_bridge_of(world, rank->stream_number)].server, &rank->served);
    if (signs) {
        sim_note(world, "page of stream %u: signs %x", rank->stream_number, signs);
    }
    if ((signs & KVB_SIGN_OCCUPANCY) && world->is_repairable) {
        sim_fail(
            world, "stream %u: its page contradicts a list that is right", rank->stream_number);
    }
}

static void read_pages(struct sim_world *world, size_t bridge)
{
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, bridge) && world->engines[i].is_up &&
            (world->steps + i) % pages_every_steps == 0) {
            read_page(world, &world->ranks[i]);
        }
    }
}

/* ---- Start, stop and crash ---- */

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
        .formats = world->formats,
        .max_held_bytes = 1 << 20,
        .slice_work = world->slice_work,
        .max_log_blocks = world->log_blocks,
        .mirror = { .max_blocks = 4096, .tiers = 1U << KVB_TIER_DEVICE },
    };

    for (size_t i = 0; i < sizeof options.seed; i++) {
        options.seed[i] = (uint8_t)kvb_random_next(&bridge->rng);
    }
    if (kvb_stream_new(&options, &rank->served.stream) != KVB_OK) {
        abort();
    }
    sim_advertise_begin(world, rank);
    rank->story.held_count = 0;
    rank->story.sum = 0;
    rank->story.advertised_to = 0;
    sim_restore(world, rank);
    kvb_serve_wake(&bridge->server, &rank->served);
}

static void close_stream(struct sim_rank *rank)
{
    kvb_serve_drop(&rank->served);
    kvb_stream_free(rank->served.stream);
    kvb_stream_output_done(&rank->served.output);
    const struct sim_story story = rank->story;
    *rank = (struct sim_rank){ .stream_number = rank->stream_number, .story = story };
}

void sim_bridge_begin(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];

    bridge->is_up = true;
    bridge->nats = (struct sim_client){ .try_ns = world->now_ns };
    bridge->world = world;
    bridge->number = number;
    bridge->server = (struct kvb_server){ .world = &outside, .context = bridge };
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            world->engines[i].full_ns = 0; /* no process remembers earlier full replays */
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

/* The bridge starts again in sim_bridge_begin(), with new seeds. */
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

void sim_bridge_stop(struct sim_world *world, size_t number)
{
    struct sim_bridge *bridge = &world->bridges[number];
    const bool is_received = may_publish(bridge, world->now_ns);

    sim_note(world, "bridge %zu stops", number);
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number) && is_received) {
            sim_say_goodbye(world, &world->ranks[i]);
        }
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            sim_save_all(world, &world->ranks[i]);
        }
    }
    sim_bridge_end(world, number);
    bridge->nats.is_connected = false; /* messages published before are sent first */
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
    bridge->server.wall_us = wall_us_of(bridge);
    read_pages(world, number);
    (void)kvb_serve_turn(&bridge->server, world->now_ns);
    bridge->has_unread = false;
    for (int i = 0; i < sync_chunks_a_turn; i++) {
        sim_work_jobs(world, number);
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number)) {
            sim_save(world, &world->ranks[i]);
        }
    }
}
