#include "kvb_test.h"

#include "core/buf.h"
#include "core/limits.h"
#include "wire/engine/batch.h"

#include <string.h>

/* The effect of names in an event: LoRA names, salts, ids. Users choose salts, so no salt may
 * affect the events of other users. */

/* One BlockStored with one token: [tag, [1], parent, [5], 1, lora_id, nil, lora_name, extra_keys]
 */
struct stored {
    uint8_t parent; /* nil, or a small number, as lora_id */
    uint8_t lora_id;
    uint8_t fields; /* number of elements, tag included; the caller writes the rest */
};

enum { nil = 0xc0 };

static void add_stored(struct kvb_buf *bytes, const struct stored *stored)
{
    const uint8_t head[] = { (uint8_t)(0x90 | stored->fields), 0xab };
    const uint8_t rest[] = { 0x91, 0x01, stored->parent, 0x91, 0x05, 0x01, stored->lora_id, nil };

    assert_ok(kvb_buf_append(bytes, head, sizeof head));
    assert_ok(kvb_buf_append_text(bytes, "BlockStored"));
    assert_ok(kvb_buf_append(bytes, rest, sizeof rest));
}

static void add_filled_text(struct kvb_buf *bytes, size_t len, char filling)
{
    const uint8_t head[] = { 0xda, (uint8_t)(len >> 8), (uint8_t)len };

    assert_ok(kvb_buf_append(bytes, head, sizeof head));
    for (size_t i = 0; i < len; i++) {
        assert_ok(kvb_buf_append(bytes, &filling, 1));
    }
}

static void add_text(struct kvb_buf *bytes, size_t len)
{
    add_filled_text(bytes, len, 'a');
}

/* nil for the LoRA name, then extra keys of one block with one text, and no group. */
static void add_extra_text(struct kvb_buf *bytes, size_t len, char filling)
{
    const uint8_t head[] = { nil, 0x91, 0x91 };

    assert_ok(kvb_buf_append(bytes, head, sizeof head));
    add_filled_text(bytes, len, filling);
    assert_ok(kvb_buf_append(bytes, &(uint8_t){ nil }, 1));
}

static void begin(struct kvb_buf *bytes, size_t events)
{
    const uint8_t head[] = { 0x92, 0x01, 0xdc, (uint8_t)(events >> 8), (uint8_t)events };

    kvb_buf_init(bytes, kvb_max_payload_bytes);
    assert_ok(kvb_buf_append(bytes, head, sizeof head));
}

/* Decodes and frees the bytes. */
static void decode(struct kvb_buf *bytes, struct kvb_event_batch *batch)
{
    assert_ok(kvb_engine_batch_decode(kvb_buf_span(bytes), batch));
    kvb_buf_done(bytes);
}

static const struct kvb_block_extra *extra_of(const struct kvb_event_batch *batch, size_t event)
{
    assert_int_equal(batch->events[event].extra_count, 1);
    return &batch->extras[batch->events[event].extra_at];
}

/* A child inherits its salt, so a text in its event is an unknown id. */
static void a_bare_text_is_a_salt_only_at_the_beginning_of_a_prompt(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, 2);
    add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = nil, .fields = 10 });
    add_extra_text(&bytes, 7, 'a');
    add_stored(&bytes, &(struct stored){ .parent = 2, .lora_id = nil, .fields = 10 });
    add_extra_text(&bytes, 7, 'a');
    decode(&bytes, &batch);
    assert_int_equal(batch.events[0].salt.len, 7);
    assert_false(extra_of(&batch, 0)->unmatchable);
    assert_int_equal(batch.events[1].salt.len, 0);
    assert_true(extra_of(&batch, 1)->unmatchable);
    kvb_event_batch_done(&batch);
}

static void a_salt_with_its_own_key_may_look_like_an_id(void **state)
{
    (void)state;
    const uint8_t map_of_one = 0x81;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, 1);
    add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = nil, .fields = 8 });
    assert_ok(kvb_buf_append(&bytes, &map_of_one, 1));
    assert_ok(kvb_buf_append_text(
        &bytes, "\xaa"
                "cache_salt"));
    add_text(&bytes, 64); /* 64 times a hexadecimal digit */
    decode(&bytes, &batch);
    assert_int_equal(batch.events[0].salt.len, 64);
    assert_int_equal(batch.key_count, 0);
    kvb_event_batch_done(&batch);
}

