#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { max_replays = 15, max_queries = 1 << 20, row_name_bytes = 64 };

/* The results of several replays of one corpus. */
struct replays {
    double rates[max_replays]; /* M block operations/s */
    size_t count;
    uint64_t checksum; /* of the last */
    struct bench_usage used;
};

/* Each time into a new index, whose memory is populated as an aggregator does it when it is idle,
 * for workers of this size. */
static void replay_once(const struct bench_corpus *corpus, struct replays *replays)
{
    struct replay replay;

    replay_init(&replay, corpus->workers);
    replay_prepare(&replay);
    const struct bench_usage began =
        bench_usage_of(0); /* the time to make an index is not included */
    const double seconds = replay_corpus(&replay, corpus, false);
    replays->used = bench_usage_plus(replays->used, bench_usage_between(began, bench_usage_of(0)));
    replays->rates[replays->count++] = (double)replay.block_operations / seconds / 1e6;
    replays->checksum = replay.checksum;
    replay_done(&replay);
}

/* Repeats as long as the row may take; the figure is the median. */
void row_conversation(const struct bench *bench, const struct bench_corpus *corpus)
{
    char name[row_name_bytes];
    char checked[row_name_bytes + 16];
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    struct replays replays = { 0 };

    (void)snprintf(name, sizeof name, "index.conversation.%" PRIu32, corpus->workers);
    do {
        replay_once(corpus, &replays);
        bench_progress_now_and_then(
            "%s: replay %zu, %.1f M/s", name, replays.count, replays.rates[replays.count - 1]);
    } while (replays.count < max_replays && bench_seconds_since(began_ns) < bench->seconds);

    bench_measured(replays.used);
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

    bench_measure(0);
    do {
        const size_t count = time_queries(replay, corpus, took_ns);
        half_us[times] = bench_percentile(took_ns, count, 500) / 1e3;
        rare_us[times] = bench_percentile(took_ns, count, 990) / 1e3;
        bench_progress_now_and_then(
            "index.query: %zu queries one by one, p99 %.2f us; the clock's own %" PRIu32
            " ns are in each",
            count, rare_us[times], bench_clock_ns());
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

void row_quiet(const struct bench *bench, const struct bench_corpus *corpus)
{
    uint32_t *took_ns = bench_memory(max_queries, sizeof *took_ns);
    struct replay replay;

    memset(took_ns, 0xff, max_queries * sizeof *took_ns); /* resident before we count */
    const size_t before = bench_resident_bytes();
    bench_measure(0);
    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, corpus, true);
    say_memory(&replay, bench_resident_bytes() - before);
    measure_queries(bench, &replay, corpus, took_ns);
    replay_done(&replay);
    free(took_ns);
}
