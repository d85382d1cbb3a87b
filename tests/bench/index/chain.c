#include "index/chain.h"

#include "parts/bench.h"

#include <stdlib.h>

void chain_init(struct chain *chain, size_t count)
{
    *chain = (struct chain){ .count = count };
    chain->tokens = bench_memory(count, sizeof *chain->tokens);
    chain->blocks = bench_memory(count, sizeof *chain->blocks);
    chain->backwards = bench_memory(count, sizeof *chain->backwards);
}

void chain_done(struct chain *chain)
{
    free(chain->tokens);
    free(chain->blocks);
    free(chain->backwards);
}

void chain_make(struct chain *chain, uint64_t content, const kvb_block_hash *after)
{
    uint64_t name = after ? after->value : 0;

    chain->has_parent = after;
    chain->parent.value = name;
    for (size_t i = 0; i < chain->count; i++) {
        const uint64_t tokens = bench_mix(bench_mix(content + 1) + i);
        name = bench_mix(name ^ tokens);
        chain->tokens[i].value = tokens;
        chain->blocks[i].value = name;
        chain->backwards[chain->count - 1 - i].value = name;
    }
}

void chain_store(
    struct replay *replay, uint32_t worker, const struct chain *chain, size_t first, size_t end)
{
    const struct kvb_index_run run = {
        .has_parent = first > 0 || chain->has_parent,
        .parent = first > 0 ? chain->blocks[first - 1] : chain->parent,
        .blocks = chain->blocks + first,
        .tokens = chain->tokens + first,
        .count = end - first,
    };

    bench_must(kvb_prefix_index_store(replay->index, replay->slots[worker], &run, NULL), "a store");
}

void chain_remove(
    struct replay *replay, uint32_t worker, const struct chain *chain, size_t first, size_t end)
{
    bench_must(
        kvb_prefix_index_remove(
            replay->index, replay->slots[worker], chain->backwards + (chain->count - end),
            end - first, NULL),
        "a removal");
}
