#include "sim.h"

#include "core/own.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* One world from one seed: its participants, and the order in which they act. */

static const uint64_t begin_ns = 1000 * KVB_NS_PER_S;
static const uint64_t faults_ns = 9 * KVB_NS_PER_S;
static const uint64_t cooldown_ns = 12 * KVB_NS_PER_S; /* a full replay is requested once in 10 s */
static const uint64_t longest_reading_ns = 3 * KVB_NS_PER_S;

uint64_t sim_worker_of(const struct sim_world *world, size_t stream)
{
    return 10 + stream / world->rank_count_of_worker;
}

uint32_t sim_rank_of(const struct sim_world *world, size_t stream)
{
    return (uint32_t)(stream % world->rank_count_of_worker);
}

size_t sim_stream_of(const struct sim_world *world, uint64_t worker, uint32_t rank)
{
    const size_t stream = (worker - 10) * world->rank_count_of_worker + rank;

    return stream < world->stream_count ? stream : SIZE_MAX;
}

/* ---- Names ---- */

/* "2.500 s: ..." */
__attribute__((format(printf, 3, 0))) static void
say(const struct sim_world *world, char out[512], const char *format, va_list arguments)
{
    char text[400];

    (void)vsnprintf(text, sizeof text, format, arguments);
    (void)snprintf(out, 512, "%.3f s: %s", (double)(world->now_ns - begin_ns) / 1e9, text);
}

void sim_fail(struct sim_world *world, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (!world->has_failed) {
        world->has_failed = true;
        say(world, world->failure, format, arguments);
    }
    va_end(arguments);
}

void sim_cost(struct sim_world *world, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    if (world->cost[0] == '\0') {
        say(world, world->cost, format, arguments);
    }
    va_end(arguments);
}

void sim_note(struct sim_world *world, const char *format, ...)
{
    char text[256];
    va_list arguments;

    if (!world->trace) {
        return;
    }
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const kvb_span bytes = { .data = (const uint8_t *)text, .len = (size_t)length };
    world->trace_hash = kvb_hash64(bytes, world->trace_hash + world->now_ns);
    (void)fprintf(world->trace, "%8.3f %s\n", (double)(world->now_ns - begin_ns) / 1e9, text);
}

/* ---- Start and end ---- */

static void draw_world(struct sim_world *world, uint64_t *rng)
{
    world->is_repairable = kvb_random_below(rng, 5) < 3;
    world->rank_count_of_worker = 1 + kvb_random_below(rng, 2);
    world->stream_count = 2 + kvb_random_below(rng, 3);
    world->bridge_count = 1 + kvb_random_below(rng, sim_bridges);
    world->aggregator_count = 1 + kvb_random_below(rng, sim_aggregators);
    world->formats = 1 + (unsigned)kvb_random_below(rng, (1U << KVB_FORMAT_COUNT) - 1);
    world->reannounce = (enum kvb_reannounce)kvb_random_below(rng, KVB_REANNOUNCE_COUNT);
    world->down_clear_ms = kvb_random_below(rng, 3) * 500;
    world->log_blocks = kvb_random_below(rng, 2) ? 4096 : 1 + kvb_random_below(rng, 60);
    world->knows_total = kvb_random_below(rng, 4) == 0;
    world->checkpoint_ns = kvb_random_below(rng, 3) * 700 * KVB_NS_PER_MS;
    world->slice_work = world->seed % 3 == 0 ? 0 : 1 + world->seed % 11;
}

static void draw_engine(struct sim_world *world, size_t number, uint64_t *rng)
{
    struct sim_engine *engine = &world->engines[number];

    engine->rng = kvb_random_next(rng);
    engine->blocks = 20 + (uint32_t)kvb_random_below(rng, 50);
    engine->pace_ns = (15 + kvb_random_below(rng, 150)) * KVB_NS_PER_MS;
    engine->has_replay = kvb_random_below(rng, 20) != 0;
    engine->buffer_batches = world->is_repairable ? sim_batches : 10 + kvb_random_below(rng, 200);
    engine->replay_by = number;
    const uint64_t mistake = kvb_random_below(rng, 10);
    if (mistake == 0 && !world->is_repairable) {
        engine->buffer_batches = 0;
    } else if (mistake == 1 && !world->is_repairable) {
        engine->replay_by = (number + 1) % world->stream_count;
    }
    world->links[number].rng = kvb_random_next(rng);
    world->disks[number].rng = kvb_random_next(rng);
    sim_disk_begin(&world->disks[number]);
    world->ranks[number].stream_number = (unsigned)number;
}

