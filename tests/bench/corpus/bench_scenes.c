#include "core/own.h"
#include "index/talk.h"
#include "parts/bench.h"
#include "parts/corpus.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Writes workloads of bench_index as corpora, so that other indexes replay the same bytes.
 *
 * A scene is a corpus that is cut into runs: successive records of one kind.
 *
 *     [stores] [removes] [a query] [stores] [removes] [a query] [stores]
 *      fill     round 1                      round 2
 *
 * The first run fills the index, the others are measured.  At the end it holds what it held
 * after the first run: rounds can be replayed again and again. */
struct scene {
    struct bench_corpus_writer writer;
    const struct bench *bench;
    uint32_t workers;
    uint64_t rng;
    const char *corpus; /* own_names: the one that is renamed */
};

static void
put_store(struct scene *scene, uint32_t worker, const struct chain *chain, size_t first, size_t end)
{
    bench_corpus_write(
        &scene->writer, &(struct bench_record){
                            .kind = bench_store,
                            .worker = worker,
                            .count = end - first,
                            .has_parent = first > 0 || chain->has_parent,
                            .parent = first > 0 ? chain->blocks[first - 1] : chain->parent,
                            .blocks = chain->blocks + first,
                            .tokens = chain->tokens + first,
                        });
}

/* Removes the last `count` blocks, in reverse order. */
static void
put_remove(struct scene *scene, uint32_t worker, const struct chain *chain, size_t count)
{
    bench_corpus_write(
        &scene->writer,
        &(struct bench_record){
            .kind = bench_remove, .worker = worker, .count = count, .blocks = chain->backwards });
}

/* Continues a prompt part by part. */
static void put_query(struct scene *scene, const struct chain *parts, size_t part_count)
{
    size_t count = 0;

    for (size_t i = 0; i < part_count; i++) {
        count += parts[i].count;
    }
    kvb_tokens_hash *tokens = bench_memory(count, sizeof *tokens);
    count = 0;
    for (size_t i = 0; i < part_count; i++) {
        memcpy(tokens + count, parts[i].tokens, parts[i].count * sizeof *tokens);
        count += parts[i].count;
    }
    bench_corpus_write(
        &scene->writer,
        &(struct bench_record){ .kind = bench_query, .count = count, .tokens = tokens });
    free(tokens);
}

