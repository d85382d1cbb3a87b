#include "core/own.h"
#include "heartbeat_31.pb-c.h"
#include "kvb_test.h"
#include "wire/protobuf/message.h"
#include "wire/router/heartbeat.h"

#include <stdio.h>
#include <string.h>

/* Heartbeats between this version and a program that knows 31 fields (tests/data/old): protobuf-c
 * reads and writes them with that old schema, within the limits of that program. */

enum { old_max_fields = 64, old_max_bytes = 4096 };

static struct kvb_heartbeat plain_beat(void)
{
    struct kvb_heartbeat beat = {
        .worker_id = 7,
        .dp_rank = 1,
        .epoch = { .bytes = { 1, [15] = 9 } },
        .epoch_first_id = 100,
        .last_id = 105,
        .state = KVB_STREAM_EXACT,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .model = "m",
        .block_size = 16,
        .period_ms = 1000,
        .publisher = 3,
        .facts.is_draining = true,
    };

    beat.tiers[KVB_TIER_DEVICE] = (struct kvb_tier_count){ .blocks = 5, .digest = { 6, 7 } };
    assert_ok(kvb_labels_add(&beat.facts.labels, "zone", "b", NULL));
    return beat;
}

/* The longest possible heartbeat. */
static void tell_all(struct kvb_worker_facts *facts)
{
    char name[8];

    facts->role = KVB_ROLE_BOTH;
    facts->ready = KVB_READY_NO;
    memset(facts->address, 'a', kvb_worker_address_bytes);
    memcpy(facts->tokenize, "http://", 7);
    memset(facts->tokenize + 7, 't', kvb_worker_address_bytes - 7);
    memset(facts->pod, 'p', kvb_pod_name_bytes);
    memset(facts->pod_namespace, 's', kvb_pod_namespace_bytes);
    memset(facts->node, 'n', kvb_pod_name_bytes);
    for (int i = 1; i < kvb_max_labels; i++) {
        (void)snprintf(name, sizeof name, "name%d", i);
        assert_ok(kvb_labels_add(&facts->labels, name, "a value of 23 bytes, so", NULL));
    }
}

static void encode(const struct kvb_heartbeat *beat, struct kvb_buf *out)
{
    kvb_buf_init(out, old_max_bytes);
    assert_ok(kvb_heartbeat_encode(beat, out));
}

/* Decodes the message as an old reader, and encodes again only the fields that it knows. */
static void read_as_old(const struct kvb_buf *bytes, struct kvb_buf *out)
{
    uint8_t packed[old_max_bytes];

    assert_ok(kvb_proto_guard(kvb_buf_span(bytes), old_max_fields));
    Kvb31__StreamHeartbeat *message =
        kvb31__stream_heartbeat__unpack(NULL, bytes->len, bytes->data);
    assert_non_null(message);
    const unsigned unknown = message->base.n_unknown_fields;
    message->base.n_unknown_fields = 0; /* unknown, so they are not written */
    const size_t len = kvb31__stream_heartbeat__pack(message, packed);
    message->base.n_unknown_fields = unknown;
    kvb31__stream_heartbeat__free_unpacked(message, NULL);
    kvb_buf_init(out, old_max_bytes);
    assert_ok(kvb_buf_append(out, packed, len));
}

static void an_old_reader_reads_the_same_as_before(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf before = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf today = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf plain = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf old = { 0 };
    struct kvb_heartbeat beat = plain_beat();

    (void)state;
    encode(&beat, &plain);
    read_as_old(&plain, &before);
    beat.facts.role = KVB_ROLE_DECODE;
    beat.facts.ready = KVB_READY_YES;
    (void)snprintf(beat.facts.address, sizeof beat.facts.address, "http://10.0.0.7:8000");
    (void)snprintf(beat.facts.tokenize, sizeof beat.facts.tokenize, "http://10.0.0.7:8000");
    (void)snprintf(beat.facts.pod, sizeof beat.facts.pod, "vllm-0");
    (void)snprintf(beat.facts.pod_namespace, sizeof beat.facts.pod_namespace, "inference");
    (void)snprintf(beat.facts.node, sizeof beat.facts.node, "gpu-17");
    encode(&beat, &today);
    assert_true(today.len > before.len);
    read_as_old(&today, &old);
    assert_int_equal(old.len, before.len);
    assert_memory_equal(old.data, before.data, before.len);
}

static void the_longest_heartbeat_is_within_the_limits_of_old_readers(void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf today = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf old = { 0 };
    struct kvb_heartbeat beat = plain_beat();

    (void)state;
    tell_all(&beat.facts);
    memset(beat.model, 'm', kvb_model_bytes);
    beat.shape_count = kvb_max_tier_shapes;
    for (size_t i = 0; i < kvb_max_tier_shapes; i++) {
        beat.shapes[i] = (struct kvb_tier_shape){ KVB_TIER_DEVICE, { UINT16_MAX, 64 } };
    }
    for (size_t i = 0; i < KVB_LIST_COUNT; i++) {
        beat.tiers[i] = (struct kvb_tier_count){ UINT64_MAX, { UINT64_MAX, UINT64_MAX } };
    }
    encode(&beat, &today);
    assert_true(today.len < 2160);
    read_as_old(&today, &old);
    assert_true(old.len < today.len);
}

static void labels_of_an_old_bridge_give_role_and_address(void **state)
{
    char role[] = "role=prefill";
    char address[] = "address=10.0.0.7:8000";
    char model[] = "m";
    char *labels[] = { address, role };
    uint8_t epoch[16] = { 0 };
    uint8_t packed[old_max_bytes];
    Kvb31__StreamHeartbeat message = KVB31__STREAM_HEARTBEAT__INIT;
    struct kvb_heartbeat beat = { 0 };

    (void)state;
    message.epoch = (ProtobufCBinaryData){ sizeof epoch, epoch };
    message.state = KVB31__STREAM_HEARTBEAT__STATE__EXACT;
    message.profile = KVB31__STREAM_HEARTBEAT__PROFILE__JSON;
    message.hashes = KVB31__STREAM_HEARTBEAT__HASHES__CANONICAL;
    message.model = model;
    message.labels = labels;
    message.n_labels = KVB_COUNT_OF(labels);
    const size_t len = kvb31__stream_heartbeat__pack(&message, packed);
    assert_ok(kvb_heartbeat_decode((kvb_span){ packed, len }, &beat));
    assert_int_equal(beat.facts.role, KVB_ROLE_PREFILL);
    assert_string_equal(beat.facts.address, "10.0.0.7:8000");
    assert_int_equal(beat.facts.ready, KVB_READY_UNKNOWN);
    assert_string_equal(beat.facts.pod, "");
}

SUITE(heartbeat_versions)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_reader_reads_the_same_as_before),
        cmocka_unit_test(the_longest_heartbeat_is_within_the_limits_of_old_readers),
        cmocka_unit_test(labels_of_an_old_bridge_give_role_and_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
