#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- index.two.W: a fleet replayed by two threads ----
 *
 * An index belongs to one thread.  Two threads have an index each, for half of the workers:
 *
 *     thread 0   events of workers 0, 2, 4 ...   all queries
 *     thread 1   events of workers 1, 3, 5 ...   all queries
 *
 * An answer is that of both together.  An event is of one worker, so no query sees half of it. */

enum { lanes = 2, max_replays = 15 };

struct lane {
    struct bench_corpus corpus; /* its records of the whole one */
    uint64_t *words;            /* owned */
    struct replay replay;
    pthread_barrier_t *begin;
    pthread_t thread;
};

static bool is_of_lane(const struct bench_record *record, uint32_t lane)
{
    return record->kind == bench_query || record->worker % lanes == lane;
}

static void split_corpus(const struct bench_corpus *corpus, uint32_t number, struct lane *lane)
{
    struct bench_record record;
    size_t used = 0;

    lane->words = bench_memory((size_t)(corpus->end - corpus->begin), sizeof *lane->words);
    for (const uint64_t *at = corpus->begin; at < corpus->end;) {
        const uint64_t *next = bench_corpus_next(at, &record);
        if (is_of_lane(&record, number)) {
            memcpy(lane->words + used, at, (size_t)(next - at) * sizeof *at);
            used += (size_t)(next - at);
        }
        at = next;
    }
    lane->corpus = (struct bench_corpus){ .workers = corpus->workers,
                                          .begin = lane->words,
                                          .end = lane->words + used };
}

static void *replay_lane(void *context)
{
    struct lane *lane = context;

    (void)pthread_barrier_wait(lane->begin);
    (void)replay_corpus(&lane->replay, &lane->corpus, false);
    return NULL;
}

/* M block operations/s of the whole corpus, until the slower one is done. */
static double
replay_both(const struct bench_corpus *corpus, struct lane set[lanes], uint64_t *out_checksum)
{
    pthread_barrier_t begin;

    *out_checksum = 0;
    bench_must(
        pthread_barrier_init(&begin, NULL, lanes + 1) == 0 ? KVB_OK : KVB_NO_MEMORY, "a barrier");
    for (size_t i = 0; i < lanes; i++) {
        set[i].begin = &begin;
        replay_init(&set[i].replay, corpus->workers);
        bench_must(
            pthread_create(&set[i].thread, NULL, replay_lane, &set[i]) == 0 ? KVB_OK : KVB_IO,
            "a thread");
    }
    (void)pthread_barrier_wait(&begin);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    for (size_t i = 0; i < lanes; i++) {
        (void)pthread_join(set[i].thread, NULL);
    }
    const double seconds = bench_seconds_since(began_ns);
    for (size_t i = 0; i < lanes; i++) {
        *out_checksum += set[i].replay.checksum; /* linear in the sums of answers */
        replay_done(&set[i].replay);
    }
    (void)pthread_barrier_destroy(&begin);
    return (double)corpus->block_operations / seconds / 1e6;
}

void row_two(const struct bench *bench, struct bench_corpus *corpus)
{
    struct lane set[lanes] = { 0 };
    double rates[max_replays];
    uint64_t checksum = 0;
    size_t replays = 0;
    char name[row_name_bytes];

    for (uint32_t i = 0; i < lanes; i++) {
        split_corpus(corpus, i, &set[i]);
    }
    (void)snprintf(name, sizeof name, "index.two.%" PRIu32, corpus->workers);
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        rates[replays++] = replay_both(corpus, set, &checksum);
        bench_progress_now_and_then("%s: replay %zu, %.1f M/s", name, replays, rates[replays - 1]);
    } while (replays < max_replays && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_rounds(name, rates, replays, "M block operations/s");
    (void)snprintf(name, sizeof name, "index.two.%" PRIu32 ".checksum", corpus->workers);
    bench_figure(name, (double)(checksum >> 11), "checksum"); /* a double holds 53 bits */
    for (size_t i = 0; i < lanes; i++) {
        free(set[i].words);
    }
}
