#include "core/hash.h"
#include "core/random.h"
#include "fail_alloc.h"
#include "fleet/engine/engine.h"
#include "fleet/engine_sample.h"
#include "kvb_test.h"

#include <stdbool.h>

/* ---- the model: a reader of the events, against the pool of the engine ------- */

/* Prompts from a tree, so that they share prefixes. Many consist of whole blocks. */
static void admit_random(struct kvb_engine *engine, uint32_t min_blocks, uint64_t *rng)
{
    uint32_t tokens[64];
    const uint32_t count = (uint32_t)(min_blocks + kvb_random_below(rng, 10)) * block_size +
                           (kvb_random_chance(rng, 0.4) ? 0 : 1);
    const uint32_t family = (uint32_t)kvb_random_below(rng, 12);

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i < 16 ? family / 3 : family;
    }
    (void)kvb_engine_admit(engine, tokens, count, (uint32_t)(1 + kvb_random_below(rng, 24)));
}

/* The chain of tokens must give exactly the announced hash. */
static void check_identities(const struct kvb_truth *truth, uint64_t seed)
{
    for (uint32_t i = 0; i < truth->count; i++) {
        const struct kvb_truth_block *block = &truth->blocks[i];
        assert_true(block->parent == kvb_no_parent || block->parent < i);
        const kvb_span tokens = { (const uint8_t *)block->tokens, block_size * sizeof(uint32_t) };
        const uint64_t chained[2] = {
            block->parent == kvb_no_parent ? seed : truth->blocks[block->parent].hash.value,
            kvb_hash64(tokens, seed),
        };
        const kvb_span chain = { (const uint8_t *)chained, sizeof chained };
        assert_int_equal(kvb_hash64(chain, seed), block->hash.value);
    }
}

static uint64_t sum_of_copies(const struct kvb_truth *truth)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < truth->count; i++) {
        sum += truth->blocks[i].copies;
    }
    return sum;
}

struct model_run {
    struct kvb_engine *engine;
    struct kvb_reader reader;
    uint64_t seed;
    uint32_t min_blocks; /* number of tokens of a prompt */
    bool must_be_exact;
    size_t max_misses;
    size_t max_doubtful;
    bool has_preempted;
};

static void check_model(struct model_run *run)
{
    struct kvb_truth truth = truth_of(run->engine);
    struct kvb_engine_stats stats = { 0 };

    kvb_engine_stats(run->engine, &stats);
    run->has_preempted |= stats.preemptions > 0;
    check_identities(&truth, run->seed);
    assert_int_equal(sum_of_copies(&truth), stats.held_blocks);
    if (truth.unsent == 0) {
        const struct kvb_reader_difference difference = kvb_reader_compare(&run->reader, &truth);
        assert_int_equal(difference.phantoms, 0);
        assert_int_equal(difference.inexact, 0);
        assert_true(difference.misses <= difference.doubtful);
        if (run->must_be_exact) {
            assert_int_equal(difference.misses + difference.doubtful, 0);
        }
        run->max_misses = difference.misses > run->max_misses ? difference.misses : run->max_misses;
        run->max_doubtful =
            difference.doubtful > run->max_doubtful ? difference.doubtful : run->max_doubtful;
    }
    kvb_truth_done(&truth);
}

static void model_step(struct model_run *run, uint64_t *rng)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    if (kvb_random_chance(rng, 0.3)) {
        admit_random(run->engine, run->min_blocks, rng);
    }
    if (kvb_random_chance(rng, 0.002)) {
        assert_ok(kvb_engine_reset_cache(run->engine));
    }
    if (kvb_random_chance(rng, 0.001)) {
        run->seed = kvb_random_next(rng);
        kvb_engine_restart(run->engine, run->seed);
        run->reader.count = 0;
    }
    if (kvb_engine_step(run->engine, 0, &batch, &seq) == KVB_OK) {
        kvb_reader_apply(&run->reader, batch);
    }
    check_model(run);
}

static void run_model(struct model_run *run, const struct kvb_engine_options *options)
{
    struct kvb_engine_options small = *options;
    uint64_t rng = 42;

    small.blocks = 33;
    run->seed = small.seed;
    run->engine = engine_with(&small);
    for (int i = 0; i < 8000; i++) {
        model_step(run, &rng);
    }
    assert_int_equal(run->reader.unknown_removals, 0);
    run_dry(run->engine, NULL);
    assert_no_block_in_use(run->engine);
    assert_true(run->has_preempted); /* the cache is small on purpose, so that blocks are evicted */
    kvb_engine_free(run->engine);
}

static void the_interval_rule_never_lists_what_is_not_held(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain_engine;
    static struct model_run run = { .min_blocks = 1 };

    options.report_probability = 0.3;
    options.bypass_probability = 0.1;
    run_model(&run, &options);
    assert_true(run.max_doubtful > 0); /* the difficult cases did occur */
    assert_true(run.max_misses > 0);
}

static void without_reannouncements_the_events_give_exactly_what_is_held(void **state)
{
    (void)state;
    /* The second copy of a first block names no parent, so prompts of one block are left out. */
    static struct model_run run = { .min_blocks = 2, .must_be_exact = true };

    run_model(&run, &plain_engine);
}

/* ---- torture ------------------------------------------------------------------- */

/* One incarnation in which any allocation may fail. Failed calls are repeated, so the events must
 * still be complete. */
static bool life_with_failures(long fail_at)
{
    static struct kvb_reader reader;
    struct kvb_engine *engine = NULL;
    const uint32_t tokens[24] = { 1, 2, 3 };
    bool has_failed = false;
    reader.count = 0;

    fail_alloc_after(fail_at);
    if (kvb_engine_new(&plain_engine, &engine) != KVB_OK) {
        fail_alloc_after(-1);
        return true;
    }
    for (int i = 0; i < 60; i++) {
        const struct kvb_event_batch *batch = NULL;
        uint64_t seq = 0;
        kvb_status status = kvb_engine_admit(engine, tokens + i % 3, 20, 6);
        has_failed |= status == KVB_NO_MEMORY;
        if (i == 30) {
            has_failed |= kvb_engine_reset_cache(engine) == KVB_NO_MEMORY;
        }
        status = kvb_engine_step(engine, 0, &batch, &seq);
        has_failed |= status == KVB_NO_MEMORY;
        if (status == KVB_OK) {
            kvb_reader_apply(&reader, batch);
        }
    }
    struct kvb_truth truth = { 0 };
    has_failed |= kvb_engine_truth(engine, &truth) == KVB_NO_MEMORY;
    kvb_truth_done(&truth);
    fail_alloc_after(-1);

    run_dry(engine, &reader);
    assert_no_block_in_use(engine);
    assert_ok(kvb_engine_truth(engine, &truth));
    const struct kvb_reader_difference difference = kvb_reader_compare(&reader, &truth);
    assert_int_equal(difference.phantoms + difference.misses + difference.inexact, 0);
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
    return has_failed;
}

static void a_step_that_runs_out_of_memory_loses_no_event(void **state)
{
    (void)state;
    long fail_at = 0;

    while (life_with_failures(fail_at)) {
        fail_at++;
    }
    assert_true(fail_at > 20);
}

SUITE(engine_model)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_interval_rule_never_lists_what_is_not_held),
        cmocka_unit_test(without_reannouncements_the_events_give_exactly_what_is_held),
        cmocka_unit_test(a_step_that_runs_out_of_memory_loses_no_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
