#include "kvb_test.h"

#include "../../fuzz/engine_same.h"
#include "core/limits.h"
#include "core/own.h"
#include "fleet/dialects/encode.h"
#include "wire/engine/batch.h"
#include "wire/msgpack/cursor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Random batches, from a fixed seed ---- */

struct rng {
    uint64_t state;
};

static uint64_t roll(struct rng *rng)
{
    rng->state ^= rng->state << 13;
    rng->state ^= rng->state >> 7;
    rng->state ^= rng->state << 17;
    return rng->state * 0x2545f4914f6cdd1dull;
}

static uint32_t below(struct rng *rng, uint32_t limit)
{
    return (uint32_t)((roll(rng) >> 33) % limit);
}

static bool one_in(struct rng *rng, uint32_t count)
{
    return below(rng, count) == 0;
}

/* Any number, including the borders of the wire's integer widths. */
static uint64_t any_u64(struct rng *rng)
{
    const uint64_t borders[] = {
        0,          127,       128,        255,        256,   UINT16_MAX,     UINT32_MAX,
        1ull << 32, INT64_MAX, 1ull << 63, UINT64_MAX, 65536, UINT64_MAX - 31
    };

    return one_in(rng, 3) ? borders[below(rng, sizeof borders / sizeof borders[0])] : roll(rng);
}

static struct kvb_text_ref
add_text(struct rng *rng, struct kvb_event_batch *batch, uint32_t longest)
{
    uint8_t text[64];
    struct kvb_text_ref ref = { 0 };
    const uint32_t len = 1 + below(rng, longest);

    for (uint32_t i = 0; i < len; i++) {
        text[i] = (uint8_t)('a' + below(rng, 26));
    }
    assert_ok(kvb_event_batch_add_text(batch, (kvb_span){ text, len }, &ref));
    return ref;
}

static void
add_hashes(struct rng *rng, struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    event->hash_at = (uint32_t)batch->hash_count;
    event->hash_count = one_in(rng, 10) ? 20 : below(rng, 4);
    assert_ok(kvb_event_batch_reserve_hashes(batch, event->hash_count));
    for (uint32_t i = 0; i < event->hash_count; i++) {
        batch->hashes[batch->hash_count++].value = any_u64(rng);
    }
}

/* As many tokens as the blocks need, or some more. In a window group, more would make it ambiguous
 * which of them belong to the blocks. */
static void
add_tokens(struct rng *rng, struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    event->block_size = 1 + below(rng, 20);
    const uint32_t covered = event->hash_count * event->block_size;
    const bool is_window = event->group_kind == KVB_GROUP_WINDOW;
    const uint32_t extra = !is_window && (one_in(rng, 3) || covered == 0) ? 1 + below(rng, 5) : 0;

    event->token_at = (uint32_t)batch->token_count;
    event->token_count = covered + extra;
    event->is_paired = event->token_count > 0 && one_in(rng, 4);
    if (event->hash_count > 0) {
        event->lookahead = one_in(rng, 4) ? below(rng, 4) : 0;
    }
    event->lookahead = event->is_paired ? 1 : event->lookahead;
    event->lookahead_at = event->token_at + event->token_count;
    const uint32_t all = event->token_count + (event->lookahead * event->hash_count);
    assert_ok(kvb_event_batch_reserve_tokens(batch, all));
    for (uint32_t i = 0; i < all; i++) {
        batch->tokens[batch->token_count++] = (uint32_t)any_u64(rng);
    }
}

static void
add_extras(struct rng *rng, struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    event->extra_at = (uint32_t)batch->extra_count;
    event->extra_count = event->hash_count;
    assert_ok(kvb_event_batch_reserve_extras(batch, event->hash_count));
    for (uint32_t i = 0; i < event->hash_count; i++) {
        struct kvb_block_extra *extra = &batch->extras[batch->extra_count++];
        *extra = (struct kvb_block_extra){ .key_at = (uint32_t)batch->key_count,
                                           .key_count = one_in(rng, 20) ? 64 : below(rng, 3),
                                           .unmatchable = one_in(rng, 4) };
        assert_ok(kvb_event_batch_reserve_keys(batch, extra->key_count));
        for (uint32_t k = 0; k < extra->key_count; k++) {
            batch->keys[batch->key_count++] = any_u64(rng);
        }
    }
}

