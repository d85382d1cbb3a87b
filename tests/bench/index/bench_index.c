#include "core/clock.h"
#include "core/limits.h"
#include "index/index.h"
#include "parts/bench.h"
#include "parts/corpus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows index.*: the index alone, one thread, through index/index.h.  Those of a corpus are
 * measured for each; query and memory for the one of 128 workers alone. */

/* ---- A replay ---- */

/* An index with a slot for each worker, of the same number, and the replay of a corpus through it
 * by index/index.h alone.
 *
 * Every answer is read to its end, slot by slot, as a router would read it, and goes into
 * the checksum:
 *
 *     S = sum of depth * (2 * worker + 1) over the answer       whatever its order
 *     checksum = checksum * 1099511628211 + S                   mod 2^64, query by query
 *
 * Two contenders that replayed the same corpus and have the same checksum gave the same
 * answers, worker by worker.
 *
 * Threads: the caller locks. */
struct replay {
    struct kvb_prefix_index *index; /* owned */
    kvb_slot_ref *slots;            /* owned; of each worker */
    uint32_t workers;
    uint32_t *depths; /* owned; of each worker, from the last answer that named it */
    struct kvb_match match;
    uint64_t checksum;
    uint64_t block_operations; /* replayed */
};

static void replay_init(struct replay *replay, uint32_t workers)
{
    const struct kvb_prefix_index_options options = { .max_nodes = kvb_max_index_blocks,
                                                      .max_slots = workers };

    *replay = (struct replay){ .workers = workers };
    bench_must(kvb_prefix_index_new(&options, &replay->index), "the index");
    replay->slots = bench_memory(workers, sizeof *replay->slots);
    replay->depths = bench_memory(workers, sizeof *replay->depths);
    for (uint32_t i = 0; i < workers; i++) {
        bench_must(kvb_prefix_index_slot_new(replay->index, &replay->slots[i]), "a slot");
        if (replay->slots[i].value != i) {
            bench_fail("a new index is expected to number slots from 0 on");
        }
    }
}

/* Populates the memory that the index needs for so many nodes more. */
static void replay_prepare(struct replay *replay, size_t nodes)
{
    enum { step_bytes = 32 << 20 };

    while (kvb_prefix_index_prepare(replay->index, nodes, step_bytes)) {
    }
}

static void replay_done(struct replay *replay)
{
    kvb_match_done(&replay->match);
    kvb_prefix_index_free(replay->index);
    free(replay->slots);
    free(replay->depths);
}

struct reading {
    uint32_t *depths; /* borrowed from the replay */
    uint64_t sum;
};

static void read_depth(void *context, kvb_slot_ref slot, uint32_t depth)
{
    struct reading *reading = context;

    reading->depths[slot.value] = depth;
    reading->sum += depth * (UINT64_C(2) * slot.value + 1);
}

/* Answers the query of a record, and adds the answer to the checksum. */
static void replay_query(struct replay *replay, const kvb_tokens_hash *tokens, size_t count)
{
    struct reading reading = { .depths = replay->depths };

    bench_must(kvb_prefix_index_match(replay->index, tokens, count, &replay->match), "a query");
    kvb_match_each(&replay->match, read_depth, &reading);
    replay->checksum = replay->checksum * UINT64_C(1099511628211) + reading.sum;
}

static struct kvb_index_run run_of(const struct bench_record *record)
{
    return (struct kvb_index_run){
        .has_parent = record->has_parent,
        .parent = record->parent,
        .blocks = record->blocks,
        .tokens = record->tokens,
        .count = record->count,
    };
}

static void store(struct replay *replay, const struct bench_record *record)
{
    const struct kvb_index_run run = run_of(record);

    bench_must(
        kvb_prefix_index_store(replay->index, replay->slots[record->worker], &run, NULL),
        "a store");
}

static void replay_record(struct replay *replay, const struct bench_record *record)
{
    switch (record->kind) {
    case bench_query:
        replay_query(replay, record->tokens, record->count);
        break;
    case bench_store:
        store(replay, record);
        break;
    case bench_remove:
    case bench_kind_count: /* no record is one */
        bench_must(
            kvb_prefix_index_remove(
                replay->index, replay->slots[record->worker], record->blocks, record->count, NULL),
            "a removal");
        break;
    }
    replay->block_operations += record->count;
}

/* Prefetches what a record needs, as if it had just been decoded. */
static void fetch_record(const struct bench_record *record, const uint64_t *end)
{
    const uint64_t *begin =
        record->kind == bench_query ? &record->tokens->value : &record->blocks->value;

    for (const uint64_t *at = begin; at < end; at += 8) {
        __builtin_prefetch(at);
    }
}

/* A change that comes soon. */
static void expect(const struct replay *replay, const struct bench_record *record)
{
    const kvb_slot_ref slot = replay->slots[record->worker];

    if (record->kind == bench_store) {
        const struct kvb_index_run run = run_of(record);
        kvb_prefix_index_expect_store(replay->index, slot, &run);
    } else if (record->kind == bench_remove) {
        kvb_prefix_index_expect_remove(replay->index, slot, record->blocks, record->count);
    }
}

