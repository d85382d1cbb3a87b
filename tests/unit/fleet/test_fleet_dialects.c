#include "core/clock.h"
#include "core/own.h"
#include "fleet/config.h"
#include "fleet/fleet_scene.h"
#include "fleet/malformed.h"
#include "kvb_test.h"

#include <string.h>

static void set_up_dialect(struct fixture *fixture, enum kvb_dialect dialect)
{
    struct kvb_fleet_options options = begin_set_up(fixture);

    options.workers = 1;
    options.ranks = 1;
    options.dialects[0] = dialect;
    options.dialect_count = 1;
    options.max_requests = 2;
    assert_ok(kvb_fleet_new(&options, NULL, &fixture->fleet));
}

/* Counts empty batches with numbers of their own, after the first batch with an event. */
static void an_idle_engine_publishes_empty_batches_if_its_dialect_does(void **state)
{
    (void)state;
    const struct {
        enum kvb_dialect dialect;
        uint64_t beats; /* in 12 s */
    } cases[] = { { KVB_DIALECT_TRTLLM, 2 }, { KVB_DIALECT_VLLM_0_31, 0 } };

    for (size_t i = 0; i < KVB_COUNT_OF(cases); i++) {
        struct fixture fixture;
        set_up_dialect(&fixture, cases[i].dialect);
        tick(&fixture, 5);
        uint64_t batches = 0;
        while (totals_of(&fixture).finished < 2) {
            tick(&fixture, 1);
        }
        batches = state_of(&fixture, 0).stats.batches;
        tick(&fixture, 600);
        assert_int_equal(state_of(&fixture, 0).stats.batches - batches, cases[i].beats);
        assert_ok(kvb_fleet_drain(fixture.fleet, 5000));
        tear_down(&fixture);
    }
}

static void numbers_begin_as_in_the_dialect(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up_dialect(&fixture, KVB_DIALECT_MOONCAKE_C);
    tick(&fixture, 3);
    const uint64_t batches = state_of(&fixture, 0).stats.batches;
    struct kvb_truth truth = { 0 };
    assert_ok(kvb_fleet_truth(fixture.fleet, 0, &truth));
    assert_int_equal(truth.seq, batches);
    assert_true(truth.by_hash);
    kvb_truth_done(&truth);
    tear_down(&fixture);

    set_up_dialect(&fixture, KVB_DIALECT_TRTLLM);
    tick(&fixture, 3);
    assert_ok(kvb_fleet_truth(fixture.fleet, 0, &truth));
    assert_true(truth.seq > 1600000000000000000U && truth.seq <= kvb_clock_wall_us() * 1000);
    assert_false(truth.by_hash);
    kvb_truth_done(&truth);
    tear_down(&fixture);
}

static void the_configuration_of_a_pool_says_that_it_is_one(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct kvb_config_options options = {
        .address = "engines", .model = "m", .block_size = 16, .ranks = 1
    };

    set_up_dialect(&fixture, KVB_DIALECT_MOONCAKE_C);
    assert_ok(kvb_config_text(fixture.fleet, &options, 0, 1, &fixture.out));
    assert_ok(kvb_buf_append(&fixture.out, "", 1));
    assert_non_null(strstr((const char *)fixture.out.data, "    hashes = \"engine\";\n"));
    assert_null(strstr((const char *)fixture.out.data, "replay"));
    tear_down(&fixture);

    /* its topic contains a NUL, after which it continues */
    set_up_dialect(&fixture, KVB_DIALECT_SGLANG_MID);
    assert_ok(kvb_config_text(fixture.fleet, &options, 0, 1, &fixture.out));
    assert_ok(kvb_buf_append(&fixture.out, "", 1));
    assert_non_null(strstr((const char *)fixture.out.data, "    topic = \"kv-events\";\n"));
    tear_down(&fixture);
}

