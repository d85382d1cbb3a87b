#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

/* ---- index.clear: one of 1,000 workers of 16,384 blocks is cleared ----
 *
 * Each worker holds 128 prompts of 128 blocks; the first half of each prompt is held by
 * all workers, the rest by it alone. */
enum {
    workers = 1000,
    prompts = 128,
    shared_blocks = 64,
    own_blocks = 64,
    extents_a_slice = 256,
    max_clears = 101,
    cleared_together = 100,
};

struct cleared {
    struct replay replay;
    struct chain shared;
    struct chain own;
    uint32_t workers, prompts;
};

static void fill(struct cleared *cleared, uint32_t worker)
{
    for (uint32_t i = 0; i < cleared->prompts; i++) {
        chain_make(&cleared->shared, i, NULL);
        chain_store(&cleared->replay, worker, &cleared->shared, 0, shared_blocks);
        const uint64_t content = (uint64_t)(worker + 1) * workers * prompts + i;
        chain_make(&cleared->own, content, &cleared->shared.blocks[shared_blocks - 1]);
        chain_store(&cleared->replay, worker, &cleared->own, 0, own_blocks);
    }
}

/* Reclaims slice by slice until nothing is left. Returns the time of the worst slice. */
static uint64_t sweep(struct cleared *cleared, uint64_t *out_all_ns)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint64_t worst_ns = 0;
    bool is_more = true;

    while (is_more) { /* ends: each slice goes on where the last one stopped */
        const uint64_t before_ns = kvb_clock_monotonic_ns();
        is_more = kvb_prefix_index_reclaim(cleared->replay.index, extents_a_slice);
        const uint64_t took_ns = kvb_clock_monotonic_ns() - before_ns;
        worst_ns = took_ns > worst_ns ? took_ns : worst_ns;
    }
    *out_all_ns = kvb_clock_monotonic_ns() - began_ns;
    return worst_ns;
}

static uint64_t clear_one(struct cleared *cleared, uint32_t worker)
{
    const uint64_t before_ns = kvb_clock_monotonic_ns();

    kvb_prefix_index_slot_clear(cleared->replay.index, cleared->replay.slots[worker]);
    return kvb_clock_monotonic_ns() - before_ns;
}

static void measure_single(const struct bench *bench, struct cleared *cleared)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint32_t at_once_ns[max_clears];
    uint32_t slice_ns[max_clears];
    uint32_t all_ns[max_clears];
    size_t count = 0;
    uint32_t worker = 0;

    bench_measure(0);
    do {
        uint64_t swept_ns = 0;
        at_once_ns[count] = (uint32_t)clear_one(cleared, worker);
        slice_ns[count] = (uint32_t)sweep(cleared, &swept_ns);
        all_ns[count] = at_once_ns[count] + (uint32_t)swept_ns;
        fill(cleared, worker);
        bench_progress_now_and_then(
            "index.clear: %zu, %.0f us at once, %.0f us in all", count + 1, at_once_ns[count] / 1e3,
            all_ns[count] / 1e3);
        worker = worker + 1 < cleared->workers ? worker + 1 : 0;
        count++;
    } while (count < max_clears && bench_seconds_since(began_ns) < bench->seconds);

    bench_figure_percentile("index.clear.at_once", at_once_ns, count, 500);
    /* The median of each clear's worst slice, because the machine sometimes interrupts one. */
    bench_figure_percentile("index.clear.slice", slice_ns, count, 500);
    bench_figure_percentile("index.clear.all", all_ns, count, 500);
}

/* Clears at the same time share one reclaim. */
static void measure_together(struct cleared *cleared)
{
    const uint32_t count =
        cleared->workers < cleared_together ? cleared->workers : cleared_together;
    uint64_t swept_ns = 0;
    uint64_t all_ns = 0;

    bench_measure(0);
    for (uint32_t i = 0; i < count; i++) {
        all_ns += clear_one(cleared, i);
    }
    (void)sweep(cleared, &swept_ns); /* of all, not of one */
    all_ns += swept_ns;
    bench_figure("index.clear.all_of_100", (double)all_ns / 1e3 / count, "us a worker");
}

void row_clear(const struct bench *bench)
{
    struct cleared cleared = {
        .workers = (uint32_t)bench_size(bench, workers),
        .prompts = prompts,
    };

    replay_init(&cleared.replay, cleared.workers);
    chain_init(&cleared.shared, shared_blocks);
    chain_init(&cleared.own, own_blocks);
    for (uint32_t i = 0; i < cleared.workers; i++) {
        fill(&cleared, i);
        bench_progress_now_and_then("index.clear: %u of %u workers filled", i + 1, cleared.workers);
    }
    measure_single(bench, &cleared);
    measure_together(&cleared);
    replay_done(&cleared.replay);
    chain_done(&cleared.shared);
    chain_done(&cleared.own);
}
