#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

#include <stdlib.h>

/* The rows scene.*: what other rows of the index measure on blocks of their own, on a scene
 * (corpus/bench_scenes.c draws it) that other indexes replay too. */

static struct bench_corpus
part_of(const struct bench_corpus *corpus, const uint64_t *begin, const uint64_t *end)
{
    return (struct bench_corpus){ .workers = corpus->workers, .begin = begin, .end = end };
}

/* From `at` on, as long as records are of one kind. */
struct run {
    struct bench_corpus records;
    enum bench_kind kind;
    size_t count;  /* records */
    size_t blocks; /* of all of them */
};

static struct run run_at(const struct bench_corpus *corpus, const uint64_t *at)
{
    const uint64_t *begin = at;
    struct bench_record record;
    struct run run = { 0 };

    (void)bench_corpus_next(at, &record);
    run.kind = record.kind;
    while (at < corpus->end) {
        const uint64_t *next = bench_corpus_next(at, &record);
        if (record.kind != run.kind) {
            break;
        }
        run.count++;
        run.blocks += record.count;
        at = next;
    }
    run.records = part_of(corpus, begin, at);
    return run;
}

/* ---- scene.rounds ---- */

enum { max_runs = 1024, extents_a_slice = 256 };

struct times {
    double values[max_runs];
    size_t count;
};

struct rounds {
    struct times store_ns, remove_ns;  /* a block */
    struct times clear_us, cleared_us; /* a clear: until no answer lists the worker, and until its
                                          memory is reclaimed */
};

static void note(struct times *times, double value)
{
    if (times->count < max_runs) {
        times->values[times->count++] = value;
    }
}

static void note_run(struct rounds *rounds, struct replay *replay, const struct run *run)
{
    const double at_once = replay_corpus(replay, &run->records, false);
    const uint64_t swept_ns = kvb_clock_monotonic_ns();

    switch (run->kind) {
    case bench_store:
        note(&rounds->store_ns, at_once * 1e9 / (double)run->blocks);
        break;
    case bench_remove:
        note(&rounds->remove_ns, at_once * 1e9 / (double)run->blocks);
        break;
    case bench_clear:
        while (kvb_prefix_index_reclaim(replay->index, extents_a_slice)) {
        }
        note(&rounds->clear_us, at_once * 1e6 / (double)run->count);
        note(
            &rounds->cleared_us,
            (at_once + bench_seconds_since(swept_ns)) * 1e6 / (double)run->count);
        break;
    case bench_query:
    case bench_kind_count:
        break;
    }
}

static void say(const char *name, struct times *times, const char *unit)
{
    if (times->count > 0) {
        bench_figure_rounds(name, times->values, times->count, unit);
    }
}

void row_scene_rounds(const struct bench *bench, struct bench_corpus *corpus)
{
    struct rounds *rounds = bench_memory(1, sizeof *rounds);
    const struct run fill = run_at(corpus, corpus->begin);
    struct replay replay;

    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, &fill.records, true);
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        for (const uint64_t *at = fill.records.end; at < corpus->end;) {
            const struct run run = run_at(corpus, at);
            note_run(rounds, &replay, &run);
            at = run.records.end;
        }
    } while (bench_seconds_since(began_ns) < bench->seconds);
    say("scene.rounds.store", &rounds->store_ns, "ns/block");
    say("scene.rounds.remove", &rounds->remove_ns, "ns/block");
    say("scene.rounds.clear.at_once", &rounds->clear_us, "us");
    say("scene.rounds.clear.all", &rounds->cleared_us, "us");
    replay_done(&replay);
    free(rounds);
}

/* ---- scene.queries: all of its queries in turn, after its events ---- */

void row_scene_queries(const struct bench *bench, struct bench_corpus *corpus)
{
    enum { max_queries = 1 << 16 };
    uint32_t *took_ns = bench_memory(max_queries, sizeof *took_ns);
    const struct run fill = run_at(corpus, corpus->begin);
    const uint64_t *at = fill.records.end;
    struct replay replay;
    size_t count = 0;

    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, &fill.records, true);
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        struct bench_record record;
        at = bench_corpus_next(at < corpus->end ? at : fill.records.end, &record);
        const uint64_t before_ns = kvb_clock_monotonic_ns();
        replay_query(&replay, record.tokens, record.count);
        took_ns[count++] = (uint32_t)(kvb_clock_monotonic_ns() - before_ns);
    } while (count < max_queries && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_percentile("scene.queries.p50", took_ns, count, 500);
    bench_figure_percentile("scene.queries.p99", took_ns, count, 990);
    replay_done(&replay);
    free(took_ns);
}

/* ---- scene.growth: the worst of its stores, into an empty index ---- */

static double worst_store_ms(const struct bench_corpus *corpus)
{
    const struct run fill = run_at(corpus, corpus->begin);
    struct replay replay;
    uint64_t worst_ns = 0;

    replay_init(&replay, corpus->workers);
    for (const uint64_t *at = fill.records.begin; at < fill.records.end;) {
        struct bench_record record;
        at = bench_corpus_next(at, &record);
        const uint64_t before_ns = bench_cpu_ns();
        replay_record(&replay, &record);
        const uint64_t took_ns = bench_cpu_ns() - before_ns;
        worst_ns = took_ns > worst_ns ? took_ns : worst_ns;
    }
    replay_done(&replay);
    return (double)worst_ns / 1e6;
}

void row_scene_growth(const struct bench *bench, struct bench_corpus *corpus)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    double min_ms = worst_store_ms(corpus);

    /* The index's own work is the same in every run; the machine interrupts some of them. */
    while (bench_seconds_since(began_ns) < bench->seconds) {
        const double worst_ms = worst_store_ms(corpus);
        min_ms = worst_ms < min_ms ? worst_ms : min_ms;
    }
    bench_figure("scene.growth.worst", min_ms, "ms");
}
