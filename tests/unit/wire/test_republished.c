#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "vector_file.h"
#include "wire/engine/batch.h"
#include "wire/engine/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of republished messages. */

static const uint64_t a = 0x1111111111111111;
static const uint64_t b = 0x2222222222222222;
static const uint64_t c = 0x3333333333333333;

static struct kvb_event_batch batch;

static int begin_batch(void **state)
{
    (void)state;
    kvb_event_batch_reset(&batch);
    batch.timestamp_s = 1700000000.5;
    batch.has_rank = true;
    return 0;
}

static int end_batch(void **state)
{
    (void)state;
    kvb_event_batch_done(&batch);
    return 0;
}

static struct kvb_engine_event *add_event(enum kvb_event_kind kind, enum kvb_tier tier)
{
    assert_ok(kvb_event_batch_reserve_events(&batch, 1));
    struct kvb_engine_event *event = &batch.events[batch.event_count++];
    *event = (struct kvb_engine_event){ .kind = kind,
                                        .tier = tier,
                                        .all_tiers = kind == KVB_EVENT_CLEARED,
                                        .has_group = true,
                                        .hash_at = (uint32_t)batch.hash_count };
    return event;
}

static void add_hash(struct kvb_engine_event *event, uint64_t hash)
{
    assert_ok(kvb_event_batch_reserve_hashes(&batch, 1));
    batch.hashes[batch.hash_count++].value = hash;
    event->hash_count++;
}

/* Blocks of 4 tokens: first_token, first_token + 1, ... */
static struct kvb_engine_event *
add_stored(enum kvb_tier tier, uint64_t parent, uint32_t first_token, uint32_t tokens)
{
    struct kvb_engine_event *event = add_event(KVB_EVENT_STORED, tier);

    event->has_parent = parent != 0;
    event->parent.value = parent;
    event->block_size = 4;
    event->token_at = (uint32_t)batch.token_count;
    event->token_count = tokens;
    assert_ok(kvb_event_batch_reserve_tokens(&batch, tokens));
    for (uint32_t i = 0; i < tokens; i++) {
        batch.tokens[batch.token_count++] = first_token + i;
    }
    return event;
}

static void add_a_and_b(void)
{
    struct kvb_engine_event *event = add_stored(KVB_TIER_DEVICE, 0, 1, 8);

    add_hash(event, a);
    add_hash(event, b);
}

static void assert_encoded(const char *vector, enum kvb_republish_form form, bool is_signed)
{
    char *text = read_text_file("vectors/republished.txt");
    char start[64];
    size_t len = 0;

    (void)snprintf(start, sizeof start, "\n%s|", vector);
    const char *line = strstr(text, start);
    assert_non_null(line);
    const char *hex = strchr(line + strlen(start), '|') + 1;
    uint8_t *wanted = bytes_of_hex(hex, &len);
    struct kvb_buf bytes;
    kvb_buf_init(&bytes, 4096);
    assert_ok(kvb_republished_batch_encode(&batch, form, is_signed, &bytes));
    assert_int_equal(bytes.len, len);
    assert_memory_equal(bytes.data, wanted, len);
    kvb_buf_done(&bytes);
    free(wanted);
    free(text);
}

/* Each adds its events to an empty batch. */
static void add_nothing(void)
{
}

static void add_a_clear(void)
{
    (void)add_event(KVB_EVENT_CLEARED, KVB_TIER_DEVICE);
}

static void add_on_the_host(void)
{
    add_hash(add_stored(KVB_TIER_HOST, b, 9, 4), c);
}

static void add_a_small_hash(void) /* of nine bytes all the same */
{
    add_hash(add_stored(KVB_TIER_DEVICE, c, 13, 4), 7);
}

static void add_a_removal(void)
{
    add_hash(add_event(KVB_EVENT_REMOVED, KVB_TIER_DEVICE), b);
}

static void add_a_snapshot(void)
{
    add_a_clear();
    add_a_and_b();
}

static void add_a_signed_hash(void)
{
    add_hash(add_stored(KVB_TIER_DEVICE, 0, 1, 4), (uint64_t)INT64_C(-3488128144981237669));
}

static void writes_the_bytes_of_the_vectors(void **state)
{
    static const struct {
        const char *vector;
        void (*add)(void);
        enum kvb_republish_form form;
        bool is_signed;
    } rows[] = {
        { "empty", add_nothing, KVB_REPUBLISH_MAP, false },
        { "empty", add_nothing, KVB_REPUBLISH_ARRAY, false },
        { "cleared", add_a_clear, KVB_REPUBLISH_MAP, false },
        { "stored_map", add_a_and_b, KVB_REPUBLISH_MAP, false },
        { "stored_array", add_a_and_b, KVB_REPUBLISH_ARRAY, false },
        { "stored_host", add_on_the_host, KVB_REPUBLISH_MAP, false },
        { "stored_small_hash", add_a_small_hash, KVB_REPUBLISH_MAP, false },
        { "removed", add_a_removal, KVB_REPUBLISH_MAP, false },
        { "snapshot", add_a_snapshot, KVB_REPUBLISH_MAP, false },
        { "stored_signed", add_a_signed_hash, KVB_REPUBLISH_MAP, true },
    };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        (void)begin_batch(state);
        rows[i].add();
        assert_encoded(rows[i].vector, rows[i].form, rows[i].is_signed);
    }
}

