#include "wire/router/proto.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "kvbridge.pb-c.h"
#include "wire/protobuf/message.h"
#include "wire/router/json.h"
#include "wire/router_sample.h"

#include <stdlib.h>

/* One stored event with one block, written by the rules of the wire format, so that every tag and
 * number of kvbridge.proto is visible here. */
static const uint8_t golden[] = {
    0x0a, 0x10, 0,    1,    2,    3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, /* 1 epoch */
    0x11, 7,    0,    0,    0,    0, 0, 0, 0,                                  /* 2 worker */
    0x18, 2,                                                                   /* 3 rank */
    0x21, 100,  0,    0,    0,    0, 0, 0, 0,                                  /* 4 first id */
    0x2a, 3,    0x25, 0x0a, 0x03, /* 5 forms: stored host parent; removed disk; cleared */
    0x32, 3,    1,    1,    0,    /* 6 counts */
    0x3a, 8,    5,    0,    0,    0, 0, 0, 0, 0,                              /* 7 parents */
    0x42, 16,   6,    0,    0,    0, 0, 0, 0, 0, 8, 0, 0,  0,  0,  0,  0,  0, /* 8 blocks */
    0x4a, 8,    9,    0,    0,    0, 0, 0, 0, 0,                              /* 9 tokens */
};

/* What is read is said in tests/data/cases/accepted.txt. */
static void writes_what_it_reads_by_the_numbers_of_the_contract([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, 4096);
    assert_ok(kvb_router_proto_decode((kvb_span){ golden, sizeof golden }, &batch));
    assert_ok(kvb_router_proto_encode(&batch, 0, 3, &out));
    assert_int_equal(out.len, sizeof golden);
    assert_memory_equal(out.data, golden, sizeof golden);
}

/* ---- The same batch, by protobuf-c ---- */

/* The columns of some events.  Larger than any batch of these tests. */
struct columns {
    uint32_t forms[16], counts[16];
    uint64_t parents[16], blocks[1 << 15], tokens[1 << 15];
};

static void add_to_columns(
    Kvb__KvEventBatch *message, const struct kvb_router_batch *batch,
    const struct kvb_router_event *event)
{
    static const uint32_t kinds[] = {
        [KVB_ROUTER_STORED] = 1, [KVB_ROUTER_REMOVED] = 2, [KVB_ROUTER_CLEARED] = 3
    };
    static const uint32_t tiers[] = { [KVB_TIER_DEVICE] = 0,
                                      [KVB_TIER_HOST] = 1,
                                      [KVB_TIER_DISK] = 2,
                                      [KVB_TIER_EXTERNAL] = 3,
                                      [KVB_LIST_WINDOW] = 4 };

    message->forms[message->n_forms++] =
        kinds[event->kind] + 4 * tiers[event->tier] + 32 * event->has_parent;
    message->block_counts[message->n_block_counts++] = event->block_count;
    if (event->has_parent) {
        message->parents[message->n_parents++] = event->parent.value;
    }
    for (uint32_t i = event->block_at; i < event->block_at + event->block_count; i++) {
        message->block_hashes[message->n_block_hashes++] = batch->blocks[i].value;
        if (event->kind == KVB_ROUTER_STORED) {
            message->tokens_hashes[message->n_tokens_hashes++] = batch->tokens[i].value;
        }
    }
}

static void
pack_by_protobuf_c(struct kvb_router_batch *batch, size_t at, size_t count, struct kvb_buf *out)
{
    static struct columns columns;
    Kvb__KvEventBatch message;

    kvb__kv_event_batch__init(&message);
    message.epoch.data = batch->epoch.bytes;
    message.epoch.len = sizeof batch->epoch.bytes;
    message.worker_id = batch->worker_id;
    message.dp_rank = batch->dp_rank;
    message.first_event_id = batch->events[at].event_id;
    message.forms = columns.forms;
    message.block_counts = columns.counts;
    message.parents = columns.parents;
    message.block_hashes = columns.blocks;
    message.tokens_hashes = columns.tokens;
    for (size_t i = at; i < at + count; i++) {
        add_to_columns(&message, batch, &batch->events[i]);
    }
    kvb_buf_reset(out);
    assert_ok(kvb_proto_pack(&message.base, out));
}

static void assert_written_as_by_protobuf_c(struct kvb_router_batch *batch, size_t at, size_t count)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf expected = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf got = { 0 };

    kvb_buf_init(&expected, 1 << 20);
    kvb_buf_init(&got, 1 << 20);
    pack_by_protobuf_c(batch, at, count, &expected);
    assert_ok(kvb_router_proto_encode(batch, at, count, &got));
    assert_int_equal(got.len, expected.len);
    assert_memory_equal(got.data, expected.data, expected.len);
}

