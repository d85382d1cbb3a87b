#include "wire/query/prompt.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"

#include <string.h>

static void reads_a_prompt_and_its_blocks(void **state)
{
    (void)state;
    KVB_OWN(kvb_prompt_event_done) struct kvb_prompt_event event = { 0 };

    assert_ok(kvb_prompt_json_decode(
        kvb_span_of(
            "{\"data\":{\"Stored\":{\"request_id\":\"r-1\",\"token_ids\":[1,2,3,4294967295],"
            "\"block_hashes\":[18446744073709551615,7],\"lora_id\":3}},"
            "\"worker_id\":9223372036854775807,\"new\":{}}"),
        &event));
    assert_true(event.worker_id == INT64_MAX);
    assert_int_equal(event.dp_rank, 0);
    assert_false(event.is_removed);
    assert_true(event.has_lora);
    assert_int_equal(event.lora_id, 3);
    assert_int_equal(event.token_count, 4);
    assert_int_equal(event.tokens[3], UINT32_MAX);
    assert_int_equal(event.block_count, 2);
    assert_true(event.blocks[0].value == UINT64_MAX);

    assert_ok(kvb_prompt_json_decode(
        kvb_span_of(
            "{\"worker_id\":2,\"dp_rank\":5,\"data\":{\"Removed\":{\"block_hashes\":[7]}}}"),
        &event));
    assert_true(event.is_removed);
    assert_false(event.has_lora);
    assert_int_equal(event.dp_rank, 5);
    assert_int_equal(event.token_count, 0);
    assert_int_equal(event.blocks[0].value, 7);
}

static void null_is_the_base_model(void **state)
{
    (void)state;
    KVB_OWN(kvb_prompt_event_done) struct kvb_prompt_event event = { 0 };

    assert_ok(kvb_prompt_json_decode(
        kvb_span_of("{\"worker_id\":1,\"data\":{\"Stored\":{\"token_ids\":[],\"block_hashes\":[],"
                    "\"lora_id\":null}}}"),
        &event));
    assert_false(event.has_lora);
}

static void refuses_other_forms(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        "[]",
        "{\"worker_id\":1}",
        "{\"data\":{\"Removed\":{\"block_hashes\":[]}}}",
        "{\"worker_id\":1,\"data\":{}}",
        "{\"worker_id\":1,\"data\":\"Cleared\"}",
        "{\"worker_id\":1,\"data\":{\"removed\":{\"block_hashes\":[]}}}",
        "{\"worker_id\":1,\"data\":{\"Removed\":{\"block_hashes\":[-1]}}}",
        "{\"worker_id\":1,\"data\":{\"Removed\":{\"block_hashes\":[]},\"Stored\":{}}}",
        "{\"worker_id\":1,\"data\":{\"Stored\":{\"block_hashes\":[]}}}",
        "{\"worker_id\":1,\"data\":{\"Stored\":{\"token_ids\":[4294967296],\"block_hashes\":[]}}}",
        "{\"worker_id\":9223372036854775808,\"data\":{\"Removed\":{\"block_hashes\":[]}}}",
        "{\"worker_id\":1,\"dp_rank\":4294967296,\"data\":{\"Removed\":{\"block_hashes\":[]}}}",
        "{\"worker_id\":1,\"data\":{\"Removed\":{\"block_hashes\":[]}}} x",
    };
    KVB_OWN(kvb_prompt_event_done) struct kvb_prompt_event event = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(bad); i++) {
        assert_int_equal(kvb_prompt_json_decode(kvb_span_of(bad[i]), &event), KVB_BAD_INPUT);
        assert_int_equal(event.block_count + event.token_count, 0);
    }
}

static void survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        KVB_OWN(kvb_prompt_event_done) struct kvb_prompt_event event = { 0 };
        fail_alloc_after(n);
        status = kvb_prompt_json_decode(
            kvb_span_of("{\"worker_id\":1,\"data\":{\"Stored\":{\"token_ids\":[1,2],"
                        "\"block_hashes\":[3]}}}"),
            &event);
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || event.block_count == 0);
        assert_true(n < 10);
    }
    assert_ok(status);
}

SUITE(prompt_json)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_prompt_and_its_blocks),
        cmocka_unit_test(null_is_the_base_model),
        cmocka_unit_test(refuses_other_forms),
        cmocka_unit_test(survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
