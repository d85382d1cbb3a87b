#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- index.readers: do queries wait behind bursts of events? ----
 *
 * One thread owns the index, as in kvaggregator: it answers the queries that have arrived, then
 * applies one event, and so on.  100,000 block operations a second arrive in bursts, ten a
 * second; queries arrive one by one, 2,000 a second on average, at random times.  A query's time
 * includes its waiting.  All times are CPU time of the thread: in wall time, a busy machine that
 * stops the thread for 4 ms twice a second would decide the p99.
 *
 *     events   |||||||||          |||||||||          |||||||||
 *     queries    |    | ||      |    |      |  | ||     |    |
 */
enum {
    operations_a_second = 100000,
    bursts_a_second = 10,
    queries_a_second = 2000,
    max_queries = 1 << 20,
};

/* The position of one reader of the corpus, which restarts at the end. */
struct reader {
    const struct bench_corpus *corpus;
    const uint64_t *at;
};

/* The next record of a kind that is wanted; a corpus without one ends the program. */
static struct bench_record read_next(struct reader *reader, bool is_query)
{
    struct bench_record record = { 0 };

    for (uint64_t looked = 0; looked <= reader->corpus->records; looked++) {
        if (reader->at == reader->corpus->end) {
            reader->at = reader->corpus->begin;
        }
        reader->at = bench_corpus_next(reader->at, &record);
        if ((record.kind == bench_query) == is_query) {
            return record;
        }
    }
    bench_fail("a corpus without queries, or without events");
}

struct owner {
    struct replay replay;
    struct reader queries, events;
    uint64_t rng;
    uint64_t began_ns;
    uint64_t next_query_ns;
    uint64_t applied;    /* block operations of events */
    uint32_t *waited_ns; /* owned */
    size_t answered;
};

/* Time to the next query: exponentially distributed, so that queries are independent. */
static uint64_t next_gap_ns(uint64_t *rng)
{
    const double chance = ((double)(bench_random(rng) >> 11) + 1) / 0x1p53;

    return (uint64_t)(-log(chance) * (double)KVB_NS_PER_S / queries_a_second);
}

/* Block operations that have arrived by then; those of a burst arrive together. */
static uint64_t arrived(const struct owner *owner, uint64_t now_ns)
{
    const uint64_t bursts = (now_ns - owner->began_ns) * bursts_a_second / KVB_NS_PER_S + 1;

    return bursts * (operations_a_second / bursts_a_second);
}

static void answer(struct owner *owner)
{
    const struct bench_record record = read_next(&owner->queries, true);

    replay_query(&owner->replay, record.tokens, record.count);
    owner->waited_ns[owner->answered++] = (uint32_t)(bench_cpu_ns() - owner->next_query_ns);
    owner->next_query_ns += next_gap_ns(&owner->rng);
}

static void serve(struct owner *owner, double seconds)
{
    const uint64_t end_ns = owner->began_ns + (uint64_t)(seconds * (double)KVB_NS_PER_S);

    for (uint64_t now_ns = owner->began_ns; now_ns < end_ns && owner->answered < max_queries;
         now_ns = bench_cpu_ns()) {
        if (owner->next_query_ns <= now_ns) {
            answer(owner);
        } else if (owner->applied < arrived(owner, now_ns)) {
            const struct bench_record record = read_next(&owner->events, false);
            replay_record(&owner->replay, &record);
            owner->applied += record.count;
        }
    }
}

void row_readers(const struct bench *bench, struct bench_corpus *corpus)
{
    struct owner owner = {
        .queries = { .corpus = corpus, .at = corpus->begin },
        .events = { .corpus = corpus, .at = corpus->begin },
        .rng = 1,
        .waited_ns = bench_memory(max_queries, sizeof *owner.waited_ns),
    };
    char name[row_name_bytes];

    replay_init(&owner.replay, corpus->workers);
    (void)replay_corpus(&owner.replay, corpus, true); /* as full as it gets */
    bench_progress("index.readers: %.0f s of events and queries", bench->seconds);
    bench_measure(0);
    owner.began_ns = bench_cpu_ns();
    owner.next_query_ns = owner.began_ns;
    serve(&owner, bench->seconds);
    row_name(name, "readers", corpus->workers, ".p50");
    bench_figure_percentile(name, owner.waited_ns, owner.answered, 500);
    row_name(name, "readers", corpus->workers, ".p99");
    bench_figure_percentile(name, owner.waited_ns, owner.answered, 990);
    replay_done(&owner.replay);
    free(owner.waited_ns);
}
