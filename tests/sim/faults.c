#include "sim.h"

#include "core/own.h"

#include <string.h>

/* The plan of faults, drawn before the run. Each fault has its own rng, so that one can be left out
 * without changing the others. */

enum reach { of_stream, of_bridge, of_aggregator, of_all };

struct kind_row {
    const char *name;
    enum reach reach;
    unsigned after_ms; /* how long it takes until a fault is noticed, or its effect is over */
    uint64_t max_ms;
    unsigned weight;
};

enum { by_silence = 1000, by_heartbeats = 2000 };

/* clang-format off */
static const struct kind_row kinds[SIM_FAULT_KINDS] = {
    [SIM_DROP_LIVE]         = { "drop_live",         of_stream,     0,          2000, 4 },
    [SIM_DUPLICATE]         = { "duplicate",         of_stream,     0,          3000, 2 },
    [SIM_CORRUPT]           = { "corrupt",           of_stream,     0,          1000, 2 },
    [SIM_SLOW_LINK]         = { "slow_link",         of_stream,     0,          3000, 1 },
    [SIM_CUT_LINK]          = { "cut_link",          of_stream,     0,          4000, 4 },
    [SIM_CUT_IN]            = { "cut_in",            of_stream,     0,          4000, 2 },
    [SIM_CUT_OUT]           = { "cut_out",           of_stream,     0,          4000, 2 },
    [SIM_LATE_MONITOR]      = { "late_monitor",      of_stream,     0,          6000, 3 },
    [SIM_REPLAY_CUT]        = { "replay_cut",        of_stream,     0,          3000, 3 },
    [SIM_REPLAY_HOLES]      = { "replay_holes",      of_stream,     0,          2000, 2 },
    [SIM_REPLAY_NO_END]     = { "replay_no_end",     of_stream,     0,          2000, 2 },
    [SIM_REPLAY_MUTE]       = { "replay_mute",       of_stream,     0,          2500, 1 },
    [SIM_RESTART]           = { "restart",           of_stream,     0,          2000, 4 },
    [SIM_OVERTAKE]          = { "overtake",          of_stream,     0,          3000, 3 },
    [SIM_FILL_GAP]          = { "fill_gap",          of_stream,     0,           400, 3 },
    [SIM_CLEAR]             = { "clear",             of_stream,     0,            10, 2 },
    [SIM_BURST]             = { "burst",             of_stream,     0,            10, 2 },
    [SIM_IDLE]              = { "idle",              of_stream,     0,          3000, 2 },
    /* drawn from a generator of their own */
    [SIM_SLEEP]             = { "sleep",             of_stream,     0,          4000, 0 },
    [SIM_BRIDGE_CRASH]      = { "bridge_crash",      of_bridge,     by_silence, 2000, 3 },
    [SIM_BRIDGE_STOP]       = { "bridge_stop",       of_bridge,     by_silence, 2000, 2 },
    [SIM_BRIDGE_FREEZE]     = { "bridge_freeze",     of_bridge,     by_silence, 4000, 2 },
    [SIM_CLOCK]             = { "clock",             of_bridge,     0,          4000, 2 },
    [SIM_NATS_DOWN]         = { "nats_down",         of_all,        0,          3000, 2 },
    [SIM_NATS_FREEZE]       = { "nats_freeze",       of_all,        by_silence, 4000, 1 },
    [SIM_NATS_SLOW]         = { "nats_slow",         of_aggregator, 0,          3000, 2 },
    [SIM_LOSE_BRIDGE]       = { "lose_bridge",       of_bridge,     0,          1000, 2 },
    [SIM_LOSE_AGGREGATOR]   = { "lose_aggregator",   of_aggregator, 0,          1000, 2 },
    [SIM_DROP_MESSAGES]     = { "drop_messages",     of_aggregator, 0,          3000, 4 },
    [SIM_FLIP]              = { "flip",              of_aggregator, 0,          2000, 2 },
    [SIM_ECHO]              = { "echo",              of_aggregator, 0,          2000, 2 },
    [SIM_FORGE]             = { "forge",             of_aggregator, by_heartbeats, 2000, 3 },
    [SIM_DROP_REQUESTS]         = { "drop_asks",         of_aggregator, 0,          4000, 2 },
    [SIM_DROP_ANSWERS]      = { "drop_answers",      of_aggregator, 0,          4000, 2 },
    [SIM_BUSY]              = { "busy",              of_bridge,     0,          1000, 1 },
    [SIM_AGGREGATOR_CRASH]  = { "aggregator_crash",  of_aggregator, 0,          2000, 2 },
    [SIM_AGGREGATOR_FREEZE] = { "aggregator_freeze", of_aggregator, by_silence, 4000, 1 },
    [SIM_OVERLOAD]          = { "overload",          of_stream,     0,          5000, 3 },
    [SIM_REPLAY_CROSSED]    = { "replay_crossed",    of_stream,     0,          1000, 1 },
    [SIM_POISON]            = { "poison",            of_stream,     0,          1500, 6 },
    [SIM_SKIP_STORED]       = { "skip_stored",       of_stream,     0,          1500, 6 },
    [SIM_SKIP_REMOVED]      = { "skip_removed",      of_stream,     0,          1500, 6 },
    [SIM_UNKNOWN_EVENT]     = { "unknown_event",     of_stream,     0,          1500, 4 },
    [SIM_HOLE]              = { "hole",              of_stream,     0,          1500, 6 },
};
/* clang-format on */

