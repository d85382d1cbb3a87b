#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

#include <stdlib.h>

/* ---- index.growth: the worst single store from empty to 8 million blocks ---- */

enum {
    growth_blocks = 8000000,
    growth_chain = 64, /* blocks of one store */
    growth_max_runs = 21,
};

/* One run from an empty index.  Fills took_ns, and sorts it. */
static void grow(uint32_t workers, uint32_t *took_ns, size_t stores)
{
    struct replay replay;
    struct chain chain;

    replay_init(&replay, workers);
    chain_init(&chain, growth_chain);
    for (size_t i = 0; i < stores; i++) {
        chain_make(&chain, i, NULL);
        const uint64_t before_ns = bench_cpu_ns();
        chain_store(&replay, (uint32_t)(i % workers), &chain, 0, growth_chain);
        took_ns[i] = (uint32_t)(bench_cpu_ns() - before_ns);
        bench_progress_now_and_then(
            "index.growth: %.1f million blocks", (double)(i * growth_chain) / 1e6);
    }
    (void)bench_percentile(took_ns, stores, 500); /* sorts */
    replay_done(&replay);
    chain_done(&chain);
}

static void measure_growth(
    const struct bench *bench, uint32_t workers, const char *worst_name, const char *rare_name)
{
    const size_t stores = bench_size(bench, growth_blocks / growth_chain);
    const size_t rare_at = stores - 1 - stores / 10000; /* one in 10,000 takes longer */
    uint32_t *took_ns = bench_memory(stores, sizeof *took_ns);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    double worst_ms[growth_max_runs];
    double rare_ms[growth_max_runs];
    double min_worst_ms = 0;
    size_t runs = 0;

    bench_measure(0);
    do {
        grow(workers, took_ns, stores);
        worst_ms[runs] = took_ns[stores - 1] / 1e6;
        rare_ms[runs] = took_ns[rare_at] / 1e6;
        if (runs == 0 || worst_ms[runs] < min_worst_ms) {
            min_worst_ms = worst_ms[runs];
        }
        runs++;
    } while (runs < growth_max_runs && bench_seconds_since(began_ns) < bench->seconds);

    /* The machine sometimes interrupts a run, but the index's own work is the same in every run, so
     * the run with the smallest worst store counts. */
    bench_figure(worst_name, min_worst_ms, "ms");
    bench_figure_rounds(rare_name, rare_ms, runs, "ms");
    free(took_ns);
}

void row_growth(const struct bench *bench)
{
    measure_growth(bench, 128, "index.growth.worst", "index.growth.p99.99");
    measure_growth(bench, 1, "index.growth.one_worker.worst", "index.growth.one_worker.p99.99");
}
