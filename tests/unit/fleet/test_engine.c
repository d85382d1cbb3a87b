#include "fleet/engine/engine.h"

#include "fleet/engine_sample.h"
#include "kvb_test.h"

#include <string.h>

static const struct kvb_event_batch *step(struct kvb_engine *engine)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    assert_ok(kvb_engine_step(engine, 12.5, &batch, &seq));
    return batch;
}

static void announces_a_prompt_as_one_run_of_whole_blocks(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);

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
    struct kvb_engine *engine = engine_with(&plain_engine);

    admit(engine, 100, 7, 3);
    const struct kvb_event_batch *batch = step(engine);
    const kvb_engine_hash first = batch->hashes[0];

    batch = step(engine); /* token 8 is computed, so block 2 is complete */
    assert_int_equal(batch->event_count, 1);
    assert_true(batch->events[0].has_parent);
    assert_int_equal(batch->events[0].parent.value, first.value);
    kvb_engine_free(engine);
}

static void reuses_a_prefix_without_an_event(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    admit(engine, 100, 10, 1);
    run_dry(engine, NULL);
    admit(engine, 100, 10, 1);
    assert_int_equal(kvb_engine_step(engine, 0, &batch, &seq), KVB_AGAIN);

    struct kvb_engine_stats stats = { 0 };
    kvb_engine_stats(engine, &stats);
    assert_int_equal(stats.queried_tokens, 20);
    assert_int_equal(stats.hit_tokens, 8);
    kvb_engine_free(engine);
}

static void a_prompt_of_whole_blocks_makes_a_second_copy_of_its_last(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);

    admit(engine, 100, 8, 1);
    run_dry(engine, NULL);
    admit(engine, 100, 8, 1);
    const struct kvb_event_batch *batch = step(engine);
    assert_int_equal(batch->event_count, 1);
    assert_int_equal(batch->events[0].hash_count, 1);
    assert_true(batch->events[0].has_parent);

    struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 2);
    assert_int_equal(truth.blocks[0].copies, 1);
    assert_int_equal(truth.blocks[1].copies, 2);
    assert_int_equal(truth.blocks[1].parent, 0);
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
}

/* The salt in the event; "" for none. */
static bool has_salt(const struct kvb_event_batch *batch, uint32_t event, const char *wanted)
{
    const kvb_span salt = kvb_event_batch_text(batch, batch->events[event].salt);

    return salt.len == strlen(wanted) &&
           (salt.len == 0 || memcmp(salt.data, wanted, salt.len) == 0);
}

static void a_salt_is_in_each_event_and_separates_prefixes(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);

    kvb_engine_set_salt(engine, "tenant");
    admit(engine, 100, 7, 3);
    assert_true(has_salt(step(engine), 0, "tenant"));
    const struct kvb_event_batch *batch = step(engine); /* a child */
    assert_true(batch->events[0].has_parent && has_salt(batch, 0, "tenant"));
    run_dry(engine, NULL);

    kvb_engine_set_salt(engine, NULL);
    admit(engine, 100, 7, 1);
    batch = step(engine);
    assert_int_equal(batch->event_count, 1); /* the request found no blocks of the other salt */
    assert_false(batch->events[0].has_parent);
    assert_true(has_salt(batch, 0, ""));

    struct kvb_truth truth = truth_of(engine);
    uint32_t salted = 0;
    for (uint32_t i = 0; i < truth.count; i++) {
        salted += truth.blocks[i].salt != NULL;
    }
    assert_int_equal(truth.count, 3);
    assert_int_equal(salted, 2);
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
}

static void report_mode_announces_the_prefix_again_from_the_root(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain_engine;
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

    struct kvb_truth truth = truth_of(engine);
    assert_int_equal(truth.count, 3);
    for (uint32_t i = 0; i < truth.count; i++) {
        assert_int_equal(truth.blocks[i].copies, 1);
    }
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
}

static void removes_the_oldest_tail_first_and_before_the_store(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain_engine;
    options.blocks = 5; /* 4 blocks can be used */
    struct kvb_engine *engine = engine_with(&options);

    admit(engine, 100, 12, 1);
    const struct kvb_event_batch *batch = step(engine);
    kvb_engine_hash old[3];
    memcpy(old, batch->hashes, sizeof old);

    admit(engine, 500, 12, 1);
    batch = step(engine); /* 3 blocks: the free one, then the end of the old chain */
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
    struct kvb_engine *engine = engine_with(&plain_engine);

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
    struct kvb_engine *engine = engine_with(&plain_engine);
    struct kvb_engine_stats stats = { 0 };

    admit(engine, 100, 10, 20);
    admit(engine, 500, 10, 20);
    (void)step(engine);
    assert_ok(kvb_engine_reset_cache(engine));
    kvb_engine_stats(engine, &stats);
    assert_int_equal(stats.load.request_active_slots, 0);
    assert_int_equal(stats.load.num_requests_waiting, 2);
    assert_int_equal(stats.load.kv_active_blocks, 0);
    run_dry(engine, NULL);
    kvb_engine_stats(engine, &stats);
    assert_int_equal(stats.requests_finished, 2);
    kvb_engine_free(engine);
}

static void a_restart_numbers_from_zero_and_holds_nothing(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);
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
    kvb_engine_restart(engine, plain_engine.seed);
    admit(engine, 100, 10, 5);
    assert_int_equal(step(engine)->hashes[0].value, before);
    kvb_engine_free(engine);
}

