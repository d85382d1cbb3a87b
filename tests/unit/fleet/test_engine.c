#include "fleet/engine.h"

#include "core/hash.h"
#include "fail_alloc.h"
#include "fleet/interval_reader.h"
#include "fleet/random.h"
#include "kvb_test.h"

#include <stdlib.h>
#include <string.h>

enum { block_size = 4 };

static const struct kvb_engine_options plain = {
    .rank = 3,
    .blocks = 65,
    .block_size = block_size,
    .max_running = 8,
    .max_waiting = 32,
    .step_tokens = 64,
    .seed = 7,
};

static struct kvb_engine *engine_with(const struct kvb_engine_options *options)
{
    struct kvb_engine *engine = NULL;

    assert_ok(kvb_engine_new(options, &engine));
    return engine;
}

/* A prompt is its first number and those after it: equal starts, equal prefixes. */
static void admit(struct kvb_engine *engine, uint32_t first, uint32_t count, uint32_t output)
{
    uint32_t tokens[1024];

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = first + i;
    }
    assert_ok(kvb_engine_admit(engine, tokens, count, output));
}

static const struct kvb_event_batch *step(struct kvb_engine *engine)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    assert_ok(kvb_engine_step(engine, 12.5, &batch, &seq));
    return batch;
}

/* Steps until nothing is left to do; every batch goes to the reader. */
static void run_dry(struct kvb_engine *engine, struct kvb_reader *reader)
{
    struct kvb_engine_figures figures = { .load.request_active_slots = 1 };

    while (figures.load.request_active_slots + figures.load.num_requests_waiting > 0) {
        const struct kvb_event_batch *batch = NULL;
        uint64_t seq = 0;
        if (kvb_engine_step(engine, 0, &batch, &seq) == KVB_OK && reader) {
            kvb_reader_apply(reader, batch);
        }
        kvb_engine_figures(engine, &figures);
    }
}

/* An engine without requests uses no block: none was forgotten on some path. */
static void assert_no_block_in_use(const struct kvb_engine *engine)
{
    struct kvb_engine_figures figures = { 0 };

    kvb_engine_figures(engine, &figures);
    assert_int_equal(figures.load.kv_active_blocks, 0);
}

static struct kvb_truth truth_of(const struct kvb_engine *engine)
{
    struct kvb_truth truth = { 0 };

    assert_ok(kvb_engine_truth(engine, &truth));
    return truth;
}

static void announces_a_prompt_as_one_run_of_whole_blocks(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);

    admit(engine, 100, 10, 1);
    const struct kvb_event_batch *batch = step(engine);
    assert_int_equal(batch->event_count, 1);
    assert_int_equal(batch->rank, 3);
    assert_true(batch->has_rank);
    assert_true(batch->timestamp_s == 12.5);

    const struct kvb_engine_event *stored = &batch->events[0];
    assert_int_equal(stored->kind, KVB_EVENT_STORED);
    assert_int_equal(stored->hash_count, 2);
    assert_int_equal(stored->token_count, 8);
    assert_int_equal(stored->block_size, block_size);
    assert_false(stored->has_parent);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(batch->tokens[stored->token_at + i], 100 + i);
    }
    kvb_engine_free(engine);
}

static void announces_a_block_of_output_with_its_parent(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);

    admit(engine, 100, 7, 3);
    const struct kvb_event_batch *batch = step(engine);
    const kvb_engine_hash first = batch->hashes[0];

    batch = step(engine); /* token 8 is computed: block 2 is whole */
    assert_int_equal(batch->event_count, 1);
    assert_true(batch->events[0].has_parent);
    assert_int_equal(batch->events[0].parent.value, first.value);
    kvb_engine_free(engine);
}

static void an_idle_engine_makes_no_batch(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    assert_int_equal(kvb_engine_step(engine, 0, &batch, &seq), KVB_AGAIN);
    const struct kvb_truth truth = truth_of(engine);
    assert_false(truth.has_seq);
    assert_int_equal(truth.count, 0);
    free(truth.blocks);
    kvb_engine_free(engine);
}

static void numbers_batches_from_zero_without_a_hole(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);

    for (uint64_t expected = 0; expected < 20; expected++) {
        const struct kvb_event_batch *batch = NULL;
        uint64_t seq = 99;
        admit(engine, (uint32_t)expected * 100, 9, 1);
        assert_ok(kvb_engine_step(engine, 0, &batch, &seq));
        assert_int_equal(seq, expected);
    }
    const struct kvb_truth truth = truth_of(engine);
    assert_true(truth.has_seq);
    assert_int_equal(truth.seq, 19);
    free(truth.blocks);
    kvb_engine_free(engine);
}

