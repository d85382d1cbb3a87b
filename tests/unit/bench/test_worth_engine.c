#include "kvb_test.h"

#include "core/random.h"
#include "worth/engine.h"

#include <stdlib.h>
#include <string.h>

/* The engine model of tests/bench/worth: its figures would be wrong if it reused what it does not
 * hold, held more than its pool, or computed faster than its rate. */

static const struct worth_rates rates = {
    .pool_blocks = 64,
    .slots = 4,
    .step_tokens = 1024,
    .prefill_tokens_per_s = 10000,
    .step_us = 5000,
    .decode_us = 100,
};

enum { max_blocks = 64 };

/* A request and its content: block i of prompt number p is the same for all that begin so. */
struct sample {
    struct worth_request request;
    kvb_tokens_hash tokens[max_blocks];
    kvb_block_hash blocks[max_blocks];
};

static void make_sample(
    struct sample *sample, uint64_t prompt, uint64_t shared_blocks, uint64_t own, uint32_t input,
    uint32_t output)
{
    *sample = (struct sample){
        .request = { .input_tokens = input, .output_tokens = output },
    };
    for (uint64_t i = 0; i < max_blocks; i++) {
        const uint64_t owner = i < shared_blocks ? prompt : own;
        sample->blocks[i].value = (owner + 1) << 32 | (i + 1);
        sample->tokens[i].value = sample->blocks[i].value;
    }
    sample->request.tokens = sample->tokens;
    sample->request.blocks = sample->blocks;
}

/* Steps until the engine is idle; returns the time. */
static uint64_t run_until_idle(struct worth_engine *engine, uint64_t now_us)
{
    while (worth_engine_begin_step(engine, now_us)) {
        now_us = engine->step.end_us;
        (void)worth_engine_end_step(engine);
    }
    return now_us;
}

static uint64_t prefill_us(uint64_t tokens)
{
    return tokens * 1000000 / rates.prefill_tokens_per_s;
}

static void a_prompt_sent_again_is_reused_but_for_its_last_block(void **state)
{
    (void)state;
    struct worth_engine engine;
    struct sample first;
    struct sample again;

    worth_engine_init(&engine, &rates);
    make_sample(&first, 1, 4, 1, 4 * worth_block_tokens, 1);
    make_sample(&again, 1, 4, 2, 4 * worth_block_tokens, 1);
    assert_true(worth_engine_send(&engine, &first.request));
    const uint64_t now_us = run_until_idle(&engine, 0);
    again.request.sent_us = now_us;
    assert_true(worth_engine_send(&engine, &again.request));
    (void)run_until_idle(&engine, now_us);

    assert_int_equal(first.request.hit_blocks, 0);
    assert_int_equal(again.request.hit_blocks, 3);
    assert_int_equal(first.request.first_token_us, 2 * (uint64_t)rates.step_us + prefill_us(2048));
    assert_int_equal(again.request.first_token_us - now_us, rates.step_us + prefill_us(512));
    worth_engine_done(&engine);
}

/* The block that the first turn left half full is completed by the second. */
static void a_turn_reuses_the_prompt_and_the_answer_of_the_one_before(void **state)
{
    (void)state;
    struct worth_engine engine;
    struct sample turns[3];
    uint64_t now_us = 0;

    worth_engine_init(&engine, &rates);
    for (uint32_t i = 0; i < 3; i++) {
        make_sample(&turns[i], 1, max_blocks, 1, 2000 + i * 1000, 300);
        assert_true(worth_engine_send(&engine, &turns[i].request));
        now_us = run_until_idle(&engine, now_us);
    }

    assert_int_equal(turns[1].request.hit_blocks, (2000 + 299) / worth_block_tokens);
    assert_int_equal(turns[2].request.hit_blocks, (3000 + 299) / worth_block_tokens);
    worth_engine_done(&engine);
}

static void requests_beyond_the_slots_wait_in_order(void **state)
{
    (void)state;
    struct worth_engine engine;
    struct sample samples[8];

    worth_engine_init(&engine, &rates);
    for (uint32_t i = 0; i < 8; i++) {
        make_sample(&samples[i], i, 0, i, 1000, 50);
        assert_true(worth_engine_send(&engine, &samples[i].request));
    }
    assert_true(worth_engine_begin_step(&engine, 0));
    assert_false(worth_engine_begin_step(&engine, 0)); /* one is under way */
    (void)worth_engine_end_step(&engine);
    (void)run_until_idle(&engine, engine.step.end_us);

    for (uint32_t i = 1; i < 8; i++) {
        assert_true(samples[i].request.first_token_us >= samples[i - 1].request.first_token_us);
    }
    assert_true(
        samples[4].request.first_token_us >
        samples[0].request.first_token_us + 49 * UINT64_C(5000));
    worth_engine_done(&engine);
}

static void a_request_larger_than_the_pool_is_refused(void **state)
{
    (void)state;
    struct worth_engine engine;
    struct sample sample;

    worth_engine_init(&engine, &rates);
    make_sample(&sample, 1, 1, 1, 64 * worth_block_tokens, 1);
    assert_false(worth_engine_send(&engine, &sample.request));
    assert_false(worth_engine_begin_step(&engine, 0));
    worth_engine_done(&engine);
}

