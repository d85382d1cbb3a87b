#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

/* ---- index.growth: the worst single store from empty to 8 million blocks ---- */

enum {
    growth_blocks = 8000000,
    growth_chain = 64, /* blocks of one store: a prompt that nobody else stores */
    growth_workers = 128,
    growth_max_runs = 21,
};

/* One run from an empty index; CPU time of one store, in ns. */
static uint32_t worst_store(size_t stores)
{
    kvb_tokens_hash tokens[growth_chain];
    kvb_block_hash blocks[growth_chain];
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = growth_chain };
    struct replay replay;
    uint32_t worst_ns = 0;

    replay_init(&replay, growth_workers);
    for (size_t i = 0; i < stores; i++) {
        uint64_t name = 0;
        for (size_t n = 0; n < growth_chain; n++) {
            tokens[n].value = bench_mix(bench_mix(i + 1) + n);
            blocks[n].value = name = bench_mix(name ^ tokens[n].value);
        }
        const kvb_slot_ref slot = replay.slots[i % growth_workers];
        const uint64_t before_ns = bench_cpu_ns();
        bench_must(kvb_prefix_index_store(replay.index, slot, &run, NULL), "a store");
        const uint32_t took_ns = (uint32_t)(bench_cpu_ns() - before_ns);
        worst_ns = took_ns > worst_ns ? took_ns : worst_ns;
        bench_progress_now_and_then(
            "index.growth: %.1f million blocks", (double)(i * growth_chain) / 1e6);
    }
    replay_done(&replay);
    return worst_ns;
}

void row_growth(const struct bench *bench)
{
    const size_t stores = bench_size(bench, growth_blocks / growth_chain);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint32_t min_worst_ns = UINT32_MAX;
    size_t runs = 0;

    bench_measure(0);
    do {
        const uint32_t worst_ns = worst_store(stores);
        min_worst_ns = worst_ns < min_worst_ns ? worst_ns : min_worst_ns;
    } while (++runs < growth_max_runs && bench_seconds_since(began_ns) < bench->seconds);

    /* The machine sometimes interrupts a run, but the index's own work is the same in every run, so
     * the run with the smallest worst store counts. */
    bench_figure("index.growth.worst", min_worst_ns / 1e6, "ms");
}