/* Replays the whole corpus, however long that takes, because a part has more stores and fewer
 * removals. With is_events_only, without queries. Returns the seconds. */
static double
replay_corpus(struct replay *replay, const struct bench_corpus *corpus, bool is_events_only)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    const uint64_t *soon = corpus->begin;
    struct bench_record record;

    for (int i = 0; i < 2 && soon < corpus->end; i++) {
        soon = bench_corpus_next(soon, &record);
    }
    for (const uint64_t *at = corpus->begin; at < corpus->end;) {
        if (soon < corpus->end) {
            soon = bench_corpus_next(soon, &record);
            expect(replay, &record);
            fetch_record(&record, soon);
            __builtin_prefetch(soon); /* the record after it, head and first hashes */
            __builtin_prefetch(soon + 8);
        }
        at = bench_corpus_next(at, &record);
        if (record.kind != bench_query || !is_events_only) {
            replay_record(replay, &record);
        }
    }
    return bench_seconds_since(began_ns);
}

/* ---- index.conversation ---- */

enum { max_replays = 15, max_queries = 1 << 20, row_name_bytes = 64 };

/* The results of several replays of one corpus. */
struct replays {
    double rates[max_replays]; /* M block operations/s */
    size_t count;
    uint64_t checksum; /* of the last */
};

/* Each time into a new index, whose memory is populated as an aggregator does it when it is idle,
 * for workers of this size. */
static void replay_once(const struct bench_corpus *corpus, struct replays *replays)
{
    enum { blocks_a_worker = 16384 };
    /* Workers of a fleet hold a quarter of their blocks in common, at the least. */
    const size_t nodes = (size_t)corpus->workers * blocks_a_worker * 3 / 4;
    struct replay replay;

    replay_init(&replay, corpus->workers);
    replay_prepare(&replay, nodes);
    bench_resume(); /* the time to make an index is not included */
    const double seconds = replay_corpus(&replay, corpus, false);
    bench_pause();
    replays->rates[replays->count++] = (double)replay.block_operations / seconds / 1e6;
    replays->checksum = replay.checksum;
    replay_done(&replay);
}

/* Repeats as long as the row may take; the figure is the median. */
static void row_conversation(const struct bench *bench, const struct bench_corpus *corpus)
{
    char name[row_name_bytes];
    char checked[row_name_bytes + 16];
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct replays replays = { 0 };

    (void)snprintf(name, sizeof name, "index.conversation.%" PRIu32, corpus->workers);
    bench_measure();
    bench_pause();
    do {
        replay_once(corpus, &replays);
        bench_progress_now_and_then(
            "%s: replay %zu, %.1f M/s", name, replays.count, replays.rates[replays.count - 1]);
    } while (replays.count < max_replays && bench_seconds_since(began_ns) < bench->seconds);

    bench_figure_rounds(name, replays.rates, replays.count, "M block operations/s");
    (void)snprintf(checked, sizeof checked, "%s.checksum", name);
    /* A double holds 53 bits. */
    bench_figure(checked, (double)(replays.checksum >> 11), "checksum");
}

/* ---- index.query, index.bytes_per_membership ---- */

/* Brings a query's hashes into the cache, where a decoder leaves them. */
static void read_question(const struct bench_record *record)
{
    static volatile uint64_t read;
    uint64_t sum = 0;

    for (size_t i = 0; i < record->count; i++) {
        sum += record->tokens[i].value;
    }
    read = sum;
    (void)read;
}

/* All queries of the corpus in its order, one by one, on the index after its last event. */
static size_t
time_queries(struct replay *replay, const struct bench_corpus *corpus, uint32_t *out_ns)
{
    struct bench_record record;
    size_t count = 0;

    for (const uint64_t *at = corpus->begin; at < corpus->end && count < max_queries;) {
        at = bench_corpus_next(at, &record);
        if (record.kind != bench_query) {
            continue;
        }
        read_question(&record);
        const uint64_t before_ns = kvb_clock_monotonic_ns();
        replay_query(replay, record.tokens, record.count);
        out_ns[count++] = (uint32_t)(kvb_clock_monotonic_ns() - before_ns);
    }
    return count;
}

/* Repeats as long as the row may take; the figures are medians. */
static void measure_queries(
    const struct bench *bench, struct replay *replay, const struct bench_corpus *corpus,
    uint32_t *took_ns)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    double half_us[max_replays];
    double rare_us[max_replays];
    size_t times = 0;

    bench_measure();
    do {
        const size_t count = time_queries(replay, corpus, took_ns);
        half_us[times] = bench_percentile(took_ns, count, 500) / 1e3;
        rare_us[times] = bench_percentile(took_ns, count, 990) / 1e3;
        bench_progress_now_and_then(
            "index.query: %zu queries one by one, p99 %.2f us", count, rare_us[times]);
        times++;
    } while (times < max_replays && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_rounds("index.query.p50", half_us, times, "us");
    bench_figure_rounds("index.query.p99", rare_us, times, "us");
}