/* Workers in a random order; drawn anew each time. */
static void shuffle(struct scene *scene, uint32_t *order)
{
    for (uint32_t i = scene->workers; i > 1; i--) {
        const uint32_t other = (uint32_t)(bench_random(&scene->rng) % i);
        const uint32_t kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

static uint32_t *new_order(const struct scene *scene)
{
    uint32_t *order = bench_memory(scene->workers, sizeof *order);

    for (uint32_t i = 0; i < scene->workers; i++) {
        order[i] = i;
    }
    return order;
}

/* ---- wide: all workers hold one prompt; each loses a random tail, then stores it again ---- */

static void
put_wide_round(struct scene *scene, const struct chain *chain, uint32_t *order, size_t *lost)
{
    shuffle(scene, order);
    for (uint32_t i = 0; i < scene->workers; i++) {
        lost[order[i]] = 1 + bench_random(&scene->rng) % (chain->count - 1);
        put_remove(scene, order[i], chain, lost[order[i]]);
    }
    put_query(scene, chain, 1);
    shuffle(scene, order);
    for (uint32_t i = 0; i < scene->workers; i++) {
        put_store(scene, order[i], chain, chain->count - lost[order[i]], chain->count);
    }
}

static void put_wide(struct scene *scene, size_t blocks, size_t rounds)
{
    struct chain chain;
    uint32_t *order = new_order(scene);
    size_t *lost = bench_memory(scene->workers, sizeof *lost); /* blocks, by worker */

    chain_init(&chain, blocks);
    chain_make(&chain, 0, NULL);
    for (uint32_t i = 0; i < scene->workers; i++) {
        put_store(scene, i, &chain, 0, blocks);
    }
    for (size_t i = 0; i < rounds; i++) {
        put_wide_round(scene, &chain, order, lost);
    }
    chain_done(&chain);
    free(order);
    free(lost);
}

static void scene_wide(struct scene *scene)
{
    put_wide(scene, 64, 3);
}

static void scene_wide_long(struct scene *scene)
{
    put_wide(scene, 512, 1);
}

/* ---- clear: each worker holds 128 prompts, the first half of each is held by all ---- */

enum { shared_part, own_part, prompt_parts };

static void put_prompts(struct scene *scene, uint32_t worker, struct chain parts[prompt_parts])
{
    enum { prompts = 128 };

    for (uint32_t i = 0; i < prompts; i++) {
        const struct chain *shared = &parts[shared_part];
        chain_make(&parts[shared_part], i, NULL);
        put_store(scene, worker, shared, 0, shared->count);
        const uint64_t content = (uint64_t)(worker + 1) << 32 | i;
        chain_make(&parts[own_part], content, &shared->blocks[shared->count - 1]);
        put_store(scene, worker, &parts[own_part], 0, parts[own_part].count);
    }
}

/* Each round queries a prompt of which all workers hold a part, while the worker is gone and
 * afterwards. */
static void scene_clear(struct scene *scene)
{
    enum { blocks = 64, max_clears = 20 };
    struct chain parts[prompt_parts];

    chain_init(&parts[shared_part], blocks);
    chain_init(&parts[own_part], blocks);
    for (uint32_t i = 0; i < scene->workers; i++) {
        put_prompts(scene, i, parts);
    }
    for (uint32_t i = 0; i < max_clears && i < scene->workers; i++) {
        bench_corpus_write(
            &scene->writer, &(struct bench_record){ .kind = bench_clear, .worker = i });
        put_query(scene, parts, prompt_parts);
        put_prompts(scene, i, parts);
        put_query(scene, parts, prompt_parts);
    }
    chain_done(&parts[shared_part]);
    chain_done(&parts[own_part]);
}

/* ---- staircase, deep: one prompt is queried ---- */

static void scene_staircase(struct scene *scene)
{
    struct chain chain;
    uint32_t *order = new_order(scene);

    chain_init(&chain, scene->workers);
    chain_make(&chain, 0, NULL);
    shuffle(scene, order);
    for (uint32_t i = 0; i < scene->workers; i++) {
        put_store(scene, i, &chain, 0, order[i] + 1);
    }
    put_query(scene, &chain, 1);
    chain_done(&chain);
    free(order);
}

static void scene_deep(struct scene *scene)
{
    enum { blocks = 6250 };
    struct chain chain;

    chain_init(&chain, blocks);
    chain_make(&chain, 0, NULL);
    for (uint32_t i = 0; i < scene->workers; i++) {
        put_store(scene, i, &chain, 0, blocks);
    }
    put_query(scene, &chain, 1);
    chain_done(&chain);
}

/* ---- growth: nothing but new blocks, 64 a store ---- */

static void scene_growth(struct scene *scene)
{
    enum { blocks = 8000000, a_store = 64 };
    const size_t stores = bench_size(scene->bench, blocks / a_store);
    struct chain chain;

    chain_init(&chain, a_store);
    for (size_t i = 0; i < stores; i++) {
        chain_make(&chain, i, NULL);
        put_store(scene, (uint32_t)(i % scene->workers), &chain, 0, a_store);
    }
    put_query(scene, &chain, 1);
    chain_done(&chain);
}

/* ---- fleet: each worker's own conversations below a few system prompts ---- */

static void scene_fleet(struct scene *scene)
{
    enum { talks = 4, questions = 10000 };
    const uint64_t all = (uint64_t)scene->workers * talks;
    struct talk talk;

    assert(all > 0);
    talk_init(&talk);
    for (uint32_t i = 0; i < all; i++) {
        talk_make(&talk, i / talks, i % talks);
        put_store(scene, i / talks, &talk.parts[talk_system], 0, talk.parts[talk_system].count);
        put_store(scene, i / talks, &talk.parts[talk_said], 0, talk.parts[talk_said].count);
    }
    for (size_t i = 0; i < questions; i++) {
        const uint32_t asked = (uint32_t)(bench_random(&scene->rng) % all);
        talk_make(&talk, asked / talks, asked % talks);
        put_query(scene, talk.parts, talk_parts);
    }
    talk_done(&talk);
}

/* ---- waiting, collide: what an engine may publish that makes an index slow ----
 *
 * The first worker holds one prompt; the second is the hostile one, and is cleared each time. */

enum { good_worker, hostile_worker, hostile_workers };

static void put_good(struct scene *scene, struct chain *chain)
{
    chain_init(chain, 64);
    chain_make(chain, 0, NULL);
    put_store(scene, good_worker, chain, 0, chain->count);
    put_query(scene, chain, 1);
}

static void put_hostile_end(struct scene *scene, struct chain *chain)
{
    bench_corpus_write(
        &scene->writer, &(struct bench_record){ .kind = bench_clear, .worker = hostile_worker });
    put_query(scene, chain, 1);
    chain_done(chain);
}

/* Children of a block that nobody stored, one a store. */
static void scene_waiting(struct scene *scene)
{
    const size_t orphans = bench_size(scene->bench, 100000);
    struct chain chain;

    put_good(scene, &chain);
    for (size_t i = 0; i < orphans; i++) {
        const kvb_block_hash block = { i + 100 };
        const kvb_tokens_hash tokens = { bench_mix(i) };
        bench_corpus_write(
            &scene->writer, &(struct bench_record){ .kind = bench_store,
                                                    .worker = hostile_worker,
                                                    .count = 1,
                                                    .has_parent = true,
                                                    .parent = { 7 },
                                                    .blocks = &block,
                                                    .tokens = &tokens });
    }
    put_hostile_end(scene, &chain);
}

/* One prompt whose names fall into one place of a table that hashes them in a known way. */
static void put_colliding(struct scene *scene, uint64_t (*name_of)(uint64_t number))
{
    struct chain chain;
    struct chain hostile;

    put_good(scene, &chain);
    chain_init(&hostile, bench_size(scene->bench, 32768));
    chain_make(&hostile, 1, NULL);
    for (size_t i = 0; i < hostile.count; i++) {
        hostile.blocks[i].value = name_of(i + 1);
    }
    put_store(scene, hostile_worker, &hostile, 0, hostile.count);
    chain_done(&hostile);
    put_hostile_end(scene, &chain);
}

/* What an odd number is multiplied by to be 1: each step of Newton's doubles the right bits. */
static uint64_t inverse(uint64_t odd)
{
    uint64_t found = odd; /* right in 3 bits */

    for (int i = 0; i < 5; i++) {
        found *= 2 - odd * found;
    }
    return found;
}

/* The upper half of the product is 0: rustc-hash 2, which takes its bits from there. */
static uint64_t collide_rustc(uint64_t number)
{
    return number * inverse(UINT64_C(0xf1357aea2e62a9c5));
}

/* The same of Fibonacci hashing, by the golden ratio. */
static uint64_t collide_fibonacci(uint64_t number)
{
    return number * inverse(UINT64_C(0x9e3779b97f4a7c15));
}

static void scene_collide_rustc(struct scene *scene)
{
    put_colliding(scene, collide_rustc);
}

static void scene_collide_fibonacci(struct scene *scene)
{
    put_colliding(scene, collide_fibonacci);
}

/* ---- own_names: a corpus whose workers have different names for equal blocks ---- */

static void scene_own_names(struct scene *scene)
{
    struct bench_corpus corpus = bench_corpus_load(scene->corpus);
    struct bench_record record;

    bench_corpus_rename(&corpus);
    scene->writer.workers = corpus.workers;
    for (const uint64_t *at = corpus.begin; at < corpus.end;) {
        at = bench_corpus_next(at, &record);
        bench_corpus_write(&scene->writer, &record);
    }
    bench_corpus_done(&corpus);
}

/* ---- The table ---- */

struct kind {
    const char *name;
    void (*put)(struct scene *scene);
    uint32_t workers; /* a hundredth of many with --small; 0: as many as its corpus has */
};

/* clang-format off */
static const struct kind kinds[] = {
    { "wide",       scene_wide,      10000 },
    { "wide_long",  scene_wide_long, 10000 },
    { "clear",      scene_clear,     1000 },
    { "staircase",  scene_staircase, 999 },
    { "deep",       scene_deep,      8 },
    { "growth",     scene_growth,    128 },
    { "growth_one", scene_growth,    1 },
    { "fleet",      scene_fleet,     10000 },
    { "waiting",    scene_waiting,   hostile_workers },
    { "collide_rustc", scene_collide_rustc, hostile_workers },
    { "collide_fibonacci", scene_collide_fibonacci, hostile_workers },
    { "own_names",  scene_own_names, 0 },
};
/* clang-format on */

static uint32_t workers_of(const struct bench *bench, const struct kind *kind)
{
    return kind->workers > hostile_workers ? (uint32_t)bench_size(bench, kind->workers)
                                           : kind->workers;
}

struct plan {
    const struct kind *kind;
    const char *out, *corpus;
};

static bool take_scene(void *context, const char *value)
{
    struct plan *plan = context;

    for (size_t i = 0; i < KVB_COUNT_OF(kinds); i++) {
        if (strcmp(kinds[i].name, value) == 0) {
            plan->kind = &kinds[i];
        }
    }
    return plan->kind;
}

static bool take_out(void *context, const char *value)
{
    ((struct plan *)context)->out = value;
    return *value;
}

static bool take_corpus(void *context, const char *value)
{
    ((struct plan *)context)->corpus = value;
    return *value;
}

int main(int argc, char **argv)
{
    struct plan plan = { 0 };
    static const struct bench_option options[] = {
        { "--scene", "NAME    see the table in corpus/bench_scenes.c; required", take_scene },
        { "--out", "FILE      where it is written; required", take_out },
        { "--corpus", "FILE   own_names: written by bench_corpus", take_corpus },
    };
    const struct bench_about about = { .what = "Writes a workload of bench_index as a corpus.",
                                       .options = options,
                                       .option_count = KVB_COUNT_OF(options),
                                       .context = &plan };
    const struct bench bench = bench_begin(argc, argv, &about);

    if (!plan.kind || !plan.out || !plan.kind->workers != !!plan.corpus) {
        (void)fprintf(stderr, "%s: --scene and --out are required; see --help\n", argv[0]);
        return 64;
    }
    struct scene scene = {
        .bench = &bench,
        .workers = workers_of(&bench, plan.kind),
        .rng = 1,
        .corpus = plan.corpus,
    };
    bench_corpus_open(&scene.writer, plan.out, scene.workers);
    plan.kind->put(&scene);
    bench_corpus_close(&scene.writer);
    return 0;
}
