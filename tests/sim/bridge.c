#include "sim.h"

#include "core/own.h"

#include <stdlib.h>
#include <string.h>

/* Carries out what stream/serve.h says, for a simulated bridge: links in place of sockets, a
 * simulated NATS, and virtual time. */

enum {
    sync_chunks_a_turn = 4,
    slice_ns = 16000, /* so long a slice takes: a turn has 250 of them */
    /* faults are shorter than quarantines, so the clock of kvb_share runs this many times faster */
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

/* ---- Batches ---- */

static struct sim_rank *rank_of(struct kvb_served *served)
{
    return (struct sim_rank *)(void *)served; /* served is its first member */
}

/* The rank that has something to read: each of this bridge once in a turn. */
static void find_socket(struct sim_bridge *bridge, struct kvb_action *action)
{
    struct sim_world *world = bridge->world;

    action->rank = NULL;
    while (bridge->next_socket < world->stream_count && !action->rank) {
        const size_t number = bridge->next_socket++;
        action->rank = is_of(world, number, bridge->number) ? &world->ranks[number].served : NULL;
    }
    action->has_replies = true;
    action->has_live = true;
}

static void read_batch(
    struct sim_bridge *bridge, const struct sim_flying *item, const char *how,
    struct kvb_action *action)
{
    struct sim_world *world = bridge->world;
    const struct sim_batch *batch = &world->engines[item->engine].batches[item->batch];