static void reuses_a_prefix_without_telling(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    admit(engine, 100, 10, 1);
    run_dry(engine, NULL);
    admit(engine, 100, 10, 1);
    assert_int_equal(kvb_engine_step(engine, 0, &batch, &seq), KVB_AGAIN);

    struct kvb_engine_figures figures = { 0 };
    kvb_engine_figures(engine, &figures);
    assert_int_equal(figures.queried_tokens, 20);
    assert_int_equal(figures.hit_tokens, 8);
    kvb_engine_free(engine);
}

static void a_prompt_of_whole_blocks_makes_a_second_copy_of_its_last(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);

    admit(engine, 100, 8, 1);
    run_dry(engine, NULL);
    admit(engine, 100, 8, 1);
    const struct kvb_event_batch *batch = step(engine);
    assert_int_equal(batch->event_count, 1);
    assert_int_equal(batch->events[0].hash_count, 1);
    assert_true(batch->events[0].has_parent);

    const struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 2);
    assert_int_equal(truth.blocks[0].copies, 1);
    assert_int_equal(truth.blocks[1].copies, 2);
    assert_int_equal(truth.blocks[1].parent, 0);
    free(truth.blocks);
    kvb_engine_free(engine);
}

static void report_mode_announces_the_prefix_again_from_the_root(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain;
    options.report_probability = 1;
    struct kvb_engine *engine = engine_with(&options);

    admit(engine, 100, 10, 1);
    assert_int_equal(step(engine)->event_count, 1);
    run_dry(engine, NULL);
    admit(engine, 100, 14, 1);
    const struct kvb_event_batch *batch = step(engine);
    assert_int_equal(batch->event_count, 2);
    assert_int_equal(batch->events[0].hash_count, 2);
    assert_false(batch->events[0].has_parent);
    assert_true(batch->events[1].has_parent);

    const struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 3);
    for (uint32_t i = 0; i < truth.count; i++) {
        assert_int_equal(truth.blocks[i].copies, 1);
    }
    free(truth.blocks);
    kvb_engine_free(engine);
}

static void removes_the_oldest_tail_first_and_before_the_store(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain;
    options.blocks = 5; /* 4 can be used */
    struct kvb_engine *engine = engine_with(&options);

    admit(engine, 100, 12, 1);
    const struct kvb_event_batch *batch = step(engine);
    kvb_engine_hash old[3];
    memcpy(old, batch->hashes, sizeof old);

    admit(engine, 500, 12, 1);
    batch = step(engine); /* 3 blocks: the unused one, then the old tail */
    assert_int_equal(batch->event_count, 3);
    assert_int_equal(batch->events[0].kind, KVB_EVENT_REMOVED);
    assert_int_equal(batch->events[0].hash_count, 1);
    assert_int_equal(batch->hashes[0].value, old[2].value);
    assert_int_equal(batch->hashes[1].value, old[1].value);
    assert_int_equal(batch->events[2].kind, KVB_EVENT_STORED);
    kvb_engine_free(engine);
}

static void a_reset_waits_for_the_next_step(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);

    admit(engine, 100, 10, 1);
    run_dry(engine, NULL);
    assert_ok(kvb_engine_reset_cache(engine));
    struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 0);
    assert_int_equal(truth.unsent, 1);
    kvb_truth_done(&truth);

    admit(engine, 100, 10, 1);
    const struct kvb_event_batch *batch = step(engine);
    assert_int_equal(batch->event_count, 2);
    assert_int_equal(batch->events[0].kind, KVB_EVENT_CLEARED);
    assert_true(batch->events[0].all_tiers);
    assert_int_equal(batch->events[1].hash_count, 2);
    truth = truth_of(engine);
    assert_int_equal(truth.unsent, 0);
    assert_int_equal(truth.count, 2);
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
}

static void a_reset_under_load_starts_the_running_requests_again(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);
    struct kvb_engine_figures figures = { 0 };

    admit(engine, 100, 10, 20);
    admit(engine, 500, 10, 20);
    (void)step(engine);
    assert_ok(kvb_engine_reset_cache(engine));
    kvb_engine_figures(engine, &figures);
    assert_int_equal(figures.load.request_active_slots, 0);
    assert_int_equal(figures.load.num_requests_waiting, 2);
    assert_int_equal(figures.load.kv_active_blocks, 0);
    run_dry(engine, NULL);
    kvb_engine_figures(engine, &figures);
    assert_int_equal(figures.requests_finished, 2);
    kvb_engine_free(engine);
}

