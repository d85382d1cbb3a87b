#include "core/clock.h"
#include "index/rows.h"
#include "index/talk.h"

#include <stdlib.h>
#include <string.h>

/* ---- index.query.10000: each of 10,000 workers has conversations of its own below a few system
 * prompts; one of them is to go on ---- */

enum { fleet_workers = 10000, talks = 4, max_query = 128 };

struct fleet {
    struct replay replay;
    struct talk talk;
    uint64_t rng;
};

static void fill(struct fleet *fleet)
{
    const uint32_t count = fleet->replay.workers * talks;

    for (uint32_t i = 0; i < count; i++) {
        talk_make(&fleet->talk, i / talks, i % talks);
        for (size_t part = 0; part < talk_next; part++) {
            const struct chain *chain = &fleet->talk.parts[part];
            chain_store(&fleet->replay, i / talks, chain, 0, chain->count);
        }
        bench_progress_now_and_then("index.query.10000: %u of %u conversations", i + 1, count);
    }
}

/* The time to make the blocks is not included. */
static uint32_t ask(struct fleet *fleet)
{
    const uint64_t asked = bench_random(&fleet->rng) % ((uint64_t)fleet->replay.workers * talks);
    kvb_tokens_hash query[max_query];
    size_t count = 0;

    talk_make(&fleet->talk, (uint32_t)asked / talks, (uint32_t)asked % talks);
    for (size_t part = 0; part < talk_parts; part++) {
        const struct chain *chain = &fleet->talk.parts[part];
        if (count + chain->count > max_query) {
            bench_fail("a conversation is longer than a query");
        }
        memcpy(query + count, chain->tokens, chain->count * sizeof *query);
        count += chain->count;
    }
    const uint64_t before_ns = kvb_clock_monotonic_ns();
    replay_query(&fleet->replay, query, count);
    return (uint32_t)(kvb_clock_monotonic_ns() - before_ns);
}

void row_fleet(const struct bench *bench)
{
    enum { max_queries = 1 << 20 };
    uint32_t *took_ns = bench_memory(max_queries, sizeof *took_ns);
    struct fleet fleet = { .rng = 1 };
    size_t count = 0;

    replay_init(&fleet.replay, (uint32_t)bench_size(bench, fleet_workers));
    talk_init(&fleet.talk);
    fill(&fleet);
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        took_ns[count++] = ask(&fleet);
    } while (count < max_queries && bench_seconds_since(began_ns) < bench->seconds);
    bench_figure_percentile("index.query.10000.p50", took_ns, count, 500);
    bench_figure_percentile("index.query.10000.p99", took_ns, count, 990);
    talk_done(&fleet.talk);
    replay_done(&fleet.replay);
    free(took_ns);
}
