#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

/* ---- index.snapshot: 10 million blocks of one index into another, empty one ---- */

enum { snapshot_workers = 100, snapshot_prompts = 1000, snapshot_chain = 100 };

struct loader {
    struct replay *target;
    uint32_t worker;
    size_t blocks;
};

static kvb_status load_run(void *context, const struct kvb_index_run *run)
{
    struct loader *loader = context;

    loader->blocks += run->count;
    return kvb_prefix_index_store(
        loader->target->index, loader->target->slots[loader->worker], run, NULL);
}

static kvb_status count_run(void *context, const struct kvb_index_run *run)
{
    *(size_t *)context += run->count;
    return KVB_OK;
}

static void fill(const struct bench *bench, struct replay *source)
{
    const size_t prompts = bench_size(bench, snapshot_prompts);
    struct chain chain;

    chain_init(&chain, snapshot_chain);
    for (uint32_t worker = 0; worker < snapshot_workers; worker++) {
        for (size_t i = 0; i < prompts; i++) {
            chain_make(&chain, (uint64_t)worker * snapshot_prompts + i, NULL);
            chain_store(source, worker, &chain, 0, snapshot_chain);
        }
        bench_progress_now_and_then(
            "index.snapshot: %u of %d workers filled", worker + 1, snapshot_workers);
    }
    chain_done(&chain);
}

static double walk_all(struct replay *source)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    size_t blocks = 0;

    for (uint32_t i = 0; i < snapshot_workers; i++) {
        bench_must(
            kvb_prefix_index_walk(source->index, source->slots[i], count_run, &blocks), "a walk");
    }
    return bench_seconds_since(began_ns);
}

static double load_all(struct replay *source)
{
    struct replay target;
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    replay_init(&target, snapshot_workers);
    for (uint32_t i = 0; i < snapshot_workers; i++) {
        struct loader loader = { .target = &target, .worker = i };
        bench_must(
            kvb_prefix_index_walk(source->index, source->slots[i], load_run, &loader), "a load");
        if (kvb_prefix_index_slot_blocks(target.index, target.slots[i]) != loader.blocks) {
            bench_fail("index.snapshot: the second index lacks blocks of the first");
        }
    }
    const double seconds = bench_seconds_since(began_ns);
    replay_done(&target);
    return seconds;
}

void row_snapshot(const struct bench *bench)
{
    enum { max_loads = 21 };
    struct replay source;
    double load_s[max_loads];
    double walk_s[max_loads];
    size_t loads = 0;

    replay_init(&source, snapshot_workers);
    fill(bench, &source);
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        walk_s[loads] = walk_all(&source);
        load_s[loads] = load_all(&source);
        bench_progress_now_and_then("index.snapshot: %.2f s", load_s[loads]);
        loads++;
    } while (loads < max_loads && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_rounds("index.snapshot.load", load_s, loads, "s");
    bench_figure_rounds("index.snapshot.walk", walk_s, loads, "s");
    replay_done(&source);
}