static void a_restart_numbers_from_zero_and_holds_nothing(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 99;

    admit(engine, 100, 10, 5);
    const uint64_t before = step(engine)->hashes[0].value;
    kvb_engine_restart(engine, 8);
    struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 0);
    assert_false(truth.has_seq);
    kvb_truth_done(&truth);

    admit(engine, 100, 10, 5);
    assert_ok(kvb_engine_step(engine, 0, &batch, &seq));
    assert_int_equal(seq, 0);
    assert_true(batch->hashes[0].value != before);
    kvb_engine_restart(engine, plain.seed);
    admit(engine, 100, 10, 5);
    assert_int_equal(step(engine)->hashes[0].value, before);
    kvb_engine_free(engine);
}

static void usage_counts_blocks_in_use_and_is_zero_when_idle(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain);
    struct kvb_engine_figures figures = { 0 };

    admit(engine, 100, 31, 4);
    (void)step(engine);
    kvb_engine_figures(engine, &figures);
    assert_int_equal(figures.load.request_active_slots, 1);
    assert_int_equal(figures.load.request_total_slots, 8);
    assert_int_equal(figures.load.kv_active_blocks, 8);
    assert_int_equal(figures.load.kv_total_blocks, 65);
    assert_true(figures.load.gpu_cache_usage_perc == 8.0F / 64.0F);

    run_dry(engine, NULL);
    kvb_engine_figures(engine, &figures);
    assert_true(figures.load.gpu_cache_usage_perc == 0);
    assert_true(figures.held_blocks > 0);
    kvb_engine_free(engine);
}

static void refuses_what_it_could_never_serve(void **state)
{
    (void)state;
    const uint32_t tokens[300] = { 0 };
    struct kvb_engine *engine = engine_with(&plain);
    struct kvb_engine_options bad = plain;
    struct kvb_engine *none = NULL;

    assert_int_equal(kvb_engine_admit(engine, tokens, 0, 1), KVB_BAD_INPUT);
    assert_int_equal(kvb_engine_admit(engine, tokens, 1, 0), KVB_BAD_INPUT);
    assert_int_equal(kvb_engine_admit(engine, tokens, 256, 1), KVB_TOO_LARGE);
    for (uint32_t i = 0; i < plain.max_waiting; i++) {
        admit(engine, i, 1, 1);
    }
    assert_int_equal(kvb_engine_admit(engine, tokens, 1, 1), KVB_AGAIN);
    kvb_engine_free(engine);

    bad.blocks = 1;
    assert_int_equal(kvb_engine_new(&bad, &none), KVB_BAD_INPUT);
    bad = plain;
    bad.report_probability = 1.5;
    assert_int_equal(kvb_engine_new(&bad, &none), KVB_BAD_INPUT);
    assert_null(none);
}

/* ---- the model: what the events say, against what the pool holds ------------- */

/* A tree of prompts, so that prefixes are shared; many are of whole blocks. */
static void admit_random(struct kvb_engine *engine, uint32_t least_blocks, uint64_t *dice)
{
    uint32_t tokens[64];
    const uint32_t count = (uint32_t)(least_blocks + kvb_random_below(dice, 10)) * block_size +
                           (kvb_random_chance(dice, 0.4) ? 0 : 1);
    const uint32_t family = (uint32_t)kvb_random_below(dice, 12);

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = i < 16 ? family / 3 : family;
    }
    (void)kvb_engine_admit(engine, tokens, count, (uint32_t)(1 + kvb_random_below(dice, 24)));
}

/* The chain of tokens must give the very hash that was announced. */
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
    uint32_t least_blocks; /* of a prompt */
    bool must_be_exact;
    size_t most_misses;
    size_t most_doubtful;
    bool has_preempted;
};

static void check_model(struct model_run *run)
{
    struct kvb_truth truth = truth_of(run->engine);
    struct kvb_engine_figures figures = { 0 };

    kvb_engine_figures(run->engine, &figures);
    run->has_preempted |= figures.preemptions > 0;
    check_identities(&truth, run->seed);
    assert_int_equal(sum_of_copies(&truth), figures.held_blocks);
    if (truth.unsent == 0) {
        const struct kvb_reader_difference difference = kvb_reader_compare(&run->reader, &truth);
        assert_int_equal(difference.phantoms, 0);
        assert_int_equal(difference.inexact, 0);
        assert_true(difference.misses <= difference.doubtful);
        if (run->must_be_exact) {
            assert_int_equal(difference.misses + difference.doubtful, 0);
        }
        run->most_misses =
            difference.misses > run->most_misses ? difference.misses : run->most_misses;
        run->most_doubtful =
            difference.doubtful > run->most_doubtful ? difference.doubtful : run->most_doubtful;
    }
    kvb_truth_done(&truth);
}