    action->input = (struct kvb_stream_input){
        .seq = batch->seq,
        .fingerprint = batch->fingerprint,
        .batch = batch->is_poison || item->is_corrupt ? NULL : &batch->batch,
    };
    action->input.fingerprint.high ^= (uint64_t)item->is_corrupt << 63;
    sim_note(
        world, "stream %u gets %s seq %lu of life %u", rank_of(action->rank)->stream_number, how,
        batch->seq, batch->life);
}

static void read_reply(struct sim_bridge *bridge, struct kvb_action *action)
{
    const unsigned number = rank_of(action->rank)->stream_number;
    struct sim_flying item;

    if (!sim_link_reply(bridge->world, number, &item)) {
        action->reply = KVB_SERVE_NO_REPLY;
    } else if (item.batch == UINT32_MAX) {
        sim_note(bridge->world, "stream %u gets END%s", number, item.is_corrupt ? ", cut" : "");
        action->reply = item.is_corrupt ? KVB_SERVE_CUT : KVB_SERVE_END;
    } else {
        action->reply = KVB_SERVE_BATCH;
        read_batch(bridge, &item, "reply", action);
    }
}

static void receive(struct sim_bridge *bridge, struct kvb_action *action)
{
    const size_t number = rank_of(action->rank)->stream_number;

    bridge->received_at = 0;
    bridge->received_count = 0;
    while (bridge->received_count < sim_live &&
           sim_link_receive(bridge->world, number, &bridge->received[bridge->received_count])) {
        bridge->received_count++;
    }
    action->count = bridge->received_count;
}

static void note_link(struct sim_bridge *bridge, const struct kvb_action *action)
{
    struct sim_rank *rank = rank_of(action->rank);
    const struct sim_link *link = &bridge->world->links[rank->stream_number];

    sim_note(bridge->world, "stream %u is %s", rank->stream_number, action->is_up ? "up" : "down");
    if (action->is_up) {
        rank->knows_life = link->monitor_count == 0;
        rank->up_life = link->life;
    }
}

/* Virtual time stands still within a turn, but slices take some of it. */
static void end_run(struct sim_bridge *bridge, struct kvb_action *action)
{
    const unsigned number = rank_of(action->rank)->stream_number;

    if (bridge->server.run.kind == KVB_RUN_OF_SLICE) {
        bridge->server.clock_ns += slice_ns;
    } else if (
        bridge->server.run.kind == KVB_RUN_OF_SOCKET &&
        sim_active(bridge->world, SIM_OVERLOAD, number)) {
        action->took_ns = turn_clock * sim_step_ns;
        kvb_serve_wake(action->rank); /* a stream that takes so long is always busy */
    }
}

/* ---- The turn ---- */

static void carry_out(struct sim_bridge *bridge, struct kvb_action *action)
{
    struct sim_world *world = bridge->world;
    struct sim_rank *rank = rank_of(action->rank); /* NULL where none is named */

    switch (action->kind) {
    case KVB_DO_NEXT_SOCKET:
        find_socket(bridge, action);
        break;
    case KVB_DO_NOTE_SHARE:
        sim_note(
            world, "stream %u is %s", rank->stream_number,
            action->share == KVB_SHARE_QUARANTINE ? "quarantined" : "released");
        break;
    case KVB_DO_NEXT_REPLY:
        read_reply(bridge, action);
        break;
    case KVB_DO_STOP_REPLAY:
        sim_link_stop_request(&world->links[rank->stream_number]);
        break;
    case KVB_DO_RECEIVE:
        receive(bridge, action);
        break;
    case KVB_DO_READ_MONITOR:
        action->link = sim_link_read_monitor(world, rank->stream_number);
        break;
    case KVB_DO_NOTE_LINK:
        note_link(bridge, action);
        break;
    case KVB_DO_NEXT_BATCH:
        action->has_batch = bridge->received_at < bridge->received_count;
        if (action->has_batch) {
            read_batch(bridge, &bridge->received[bridge->received_at++], "live", action);
        }
        break;
    case KVB_DO_OUTPUT:
        if (action->stops_replay) {
            if (!kvb_stream_is_connected(rank->served.stream)) {
                sim_link_lose_answer(&world->links[rank->stream_number]);
            }
            sim_link_stop_request(&world->links[rank->stream_number]);
        }
        sim_check_rank(world, rank);
        if (action->events) {
            action->status = sim_publish_events(world, rank, action->events);
        }
        break;
    case KVB_DO_END_RUN:
        end_run(bridge, action);
        break;
    case KVB_DO_ASK_NATS:
        action->connects = bridge->nats.connects;
        action->is_connected = bridge->nats.is_connected;
        break;
    case KVB_DO_START_REPLAY:
        sim_link_request(world, rank->stream_number, action->from);
        break;
    case KVB_DO_ANNOUNCE:
        if (action->list == KVB_ADVERTISER_REPUBLISH) {
            sim_void_checkpoint(world, rank);
        }
        bridge->server.wall_us = sim_wall_us(world, rank->stream_number);
        break;
    case KVB_DO_CHUNK:
        action->status = sim_publish_chunk(world, rank, action->events);
        break;
    case KVB_DO_BEAT:
        sim_beat(world, rank, action->is_bye);
        break;
    case KVB_DO_PASS_OVER: /* what was received is forgotten */
    case KVB_DO_BEGIN_RUN: /* its clocks were read at the beginning of the turn */
    case KVB_DO_NOTE_NATS:
    case KVB_DO_WORK:
    case KVB_DO_TEND_LINK:
    case KVB_DO_PUBLISH_LOADS:
    case KVB_DO_NOTHING:
        break;
    }
}

static void carry_out_all(struct sim_bridge *bridge)
{
    struct kvb_action *action = NULL;

    while ((action = kvb_serve_next(&bridge->server)) != NULL) {
        carry_out(bridge, action);
    }
}

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
    kvb_serve_wake(&rank->served);
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
        .max_buffered_bytes = 1 << 20,
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
    kvb_serve_add(&bridge->server, &rank->served);
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
    bridge->server = (struct kvb_server){ .share_speed = turn_clock };
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
    kvb_server_done(&bridge->server);
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
    const bool is_received = bridge->nats.is_connected;

    sim_note(world, "bridge %zu stops", number);
    for (size_t i = 0; i < world->stream_count; i++) {
        if (is_of(world, i, number) && is_received) {
            kvb_serve_begin_goodbye(&bridge->server, &world->ranks[i].served);
            carry_out_all(bridge);
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
    bridge->next_socket = 0;
    bridge->server.live_runs++; /* as if another stream was served */
    kvb_serve_begin(&bridge->server, world->now_ns);
    carry_out_all(bridge);
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
