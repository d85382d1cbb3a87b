#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

#include <stdlib.h>

/* ---- index.cost.W: the same blocks and events, dealt to more and more workers ----
 *
 * Each prompt has 32 blocks that all workers hold and 64 of one worker alone.  An event
 * takes the oldest prompt of a worker out and brings a new one in. */
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

/* ns per block of events; making the blocks is not in it. */
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

static double cost_of(const struct bench *bench, uint32_t workers, size_t own)
{
    enum { max_rounds = 101 };
    const size_t prompts = bench_size(bench, cost_blocks) / own; /* and events a round */
    struct costs costs = { .prompts = prompts / workers };
    size_t *numbers = bench_memory(workers, sizeof *numbers);
    double ns[max_rounds];
    size_t rounds = 0;
    uint64_t rng = 1;

    costs.prompts = costs.prompts > 0 ? costs.prompts : 1;
    replay_init(&costs.replay, workers);
    chain_init(&costs.shared, cost_shared);
    chain_init(&costs.own, own);
    chain_make(&costs.shared, 0, NULL);
    for (uint32_t worker = 0; worker < workers; worker++) {
        for (size_t i = 0; i < costs.prompts; i++) {
            bring(&costs, worker, i);
        }
    }
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        ns[rounds++] = change_all(&costs, numbers, prompts > 0 ? prompts : 1, &rng);
        bench_progress_now_and_then(
            "index.cost: %u workers, %zu blocks an event, %.1f ns", workers, own, ns[rounds - 1]);
    } while (rounds < max_rounds && bench_seconds_since(began_ns) < bench->seconds / 4);
    replay_done(&costs.replay);
    chain_done(&costs.shared);
    chain_done(&costs.own);
    free(numbers);
    return bench_median(ns, rounds);
}

void row_cost(const struct bench *bench)
{
    const double of_10 = cost_of(bench, 10, cost_own);
    const double of_100 = cost_of(bench, 100, cost_own);
    const double of_1000 = cost_of(bench, 1000, cost_own);
    const double of_10000 = cost_of(bench, 10000, cost_own);

    bench_figure("index.cost.10", of_10, "ns/block");
    bench_figure_against("index.cost.100", of_100, "ns/block", "10 workers", of_10, of_10 / of_100);
    bench_figure_against(
        "index.cost.1000", of_1000, "ns/block", "10 workers", of_10, of_10 / of_1000);
    bench_figure_against(
        "index.cost.10000", of_10000, "ns/block", "10 workers", of_10, of_10 / of_10000);
}

/* ---- index.linear.N: the same blocks in events of 64 blocks, and of 4,096 ---- */

void row_linear(const struct bench *bench)
{
    enum { workers = 10 };
    const double of_64 = cost_of(bench, workers, 64);
    const double of_4096 = cost_of(bench, workers, 4096);

    bench_figure("index.linear.64", of_64, "ns/block");
    bench_figure_against(
        "index.linear.4096", of_4096, "ns/block", "64 blocks", of_64, of_64 / of_4096);
}
