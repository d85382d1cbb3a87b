#include "kvb_test.h"

#include "worth/replay.h"

#include <string.h>

/* The simulated fleet of tests/bench/worth and its router. */

static const struct worth_rates rates = {
    .pool_blocks = 400,
    .slots = 16,
    .step_tokens = 2048,
    .prefill_tokens_per_s = 10000,
    .step_us = 8000,
    .decode_us = 100,
};

static struct worth_workload workload_of(const char *name)
{
    struct worth_workload workload;

    worth_workload_make(
        &workload, name,
        &(struct worth_plan){ .trace = KVB_DATA "/conversation_trace.jsonl",
                              .fleets = 2,
                              .max_chains = 60,
                              .seed = 3 });
    return workload;
}

static struct worth_replay_options
options_of(const struct worth_workload *workload, enum kvb_route_policy policy)
{
    return (struct worth_replay_options){
        .workload = workload,
        .rates = rates,
        .router = { .workers = 4,
                    .policy = policy,
                    .overlap_weight = 1,
                    .picture = { .name = "exact" },
                    .predict_ms = 3000,
                    .seed = 5 },
        .loop = WORTH_OPEN,
        .span_us = 60000000,
        .clients = 8,
    };
}

static void one_seed_gives_one_result(void **state)
{
    (void)state;
    static const char *const names[] = { "conversation", "heads", "agents" };

    for (size_t i = 0; i < 3; i++) {
        struct worth_workload one = workload_of(names[i]);
        struct worth_workload same = workload_of(names[i]);
        for (enum kvb_route_policy policy = 0; policy < KVB_ROUTE_POLICY_COUNT; policy++) {
            const struct worth_replay_options options = options_of(&one, policy);
            const struct worth_replay_options again = options_of(&same, policy);
            const struct worth_result result = worth_replay(&options);
            const struct worth_result repeated = worth_replay(&again);
            assert_memory_equal(&result, &repeated, sizeof result);
        }
        worth_workload_done(&one);
        worth_workload_done(&same);
    }
}

static void another_seed_loses_other_events(void **state)
{
    (void)state;
    struct worth_workload workload = workload_of("heads");
    struct worth_replay_options options = options_of(&workload, KVB_ROUTE_KV);

    options.router.picture = (struct worth_picture){ .name = "lossy_10", .lost_events = 0.1 };
    const uint64_t checksum = worth_replay(&options).checksum;
    options.router.seed = 6;
    assert_int_not_equal(worth_replay(&options).checksum, checksum);
    worth_workload_done(&workload);
}

/* The trace's times are multiples of 3 s. */
static void rows_of_one_time_are_spread_until_the_next(void **state)
{
    (void)state;
    struct worth_workload workload = workload_of("conversation");

    for (size_t i = 1; i < workload.chain_count; i++) {
        assert_true(workload.chains[i].at >= workload.chains[i - 1].at);
        assert_true(workload.chains[i].at - workload.chains[i - 1].at < 0.1);
    }
    for (size_t i = 2; i < workload.chain_count / 2; i++) {
        assert_true(workload.chains[i].at > workload.chains[i - 2].at);
    }
    worth_workload_done(&workload);
}

/* A prompt begins with the prompt and the answer of the turn before it in the same chain. */
static void a_chain_grows_from_turn_to_turn(void **state)
{
    (void)state;
    struct worth_workload workload = workload_of("agents");

    for (size_t i = 0; i < workload.chain_count; i++) {
        const struct worth_chain *chain = &workload.chains[i];
        assert_true(chain->turn_count > 0 && chain->at >= 0 && chain->at <= 1);
        for (uint32_t j = 1; j < chain->turn_count; j++) {
            const struct worth_turn *before = &workload.turns[chain->turn_at + j - 1];
            const struct worth_turn *turn = before + 1;
            const uint32_t tokens = before->input_tokens + before->output_tokens;
            assert_true(turn->input_tokens >= tokens);
            assert_memory_equal(
                workload.blocks + turn->block_at, workload.blocks + before->block_at,
                tokens / worth_block_tokens * sizeof *workload.blocks);
        }
    }
    worth_workload_done(&workload);
}

static void figures_are_within_what_can_be(void **state)
{
    (void)state;
    struct worth_workload workload = workload_of("heads");

    for (enum worth_loop loop = WORTH_BURST; loop <= WORTH_CLOSED; loop++) {
        struct worth_replay_options options = options_of(&workload, KVB_ROUTE_KV);
        options.loop = loop;
        const struct worth_result result = worth_replay(&options);
        assert_true(result.hit_rate > 0 && result.hit_rate <= 1);
        assert_true(result.ttft_p50_ms >= 8 && result.ttft_p99_ms >= result.ttft_p50_ms);
        assert_true(result.load_std >= 0 && result.load_std <= 1);
        assert_true(result.requests_per_s > 0);
    }
    worth_workload_done(&workload);
}

/* ---- The picture ---- */

/* The worker for a prompt at that time; worker 2 of 3 has stored it at second 1. */
static uint32_t choose_after_store(struct worth_picture picture, uint64_t now_us)
{
    static const kvb_tokens_hash tokens[2] = { { 11 }, { 12 } };
    static const kvb_block_hash blocks[2] = { { 21 }, { 22 } };
    const struct worth_request request = {
        .tokens = tokens, .blocks = blocks, .input_tokens = 1024, .output_tokens = 1
    };
    const struct worth_stored stored = { .request = &request, .first = 0, .count = 2 };
    struct worth_router *router = worth_router_new(&(struct worth_router_options){
        .workers = 3, .policy = KVB_ROUTE_KV, .overlap_weight = 1, .picture = picture });

    worth_router_stored(router, 2, &stored, 1000000);
    const uint32_t worker = worth_router_choose(router, &request, 0, now_us);
    worth_router_free(router);
    return worker;
}

static void a_picture_is_as_old_as_it_says(void **state)
{
    (void)state;
    const struct worth_picture exact = { .name = "exact" };
    const struct worth_picture late = { .name = "late", .delay_us = 1000 };
    const struct worth_picture lost = { .name = "lost", .lost_events = 1 };

    assert_int_equal(choose_after_store(exact, 1000000), 2);
    assert_int_equal(choose_after_store(late, 1000999), 0);
    assert_int_equal(choose_after_store(late, 1001000), 2);
    assert_int_equal(choose_after_store(lost, 9000000), 0);
}

SUITE(worth_replay)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_seed_gives_one_result),
        cmocka_unit_test(another_seed_loses_other_events),
        cmocka_unit_test(rows_of_one_time_are_spread_until_the_next),
        cmocka_unit_test(a_chain_grows_from_turn_to_turn),
        cmocka_unit_test(figures_are_within_what_can_be),
        cmocka_unit_test(a_picture_is_as_old_as_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