/* What the process grew by, for each (worker, block) held. */
static void say_memory(const struct replay *replay, size_t resident_bytes)
{
    struct kvb_index_counters counters;

    kvb_prefix_index_count(replay->index, &counters);
    bench_progress(
        "index.bytes_per_membership: %.1f by the index's own count",
        (double)kvb_prefix_index_bytes(replay->index) / (double)counters.memberships);
    bench_figure(
        "index.bytes_per_membership.resident",
        (double)resident_bytes / (double)counters.memberships, "bytes");
}

static void row_quiet(const struct bench *bench, const struct bench_corpus *corpus)
{
    uint32_t *took_ns = bench_memory(max_queries, sizeof *took_ns);
    struct replay replay;

    memset(took_ns, 0xff, max_queries * sizeof *took_ns); /* resident before we count */
    const size_t before = bench_resident_bytes();
    bench_measure();
    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, corpus, true);
    say_memory(&replay, bench_resident_bytes() - before);
    measure_queries(bench, &replay, corpus, took_ns);
    replay_done(&replay);
    free(took_ns);
}

/* ---- index.growth: the worst single store from empty to 8 million blocks ---- */

enum {
    growth_blocks = 8000000,
    growth_chain = 64, /* blocks of one store: a prompt that nobody else stores */
    growth_workers = 128,
    growth_min_runs = 5, /* the first one takes memory that the host has to find */
    growth_max_runs = 21,
};

/* One run from an empty index.  min_ns: the CPU time of each store in its fastest run.
 * is_prepared: between the stores the index is prepared for the next ones, as an aggregator does it
 * when it is idle. */
static void grow(size_t stores, bool is_prepared, uint32_t *min_ns)
{
    enum { spare_nodes = 1 << 15 };
    kvb_tokens_hash tokens[growth_chain];
    kvb_block_hash blocks[growth_chain];
    const struct kvb_index_run run = { .blocks = blocks, .tokens = tokens, .count = growth_chain };
    struct replay replay;

    replay_init(&replay, growth_workers);
    for (size_t i = 0; i < stores; i++) {
        uint64_t name = 0;
        for (size_t n = 0; n < growth_chain; n++) {
            tokens[n].value = bench_mix(bench_mix(i + 1) + n);
            blocks[n].value = name = bench_mix(name ^ tokens[n].value);
        }
        if (is_prepared) {
            replay_prepare(&replay, spare_nodes);
        }
        const kvb_slot_ref slot = replay.slots[i % growth_workers];
        const uint64_t before_ns = bench_cpu_ns();
        bench_must(kvb_prefix_index_store(replay.index, slot, &run, NULL), "a store");
        const uint32_t took_ns = (uint32_t)(bench_cpu_ns() - before_ns);
        min_ns[i] = took_ns < min_ns[i] ? took_ns : min_ns[i];
        bench_progress_now_and_then(
            "index.growth: %.1f million blocks", (double)(i * growth_chain) / 1e6);
    }
    replay_done(&replay);
}

/* The worst store, in ms.  The machine interrupts stores, but the index's own work in each is the
 * same in every run, so a store counts as it was in its fastest run. */
static double worst_store_ms(const struct bench *bench, bool is_prepared)
{
    const size_t stores = bench_size(bench, growth_blocks / growth_chain);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    uint32_t *min_ns = bench_memory(stores, sizeof *min_ns);
    size_t runs = 0;

    memset(min_ns, 0xff, stores * sizeof *min_ns);
    do {
        grow(stores, is_prepared, min_ns);
        runs++;
    } while (runs < growth_min_runs ||
             (runs < growth_max_runs && bench_seconds_since(began_ns) < bench->seconds / 2));
    const uint32_t worst_ns = bench_percentile(min_ns, stores, 1000);
    free(min_ns);
    return worst_ns / 1e6;
}

static void row_growth(const struct bench *bench)
{
    bench_measure();
    bench_figure("index.growth.worst", worst_store_ms(bench, false), "ms");
    bench_progress(
        "index.growth.worst: %.3f ms when it is prepared between the stores",
        worst_store_ms(bench, true));
}

/* ---- The program ---- */

enum { quiet_workers = 128 };

static void measure_corpus(const struct bench *bench, const char *path)
{
    struct bench_corpus corpus = bench_corpus_load(path);
    char name[64];

    (void)snprintf(name, sizeof name, "index.conversation.%" PRIu32, corpus.workers);
    if (bench_wants(bench, name)) {
        row_conversation(bench, &corpus);
    }
    if (corpus.workers == quiet_workers &&
        (bench_wants(bench, "index.query") || bench_wants(bench, "index.bytes_per_membership"))) {
        row_quiet(bench, &corpus);
    }
    bench_corpus_done(&corpus);
}

int main(int argc, char **argv)
{
    const struct bench bench =
        bench_begin(argc, argv, "The prefix index alone, on corpora of bench_corpus.");

    for (size_t i = 0; i < bench.input_count; i++) {
        measure_corpus(&bench, bench.inputs[i]);
    }
    if (bench_wants(&bench, "index.growth")) {
        row_growth(&bench);
    }
    return 0;
}
