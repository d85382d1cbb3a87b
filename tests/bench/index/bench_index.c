#include "core/clock.h"
#include "core/own.h"
#include "index/replay.h"
#include "parts/bench.h"
#include "parts/corpus.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows index.*: the index alone, one thread, through index/prefix_index.h. */

enum { most_corpora = 8, most_replays = 15, most_queries = 1 << 20 };

struct subject {
    const struct bench *bench;
    const char *paths[most_corpora];
    size_t path_count;
};

/* The figures of the fleet of 128 workers have no number in their names, except for the
 * throughput, where every fleet has one. */
static void name_figure(char out[96], const char *row, uint32_t workers, const char *figure)
{
    if (workers == 128) {
        (void)snprintf(out, 96, "index.%s%s", row, figure);
    } else {
        (void)snprintf(out, 96, "index.%s.%" PRIu32 "%s", row, workers, figure);
    }
}

/* ---- index.conversation.W, index.events.W ---- */

/* What several replays of one corpus gave. */
struct replays {
    double rates[most_replays]; /* M block operations/s */
    size_t count;
    uint64_t checksum; /* of the last */
};

/* Each time into a new index. */
static void replay_once(
    const struct bench *bench, const struct bench_corpus *corpus, bool is_events_only,
    struct replays *replays)
{
    struct replay replay;

    replay_init(&replay, corpus->workers);
    const double seconds = replay_corpus(&replay, corpus, is_events_only, bench->seconds);
    replays->rates[replays->count++] = (double)replay.block_operations / seconds / 1e6;
    replays->checksum = replay.checksum;
    replay_done(&replay);
}

/* Again and again for as long as the row may take; the figure is the median. */
static void measure_replay(
    const struct bench *bench, const struct bench_corpus *corpus, bool is_events_only,
    const char *name)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct replays replays = { 0 };

    do {
        replay_once(bench, corpus, is_events_only, &replays);
        bench_progress_now_and_then(
            "%s: replay %zu, %.1f M/s", name, replays.count, replays.rates[replays.count - 1]);
    } while (replays.count < most_replays && bench_seconds_since(began_ns) < bench->seconds);

    bench_figure(name, bench_median(replays.rates, replays.count), "M block operations/s");
    if (!is_events_only) {
        char checked[96];
        (void)snprintf(checked, sizeof checked, "%s.checksum", name);
        /* A double holds 53 bits. */
        bench_figure(checked, (double)(replays.checksum >> 11), "checksum");
    }
}

/* ---- index.query, index.bytes_per_membership ---- */

/* All queries of the corpus in its order, one by one, on the index that its end left. */
static size_t time_queries(
    struct replay *replay, const struct bench_corpus *corpus, double most_seconds, uint32_t *out_ns)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct bench_record record;
    size_t count = 0;

    for (const uint64_t *at = corpus->begin; at < corpus->end && count < most_queries;) {
        at = bench_corpus_next(at, &record);
        if (record.kind != bench_query) {
            continue;
        }
        const uint64_t before_ns = kvb_clock_monotonic_ns();
        replay_query(replay, record.tokens, record.count);
        const uint64_t after_ns = kvb_clock_monotonic_ns();
        out_ns[count++] = (uint32_t)(after_ns - before_ns);
        if ((double)(after_ns - began_ns) > most_seconds * (double)KVB_NS_PER_S) {
            break;
        }
    }
    return count;
}

static void say_queries(uint32_t workers, uint32_t *took_ns, size_t count)
{
    char name[96];

    name_figure(name, "query", workers, ".p50");
    bench_figure(name, bench_percentile(took_ns, count, 500) / 1e3, "us");
    name_figure(name, "query", workers, ".p99");
    bench_figure(name, bench_percentile(took_ns, count, 990) / 1e3, "us");
}

static void say_memory(const struct replay *replay, size_t resident_bytes)
{
    struct kvb_index_counters counters;
    char name[96];

    kvb_prefix_index_count(replay->index, &counters);
    const double memberships = (double)counters.memberships;
    name_figure(name, "bytes_per_membership", replay->workers, "");
    bench_figure(name, (double)kvb_prefix_index_bytes(replay->index) / memberships, "bytes");
    name_figure(name, "bytes_per_membership", replay->workers, ".resident");
    bench_figure(name, (double)resident_bytes / memberships, "bytes");
}

static void measure_quiet(const struct bench *bench, const struct bench_corpus *corpus)
{
    uint32_t *took_ns = bench_memory(most_queries, sizeof *took_ns);
    struct replay replay;

    memset(took_ns, 0xff, most_queries * sizeof *took_ns); /* resident before we count */
    const size_t before = bench_resident_bytes();
    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, corpus, true, INFINITY); /* half full, it would be another index */
    say_memory(&replay, bench_resident_bytes() - before);
    const size_t count = time_queries(&replay, corpus, bench->seconds, took_ns);
    bench_progress(
        "index.query: %zu queries one by one, %" PRIu32 " workers; the clock's own %" PRIu32
        " ns are in each",
        count, corpus->workers, bench_clock_ns());
    say_queries(corpus->workers, took_ns, count);
    replay_done(&replay);
    free(took_ns);
}

/* ---- Choosing ---- */

static void measure_corpus(const struct bench *bench, const char *path)
{
    struct bench_corpus corpus = bench_corpus_load(path);
    char name[96];

    (void)snprintf(name, sizeof name, "index.conversation.%" PRIu32, corpus.workers);
    if (bench_wants(bench, name)) {
        measure_replay(bench, &corpus, false, name);
    }
    (void)snprintf(name, sizeof name, "index.events.%" PRIu32, corpus.workers);
    if (bench_wants(bench, name)) {
        measure_replay(bench, &corpus, true, name);
    }
    if (bench_wants(bench, "index.query") || bench_wants(bench, "index.bytes_per_membership")) {
        measure_quiet(bench, &corpus);
    }
    bench_corpus_done(&corpus);
}

static bool take_corpus(void *context, const char *value)
{
    struct subject *subject = context;

    if (!*value || subject->path_count == most_corpora) {
        return false;
    }
    subject->paths[subject->path_count++] = value;
    return true;
}

int main(int argc, char **argv)
{
    struct subject subject = { 0 };
    static const struct bench_option options[] = {
        { "--corpus", "FILE   written by bench_corpus; may be given several times", take_corpus },
    };
    const struct bench_about about = {
        .what = "Measures the prefix index alone: rows index.*.",
        .options = options,
        .option_count = KVB_COUNT_OF(options),
        .context = &subject,
    };
    const struct bench bench = bench_begin(argc, argv, &about);

    for (size_t i = 0; i < subject.path_count; i++) {
        measure_corpus(&bench, subject.paths[i]);
    }
    return 0;
}