/* More tokens than the encoder reserves room for at once. */
static void each_token_takes_its_shortest_form(void **state)
{
    (void)state;
    static const uint32_t tokens[] = { 0, 127, 128, 255, 256, 65535, 65536, UINT32_MAX };
    static const uint8_t forms[] = { 0x00, 0x7f, 0xcc, 0x80, 0xcc, 0xff, 0xcd, 0x01,
                                     0x00, 0xcd, 0xff, 0xff, 0xce, 0x00, 0x01, 0x00,
                                     0x00, 0xce, 0xff, 0xff, 0xff, 0xff };
    enum { times = 9, count = times * 8 };
    static const char head[] = "token_ids\xdc\x00\x48"; /* an array of 72 */
    struct kvb_engine_event *event = add_stored(KVB_TIER_DEVICE, 0, 0, count);
    struct kvb_buf bytes;

    for (uint32_t i = 0; i < count; i++) {
        batch.tokens[event->token_at + i] = tokens[i % 8];
    }
    for (uint64_t i = 0; i < count / 4; i++) {
        add_hash(event, a + i);
    }
    kvb_buf_init(&bytes, 4096);
    assert_ok(kvb_republished_batch_encode(&batch, KVB_REPUBLISH_MAP, false, &bytes));
    const uint8_t *at = memmem(bytes.data, bytes.len, head, sizeof head - 1);
    assert_non_null(at);
    for (size_t i = 0; i < times; i++) {
        assert_memory_equal(at + sizeof head - 1 + i * sizeof forms, forms, sizeof forms);
    }
    assert_int_equal(at[sizeof head - 1 + times * sizeof forms], 0xaa); /* "block_size" */
    kvb_buf_done(&bytes);
}

static void tokens_that_find_no_room_are_an_error(void **state)
{
    (void)state;
    struct kvb_buf bytes;

    add_a_and_b();
    kvb_buf_init(&bytes, 80); /* the space ends within the tokens */
    assert_int_equal(
        kvb_republished_batch_encode(&batch, KVB_REPUBLISH_MAP, false, &bytes), KVB_TOO_LARGE);
    assert_int_equal(bytes.len, 0);
    kvb_buf_done(&bytes);
}

/* The bridge can read its own messages, and sees in them that the hashes are signed. */
static void the_decoder_reads_it_and_knows_signed_hashes(void **state)
{
    (void)state;
    struct kvb_event_batch decoded = { .has_rank = false };
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 4096);
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        (void)begin_batch(state);
        add_hash(add_stored(KVB_TIER_DEVICE, 0, 1, 4), UINT64_MAX - 5);
        kvb_buf_reset(&bytes);
        assert_ok(kvb_republished_batch_encode(&batch, KVB_REPUBLISH_MAP, is_signed, &bytes));
        assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &decoded));
        assert_int_equal(decoded.hashes[0].value, UINT64_MAX - 5);
        assert_int_equal(decoded.has_signed_hashes, is_signed);
    }
    kvb_event_batch_done(&decoded);
    kvb_buf_done(&bytes);
}

static void an_adapter_is_named_in_both_forms(void **state)
{
    (void)state;
    struct kvb_event_batch decoded = { .has_rank = false };
    struct kvb_engine_event *event = add_stored(KVB_TIER_DEVICE, 0, 1, 4);
    struct kvb_buf bytes;

    add_hash(event, a);
    assert_ok(kvb_event_batch_add_text(
        &batch, (kvb_span){ (const uint8_t *)"tuned", 5 }, &event->lora_name));
    kvb_buf_init(&bytes, 4096);
    for (int form = KVB_REPUBLISH_MAP; form <= KVB_REPUBLISH_ARRAY; form++) {
        kvb_buf_reset(&bytes);
        assert_ok(
            kvb_republished_batch_encode(&batch, (enum kvb_republish_form)form, false, &bytes));
        assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &decoded));
        const kvb_span name = kvb_event_batch_text(&decoded, decoded.events[0].lora_name);
        assert_int_equal(name.len, 5);
        assert_memory_equal(name.data, "tuned", 5);
    }
    kvb_event_batch_done(&decoded);
    kvb_buf_done(&bytes);
}

SUITE(republished)
{
#define ENCODED(test) cmocka_unit_test_setup(test, begin_batch)
    const struct CMUnitTest tests[] = {
        ENCODED(writes_the_bytes_of_the_vectors),
        ENCODED(each_token_takes_its_shortest_form),
        ENCODED(tokens_that_find_no_room_are_an_error),
        ENCODED(an_adapter_is_named_in_both_forms),
        ENCODED(the_decoder_reads_it_and_knows_signed_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, end_batch);
}
