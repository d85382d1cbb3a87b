#include "core/clock.h"
#include "index/chain.h"
#include "index/rows.h"

#include <stdlib.h>
#include <string.h>

/* ---- index.holes: are answers exact when blocks in the middle of a prompt are missing? ----
 *
 * 60 prompts in 12 families share some of their beginnings.  Workers store any part of a
 * prompt (also one whose beginning they lack), lose any blocks of it, are cleared.  A simple
 * reference model holds one byte for each (worker, block); each query compares all workers. */
enum {
    holes_workers = 130, /* more than two words of a set */
    families = 12,
    prompts_a_family = 5,
    prompt_count = families * prompts_a_family,
    max_blocks = 64,
    steps = 400000,
    steps_a_query = 8,
};

struct holes {
    struct replay replay;
    struct chain prompts[prompt_count];
    size_t lengths[prompt_count];
    uint16_t ids[prompt_count][max_blocks]; /* equal blocks have equal ids */
    uint8_t *held;                          /* owned; [worker * id_count + id] */
    size_t id_count;
    uint64_t rng;
    uint64_t answers, wrong;
};

static uint32_t below(struct holes *holes, uint32_t limit)
{
    return (uint32_t)(bench_random(&holes->rng) % limit);
}

/* A prompt shares the beginning of the first prompt of its family. */
static void make_prompt(struct holes *holes, size_t number)
{
    struct chain *chain = &holes->prompts[number];
    const size_t first = number - number % prompts_a_family;
    const size_t shared = number == first ? 0 : below(holes, max_blocks);

    holes->lengths[number] = 1 + below(holes, max_blocks);
    chain_init(chain, max_blocks);
    chain_make(chain, number, NULL);
    for (size_t i = 0; i < max_blocks; i++) {
        const struct chain *from = i < shared ? &holes->prompts[first] : chain;
        const uint64_t before = i > 0 ? chain->blocks[i - 1].value : 0;
        chain->tokens[i] = from->tokens[i];
        chain->blocks[i].value = bench_mix(before ^ chain->tokens[i].value);
        holes->ids[number][i] =
            i < shared ? holes->ids[first][i] : (uint16_t)(number * max_blocks + i);
    }
}

static uint8_t *held_by(struct holes *holes, uint32_t worker)
{
    return holes->held + worker * holes->id_count;
}

static void store_part(struct holes *holes, uint32_t worker, size_t number)
{
    const size_t length = holes->lengths[number];
    const size_t first = below(holes, 3) > 0 ? 0 : below(holes, (uint32_t)length);
    const size_t end = first + 1 + below(holes, (uint32_t)(length - first));

    chain_store(&holes->replay, worker, &holes->prompts[number], first, end);
    for (size_t i = first; i < end; i++) {
        held_by(holes, worker)[holes->ids[number][i]] = 1;
    }
}

/* Removes some random blocks. */
static void lose_some(struct holes *holes, uint32_t worker, size_t number)
{
    kvb_block_hash lost[max_blocks];
    size_t count = 0;
    const uint32_t one_in = 1 + below(holes, 12);

    for (size_t i = 0; i < holes->lengths[number]; i++) {
        if (below(holes, one_in) == 0) {
            lost[count++] = holes->prompts[number].blocks[i];
            held_by(holes, worker)[holes->ids[number][i]] = 0;
        }
    }
    if (count > 0) {
        bench_must(
            kvb_prefix_index_remove(
                holes->replay.index, holes->replay.slots[worker], lost, count, NULL),
            "a removal");
    }
}

static void lose_all(struct holes *holes, uint32_t worker)
{
    kvb_prefix_index_slot_clear(holes->replay.index, holes->replay.slots[worker]);
    memset(held_by(holes, worker), 0, holes->id_count);
}

static void compare(struct holes *holes, size_t number)
{
    const size_t length = holes->lengths[number];
    struct replay *replay = &holes->replay;

    memset(replay->depths, 0, holes_workers * sizeof *replay->depths);
    replay_query(replay, holes->prompts[number].tokens, length);
    for (uint32_t worker = 0; worker < holes_workers; worker++) {
        size_t depth = 0;
        while (depth < length && held_by(holes, worker)[holes->ids[number][depth]]) {
            depth++;
        }
        holes->answers++;
        holes->wrong += depth != replay->depths[worker];
    }
}

static void step(struct holes *holes, size_t number)
{
    const uint32_t worker = below(holes, holes_workers);
    const size_t prompt = below(holes, prompt_count);

    if (below(holes, 2000) == 0) {
        lose_all(holes, worker);
    } else if (below(holes, 2) == 0) {
        store_part(holes, worker, prompt);
    } else {
        lose_some(holes, worker, prompt);
    }
    if (number % steps_a_query == 0) {
        compare(holes, below(holes, prompt_count));
    }
}

void row_holes(const struct bench *bench)
{
    struct holes *holes = bench_memory(1, sizeof *holes);
    const size_t count = bench_size(bench, steps);

    holes->rng = 1;
    holes->id_count = (size_t)prompt_count * max_blocks;
    holes->held = bench_memory(holes_workers * holes->id_count, 1);
    replay_init(&holes->replay, holes_workers);
    for (size_t i = 0; i < prompt_count; i++) {
        make_prompt(holes, i);
    }
    for (size_t i = 0; i < count; i++) {
        step(holes, i);
        bench_progress_now_and_then("index.holes: step %zu of %zu", i, count);
    }
    bench_progress("index.holes: %llu answers compared", (unsigned long long)holes->answers);
    bench_figure("index.holes.wrong", (double)holes->wrong, "wrong answers");

    replay_done(&holes->replay);
    for (size_t i = 0; i < prompt_count; i++) {
        chain_done(&holes->prompts[i]);
    }
    free(holes->held);
    free(holes);
}
