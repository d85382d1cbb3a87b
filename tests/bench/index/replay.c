#include "index/replay.h"

#include "core/clock.h"
#include "core/limits.h"
#include "parts/bench.h"

#include <stdlib.h>

void replay_init(struct replay *replay, uint32_t workers)
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

void replay_prepare(struct replay *replay)
{
    enum { blocks_a_worker = 16384, step_bytes = 32 << 20 };
    /* Workers of a fleet hold a quarter of their blocks in common, at the least. */
    const size_t nodes = (size_t)replay->workers * blocks_a_worker * 3 / 4;

    while (kvb_prefix_index_prepare(replay->index, nodes, step_bytes)) {
    }
}

void replay_done(struct replay *replay)
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

void replay_query(struct replay *replay, const kvb_tokens_hash *tokens, size_t count)
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

void replay_record(struct replay *replay, const struct bench_record *record)
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

double replay_corpus(struct replay *replay, const struct bench_corpus *corpus, bool is_events_only)
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