/* Random parts of random batches. */
static void writes_the_bytes_of_protobuf_c([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    uint64_t seed = 11;

    for (int round = 0; round < 20000; round++) {
        sample_batch(&seed, &batch);
        const size_t at = sample_next(&seed) % batch.event_count;
        const size_t count = 1 + sample_next(&seed) % (batch.event_count - at);
        assert_written_as_by_protobuf_c(&batch, at, count);
    }
}

/* A number that is 0 is omitted, in each combination. */
static void omits_what_protobuf_c_omits([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { .has_epoch = true };
    struct kvb_router_event cleared = { .kind = KVB_ROUTER_CLEARED };

    for (unsigned which = 0; which < 8; which++) {
        kvb_router_batch_reset(&batch);
        batch.has_epoch = true;
        batch.worker_id = which & 1 ? INT64_MAX : 0;
        batch.dp_rank = which & 2 ? UINT32_MAX : 0;
        cleared.event_id = which & 4 ? UINT64_MAX : 0;
        assert_ok(kvb_router_batch_add_event(&batch, &cleared));
        assert_written_as_by_protobuf_c(&batch, 0, 1);
    }
}

/* Counts and lengths of columns around the ends of one and two bytes of a varint. */
static void writes_long_columns_as_protobuf_c([[maybe_unused]] void **state)
{
    static const uint32_t counts[] = { 15, 16, 17, 127, 128, 129, 2047, 2048, 16383, 16384 };
    const struct kvb_router_event events[] = {
        { .kind = KVB_ROUTER_STORED, .has_parent = true, .parent = { UINT64_MAX }, .event_id = 1 },
        { .kind = KVB_ROUTER_REMOVED, .tier = KVB_LIST_WINDOW, .event_id = 2 },
    };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(counts); i++) {
        kvb_router_batch_reset(&batch);
        batch.has_epoch = true;
        for (size_t event = 0; event < KVB_COUNT_OF(events); event++) {
            assert_ok(kvb_router_batch_add_event(&batch, &events[event]));
            for (uint32_t block = 0; block < counts[i]; block++) {
                const kvb_tokens_hash tokens = { event == 0 ? block + 1 : 0 };
                assert_ok(kvb_router_batch_add_block(&batch, (kvb_block_hash){ block }, tokens));
            }
        }
        for (size_t event = 0; event < KVB_COUNT_OF(events); event++) {
            assert_written_as_by_protobuf_c(&batch, event, 1);
        }
        assert_written_as_by_protobuf_c(&batch, 0, KVB_COUNT_OF(events));
    }
}

static void json_and_protobuf_of_one_event_decode_equal([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch from_json = { 0 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch from_proto = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    uint64_t seed = 99;

    kvb_buf_init(&out, 1 << 16);
    for (int round = 0; round < 20000; round++) {
        sample_batch(&seed, &batch);
        const size_t at = sample_next(&seed) % batch.event_count;
        kvb_buf_reset(&out);
        assert_ok(kvb_router_json_encode(&batch, at, &out));
        assert_ok(kvb_router_payload_decode(kvb_buf_span(&out), &from_json));
        kvb_buf_reset(&out);
        assert_ok(kvb_router_proto_encode(&batch, at, 1, &out));
        assert_ok(kvb_router_payload_decode(kvb_buf_span(&out), &from_proto));
        assert_int_equal(from_json.event_count, 1);
        assert_int_equal(from_proto.event_count, 1);
        assert_same_event(&from_json, 0, &from_proto, 0);
    }
}

static void refuses_a_payload_that_begins_like_no_format([[maybe_unused]] void **state)
{
    static const char *const texts[] = {
        "", "x", " {}", "[", "\x85\xac", "\x0b", "\xef\xbb\xbf{}"
    };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        assert_int_equal(kvb_router_payload_decode(kvb_span_of(texts[i]), &batch), KVB_BAD_INPUT);
        assert_int_equal(batch.event_count, 0);
    }
}

/* Each field of the golden message with every wire type but its own. */
static void refuses_fields_of_another_type([[maybe_unused]] void **state)
{
    static const size_t tags[] = { 0, 18, 27, 29, 38, 43, 48, 58, 76 };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(tags); i++) {
        for (uint8_t type = 0; type < 8; type++) {
            uint8_t bytes[sizeof golden];
            memcpy(bytes, golden, sizeof golden);
            if ((bytes[tags[i]] & 7U) == type) {
                continue;
            }
            bytes[tags[i]] = (uint8_t)((bytes[tags[i]] & ~7U) | type);
            assert_int_equal(
                kvb_router_proto_decode((kvb_span){ bytes, sizeof bytes }, &batch), KVB_BAD_INPUT);
        }
    }
}

/* The offset of a value in the golden message, and a value that makes it invalid. */
static void refuses_values_that_cannot_be([[maybe_unused]] void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *why;
    } breaks[] = {
        { 26, 0x80, "worker_id above 2^63-1" },
        { 40, 0x24, "kind 0" },
        { 40, 0x35, "tier 5" },
        { 40, 0x45, "a form above the highest" },
        { 41, 0x2a, "removed with a parent" },
        { 42, 0x07, "a clear of one tier" },
        { 45, 2, "more blocks than there are" },
        { 45, 0, "fewer blocks than there are" },
        { 46, 2, "more blocks than there are, in the second event" },
        { 46, 0x7f, "far more blocks than there are" },
        { 47, 1, "a clear with a block" },
        { 40, 0x05, "a parent that nobody has" },
        { 41, 0x09, "a removal that becomes a store: tokens are missing" },
    };
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    uint8_t bytes[sizeof golden];

    for (size_t i = 0; i < KVB_COUNT_OF(breaks); i++) {
        memcpy(bytes, golden, sizeof golden);
        bytes[breaks[i].at] = breaks[i].value;
        if (kvb_router_proto_decode((kvb_span){ bytes, sizeof bytes }, &batch) != KVB_BAD_INPUT) {
            fail_msg("%s", breaks[i].why);
        }
    }
}

