#include "core/clock.h"
#include "core/own.h"
#include "index/chain.h"
#include "index/rows.h"

#include <stdlib.h>

/* ---- index.cost.W: the same blocks and events, dealt to more and more workers ----
 *
 * Each prompt has 32 blocks that all workers hold and 64 of one worker alone.  An event
 * removes the oldest prompt of a worker and stores a new one. */
enum { cost_blocks = 1280000, cost_shared = 32, cost_own = 64 };

struct costs {
    struct replay replay;
    struct chain shared;
    struct chain own;
    size_t prompts; /* of each worker */
};

/* Prompt number `number` of a worker. */
static void make_own(struct costs *costs, uint32_t worker, size_t number)
{
    const uint64_t content = ((uint64_t)worker + 1) << 32 | number;

    chain_make(&costs->own, content, &costs->shared.blocks[cost_shared - 1]);
}

static void bring(struct costs *costs, uint32_t worker, size_t number)
{
    make_own(costs, worker, number);
    chain_store(&costs->replay, worker, &costs->shared, 0, cost_shared);
    chain_store(&costs->replay, worker, &costs->own, 0, costs->own.count);
}

/* ns per block of events; the time to make the blocks is not included. */
static double change_all(struct costs *costs, size_t *numbers, size_t events, uint64_t *rng)
{
    uint64_t took_ns = 0;

    for (size_t i = 0; i < events; i++) {
        const uint32_t worker = (uint32_t)(bench_random(rng) % costs->replay.workers);
        const size_t oldest = numbers[worker]++;
        make_own(costs, worker, oldest);
        const uint64_t removing_ns = kvb_clock_monotonic_ns();
        chain_remove(&costs->replay, worker, &costs->own, 0, costs->own.count);
        took_ns += kvb_clock_monotonic_ns() - removing_ns;
        make_own(costs, worker, oldest + costs->prompts);
        const uint64_t storing_ns = kvb_clock_monotonic_ns();
        chain_store(&costs->replay, worker, &costs->own, 0, costs->own.count);
        took_ns += kvb_clock_monotonic_ns() - storing_ns;
    }
    return (double)took_ns / (double)(events * 2 * costs->own.count);
}

/* ---- Fleets that take turns ---- */

enum { max_fleets = 4, max_rounds = 101 };

struct fleet {
    struct costs costs;
    size_t *numbers; /* owned; of each worker: its oldest prompt */
    uint64_t rng;
    double ns[max_rounds];
};

static void
fleet_begin(struct fleet *fleet, const struct bench *bench, uint32_t workers, size_t own)
{
    struct costs *costs = &fleet->costs;
    const size_t prompts = bench_size(bench, cost_blocks) / own / workers;

    fleet->rng = 1;
    fleet->numbers = bench_memory(workers, sizeof *fleet->numbers);
    costs->prompts = prompts > 0 ? prompts : 1;
    replay_init(&costs->replay, workers);
    chain_init(&costs->shared, cost_shared);
    chain_init(&costs->own, own);
    chain_make(&costs->shared, 0, NULL);
    for (uint32_t worker = 0; worker < workers; worker++) {
        for (size_t i = 0; i < costs->prompts; i++) {
            bring(costs, worker, i);
        }
    }
}

static void fleet_end(struct fleet *fleet)
{
    replay_done(&fleet->costs.replay);
    chain_done(&fleet->costs.shared);
    chain_done(&fleet->costs.own);
    free(fleet->numbers);
}

/* Returns the rounds. */
static size_t take_turns(const struct bench *bench, struct fleet *fleets, size_t count)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    size_t rounds = 0;

    bench_measure(0);
    do {
        for (size_t i = 0; i < count; i++) {
            struct fleet *fleet = &fleets[i];
            const size_t events = bench_size(bench, cost_blocks) / fleet->costs.own.count;
            fleet->ns[rounds] =
                change_all(&fleet->costs, fleet->numbers, events > 0 ? events : 1, &fleet->rng);
            bench_progress_now_and_then(
                "index.cost: %u workers, %zu blocks an event, %.1f ns", fleet->costs.replay.workers,
                fleet->costs.own.count, fleet->ns[rounds]);
        }
        rounds++;
    } while (rounds < max_rounds && bench_seconds_since(began_ns) < bench->seconds);
    return rounds;
}

struct kind {
    const char *name; /* of the figure */
    uint32_t workers;
    size_t own_blocks; /* of a prompt, and so of an event */
};

/* The others against the first. */
static void
measure_kinds(const struct bench *bench, const struct kind *kinds, size_t count, const char *first)
{
    struct fleet *fleets = bench_memory(max_fleets, sizeof *fleets);

    for (size_t i = 0; i < count; i++) {
        fleet_begin(&fleets[i], bench, kinds[i].workers, kinds[i].own_blocks);
    }
    const size_t rounds = take_turns(bench, fleets, count);
    bench_figure_rounds(kinds[0].name, fleets[0].ns, rounds, "ns/block");
    for (size_t i = 1; i < count; i++) {
        const struct bench_turns turns = { .against = first,
                                           .ours = fleets[i].ns,
                                           .theirs = fleets[0].ns,
                                           .count = rounds,
                                           .is_less_better = true };
        bench_figure_turns(kinds[i].name, &turns, "ns/block");
    }
    for (size_t i = 0; i < count; i++) {
        fleet_end(&fleets[i]);
    }
    free(fleets);
}

void row_cost(const struct bench *bench)
{
    static const struct kind kinds[max_fleets] = {
        { "index.cost.10", 10, cost_own },
        { "index.cost.100", 100, cost_own },
        { "index.cost.1000", 1000, cost_own },
        { "index.cost.10000", 10000, cost_own },
    };

    measure_kinds(bench, kinds, KVB_COUNT_OF(kinds), "10 workers");
}

/* ---- index.linear.N: the same blocks in events of 64 blocks, and of 4,096 ---- */

void row_linear(const struct bench *bench)
{
    static const struct kind kinds[] = {
        { "index.linear.64", 10, 64 },
        { "index.linear.4096", 10, 4096 },
    };

    measure_kinds(bench, kinds, KVB_COUNT_OF(kinds), "64 blocks");
}
