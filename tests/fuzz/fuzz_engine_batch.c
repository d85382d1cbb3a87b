#include "wire/engine/batch.h"

#include "core/limits.h"
#include "core/own.h"
#include "engine_same.h"
#include "fleet/dialects/encode.h"
#include "target.h"

#include <stdlib.h>

static bool is_within(uint32_t at, uint32_t count, size_t whole)
{
    return (size_t)at + count <= whole;
}

static void check_extras(const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    check(event->extra_count == 0 || event->extra_count == event->hash_count);
    for (uint32_t i = 0; i < event->extra_count; i++) {
        const struct kvb_block_extra *extra = &batch->extras[event->extra_at + i];
        check(is_within(extra->key_at, extra->key_count, batch->key_count));
        check(extra->key_count <= kvb_max_block_keys);
    }
}

static void check_group(const struct kvb_engine_event *event)
{
    const bool is_window = event->group_kind == KVB_GROUP_WINDOW;
    const bool is_skipped = event->kind == KVB_EVENT_SKIPPED;

    check(event->group_kind != KVB_GROUP_OTHER || is_skipped);
    check(event->window_tokens == 0 || is_window);
    check(!is_window || event->kind != KVB_EVENT_STORED || event->window_tokens > 0);
    check(!event->is_sparse || (is_window && event->token_count == 0 && event->extra_count == 0));
    check(
        !is_window || event->token_count == 0 ||
        event->token_count == (uint64_t)event->hash_count * event->block_size);
}

/* Nothing points outside the arrays, and numbers that belong together agree. */
static void check_event(const struct kvb_event_batch *batch, const struct kvb_engine_event *event)
{
    const uint64_t covered = (uint64_t)event->hash_count * event->block_size;

    check((event->kind == KVB_EVENT_SKIPPED) == (event->skip != KVB_SKIP_NONE));
    check((unsigned)event->tier < KVB_TIER_COUNT);
    check(is_within(event->hash_at, event->hash_count, batch->hash_count));
    check(is_within(event->token_at, event->token_count, batch->token_count));
    check(is_within(event->extra_at, event->extra_count, batch->extra_count));
    check(is_within(event->lora_name.at, event->lora_name.len, batch->text_len));
    check(is_within(event->salt.at, event->salt.len, batch->text_len));
    check(event->lora_name.len <= kvb_max_string_bytes && event->salt.len <= kvb_max_string_bytes);
    check(event->token_count == 0 || event->token_count >= covered);
    check(event->token_count == 0 || event->block_size > 0);
    check(event->lookahead <= kvb_max_lookahead_tokens);
    check(
        event->lookahead == 0 ||
        event->lookahead_at + ((uint64_t)event->lookahead * event->hash_count) <=
            batch->token_count);
    check(event->lookahead == 0 || event->token_count > 0);
    check(!event->is_paired || event->lookahead == 1);
    check(is_within(event->model_name.at, event->model_name.len, batch->text_len));
    check(event->model_name.len <= kvb_max_string_bytes);
    check_group(event);
    check(event->key == 0 || event->hash_count == 1);
    check(!event->is_medium_unknown || event->tier == KVB_TIER_EXTERNAL);
    check_extras(batch, event);
}

/* False: the batch has events that no engine writes: skipped ones, or those of a pool, which have
 * keys. */
static bool is_of_engine(const struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        if (batch->events[i].kind == KVB_EVENT_SKIPPED || batch->events[i].key != 0) {
            return false;
        }
    }
    return true;
}

/* Writes the batch and reads it again.  False: it was too large to write, because a key of a few
 * bytes becomes 64 digits. */
static bool
travel(const struct kvb_event_batch *batch, enum kvb_dialect dialect, struct kvb_event_batch *again)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };

    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    const kvb_status status = kvb_engine_batch_encode(batch, dialect, &bytes);
    if (status == KVB_TOO_LARGE) {
        return false;
    }
    check(status == KVB_OK);
    check(kvb_engine_batch_decode(kvb_buf_span(&bytes), again) == KVB_OK);
    return true;
}

/* vLLM writes a salt into the prompt's first block, if the event has that. */
static void forget_other_salts(struct kvb_event_batch *batch)
{
    for (size_t i = 0; i < batch->event_count; i++) {
        struct kvb_engine_event *event = &batch->events[i];
        if (event->has_parent || event->is_sparse || event->hash_count == 0) {
            event->salt = (struct kvb_text_ref){ 0 };
        }
    }
}

/* The newest dialect of vLLM has a place for everything else in a batch. */
static void check_round_trip(struct kvb_event_batch *batch)
{
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch again = { 0 };

    forget_other_salts(batch);
    if (travel(batch, KVB_DIALECT_VLLM_0_31, &again)) {
        check(is_same_engine_batch(batch, &again));
    }
}

/* What remains of a batch in another dialect, that dialect writes again without loss. */
static void check_second_trip(const struct kvb_event_batch *batch, enum kvb_dialect dialect)
{
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch left = { 0 };
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch again = { 0 };

    if (travel(batch, dialect, &left) && travel(&left, dialect, &again)) {
        check(is_same_engine_batch(&left, &again));
    }
}

/* An accepted batch is consistent, and it is the same after encoding and decoding. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    KVB_OWN(kvb_event_batch_done) struct kvb_event_batch batch = { 0 };

    if (kvb_engine_batch_decode((kvb_span){ data, size }, &batch) != KVB_OK) {
        check(batch.event_count == 0 && batch.hash_count == 0 && batch.text_len == 0);
        return 0;
    }
    for (size_t i = 0; i < batch.event_count; i++) {
        check_event(&batch, &batch.events[i]);
    }
    if (is_of_engine(&batch)) {
        check_second_trip(&batch, KVB_DIALECT_SGLANG_MAP);
        check_second_trip(&batch, KVB_DIALECT_TRTLLM);
        check_round_trip(&batch);
    }
    return 0;
}