static void
make_stored(struct rng *rng, struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    add_hashes(rng, batch, event);
    event->has_parent = one_in(rng, 2);
    event->parent.value = event->has_parent ? any_u64(rng) | 1 : 0; /* 0 can mean no parent */
    if (one_in(rng, 5)) {
        event->block_size = below(rng, 3); /* without tokens */
    } else {
        add_tokens(rng, batch, event);
    }
    if (one_in(rng, 3)) {
        event->lora_name = add_text(rng, batch, 60);
    }
    if (one_in(rng, 3) && event->hash_count > 0) {
        add_extras(rng, batch, event);
    }
    if (one_in(rng, 3) && event->hash_count > 0) {
        const bool is_twin = event->lora_name.len > 0 && one_in(rng, 2);
        event->salt = is_twin ? event->lora_name : add_text(rng, batch, 60);
    }
}

static struct kvb_engine_event random_event(struct rng *rng, struct kvb_event_batch *batch)
{
    struct kvb_engine_event event = { .kind = (enum kvb_event_kind)below(rng, 4) };

    if (event.kind == KVB_EVENT_SKIPPED) {
        event.skip = KVB_SKIP_UNKNOWN_EVENT;
        return event;
    }
    event.all_tiers = event.kind == KVB_EVENT_CLEARED && one_in(rng, 2);
    event.tier = event.all_tiers ? KVB_TIER_DEVICE : (enum kvb_tier)below(rng, KVB_TIER_COUNT);
    if (event.kind != KVB_EVENT_CLEARED && one_in(rng, 2)) {
        event.has_group = true;
        event.group = below(rng, 300);
        if (event.kind == KVB_EVENT_STORED && one_in(rng, 3)) {
            event.group_kind = KVB_GROUP_WINDOW;
            event.window_tokens = 1 + below(rng, 5000);
        }
    }
    if (event.kind == KVB_EVENT_STORED) {
        make_stored(rng, batch, &event);
    } else if (event.kind == KVB_EVENT_REMOVED) {
        add_hashes(rng, batch, &event);
    }
    return event;
}

static void random_batch(struct rng *rng, struct kvb_event_batch *batch)
{
    const uint32_t count = one_in(rng, 20) ? 100 : below(rng, 6);

    kvb_event_batch_reset(batch);
    batch->timestamp_s = (double)any_u64(rng) / 1000;
    batch->has_rank = one_in(rng, 2);
    batch->rank = batch->has_rank ? (uint32_t)any_u64(rng) : 0;
    assert_ok(kvb_event_batch_reserve_events(batch, count));
    for (uint32_t i = 0; i < count; i++) {
        const struct kvb_engine_event event = random_event(rng, batch);
        batch->events[batch->event_count++] = event;
    }
}

/* ---- What a dialect cannot encode ---- */

static void forget_medium(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->tier = KVB_TIER_DEVICE;
}

static void forget_lora(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->lora_name = (struct kvb_text_ref){ 0 };
}

static void forget_extras(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->extra_count = 0;
}

static void forget_bytes(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    for (uint32_t i = 0; i < event->extra_count; i++) {
        batch->extras[event->extra_at + i].unmatchable = false;
    }
}

/* With pairs the tokens behind a block are part of it. */
static void forget_lookahead(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->lookahead = event->is_paired ? event->lookahead : 0;
}

/* Children inherit what only the first event of the prompt contains. */
static void forget_salt_of_child(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    if (event->has_parent) {
        event->salt = (struct kvb_text_ref){ 0 };
    }
}

static void forget_salt(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->salt = (struct kvb_text_ref){ 0 };
}

static void forget_group(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    event->has_group = false;
    event->group = 0;
    event->group_kind = KVB_GROUP_FULL;
    event->window_tokens = 0;
}

/* A Cleared of one tier becomes one of all tiers: the reader drops too much, not too little. */
static void widen_cleared(struct kvb_event_batch *batch, struct kvb_engine_event *event)
{
    (void)batch;
    if (event->kind == KVB_EVENT_CLEARED) {
        event->all_tiers = true;
        event->tier = KVB_TIER_DEVICE;
    }
}

/* Dialects without the fields lose each of these. */
static const struct loss {
    unsigned fields;
    void (*forget)(struct kvb_event_batch *batch, struct kvb_engine_event *event);
} losses[] = {
    { KVB_FIELD_MEDIUM, forget_medium },
    { KVB_FIELD_LORA_NAME | KVB_FIELD_NAMESPACE, forget_lora },
    { KVB_FIELD_EXTRA_KEYS | KVB_FIELD_MM_KEYS, forget_extras },
    { KVB_FIELD_EXTRA_KEYS, forget_bytes },
    { KVB_FIELD_EXTRA_KEYS | KVB_FIELD_SALT_MAP | KVB_FIELD_NAMESPACE, forget_salt },
    { KVB_FIELD_SALT_MAP | KVB_FIELD_NAMESPACE, forget_salt_of_child },
    { KVB_FIELD_LOOKAHEAD, forget_lookahead },
    { KVB_FIELD_GROUP, forget_group },
    { KVB_FIELD_CLEARED_MEDIUM, widen_cleared },
};