static void begin(struct sim_world *world, uint64_t seed)
{
    uint64_t rng = seed;

    world->seed = seed;
    world->now_ns = begin_ns;
    world->end_of_faults_ns = begin_ns + faults_ns;
    world->end_ns = world->end_of_faults_ns + cooldown_ns;
    draw_world(world, &rng);
    sim_plan_faults(world);
    world->rng = kvb_random_next(&rng);
    world->broker.is_up = true;
    for (size_t i = 0; i < world->stream_count; i++) {
        draw_engine(world, i, &rng);
        sim_engine_begin(world, i);
        sim_link_begin(world, i);
    }
    for (size_t i = 0; i < world->bridge_count; i++) {
        world->bridges[i].rng = kvb_random_next(&rng);
        sim_bridge_begin(world, i);
    }
    for (size_t i = 0; i < world->aggregator_count; i++) {
        world->aggregators[i].rng = kvb_random_next(&rng);
        world->aggregators[i].sends_requests = i == 0 || kvb_random_below(&rng, 4) > 0;
        sim_aggregator_begin(world, i);
    }
}

static void end(struct sim_world *world)
{
    for (size_t i = 0; i < world->aggregator_count; i++) {
        sim_aggregator_end(world, i);
    }
    for (size_t i = 0; i < world->bridge_count; i++) {
        sim_bridge_end(world, i);
    }
    for (size_t i = 0; i < world->stream_count; i++) {
        sim_engine_end(&world->engines[i]);
        sim_link_end(&world->links[i]);
        sim_disk_end(&world->disks[i]);
        free(world->ranks[i].story.moments);
    }
    sim_broker_end(world);
}

/* ---- Turns ---- */

static void turn(struct sim_world *world, size_t who)
{
    if (who < world->stream_count) {
        sim_engine_step(world, who);
        sim_link_step(world, who);
    } else if (who < world->stream_count + world->bridge_count) {
        sim_bridge_turn(world, who - world->stream_count);
    } else {
        sim_aggregator_turn(world, who - world->stream_count - world->bridge_count);
    }
}

/* Lets each participant act once, in an order drawn from the rng. */
static void take_turns(struct sim_world *world)
{
    const size_t count = world->stream_count + world->bridge_count + world->aggregator_count;
    size_t order[sim_streams + sim_bridges + sim_aggregators];

    for (size_t i = 0; i < count; i++) {
        const size_t at = kvb_random_below(&world->rng, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (size_t i = 0; i < count && !world->has_failed; i++) {
        turn(world, order[i]);
    }
}

/* Some bridge has still to read what an engine has answered of all that it keeps. */
static bool is_reading_everything(const struct sim_world *world)
{
    bool is_reading = false;

    for (size_t i = 0; i < world->stream_count; i++) {
        const struct sim_link *link = &world->links[i];
        is_reading |= link->request_from == 0 && link->replies.count > 0;
    }
    return is_reading;
}

void sim_run(uint64_t seed, uint32_t off, FILE *trace, struct sim_result *out_result)
{
    struct sim_world *world = calloc(1, sizeof *world);

    if (!world) {
        abort();
    }
    world->trace = trace;
    begin(world, seed);
    for (size_t i = 0; i < world->fault_count; i++) {
        world->faults[i].is_off = off >> i & 1;
    }
    for (uint64_t end_ns = world->end_ns; !world->has_failed && world->now_ns < end_ns;) {
        world->now_ns += sim_step_ns;
        world->steps++;
        world->is_cooldown = world->now_ns >= world->end_of_faults_ns;
        sim_step_faults(world);
        sim_broker_step(world);
        take_turns(world);
        sim_note_progress(world);
        /* All that an engine keeps may be asked for as late as 10 s after the last fault, and is
         * applied in small slices: the end waits for that, and a second more, but not for ever. */
        if (is_reading_everything(world) && world->now_ns < world->end_ns + longest_reading_ns &&
            world->now_ns + KVB_NS_PER_S > end_ns) {
            end_ns = world->now_ns + KVB_NS_PER_S;
        }
    }
    if (!world->has_failed) {
        sim_check_end(world);
    }
    if (!world->has_failed && world->cost[0] != '\0') {
        world->has_failed = true;
        memcpy(world->failure, world->cost, sizeof world->failure);
    }
    end(world);
    *out_result = (struct sim_result){ .has_failed = world->has_failed,
                                       .trace_hash = world->trace_hash,
                                       .stream_ms = world->stream_ms,
                                       .exact_ms = world->exact_ms,
                                       .is_repairable = world->is_repairable,
                                       .fault_count = world->fault_count };
    memcpy(out_result->failure, world->failure, sizeof world->failure);
    free(world);
}

void sim_print_fault(FILE *out, uint64_t seed, size_t number)
{
    struct sim_world *world = calloc(1, sizeof *world);

    if (!world) {
        abort();
    }
    begin(world, seed);
    sim_print_one(out, world, number);
    end(world);
    free(world);
}