/* How many blocks of the only engine have a salt. */
static size_t salted_blocks(enum kvb_dialect dialect, size_t *out_blocks)
{
    struct fixture fixture;
    struct kvb_fleet_options options = begin_set_up(&fixture);
    struct kvb_truth truth = { 0 };
    size_t salted = 0;

    options.workers = options.ranks = 1;
    options.dialects[0] = dialect;
    options.dialect_count = 1;
    assert_ok(kvb_fleet_new(&options, NULL, &fixture.fleet));
    tick(&fixture, 200);
    assert_ok(kvb_fleet_truth(fixture.fleet, 0, &truth));
    for (uint32_t i = 0; i < truth.count; i++) {
        salted += truth.blocks[i].salt != NULL;
    }
    *out_blocks = truth.count;
    kvb_truth_done(&truth);
    tear_down(&fixture);
    return salted;
}

static void some_conversations_have_a_salt_if_events_can_name_it(void **state)
{
    (void)state;
    size_t blocks = 0;

    const size_t salted = salted_blocks(KVB_DIALECT_SGLANG_MAP, &blocks);
    assert_true(salted > 0 && salted < blocks);
    assert_int_equal(salted_blocks(KVB_DIALECT_SGLANG_MID, &blocks), 0);
    assert_int_equal(salted_blocks(KVB_DIALECT_VLLM_0_31, &blocks), 0);
    assert_true(blocks > 0);
}

static void malformed_payloads_have_numbers_of_their_own(void **state)
{
    (void)state;
    struct fixture fixture;

    set_up(&fixture, 0);
    assert_string_equal(say(&fixture, "malform 7 1 all"), "{\"end\":true}\n");
    assert_string_equal(say(&fixture, "malform 8 0 lying_map"), "{\"end\":true}\n");
    assert_non_null(strstr(say(&fixture, "malform 7 1 good"), "{\"error\":\"expected: malform"));
    assert_non_null(strstr(say(&fixture, "malform 7 1"), "{\"error\":\"expected: malform"));
    while (state_of(&fixture, 1).malformed < kvb_malformed_kinds) {
        tick(&fixture, 1);
    }
    tick(&fixture, 50);
    assert_int_equal(state_of(&fixture, 0).malformed, 0);
    assert_int_equal(state_of(&fixture, 1).malformed, kvb_malformed_kinds);
    assert_int_equal(state_of(&fixture, 2).malformed, 1);
    assert_ok(kvb_fleet_drain(fixture.fleet, 5000));
    const struct kvb_fleet_rank_state rank = state_of(&fixture, 1);
    /* malformed payloads are numbered too */
    assert_int_equal(rank.counts.published, rank.stats.batches);
    tear_down(&fixture);
}

static void the_configured_share_of_payloads_is_malformed(void **state)
{
    (void)state;
    struct fixture fixture;
    struct kvb_fleet_options options = begin_set_up(&fixture);

    options.malformed_every = 10;
    options.malformed_count = kvb_malformed_kinds;
    assert_ok(kvb_fleet_new(&options, NULL, &fixture.fleet));
    tick(&fixture, 300);
    for (size_t at = 0; at < kvb_fleet_rank_count(fixture.fleet); at++) {
        const struct kvb_fleet_rank_state rank = state_of(&fixture, at);
        assert_true(rank.malformed > 0);
        assert_int_equal(rank.malformed, (rank.stats.batches - rank.malformed) / 10);
    }
    tear_down(&fixture);
}

SUITE(fleet_dialects)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_engine_publishes_empty_batches_if_its_dialect_does),
        cmocka_unit_test(numbers_begin_as_in_the_dialect),
        cmocka_unit_test(the_configuration_of_a_pool_says_that_it_is_one),
        cmocka_unit_test(some_conversations_have_a_salt_if_events_can_name_it),
        cmocka_unit_test(malformed_payloads_have_numbers_of_their_own),
        cmocka_unit_test(the_configured_share_of_payloads_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
