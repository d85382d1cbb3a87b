#include "kvb_test.h"

#include "index/block_hash.h"
#include "vector_file.h"
#include "wire/engine/batch.h"

#include <stdlib.h>
#include <string.h>

/* Events encoded by TensorRT-LLM's own structs (tests/data/trtllm). cases.jsonl describes each
 * message, and says which blocks are equal. */

enum { message_count = 8 };

static struct kvb_event_batch messages[message_count];

static int read_messages(void **state)
{
    (void)state;
    char *text = read_text_file("trtllm/trt.hex");
    size_t count = 0;

    for (char *line = text; *line; line = strchr(line, '\n') + 1, count++) {
        size_t len = 0;
        assert_true(count < message_count);
        const char *payload = strchr(strchr(line, ' ') + 1, ' ') + 1; /* topic, seq, payload */
        uint8_t *bytes = bytes_of_hex(payload, &len);
        assert_ok(kvb_engine_batch_decode((kvb_span){ bytes, len }, &messages[count]));
        free(bytes);
    }
    assert_int_equal(count, message_count);
    free(text);
    return 0;
}

static int free_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < message_count; i++) {
        kvb_event_batch_done(&messages[i]);
    }
    return 0;
}

static const struct kvb_engine_event *stored_of(size_t message)
{
    assert_int_equal(messages[message].event_count, 1);
    assert_int_equal(messages[message].events[0].kind, KVB_EVENT_STORED);
    return &messages[message].events[0];
}

/* The identity of a block by itself, without the blocks before it. */
static uint64_t content_of(size_t message, uint32_t block)
{
    const struct kvb_event_batch *batch = &messages[message];
    const struct kvb_engine_event *event = stored_of(message);
    const uint64_t seed = kvb_block_seed(
        kvb_event_batch_text(batch, event->lora_name), kvb_event_batch_text(batch, event->salt));

    assert_true(block < event->hash_count);
    return kvb_tokens_hash_of_event(batch, event, block, seed).value;
}

static void blocks_are_equal_by_tokens_media_and_adapter(void **state)
{
    (void)state;
    /* four times the token 9: as text, image a, image b, with an adapter */
    const uint64_t contents[] = { content_of(0, 0), content_of(2, 0), content_of(3, 0),
                                  content_of(5, 0) };
    const size_t count = sizeof contents / sizeof contents[0];

    assert_true(content_of(0, 0) == content_of(1, 0)); /* for texts mm_keys is an empty list */
    for (size_t i = 0; i < count; i++) {
        for (size_t k = i + 1; k < count; k++) {
            assert_true(contents[i] != contents[k]);
        }
    }
}

static void an_image_counts_with_hash_and_offset(void **state)
{
    (void)state;
    const struct kvb_event_batch *batch = &messages[4];
    const struct kvb_engine_event *event = stored_of(4);
    const struct kvb_block_extra *extras = batch->extras + event->extra_at;
    const uint64_t *keys = batch->keys;

    assert_int_equal(event->extra_count, 3);
    assert_int_equal(extras[0].key_count, 0); /* text */
    assert_int_equal(extras[1].key_count, 1); /* image a from its token 2 on */
    assert_int_equal(extras[2].key_count, 2); /* image a, and image b with a uuid */
    assert_true(keys[extras[2].key_at] == 0xaaaaaaaaaaaaaaaa);
    assert_true(keys[extras[1].key_at] != 0xaaaaaaaaaaaaaaaa);
    assert_true(keys[extras[2].key_at + 1] != 0xbbbbbbbbbbbbbbbb); /* the image begins at token 3 */
    assert_true(event->has_parent);
}

static void a_token_as_text_costs_only_its_block(void **state)
{
    (void)state;
    const struct kvb_engine_event *event = stored_of(6);

    assert_int_equal(event->extra_count, 1);
    assert_true(messages[6].extras[event->extra_at].unmatchable);
    assert_int_equal(event->token_count, 4);
}

static void removals_and_the_rest_are_read_to_the_end(void **state)
{
    (void)state;
    const struct kvb_event_batch *batch = &messages[7];

    assert_int_equal(batch->event_count, 3);
    assert_int_equal(batch->events[0].kind, KVB_EVENT_REMOVED);
    assert_int_equal(batch->events[0].hash_count, 2);
    assert_int_equal(batch->events[1].kind, KVB_EVENT_REMOVED);
    assert_true(batch->hashes[batch->events[1].hash_at].value == UINT64_MAX);
    assert_int_equal(batch->events[2].kind, KVB_EVENT_CLEARED);
}

SUITE(engine_trtllm)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_equal_by_tokens_media_and_adapter),
        cmocka_unit_test(an_image_counts_with_hash_and_offset),
        cmocka_unit_test(a_token_as_text_costs_only_its_block),
        cmocka_unit_test(removals_and_the_rest_are_read_to_the_end),
    };
    return cmocka_run_group_tests(tests, read_messages, free_messages);
}