static void numbers_begin_as_configured_and_some_may_be_skipped(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain_engine;
    options.first_seq = 1000;
    struct kvb_engine *engine = engine_with(&options);
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;

    struct kvb_truth truth = truth_of(engine);
    assert_false(truth.has_seq);
    kvb_truth_done(&truth);
    admit(engine, 100, 10, 5);
    assert_ok(kvb_engine_step(engine, 0, &batch, &seq));
    assert_int_equal(seq, 1000);
    assert_int_equal(kvb_engine_take_seq(engine), 1001);
    truth = truth_of(engine);
    assert_true(truth.has_seq);
    assert_int_equal(truth.seq, 1001);
    kvb_truth_done(&truth);
    struct kvb_engine_stats stats = { 0 };
    kvb_engine_stats(engine, &stats);
    assert_int_equal(stats.batches, 2);

    kvb_engine_set_first_seq(engine, 7);
    kvb_engine_restart(engine, 8);
    assert_int_equal(kvb_engine_take_seq(engine), 7);
    kvb_engine_free(engine);
}

static void the_same_seed_gives_the_same_run(void **state)
{
    (void)state;
    struct kvb_engine *one = engine_with(&plain_engine);
    struct kvb_engine *two = engine_with(&plain_engine);

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

/* Applying the log from its beginning gives the content of the pool. */
static void the_log_of_contents_tells_the_truth(void **state)
{
    (void)state;
    struct kvb_engine_options options = plain_engine;
    uint64_t held = 0;

    options.log_changes = 10000;
    options.bypass_probability = 0.5; /* a second copy of a block changes nothing */
    struct kvb_engine *engine = engine_with(&options);
    for (uint32_t i = 0; i < 200; i++) {
        kvb_engine_set_time(engine, i);
        admit(engine, (i % 13) * 100, 20 + i % 7, 3);
        run_dry(engine, NULL);
        if (i == 100) {
            kvb_engine_restart(engine, 99);
        }
    }
    const struct kvb_content_log *log = kvb_engine_log(engine);
    assert_int_equal(kvb_content_log_first(log), 0);
    for (uint64_t number = 0; number < log->next; number++) {
        const enum kvb_content_kind kind = kvb_content_log_at(log, number)->kind;
        held = kind == KVB_CONTENT_CLEARED ? 0 : kind == KVB_CONTENT_STORED ? held + 1 : held - 1;
    }
    struct kvb_truth truth = truth_of(engine);
    uint64_t really_held = 0;
    for (uint32_t i = 0; i < truth.count; i++) {
        really_held += truth.blocks[i].copies > 0;
    }
    assert_true(really_held > 0);
    assert_int_equal(held, really_held);
    assert_int_equal(kvb_content_log_at(log, log->next - 1)->at_ns, 199);
    kvb_truth_done(&truth);
    kvb_engine_free(engine);
}

/* ---- Requests that a client waits for ---- */

enum { watched_output = 3 };

struct watched {
    uint32_t output[watched_output];
    struct kvb_request_progress progress;
};

/* A prompt of tokens first, first + 1, ... */
static void
admit_watched(struct kvb_engine *engine, struct watched *watched, uint32_t first, uint32_t count)
{
    uint32_t tokens[64];

    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = first + i;
    }
    *watched = (struct watched){ 0 };
    watched->progress.output = watched->output;
    assert_ok(kvb_engine_admit_watched(engine, tokens, count, watched_output, &watched->progress));
}

static void step_quietly(struct kvb_engine *engine)
{
    const struct kvb_event_batch *batch = NULL;
    uint64_t seq = 0;
    const kvb_status status = kvb_engine_step(engine, 0, &batch, &seq);

    assert_true(status == KVB_OK || status == KVB_AGAIN);
}

/* A reset restarts the request. Its own blocks are gone, and were no hit at the first start. */
static void the_hit_is_that_of_the_first_start(void **state)
{
    (void)state;
    struct kvb_engine *engine = engine_with(&plain_engine);
    struct watched watched;

    admit(engine, 100, 10, 1);
    run_dry(engine, NULL);
    admit_watched(engine, &watched, 100, 10);
    step_quietly(engine);
    assert_ok(kvb_engine_reset_cache(engine));
    step_quietly(engine);
    assert_int_equal(watched.progress.cached_tokens, 8);
    assert_int_equal(watched.progress.output_count, 2);
    kvb_engine_free(engine);
}

SUITE(engine)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_log_of_contents_tells_the_truth),
        cmocka_unit_test(announces_a_prompt_as_one_run_of_whole_blocks),
        cmocka_unit_test(announces_a_block_of_output_with_its_parent),
        cmocka_unit_test(reuses_a_prefix_without_an_event),
        cmocka_unit_test(a_prompt_of_whole_blocks_makes_a_second_copy_of_its_last),
        cmocka_unit_test(a_salt_is_in_each_event_and_separates_prefixes),
        cmocka_unit_test(report_mode_announces_the_prefix_again_from_the_root),
        cmocka_unit_test(removes_the_oldest_tail_first_and_before_the_store),
        cmocka_unit_test(a_reset_waits_for_the_next_step),
        cmocka_unit_test(a_reset_under_load_starts_the_running_requests_again),
        cmocka_unit_test(a_restart_numbers_from_zero_and_holds_nothing),
        cmocka_unit_test(numbers_begin_as_configured_and_some_may_be_skipped),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(the_hit_is_that_of_the_first_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