/* ---- The plan ---- */

static enum sim_fault_kind draw_kind(const struct sim_world *world, uint64_t *rng)
{
    const size_t count = world->is_repairable ? SIM_REPLAY_CROSSED : SIM_FAULT_KINDS;
    unsigned sum = 0;

    for (size_t i = 0; i < count; i++) {
        sum += kinds[i].weight;
    }
    unsigned left = (unsigned)kvb_random_below(rng, sum);
    size_t kind = 0;
    while (left >= kinds[kind].weight) {
        left -= kinds[kind].weight;
        kind++;
    }
    return (enum sim_fault_kind)kind;
}

static size_t targets_of(const struct sim_world *world, enum reach reach)
{
    const size_t counts[] = { [of_stream] = world->stream_count,
                              [of_bridge] = world->bridge_count,
                              [of_aggregator] = world->aggregator_count,
                              [of_all] = 1 };
    return counts[reach];
}

static void draw_fault(const struct sim_world *world, uint64_t *rng, struct sim_fault *fault)
{
    static const uint64_t percents[] = { 100, 50, 20, 5 };
    const uint64_t first_ns = world->now_ns + 1500 * KVB_NS_PER_MS;
    const enum sim_fault_kind kind = draw_kind(world, rng);
    uint64_t span_ms = kinds[kind].max_ms >> kvb_random_below(rng, 4);

    span_ms = span_ms / 2 + kvb_random_below(rng, span_ms / 2 + 1);
    *fault = (struct sim_fault){ .kind = kind,
                                 .target = (unsigned)kvb_random_below(
                                     rng, targets_of(world, kinds[kind].reach)),
                                 .percent = (unsigned)percents[kvb_random_below(rng, 4)],
                                 .count = 1 + (unsigned)kvb_random_below(rng, 10) };
    fault->from_ns =
        first_ns + kvb_random_below(rng, world->end_of_faults_ns - first_ns - KVB_NS_PER_S);
    if (kind == SIM_LOSE_BRIDGE || kind == SIM_LOSE_AGGREGATOR) {
        span_ms = 1000; /* until it has certainly recovered */
    }
    if (kind >= SIM_POISON) {
        span_ms = 1500;
        fault->count = 1 + fault->count / 8;
    }
    fault->to_ns = fault->from_ns + (span_ms + 10) * KVB_NS_PER_MS;
    if (fault->to_ns > world->end_of_faults_ns) {
        fault->to_ns = world->end_of_faults_ns;
    }
    fault->rng = kvb_random_next(rng);
}

/* In one of four worlds. Drawn from its own generator, so that the plans of all seeds stay as they
 * were before this kind of fault existed. */
static void plan_sleep(struct sim_world *world)
{
    uint64_t rng = world->seed ^ UINT64_C(0x51ee9);
    struct sim_fault *fault = &world->faults[world->fault_count];

    if (world->fault_count == sim_faults || kvb_random_below(&rng, 4) != 0) {
        return;
    }
    draw_fault(world, &rng, fault);
    fault->kind = SIM_SLEEP;
    fault->target = (unsigned)kvb_random_below(&rng, world->stream_count);
    fault->to_ns = fault->from_ns + (500 + kvb_random_below(&rng, 3500)) * KVB_NS_PER_MS;
    if (fault->to_ns > world->end_of_faults_ns) {
        fault->to_ns = world->end_of_faults_ns;
    }
    world->fault_count++;
}

void sim_plan_faults(struct sim_world *world)
{
    static const uint64_t max[] = { 3, 8, 8, 16 };
    uint64_t rng = world->seed ^ UINT64_C(0x5eed0ffa17);

    world->fault_count = kvb_random_below(&rng, max[kvb_random_below(&rng, KVB_COUNT_OF(max))] + 1);
    for (size_t i = 0; i < world->fault_count; i++) {
        draw_fault(world, &rng, &world->faults[i]);
    }
    plan_sleep(world);
}