/* Changes the batch into what the dialect can encode of it. All dialects lose skipped events. */
static void lose(struct kvb_event_batch *batch, const struct kvb_dialect_row *dialect)
{
    size_t kept = 0;

    for (size_t i = 0; i < batch->event_count; i++) {
        for (size_t k = 0; k < KVB_COUNT_OF(losses); k++) {
            if ((dialect->fields & losses[k].fields) == 0) {
                losses[k].forget(batch, &batch->events[i]);
            }
        }
        if (batch->events[i].kind != KVB_EVENT_SKIPPED) {
            batch->events[kept++] = batch->events[i];
        }
    }
    batch->event_count = kept;
    if (!dialect->has_rank) {
        batch->has_rank = false;
        batch->rank = 0;
    }
}

/* ---- The events of a store of objects, block by block ---- */

/* One line for each block; repetitions in other tiers do not add lines. */
struct story {
    struct kvb_buf text;
    size_t last; /* where the newest line begins */
    bool has_moves;
    uint64_t stored; /* in the newest line, in this tier */
    enum kvb_tier tier;
};

static void end_line(struct story *story, size_t begin)
{
    const size_t len = story->text.len - begin;

    assert_ok(kvb_buf_append(&story->text, "\n", 1));
    if (begin - story->last == len + 1 && story->text.data[begin] == 'R' &&
        memcmp(story->text.data + story->last, story->text.data + begin, len) == 0) {
        story->text.len = begin;
    } else {
        story->last = begin;
    }
}

/* When an object is stored in one tier, readers treat it as removed from the others. */
static bool
is_part_of_a_move(const struct story *story, const struct kvb_engine_event *event, uint64_t hash)
{
    return story->has_moves && story->text.len > 0 && story->text.data[story->last] == 'S' &&
           story->stored == hash && story->tier != event->tier;
}

static void tokens_of_story(
    struct story *story, const struct kvb_event_batch *batch, const struct kvb_engine_event *event,
    uint32_t block)
{
    for (uint32_t i = 0; event->token_count > 0 && i < event->block_size; i++) {
        const uint32_t *tokens = batch->tokens + event->token_at;
        assert_ok(kvb_buf_append_format(
            &story->text, " %u", tokens[(size_t)block * event->block_size + i]));
    }
}

static void publish_stored(
    struct story *story, const struct kvb_event_batch *batch, const struct kvb_engine_event *event,
    uint32_t block, bool with_tokens)
{
    const kvb_engine_hash *hashes = batch->hashes + event->hash_at;
    const bool is_near = event->tier == KVB_TIER_DEVICE || event->tier == KVB_TIER_HOST;
    const size_t begin = story->text.len;

    story->stored = hashes[block].value;
    story->tier = event->tier;
    assert_ok(kvb_buf_append_format(
        &story->text, "S %016llx %s", (unsigned long long)hashes[block].value,
        is_near ? "host" : "disk"));
    if (with_tokens && (block > 0 || event->has_parent)) {
        const uint64_t parent = block > 0 ? hashes[block - 1].value : event->parent.value;
        assert_ok(
            kvb_buf_append_format(&story->text, " after %016llx", (unsigned long long)parent));
    }
    if (with_tokens) {
        tokens_of_story(story, batch, event, block);
    }
    end_line(story, begin);
}

static void publish_removed(
    struct story *story, const struct kvb_event_batch *batch, const struct kvb_engine_event *event,
    uint32_t block)
{
    const uint64_t hash = batch->hashes[event->hash_at + block].value;
    const size_t begin = story->text.len;

    if (!is_part_of_a_move(story, event, hash)) {
        assert_ok(kvb_buf_append_format(&story->text, "R %016llx", (unsigned long long)hash));
        end_line(story, begin);
    }
}

static void publish_event(
    struct story *story, const struct kvb_event_batch *batch, const struct kvb_engine_event *event,
    bool with_tokens)
{
    if (event->kind == KVB_EVENT_CLEARED) {
        const size_t begin = story->text.len;
        assert_ok(kvb_buf_append_text(&story->text, "C"));
        end_line(story, begin);
    }
    for (uint32_t i = 0; i < event->hash_count; i++) {
        if (event->kind == KVB_EVENT_STORED) {
            publish_stored(story, batch, event, i, with_tokens);
        } else if (event->kind == KVB_EVENT_REMOVED) {
            publish_removed(story, batch, event, i);
        }
    }
}

static void tell(
    struct story *story, const struct kvb_event_batch *batch, const struct kvb_dialect_row *dialect)
{
    const bool with_tokens = (dialect->fields & KVB_FIELD_TOKENS) != 0;