static void model_step(struct model_run *run, uint64_t *dice)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    if (kvb_random_chance(dice, 0.3)) {
        admit_random(run->engine, run->least_blocks, dice);
    }
    if (kvb_random_chance(dice, 0.002)) {
        assert_ok(kvb_engine_reset_cache(run->engine));
    }
    if (kvb_random_chance(dice, 0.001)) {
        run->seed = kvb_random_next(dice);
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
    uint64_t dice = 42;

    small.blocks = 33;
    run->seed = small.seed;
    run->engine = engine_with(&small);
    for (int i = 0; i < 8000; i++) {
        model_step(run, &dice);
    }
    assert_int_equal(run->reader.unknown_removals, 0);
    run_dry(run->engine, NULL);
    assert_no_block_in_use(run->engine);
    assert_true(run->has_preempted); /* the cache is small on purpose */
    kvb_engine_free(run->engine);
}

static void the_interval_rule_never_lists_what_is_not_held(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain;
    static struct model_run run = { .least_blocks = 1 };

    options.report_probability = 0.3;
    options.bypass_probability = 0.1;
    run_model(&run, &options);
    assert_true(run.most_doubtful > 0); /* the hard cases did occur */
    assert_true(run.most_misses > 0);
}

static void without_reports_the_events_say_exactly_what_is_held(void **state)
{
    (void)state;
    /* A second copy of a first block names no parent: leave out prompts of one. */
    static struct model_run run = { .least_blocks = 2, .must_be_exact = true };

    run_model(&run, &plain);
}

static void one_seed_gives_one_run(void **state)
{
    (void)state;
    struct kvb_engine *one = engine_with(&plain);
    struct kvb_engine *two = engine_with(&plain);

    for (uint32_t i = 0; i < 200; i++) {
        const struct kvb_event_batch *a = NULL;
        const struct kvb_event_batch *b = NULL;
        uint64_t seq = 0;
        admit(one, i % 7 * 50, 20, 9);
        admit(two, i % 7 * 50, 20, 9);
        assert_int_equal(kvb_engine_step(one, 0, &a, &seq), kvb_engine_step(two, 0, &b, &seq));
        if (a) {
            assert_int_equal(a->hash_count, b->hash_count);
            assert_memory_equal(a->hashes, b->hashes, a->hash_count * sizeof *a->hashes);
        }
        run_dry(one, NULL);
        run_dry(two, NULL);
    }
    kvb_engine_free(one);
    kvb_engine_free(two);
}

/* ---- torture ------------------------------------------------------------------- */

/* One life, in which any call may find no memory; failed ones are tried again, so
 * the events must still add up. */
static bool life_with_failures(long fail_at)
{
    static struct kvb_reader reader;
    struct kvb_engine *engine = NULL;
    const uint32_t tokens[24] = { 1, 2, 3 };
    bool has_failed = false;
    reader.count = 0;

    fail_alloc_after(fail_at);
    if (kvb_engine_new(&plain, &engine) != KVB_OK) {
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

static void a_step_cut_short_by_memory_loses_no_event(void **state)
{
    (void)state;
    long fail_at = 0;

    while (life_with_failures(fail_at)) {
        fail_at++;
    }
    assert_true(fail_at > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(announces_a_prompt_as_one_run_of_whole_blocks),
        cmocka_unit_test(announces_a_block_of_output_with_its_parent),
        cmocka_unit_test(an_idle_engine_makes_no_batch),
        cmocka_unit_test(numbers_batches_from_zero_without_a_hole),
        cmocka_unit_test(reuses_a_prefix_without_telling),
        cmocka_unit_test(a_prompt_of_whole_blocks_makes_a_second_copy_of_its_last),
        cmocka_unit_test(report_mode_announces_the_prefix_again_from_the_root),
        cmocka_unit_test(removes_the_oldest_tail_first_and_before_the_store),
        cmocka_unit_test(a_reset_waits_for_the_next_step),
        cmocka_unit_test(a_reset_under_load_starts_the_running_requests_again),
        cmocka_unit_test(a_restart_numbers_from_zero_and_holds_nothing),
        cmocka_unit_test(usage_counts_blocks_in_use_and_is_zero_when_idle),
        cmocka_unit_test(refuses_what_it_could_never_serve),
        cmocka_unit_test(the_interval_rule_never_lists_what_is_not_held),
        cmocka_unit_test(without_reports_the_events_say_exactly_what_is_held),
        cmocka_unit_test(one_seed_gives_one_run),
        cmocka_unit_test(a_step_cut_short_by_memory_loses_no_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
