#include "kvb_test.h"

#include "core/limits.h"
#include "fail_alloc.h"
#include "model/event_batch.h"

#include <stdlib.h>
#include <string.h>

/* Appends one of everything, n times. Stops at the first failure. */
static kvb_status fill(struct kvb_event_batch *batch, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct kvb_text_ref ref = { 0 };
        KVB_TRY(kvb_event_batch_add_text(batch, kvb_span_of("adapter"), &ref));
        KVB_TRY(kvb_event_batch_reserve_events(batch, 1));
        batch->events[batch->event_count++] = (struct kvb_engine_event){
            .kind = KVB_EVENT_STORED, .hash_at = (uint32_t)i, .hash_count = 1, .lora_name = ref
        };
        KVB_TRY(kvb_event_batch_reserve_hashes(batch, 1));
        batch->hashes[batch->hash_count++] = (kvb_engine_hash){ i };
        KVB_TRY(kvb_event_batch_reserve_tokens(batch, 2));
        batch->tokens[batch->token_count++] = (uint32_t)i;
        batch->tokens[batch->token_count++] = (uint32_t)i + 1;
        KVB_TRY(kvb_event_batch_reserve_extras(batch, 1));
        batch->extras[batch->extra_count++] =
            (struct kvb_block_extra){ .key_at = (uint32_t)i, .key_count = 1 };
        KVB_TRY(kvb_event_batch_reserve_keys(batch, 1));
        batch->keys[batch->key_count++] = ~(uint64_t)i;
    }
    return KVB_OK;
}

static void assert_filled(const struct kvb_event_batch *batch, size_t n)
{
    assert_int_equal(batch->event_count, n);
    assert_int_equal(batch->token_count, 2 * n);
    for (size_t i = 0; i < n; i++) {
        const kvb_span name = kvb_event_batch_text(batch, batch->events[i].lora_name);
        assert_int_equal(name.len, 7);
        assert_memory_equal(name.data, "adapter", 7);
        assert_int_equal(batch->hashes[i].value, i);
        assert_int_equal(batch->tokens[2 * i + 1], i + 1);
        assert_int_equal(batch->extras[i].key_at, i);
        assert_true(batch->keys[i] == ~(uint64_t)i);
    }
}

static void a_reset_batch_needs_no_new_memory(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { .timestamp_s = 4, .has_rank = true, .rank = 2 };

    assert_ok(fill(&batch, 1000));
    kvb_event_batch_reset(&batch);
    assert_int_equal(batch.event_count, 0);
    assert_int_equal(batch.text_len, 0);
    assert_false(batch.has_rank);
    fail_alloc_after(0);
    assert_ok(fill(&batch, 1000));
    fail_alloc_after(-1);
    assert_filled(&batch, 1000);
    kvb_event_batch_done(&batch);
}

static void a_copy_is_equal_and_independent(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { .timestamp_s = 1.5, .has_rank = true, .rank = 3 };
    struct kvb_event_batch copy = { 0 };

    assert_ok(fill(&batch, 20));
    assert_ok(kvb_event_batch_copy(&batch, &copy));
    assert_int_equal(kvb_event_batch_bytes(&copy), kvb_event_batch_bytes(&batch));
    memset(batch.tokens, 0xee, batch.token_count * sizeof *batch.tokens);
    kvb_event_batch_done(&batch);
    assert_filled(&copy, 20);
    assert_true(copy.timestamp_s == 1.5);
    assert_true(copy.has_rank);
    assert_int_equal(copy.rank, 3);
    kvb_event_batch_done(&copy);
}

static void refuses_texts_and_arrays_above_their_ceilings(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };
    struct kvb_text_ref ref = { 7, 7 };
    char *text = calloc(1, kvb_max_string_bytes + 1);
    size_t count = 0;

    assert_non_null(text);
    const kvb_span longest = { .data = (const uint8_t *)text, .len = kvb_max_string_bytes };
    const kvb_span too_long = { .data = longest.data, .len = kvb_max_string_bytes + 1 };
    assert_int_equal(kvb_event_batch_add_text(&batch, too_long, &ref), KVB_TOO_LARGE);
    while (kvb_event_batch_add_text(&batch, longest, &ref) == KVB_OK) {
        count++;
    }
    assert_int_equal(count * kvb_max_string_bytes, kvb_max_batch_text_bytes);
    assert_int_equal(
        kvb_event_batch_reserve_events(&batch, kvb_max_batch_events + 1), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_event_batch_reserve_tokens(&batch, kvb_max_batch_tokens + 1), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_event_batch_reserve_hashes(&batch, kvb_max_batch_hashes + 1), KVB_TOO_LARGE);
    assert_int_equal(
        kvb_event_batch_reserve_extras(&batch, kvb_max_batch_hashes + 1), KVB_TOO_LARGE);
    assert_int_equal(kvb_event_batch_reserve_keys(&batch, kvb_max_batch_keys + 1), KVB_TOO_LARGE);
    kvb_event_batch_done(&batch);
    free(text);
}

static void every_skip_has_a_name_and_a_list_of_what_it_may_hide(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KVB_SKIP_COUNT; i++) {
        assert_string_not_equal(kvb_skip_name((enum kvb_skip)i), "unknown");
    }
    assert_string_equal(kvb_skip_name(KVB_SKIP_COUNT), "unknown");
    assert_int_equal(kvb_skip_effect(KVB_SKIP_NONE), KVB_EFFECT_NONE);
    assert_int_equal(kvb_skip_effect(KVB_SKIP_BAD_STORED), KVB_EFFECT_MISSING);
    assert_int_equal(kvb_skip_effect(KVB_SKIP_BAD_REMOVED), KVB_EFFECT_PHANTOM);
    assert_int_equal(kvb_skip_effect(KVB_SKIP_UNKNOWN_EVENT), KVB_EFFECT_UNVERIFIED);
    assert_int_equal(kvb_skip_effect(KVB_SKIP_OTHER_MODEL), KVB_EFFECT_NONE);
    assert_int_equal(kvb_skip_effect(KVB_SKIP_COUNT), KVB_EFFECT_UNVERIFIED);
}

static void filling_survives_every_allocation_failing(void **state)
{
    (void)state;
    kvb_status status = KVB_NO_MEMORY;

    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_event_batch batch = { 0 };
        fail_alloc_after(n);
        status = fill(&batch, 100);
        fail_alloc_after(-1);
        kvb_event_batch_done(&batch);
        assert_true(n < 100);
    }
    assert_ok(status);
}

static void copying_survives_every_allocation_failing(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };
    kvb_status status = KVB_NO_MEMORY;

    assert_ok(fill(&batch, 100));
    for (long n = 0; status == KVB_NO_MEMORY; n++) {
        struct kvb_event_batch copy = { 0 };
        fail_alloc_after(n);
        status = kvb_event_batch_copy(&batch, &copy);
        fail_alloc_after(-1);
        assert_int_equal(copy.event_count, status == KVB_OK ? 100 : 0);
        kvb_event_batch_done(&copy);
        assert_true(n < 100);
    }
    assert_ok(status);
    kvb_event_batch_done(&batch);
}

SUITE(event_batch)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_batch_needs_no_new_memory),
        cmocka_unit_test(a_copy_is_equal_and_independent),
        cmocka_unit_test(refuses_texts_and_arrays_above_their_ceilings),
        cmocka_unit_test(every_skip_has_a_name_and_a_list_of_what_it_may_hide),
        cmocka_unit_test(filling_survives_every_allocation_failing),
        cmocka_unit_test(copying_survives_every_allocation_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