    kvb_buf_init(&story->text, kvb_max_payload_bytes);
    for (size_t i = 0; i < batch->event_count; i++) {
        publish_event(story, batch, &batch->events[i], with_tokens);
    }
}

static void assert_same_story(
    const struct kvb_event_batch *batch, const struct kvb_event_batch *again,
    const struct kvb_dialect_row *dialect)
{
    struct story told = { 0 };
    struct story received = { .has_moves = dialect->events == KVB_EVENTS_REPLICAS };

    tell(&told, batch, dialect);
    tell(&received, again, dialect);
    assert_int_equal(told.text.len, received.text.len);
    assert_memory_equal(told.text.data, received.text.data, told.text.len);
    for (size_t i = 0; i < again->event_count; i++) {
        assert_int_not_equal(again->events[i].kind, KVB_EVENT_SKIPPED);
    }
    kvb_buf_done(&told.text);
    kvb_buf_done(&received.text);
}

/* ---- Round trips ---- */

static void assert_read_again(
    struct kvb_event_batch *batch, enum kvb_dialect dialect, const struct kvb_event_batch *again)
{
    const struct kvb_dialect_row *row = kvb_dialect_row_of(dialect);

    if (row->events == KVB_EVENTS_REPLICAS || row->events == KVB_EVENTS_OBJECTS) {
        assert_same_story(batch, again, row);
        return;
    }
    lose(batch, row);
    assert_true(is_same_engine_batch(batch, again));
}

static void a_batch_written_in_any_dialect_is_read_back(void **state)
{
    (void)state;
    struct rng rng = { 42 };
    struct kvb_event_batch batch = { 0 };
    struct kvb_event_batch again = { 0 };
    struct kvb_buf bytes;
    size_t used = 0;

    kvb_buf_init(&bytes, kvb_max_payload_bytes);
    for (unsigned round = 0; round < 600 * KVB_DIALECT_COUNT; round++) {
        const enum kvb_dialect dialect = (enum kvb_dialect)(round % KVB_DIALECT_COUNT);
        random_batch(&rng, &batch);
        /* The subscriber guide's form has no blocks without a size: its readers refuse them. */
        for (size_t i = 0; i < batch.event_count; i++) {
            batch.events[i].block_size +=
                batch.events[i].block_size == 0 &&
                kvb_dialect_row_of(dialect)->events == KVB_EVENTS_REPLICAS;
        }
        kvb_buf_reset(&bytes);
        assert_ok(kvb_engine_batch_encode(&batch, dialect, &bytes));
        assert_ok(kvb_mp_guard(kvb_buf_span(&bytes), kvb_max_depth, &used));
        assert_int_equal(used, bytes.len); /* every reader has one value */
        assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &again));
        assert_read_again(&batch, dialect, &again);
    }
    kvb_buf_done(&bytes);
    kvb_event_batch_done(&batch);
    kvb_event_batch_done(&again);
}

/* ---- The bytes themselves ---- */

/* The tokens were not kept. The tokens that are written only show that there are more than the
 * blocks need. */
static void a_sparse_window_is_written_as_such(void **state)
{
    (void)state;
    struct kvb_engine_event event = { .kind = KVB_EVENT_STORED,
                                      .has_group = true,
                                      .group = 1,
                                      .group_kind = KVB_GROUP_WINDOW,
                                      .window_tokens = 64,
                                      .is_sparse = true,
                                      .block_size = 16 };
    kvb_engine_hash hash = { 7 };
    uint32_t token = 0; /* not used, but no array may be NULL */
    uint64_t key = 0;
    struct kvb_block_extra extra = { 0 };
    const struct kvb_event_batch batch = { .events = &event,
                                           .event_count = 1,
                                           .hashes = &hash,
                                           .hash_count = 1,
                                           .tokens = &token,
                                           .extras = &extra,
                                           .keys = &key };
    struct kvb_event_batch again = { 0 };
    struct kvb_buf bytes;

    for (; event.hash_count < 2; event.hash_count++) {
        kvb_buf_init(&bytes, kvb_max_payload_bytes);
        assert_ok(kvb_engine_batch_encode(&batch, KVB_DIALECT_VLLM_0_31, &bytes));
        assert_ok(kvb_engine_batch_decode(kvb_buf_span(&bytes), &again));
        assert_true(is_same_engine_batch(&batch, &again));
        kvb_buf_done(&bytes);
    }
    kvb_event_batch_done(&again);
}

SUITE(encode)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_written_in_any_dialect_is_read_back),
        cmocka_unit_test(a_sparse_window_is_written_as_such),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