static void a_lora_id_counts_if_the_name_is_empty(void **state)
{
    (void)state;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, 1);
    add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = 7, .fields = 8 });
    add_text(&bytes, 0);
    decode(&bytes, &batch);
    const kvb_span name = kvb_event_batch_text(&batch, batch.events[0].lora_name);
    assert_int_equal(name.len, strlen("lora_id:7"));
    assert_memory_equal(name.data, "lora_id:7", name.len);
    kvb_event_batch_done(&batch);
}

/* 30,000 times 40 bytes are more than the texts of one batch may take. */
static void one_lora_name_in_every_event_is_kept_once(void **state)
{
    (void)state;
    const size_t count = 30000;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, count);
    for (size_t i = 0; i < count; i++) {
        add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = nil, .fields = 8 });
        add_text(&bytes, 40);
    }
    decode(&bytes, &batch);
    assert_int_equal(batch.event_count, count);
    assert_int_equal(batch.events[count - 1].lora_name.len, 40);
    assert_int_equal(batch.text_len, 40);
    kvb_event_batch_done(&batch);
}

static void one_salt_in_every_event_is_kept_once(void **state)
{
    (void)state;
    const size_t count = 30000;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, count);
    for (size_t i = 0; i < count; i++) {
        add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = nil, .fields = 10 });
        add_extra_text(&bytes, 40, 'a');
    }
    decode(&bytes, &batch);
    assert_int_equal(batch.event_count, count);
    assert_int_equal(batch.events[count - 1].salt.len, 40);
    assert_int_equal(batch.text_len, 40);
    kvb_event_batch_done(&batch);
}

static void a_salt_beyond_a_ceiling_costs_its_own_event(void **state)
{
    (void)state;
    const size_t fit = kvb_max_batch_text_bytes / kvb_max_string_bytes;
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, fit + 2);
    for (size_t i = 0; i < fit + 2; i++) {
        add_stored(&bytes, &(struct stored){ .parent = nil, .lora_id = nil, .fields = 10 });
        add_extra_text(&bytes, kvb_max_string_bytes + (i == 0), i % 2 ? 'a' : 'b');
    }
    decode(&bytes, &batch);
    assert_true(extra_of(&batch, 0)->unmatchable); /* longer than any query can name */
    assert_int_equal(batch.events[fit].kind, KVB_EVENT_STORED);
    /* the space for texts is full */
    assert_int_equal(batch.events[fit + 1].skip, KVB_SKIP_BAD_STORED);
    assert_int_equal(batch.event_count, fit + 2);
    kvb_event_batch_done(&batch);
}

static void a_block_size_beyond_the_ceiling_is_refused_without_tokens_too(void **state)
{
    (void)state;
    const uint8_t event[] = { 0x91, 0x01, nil, 0x90, 0xce, 0x00, 0x01, 0x00, 0x01 };
    struct kvb_event_batch batch = { 0 };
    struct kvb_buf bytes;

    begin(&bytes, 1);
    assert_ok(kvb_buf_append_text(
        &bytes, "\x95\xab"
                "BlockStored"));
    assert_ok(kvb_buf_append(&bytes, event, sizeof event));
    decode(&bytes, &batch);
    assert_int_equal(batch.events[0].skip, KVB_SKIP_BAD_STORED);
    kvb_event_batch_done(&batch);
}

SUITE(engine_texts)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_text_is_a_salt_only_at_the_beginning_of_a_prompt),
        cmocka_unit_test(a_salt_with_its_own_key_may_look_like_an_id),
        cmocka_unit_test(a_lora_id_counts_if_the_name_is_empty),
        cmocka_unit_test(one_lora_name_in_every_event_is_kept_once),
        cmocka_unit_test(one_salt_in_every_event_is_kept_once),
        cmocka_unit_test(a_salt_beyond_a_ceiling_costs_its_own_event),
        cmocka_unit_test(a_block_size_beyond_the_ceiling_is_refused_without_tokens_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