/* ---- Carrying out the plan ---- */

/* Advances the numbers of the new incarnation beyond ours, short of ours, or to exactly our next
 * one (then with its first batch sent early, while the monitor is late). */
static void overtake(struct sim_world *world, struct sim_fault *fault, uint64_t seq)
{
    struct sim_engine *engine = &world->engines[fault->target];
    const struct sim_rank *rank = &world->ranks[fault->target];
    const bool is_ours = rank->has_place && rank->place.engine == fault->target;
    uint64_t to_seq = fault->percent == 5 ? seq / 2 : seq + fault->count;

    if (fault->percent >= 50 && is_ours) {
        to_seq = engine->batches[rank->place.batch].seq + 1;
    }
    world->links[fault->target].cut_ns = world->now_ns;
    world->links[fault->target].is_deaf = true;
    sim_engine_restart(world, fault->target, 0);
    sim_engine_burst(world, fault->target, to_seq);
    engine->waits_for_link = fault->percent >= 50;
}

static void begin_of_engine(struct sim_world *world, struct sim_fault *fault)
{
    struct sim_engine *engine = &world->engines[fault->target];
    const uint64_t seq = sim_engine_next_seq(engine);

    if (fault->kind == SIM_RESTART) {
        sim_engine_restart(world, fault->target, fault->to_ns - world->now_ns);
        if (fault->percent == 100 || fault->percent == 20) {
            sim_engine_burst(world, fault->target, fault->count);
        }
    } else if (fault->kind == SIM_OVERTAKE) {
        overtake(world, fault, seq);
    } else if (fault->kind == SIM_CLEAR) {
        (void)kvb_engine_reset_cache(engine->engine); /* running out of memory is not simulated */
    } else if (fault->kind == SIM_SLEEP) {
        (void)kvb_engine_set_sleep(engine->engine, KVB_SLEEP_DISCARDED);
    } else if (fault->kind == SIM_BURST) {
        sim_engine_burst(world, fault->target, seq + (uint64_t)fault->count * 20);
    }
}

static void begin_of_bridge(struct sim_world *world, const struct sim_fault *fault)
{
    struct sim_bridge *bridge = &world->bridges[fault->target];

    if (bridge->is_up && fault->kind == SIM_BRIDGE_STOP && !bridge->is_frozen) {
        sim_bridge_stop(world, fault->target);
    } else if (bridge->is_up) {
        sim_bridge_crash(world, fault->target);
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        if (fault->kind == SIM_BRIDGE_CRASH && fault->percent == 20 &&
            sim_bridge_of(world, i) == fault->target) {
            sim_spoil_file(world, i, fault->rng + i);
        }
    }
    bridge->up_ns = fault->to_ns;
}

static void begin_fault(struct sim_world *world, struct sim_fault *fault)
{
    fault->is_active = true;
    sim_note(
        world, "fault %zu begins: %s of %u", (size_t)(fault - world->faults),
        kinds[fault->kind].name, fault->target);
    if (fault->kind >= SIM_RESTART && fault->kind <= SIM_SLEEP &&
        (world->engines[fault->target].is_up || fault->kind == SIM_RESTART)) {
        begin_of_engine(world, fault);
    }
    if (fault->kind == SIM_BRIDGE_CRASH || fault->kind == SIM_BRIDGE_STOP) {
        begin_of_bridge(world, fault);
    }
    if (fault->kind == SIM_CLOCK) { /* modulo 2^64, so also backwards */
        world->bridges[fault->target].wall_us =
            (fault->count % 2 ? 300 : (uint64_t)-300) * UINT64_C(1000000);
    }
    if (fault->kind == SIM_LOSE_BRIDGE) {
        sim_client_lose(world, &world->bridges[fault->target].nats);
    }
    if (fault->kind == SIM_LOSE_AGGREGATOR) {
        sim_client_lose(world, &world->aggregators[fault->target].nats);
    }
    if (fault->kind == SIM_AGGREGATOR_CRASH) {
        if (world->aggregators[fault->target].is_up) {
            sim_aggregator_end(world, fault->target);
        }
        world->aggregators[fault->target].up_ns = fault->to_ns;
    }
}

static void end_fault(struct sim_world *world, struct sim_fault *fault)
{
    fault->is_active = false;
    fault->is_over = true;
    sim_note(world, "fault %zu ends", (size_t)(fault - world->faults));
    if (fault->kind == SIM_CLOCK) {
        world->bridges[fault->target].wall_us = 0;
    }
    if (fault->kind == SIM_SLEEP) {
        (void)kvb_engine_set_sleep(world->engines[fault->target].engine, KVB_SLEEP_AWAKE);
    }
    if (fault->kind == SIM_FILL_GAP && world->engines[fault->target].is_up) {
        const uint64_t seq = sim_engine_next_seq(&world->engines[fault->target]);
        sim_engine_restart(world, fault->target, 0);
        sim_engine_burst(world, fault->target, seq + fault->count - 1);
    }
}