/* ---- Many random requests ---- */

enum { samples_count = 3000, owners = samples_count + 20 };

/* What a reader of the events believes: by owner and block. */
static bool believed[owners + 1][max_blocks + 1];

static bool *belief_of(kvb_block_hash block)
{
    return &believed[block.value >> 32][block.value & 0xffffffff];
}

static void believe(const struct worth_step *step)
{
    for (size_t i = 0; i < step->removed_count; i++) {
        assert_true(*belief_of(step->removed[i]));
        *belief_of(step->removed[i]) = false;
    }
    for (size_t i = 0; i < step->stored_count; i++) {
        const struct worth_stored *stored = &step->stored[i];
        for (uint32_t j = 0; j < stored->count; j++) {
            *belief_of(stored->request->blocks[stored->first + j]) = true;
        }
    }
}

static void check_beliefs(const struct worth_engine *engine)
{
    uint32_t count = 0;

    for (uint64_t owner = 1; owner <= owners; owner++) {
        for (uint64_t i = 1; i <= max_blocks; i++) {
            const kvb_block_hash block = { owner << 32 | i };
            const bool is_held = worth_engine_holds(engine, block);
            assert_int_equal(*belief_of(block), is_held);
            count += is_held;
        }
    }
    assert_true(count <= engine->rates.pool_blocks);
}

static void check_users(const struct worth_engine *engine)
{
    uint32_t in_use = 0;

    for (uint32_t i = 1; i <= engine->rates.pool_blocks; i++) {
        in_use += !kvb_block_pool_is_free(engine->pool, i);
    }
    assert_int_equal(in_use, worth_engine_blocks_in_use(engine));
    assert_true(in_use <= engine->rates.pool_blocks);
    assert_true(engine->running_count <= engine->rates.slots);
}

static void check_finished(const struct worth_request *request, uint64_t now_us)
{
    const uint64_t computed =
        request->input_tokens - (uint64_t)request->hit_blocks * worth_block_tokens;
    const uint64_t ttft_us = request->first_token_us - request->sent_us;

    assert_true(request->hit_blocks <= worth_prompt_blocks(request));
    assert_true(computed > 0);
    assert_true(ttft_us >= prefill_us(computed) + rates.step_us - rates.step_tokens);
    assert_true(
        now_us >= request->first_token_us +
                      (uint64_t)(request->output_tokens - 1) * (rates.step_us + rates.decode_us));
    assert_int_equal(request->produced_tokens, request->output_tokens);
    assert_null(request->places);
}

static void random_requests_are_conserved_and_events_say_what_is_held(void **state)
{
    (void)state;
    struct sample *samples = calloc(samples_count, sizeof *samples);
    struct worth_engine engine;
    uint64_t random = 7;
    uint64_t now_us = 0;
    uint32_t sent = 0;
    uint32_t finished = 0;
    uint64_t hits = 0;

    assert_non_null(samples);
    memset(believed, 0, sizeof believed);
    worth_engine_init(&engine, &rates);
    while (finished < samples_count) {
        while (sent < samples_count && kvb_random_chance(&random, 0.4)) {
            struct sample *sample = &samples[sent];
            make_sample(
                sample, samples_count + kvb_random_below(&random, 10),
                kvb_random_below(&random, 12), sent, 1 + (uint32_t)kvb_random_below(&random, 8000),
                1 + (uint32_t)kvb_random_below(&random, 600));
            sample->request.sent_us = now_us;
            assert_true(worth_engine_send(&engine, &sample->request));
            sent++;
        }
        if (!worth_engine_begin_step(&engine, now_us)) {
            now_us += 1000;
            continue;
        }
        check_users(&engine);
        assert_true(engine.step.end_us >= now_us + rates.step_us);
        now_us = engine.step.end_us;
        const struct worth_step *step = worth_engine_end_step(&engine);
        believe(step);
        for (size_t i = 0; i < step->finished_count; i++) {
            check_finished(step->finished[i], now_us);
            hits += step->finished[i]->hit_blocks;
            finished++;
        }
        if (step->finished_count > 0 && finished % 100 == 0) {
            check_beliefs(&engine);
        }
    }
    assert_true(hits > 0);
    assert_int_equal(worth_engine_blocks_in_use(&engine), 0);
    assert_true(engine.busy_us <= now_us);
    check_beliefs(&engine);
    worth_engine_done(&engine);
    free(samples);
}

SUITE(worth_engine)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_sent_again_is_reused_but_for_its_last_block),
        cmocka_unit_test(a_turn_reuses_the_prompt_and_the_answer_of_the_one_before),
        cmocka_unit_test(requests_beyond_the_slots_wait_in_order),
        cmocka_unit_test(a_request_larger_than_the_pool_is_refused),
        cmocka_unit_test(random_requests_are_conserved_and_events_say_what_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
