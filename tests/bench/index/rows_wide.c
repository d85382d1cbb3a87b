#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

#include <stdlib.h>
#include <string.h>

/* Many workers, one prompt: sets of holders are large, and each event makes new ones. */

enum { max_rounds = 201 };

/* ---- index.wide: each of 10,000 loses a random tail, and stores it again ---- */

struct wide {
    struct replay replay;
    struct chain chain;
    uint32_t *order; /* owned; the order of the workers, drawn anew in each round */
    size_t *lost;    /* owned; blocks of the tail that each loses */
    uint64_t rng;
};

static void shuffle(uint32_t *order, uint32_t count, uint64_t *rng)
{
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t other = (uint32_t)(bench_random(rng) % i);
        const uint32_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

/* Time for each block of all workers' tails, in ns. */
static double lose_all(struct wide *wide)
{
    size_t blocks = 0;

    for (uint32_t i = 0; i < wide->replay.workers; i++) {
        wide->lost[i] = 1 + bench_random(&wide->rng) % (wide->chain.count - 1);
        blocks += wide->lost[i];
    }
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    for (uint32_t i = 0; i < wide->replay.workers; i++) {
        const uint32_t worker = wide->order[i];
        const size_t count = wide->chain.count;
        chain_remove(&wide->replay, worker, &wide->chain, count - wide->lost[worker], count);
    }
    return (double)(kvb_clock_monotonic_ns() - began_ns) / (double)blocks;
}

static double store_all(struct wide *wide)
{
    size_t blocks = 0;
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    for (uint32_t i = 0; i < wide->replay.workers; i++) {
        const uint32_t worker = wide->order[i];
        const size_t count = wide->chain.count;
        chain_store(&wide->replay, worker, &wide->chain, count - wide->lost[worker], count);
        blocks += wide->lost[worker];
    }
    return (double)(kvb_clock_monotonic_ns() - began_ns) / (double)blocks;
}

static void measure_wide(
    const struct bench *bench, size_t blocks, const char *lose_name, const char *store_name)
{
    const uint32_t workers = (uint32_t)bench_size(bench, 10000);
    struct wide wide = { .rng = 1 };
    double lose_ns[max_rounds];
    double store_ns[max_rounds];
    size_t rounds = 0;

    replay_init(&wide.replay, workers);
    chain_init(&wide.chain, blocks);
    chain_make(&wide.chain, 0, NULL);
    wide.order = bench_memory(workers, sizeof *wide.order);
    wide.lost = bench_memory(workers, sizeof *wide.lost);
    for (uint32_t i = 0; i < workers; i++) {
        wide.order[i] = i;
        chain_store(&wide.replay, i, &wide.chain, 0, blocks);
    }
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        shuffle(wide.order, workers, &wide.rng);
        lose_ns[rounds] = lose_all(&wide);
        shuffle(wide.order, workers, &wide.rng);
        store_ns[rounds] = store_all(&wide);
        bench_progress_now_and_then(
            "%s: round %zu, %.0f and %.0f ns a block", lose_name, rounds + 1, lose_ns[rounds],
            store_ns[rounds]);
        rounds++;
    } while (rounds < max_rounds && bench_seconds_since(began_ns) < bench->seconds);

    bench_figure_rounds(lose_name, lose_ns, rounds, "ns/block");
    bench_figure_rounds(store_name, store_ns, rounds, "ns/block");
    replay_done(&wide.replay);
    chain_done(&wide.chain);
    free(wide.order);
    free(wide.lost);
}

void row_wide(const struct bench *bench)
{
    measure_wide(bench, 64, "index.wide.lose", "index.wide.store");
}

void row_wide_long(const struct bench *bench)
{
    measure_wide(bench, 512, "index.wide_long.lose", "index.wide_long.store");
}

/* ---- index.staircase: 999 workers, each holds one block more than the one before ---- */

/* us of one query after the other, the whole prompt each. */
static void say_queries(
    const struct bench *bench, struct replay *replay, const struct chain *chain, const char *name)
{
    enum { max_queries = 1 << 16 };
    uint32_t *took_ns = bench_memory(max_queries, sizeof *took_ns);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    size_t count = 0;

    bench_measure(0);
    do {
        const uint64_t before_ns = kvb_clock_monotonic_ns();
        replay_query(replay, chain->tokens, chain->count);
        took_ns[count++] = (uint32_t)(kvb_clock_monotonic_ns() - before_ns);
    } while (count < max_queries && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_percentile(name, took_ns, count, 500);
    free(took_ns);
}

void row_staircase(const struct bench *bench)
{
    enum { depths = 999 };
    struct replay replay;
    struct chain chain;
    uint32_t order[depths];
    uint64_t rng = 1;

    replay_init(&replay, depths);
    chain_init(&chain, depths);
    chain_make(&chain, 0, NULL);
    for (uint32_t i = 0; i < depths; i++) {
        order[i] = i;
    }
    shuffle(order, depths, &rng);
    for (uint32_t i = 0; i < depths; i++) {
        chain_store(&replay, order[i], &chain, 0, i + 1);
    }
    say_queries(bench, &replay, &chain, "index.staircase.p50");
    replay_done(&replay);
    chain_done(&chain);
}

/* ---- index.deep: a prompt of 100,000 tokens in blocks of 16, held by eight ---- */

void row_deep(const struct bench *bench)
{
    enum { workers = 8, blocks = 6250 };
    struct replay replay;
    struct chain chain;

    replay_init(&replay, workers);
    chain_init(&chain, blocks);
    chain_make(&chain, 0, NULL);
    for (uint32_t i = 0; i < workers; i++) {
        chain_store(&replay, i, &chain, 0, blocks);
    }
    say_queries(bench, &replay, &chain, "index.deep.p50");
    replay_done(&replay);
    chain_done(&chain);
}