/* Of the processes: which are paused, and which have just gone on. */
static void note_pauses(struct sim_world *world)
{
    for (unsigned i = 0; i < world->bridge_count; i++) {
        struct sim_bridge *bridge = &world->bridges[i];
        const bool was_frozen = bridge->is_frozen;
        bridge->is_frozen = sim_active(world, SIM_BRIDGE_FREEZE, i) != NULL;
        bridge->frozen_ns = was_frozen ? bridge->frozen_ns : world->now_ns;
        bridge->has_unread |=
            was_frozen && !bridge->is_frozen && world->now_ns - bridge->frozen_ns >= KVB_NS_PER_S;
    }
    for (unsigned i = 0; i < world->aggregator_count; i++) {
        struct sim_aggregator *aggregator = &world->aggregators[i];
        const bool was_frozen = aggregator->is_frozen;
        aggregator->is_frozen = sim_active(world, SIM_AGGREGATOR_FREEZE, i) != NULL;
        if (was_frozen && !aggregator->is_frozen) {
            aggregator->has_unread = true;
            aggregator->went_on_ns = world->now_ns;
        }
    }
}

void sim_step_faults(struct sim_world *world)
{
    memset(world->active, 0, sizeof world->active);
    for (size_t i = 0; i < world->fault_count; i++) {
        struct sim_fault *fault = &world->faults[i];
        if (!fault->is_off && !fault->is_over && !fault->is_active &&
            world->now_ns >= fault->from_ns) {
            begin_fault(world, fault);
        }
        if (fault->is_active && world->now_ns >= fault->to_ns) {
            end_fault(world, fault);
        }
        if (fault->is_active) {
            world->active[fault->kind][fault->target] = fault;
        }
    }
    note_pauses(world);
}

struct sim_fault *sim_active(struct sim_world *world, enum sim_fault_kind kind, unsigned target)
{
    return world->active[kind][target];
}

bool sim_hits(struct sim_world *world, enum sim_fault_kind kind, unsigned target)
{
    struct sim_fault *fault = sim_active(world, kind, target);

    return fault && kvb_random_below(&fault->rng, 100) < fault->percent;
}

bool sim_is_planned(const struct sim_world *world, enum sim_fault_kind kind, unsigned target)
{
    for (size_t i = 0; i < world->fault_count; i++) {
        const struct sim_fault *fault = &world->faults[i];
        if (fault->kind == kind && fault->target == target && !fault->is_off && !fault->is_over) {
            return true;
        }
    }
    return false;
}

static bool concerns(
    const struct sim_world *world, const struct sim_fault *fault, size_t stream, size_t aggregator)
{
    if (fault->kind == SIM_OVERLOAD) {
        return false; /* this fault excuses nothing: the list is correct, or withdrawn in time */
    }
    switch (kinds[fault->kind].reach) {
    case of_stream:
        return fault->target == stream;
    case of_bridge:
        return fault->target == sim_bridge_of(world, stream);
    case of_aggregator:
        return fault->target == aggregator;
    case of_all:
        break;
    }
    return true;
}

uint64_t sim_quiet_since(const struct sim_world *world, size_t stream, size_t aggregator)
{
    uint64_t since_ns = 0;

    for (size_t i = 0; i < world->fault_count; i++) {
        const struct sim_fault *fault = &world->faults[i];
        if (fault->is_off || fault->from_ns > world->now_ns ||
            !concerns(world, fault, stream, aggregator)) {
            continue;
        }
        if (!fault->is_over) {
            return UINT64_MAX;
        }
        const uint64_t over_ns = fault->to_ns + kinds[fault->kind].after_ms * KVB_NS_PER_MS;
        since_ns = over_ns > since_ns ? over_ns : since_ns;
    }
    return since_ns;
}

void sim_print_one(FILE *out, const struct sim_world *world, size_t number)
{
    const struct sim_fault *fault = &world->faults[number];
    const uint64_t began_ns = 1000 * KVB_NS_PER_S;

    (void)fprintf(
        out, "  fault %2zu  %7.3f .. %7.3f s  %s of %u (%u %%, %u)\n", number,
        (double)(fault->from_ns - began_ns) / 1e9, (double)(fault->to_ns - began_ns) / 1e9,
        kinds[fault->kind].name, fault->target, fault->percent, fault->count);
}