static void refuses_event_ids_that_wrap([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    uint8_t bytes[sizeof golden];

    memcpy(bytes, golden, sizeof golden);
    memset(bytes + 30, 0xff, 8);
    assert_int_equal(
        kvb_router_proto_decode((kvb_span){ bytes, sizeof bytes }, &batch), KVB_BAD_INPUT);
    bytes[30] = 0xfd; /* the last of three is 2^64-1 */
    assert_ok(kvb_router_proto_decode((kvb_span){ bytes, sizeof bytes }, &batch));
}

/* protobuf-c would allocate 40 bytes for each of these two-byte fields. */
static void refuses_a_message_of_countless_fields([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };
    const size_t len = 1 << 20;
    uint8_t *bytes = malloc(len);

    assert_non_null(bytes);
    for (size_t i = 0; i < len; i += 2) {
        bytes[i] = 0x78; /* field 15, varint */
        bytes[i + 1] = 1;
    }
    fail_alloc_after(0); /* nothing may be allocated before the refusal */
    assert_int_equal(kvb_router_proto_decode((kvb_span){ bytes, len }, &batch), KVB_BAD_INPUT);
    fail_alloc_after(-1);
    free(bytes);
}

/* Events of 0 and of 1 block, whose columns have the most bytes for what they count. */
static void writes_into_its_room_whatever_counts_that_much([[maybe_unused]] void **state)
{
    static const size_t sizes[] = { 1024, 4096, 48 << 10, 1 << 20 };

    for (size_t i = 0; i < 2 * KVB_COUNT_OF(sizes); i++) {
        KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { .has_epoch = true };
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        const size_t blocks = i % 2;
        struct kvb_router_event event = { .has_parent = true, .event_id = 1 };

        batch.worker_id = INT64_MAX;
        batch.dp_rank = UINT32_MAX;
        for (size_t left = kvb_router_proto_room(sizes[i / 2]); left > blocks; left -= 1 + blocks) {
            assert_ok(kvb_router_batch_add_event(&batch, &event));
            if (blocks > 0) {
                assert_ok(kvb_router_batch_add_block(
                    &batch, (kvb_block_hash){ 1 }, (kvb_tokens_hash){ 1 }));
            }
            event.event_id++;
        }
        kvb_buf_init(&out, sizes[i / 2]);
        assert_ok(kvb_router_proto_encode(&batch, 0, batch.event_count, &out));
    }
}

static void takes_no_memory_for_a_message_like_the_one_before([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_router_batch_done) struct kvb_router_batch batch = { 0 };

    assert_ok(kvb_router_proto_decode((kvb_span){ golden, sizeof golden }, &batch));
    fail_alloc_after(0);
    const kvb_status status = kvb_router_proto_decode((kvb_span){ golden, sizeof golden }, &batch);
    fail_alloc_after(-1);
    assert_ok(status);
    assert_int_equal(batch.event_count, 3);
}

SUITE(router_proto)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_it_reads_by_the_numbers_of_the_contract),
        cmocka_unit_test(writes_the_bytes_of_protobuf_c),
        cmocka_unit_test(omits_what_protobuf_c_omits),
        cmocka_unit_test(writes_long_columns_as_protobuf_c),
        cmocka_unit_test(json_and_protobuf_of_one_event_decode_equal),
        cmocka_unit_test(refuses_a_payload_that_begins_like_no_format),
        cmocka_unit_test(refuses_fields_of_another_type),
        cmocka_unit_test(refuses_values_that_cannot_be),
        cmocka_unit_test(refuses_event_ids_that_wrap),
        cmocka_unit_test(refuses_a_message_of_countless_fields),
        cmocka_unit_test(writes_into_its_room_whatever_counts_that_much),
        cmocka_unit_test(takes_no_memory_for_a_message_like_the_one_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
