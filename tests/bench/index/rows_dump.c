#include "core/clock.h"
#include "index/replay.h"
#include "index/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- index.dump.W: all that the index holds, worker by worker, copied out as runs ---- */

enum { max_dumps = 101 };

/* Every block of every worker, one after the other: what a dump is made of. */
struct dump {
    uint64_t *words; /* owned; names, then contents, of each run */
    size_t room, used;
    size_t blocks;
};

static kvb_status copy_run(void *context, const struct kvb_index_run *run)
{
    struct dump *dump = context;

    if (dump->room - dump->used < 2 * run->count) {
        return KVB_TOO_LARGE;
    }
    memcpy(dump->words + dump->used, run->blocks, run->count * sizeof *run->blocks);
    dump->used += run->count;
    memcpy(dump->words + dump->used, run->tokens, run->count * sizeof *run->tokens);
    dump->used += run->count;
    dump->blocks += run->count;
    return KVB_OK;
}

/* ns a block. */
static double dump_all(struct replay *replay, struct dump *dump)
{
    const uint64_t began_ns = kvb_clock_monotonic_ns();

    dump->used = dump->blocks = 0;
    for (uint32_t i = 0; i < replay->workers; i++) {
        bench_must(
            kvb_prefix_index_walk(replay->index, replay->slots[i], copy_run, dump), "a walk");
    }
    return (double)(kvb_clock_monotonic_ns() - began_ns) / (double)dump->blocks;
}

void row_dump(const struct bench *bench, struct bench_corpus *corpus)
{
    struct kvb_index_counters counters;
    struct replay replay;
    struct dump dump = { 0 };
    double ns[max_dumps];
    size_t dumps = 0;
    char name[row_name_bytes];

    replay_init(&replay, corpus->workers);
    (void)replay_corpus(&replay, corpus, true);
    kvb_prefix_index_count(replay.index, &counters);
    dump.room = 2 * counters.memberships;
    dump.words = bench_memory(dump.room, sizeof *dump.words);
    (void)dump_all(&replay, &dump); /* so that its memory is resident */
    bench_measure(0);
    const uint64_t began_ns = kvb_clock_monotonic_ns();
    do {
        ns[dumps++] = dump_all(&replay, &dump);
    } while (dumps < max_dumps && bench_seconds_since(began_ns) < bench->seconds);
    if (dump.blocks != counters.memberships) {
        bench_fail("index.dump: %zu blocks of %zu", dump.blocks, (size_t)counters.memberships);
    }
    (void)snprintf(name, sizeof name, "index.dump.%" PRIu32, corpus->workers);
    bench_figure_rounds(name, ns, dumps, "ns/block");
    replay_done(&replay);
    free(dump.words);
}
