#include "wire/router/heartbeat.h"

#include "core/own.h"
#include "fail_alloc.h"
#include "kvb_test.h"
#include "wire/protobuf/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvb_heartbeat full(void)
{
    struct kvb_heartbeat heartbeat = {
        .worker_id = INT64_MAX,
        .dp_rank = 3,
        .epoch = { .bytes = { 1, 0, 2, [15] = 9 } },
        .epoch_first_id = 1700000000000000,
        .last_id = UINT64_MAX,
        .state = KVB_STREAM_PARTIAL,
        .reason = KVB_REASON_GONE,
        .hashes = KVB_HASHES_ENGINE,
        .formats = 1U << KVB_FORMAT_PROTOBUF,
        .model = "meta-llama/Llama-3.1-8B-Instruct",
        .block_size = 16,
        .lookahead = 1,
        .period_ms = 250,
        .is_paired = true,
        .is_bye = true,
        .publisher = UINT64_MAX - 1,
        .facts.is_draining = true,
        .has_missing_at_most = true,
        .digest_seed = 77,
        .doubtful = 4,
        .missing_at_most = 0, /* known to be none, which differs from unknown */
    };
    heartbeat.tiers[KVB_TIER_DEVICE] =
        (struct kvb_tier_count){ .blocks = 5, .digest = { .low = 6, .high = UINT64_MAX } };
    heartbeat.tiers[KVB_TIER_DISK] = (struct kvb_tier_count){ .digest = { .high = 1 } };
    heartbeat.tiers[KVB_TIER_EXTERNAL] = (struct kvb_tier_count){ .blocks = UINT64_MAX };
    heartbeat.facts.role = KVB_ROLE_PREFILL;
    heartbeat.facts.ready = KVB_READY_NO;
    (void)snprintf(heartbeat.facts.address, sizeof heartbeat.facts.address, "http://10.0.0.7:8000");
    (void)snprintf(heartbeat.facts.tokenize, sizeof heartbeat.facts.tokenize, "http://t:1/v");
    (void)snprintf(heartbeat.facts.pod, sizeof heartbeat.facts.pod, "vllm-0");
    (void)snprintf(
        heartbeat.facts.pod_namespace, sizeof heartbeat.facts.pod_namespace, "inference");
    (void)snprintf(heartbeat.facts.node, sizeof heartbeat.facts.node, "gpu-17");
    assert_ok(kvb_labels_add(&heartbeat.facts.labels, "zone", "b", NULL));
    assert_ok(kvb_labels_add(&heartbeat.facts.labels, "team", "a", NULL));
    heartbeat.names.is_listed = true;
    heartbeat.names.left_out = 2;
    assert_ok(kvb_served_names_add(&heartbeat.names, KVB_SERVED_NAME, kvb_span_of("chat")));
    assert_ok(kvb_served_names_add(&heartbeat.names, KVB_SERVED_ADAPTER, kvb_span_of("sql")));
    return heartbeat;
}

static void encode_into(const struct kvb_heartbeat *heartbeat, struct kvb_buf *out)
{
    kvb_buf_init(out, 4096);
    assert_ok(kvb_heartbeat_encode(heartbeat, out));
}

/* What is decoded is written again as the same bytes; which bytes, the contract's test says. */
static void assert_round_trip(const struct kvb_heartbeat *heartbeat)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    KVB_OWN(kvb_buf_done) struct kvb_buf again = { 0 };
    struct kvb_heartbeat got = { 0 };

    encode_into(heartbeat, &out);
    assert_ok(kvb_heartbeat_decode(kvb_buf_span(&out), &got));
    encode_into(&got, &again);
    assert_int_equal(again.len, out.len);
    assert_memory_equal(again.data, out.data, out.len);
}

static void decodes_what_it_encoded([[maybe_unused]] void **state)
{
    const struct kvb_heartbeat empty = { .formats = 1U << KVB_FORMAT_JSON };
    const struct kvb_heartbeat heartbeat = full();

    const struct kvb_heartbeat letters = { .formats = 1U << KVB_FORMAT_JSON,
                                           .model = "m\xc3\xa9\xe6\xa8\xa1\xf0\x9f\x98\x80",
                                           .tier_reasons[KVB_TIER_HOST] = KVB_REASON_NO_REMOVALS };

    assert_round_trip(&empty);
    assert_round_trip(&heartbeat);
    assert_round_trip(&letters);
}

static void carries_every_state_reason_format_and_kind_of_hashes([[maybe_unused]] void **state)
{
    struct kvb_heartbeat heartbeat = full();

    for (int i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        heartbeat.state = (enum kvb_stream_state)i;
        assert_round_trip(&heartbeat);
    }
    for (int i = 0; i < KVB_REASON_COUNT; i++) {
        heartbeat.reason = (enum kvb_stream_reason)i;
        assert_round_trip(&heartbeat);
    }
    for (unsigned formats = 1; formats < 1U << KVB_FORMAT_COUNT; formats++) {
        heartbeat.formats = formats;
        assert_round_trip(&heartbeat);
    }
    for (int i = 0; i < KVB_HASHES_COUNT; i++) {
        heartbeat.hashes = (enum kvb_hashes)i;
        assert_round_trip(&heartbeat);
    }
}

/* Every field that is not 0, written by the rules of protobuf's wire format. */
static const uint8_t golden[] = {
    0x0a, 16,   1,   2,  3,    4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, /* 1 epoch */
    0x11, 7,    0,   0,  0,    0, 0, 0, 0,                                   /* 2 worker */
    0x18, 1,                                                                 /* 3 rank */
    0x21, 100,  0,   0,  0,    0, 0, 0, 0,                                   /* 4 epoch_first_id */
    0x29, 101,  0,   0,  0,    0, 0, 0, 0,                                   /* 5 last_id */
    0x30, 3,                                                                 /* 6 PARTIAL */
    0x38, 7,                                                                 /* 7 UNROOTED */
    0x40, 1,                                                                 /* 8 JSON */
    0x48, 1,                                                                 /* 9 CANONICAL */
    0x52, 1,    'm',                                                         /* 10 model */
    0x58, 16,                                                                /* 11 block_size */
    0x60, 1,                                                                 /* 12 eagle */
    0x68, 1,                                                                 /* 13 bye */
    0x70, 2,                                                                 /* 14 doubtful */
    0x78, 3,            /* 15 missing_at_most */
    0x82, 0x01, 1,   1, /* 16 tiers: host */
    0x8a, 0x01, 1,   9, /* 17 blocks */
    0x92, 0x01, 16,  4,  0,    0, 0, 0, 0, 0, 0, 5,  0,  0,  0,  0,  0,  0,  0, /* 18 digest */
    0x99, 0x01, 8,   0,  0,    0, 0, 0, 0, 0,                                   /* 19 digest_seed */
    0xa0, 0x01, 1,                                                              /* 20 lookahead */
    0xaa, 0x01, 2,   0,  1,                                                     /* 21 shape_tiers */
    0xb2, 0x01, 3,   16, 0x80, 2,                                               /* 22 block sizes */
    0xba, 0x01, 2,   1,  0,                                                     /* 23 lookaheads */
    0xc0, 0x01, 64,                           /* 24 window_tokens */
    0xc8, 0x01, 1,                            /* 25 paired */
    0xd0, 0x01, 1,                            /* 26 store */
    0xd8, 0x01, 100,                          /* 27 period_ms */
    0xf1, 0x01, 10,  0,  0,    0, 0, 0, 0, 0, /* 30 publisher */
};

/* What later versions added behind it: a worker's facts, formats, served names. */
static const uint8_t golden_more[] = {
    0x82, 0x02, 8,   'h', 't', 't', 'p', ':', '/', '/', 'a', /* 32 address */
    0x88, 0x02, 2,                                           /* 33 ROLE_DECODE */
    0x92, 0x02, 1,   'p',                                    /* 34 pod */
    0x9a, 0x02, 1,   's',                                    /* 35 namespace_k8s */
    0xa2, 0x02, 1,   'n',                                    /* 36 node */
    0xa8, 0x02, 2,                                           /* 37 READY_YES */
    0xca, 0x02, 8,   'h', 't', 't', 'p', ':', '/', '/', 't', /* 41 tokenize */
    0x82, 0x03, 1,   1,                                      /* 48 JSON */
    0x92, 0x03, 10,                                          /* 50 served_names */
    0x0a, 1,    'n',                                         /* 1 names */
    0x12, 1,    'a',                                         /* 2 adapters */
    0x18, 1,                                                 /* 3 listed */
    0x20, 5,                                                 /* 4 left_out */
};

enum { state_at = 48, reason_at = 50, format_at = 52, hashes_at = 54, worker_top_at = 26 };
enum { model_at = 57, tier_at = 71 };
enum { lookahead_at = 107, shape_tiers_at = 111, shape_sizes_at = 116, shape_lookaheads_at = 122 };

/* The golden message, and more bytes behind it. */
static kvb_status decode_with(const uint8_t *more, size_t len, struct kvb_heartbeat *out)
{
    uint8_t bytes[sizeof golden + 300];

    memcpy(bytes, golden, sizeof golden);
    memcpy(bytes + sizeof golden, more, len);
    return kvb_heartbeat_decode((kvb_span){ bytes, sizeof golden + len }, out);
}

static const char *json_of(const struct kvb_heartbeat *heartbeat)
{
    static char text[8192];
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };

    kvb_buf_init(&out, sizeof text);
    struct kvb_json_writer json = kvb_json_writer_of(&out);
    kvb_heartbeat_json_write(heartbeat, &json);
    assert_ok(json.status);
    (void)snprintf(text, sizeof text, "%.*s", (int)out.len, (const char *)out.data);
    return text;
}

static void writes_and_reads_the_numbers_of_the_contract([[maybe_unused]] void **state)
{
    static const char want[] =
        "{\"worker_id\":7,\"dp_rank\":1,\"model\":\"m\",\"block_size\":16,\"lookahead\":1,"
        "\"shapes\":[{\"tier\":\"device\",\"block_size\":16,\"lookahead\":1},"
        "{\"tier\":\"host\",\"block_size\":256,\"lookahead\":0}],\"window_tokens\":64,"
        "\"period_ms\":100,\"paired\":true,\"store\":true,\"hashes\":\"canonical\","
        "\"formats\":[\"json\"],\"state\":\"PARTIAL\",\"reason\":\"unrooted\",\"bye\":true,"
        "\"publisher\":\"000000000000000a\",\"draining\":false,\"labels\":{},"
        "\"address\":\"http://a\",\"role\":\"decode\",\"pod\":\"p\",\"namespace_k8s\":\"s\","
        "\"node\":\"n\",\"ready\":true,\"tokenize\":\"http://t\","
        "\"served_names\":{\"names\":[\"n\"],\"adapters\":[\"a\"],\"listed\":true,"
        "\"left_out\":5},\"blocks\":{\"device\":0,\"host\":9,\"disk\":0,\"external\":0,"
        "\"window\":0},\"doubtful\":2,\"missing_at_most\":3,\"last_event_id\":101,"
        "\"epoch_first_id\":100,\"epoch\":\"0102030405060708090a0b0c0d0e0f10\","
        "\"digest_seed\":8,\"digests\":{\"device\":\"00000000000000000000000000000000\","
        "\"host\":\"00000000000000050000000000000004\","
        "\"disk\":\"00000000000000000000000000000000\","
        "\"external\":\"00000000000000000000000000000000\","
        "\"window\":\"00000000000000000000000000000000\"}}";
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_heartbeat heartbeat = { 0 };

    assert_ok(decode_with(golden_more, sizeof golden_more, &heartbeat));
    assert_string_equal(json_of(&heartbeat), want);
    encode_into(&heartbeat, &out);
    assert_int_equal(out.len, sizeof golden + sizeof golden_more);
    assert_memory_equal(out.data, golden, sizeof golden);
    assert_memory_equal(out.data + sizeof golden, golden_more, sizeof golden_more);
}

/* Sets every field, so that a field left out of the comparison shows. */
static void writes_every_field_as_json([[maybe_unused]] void **state)
{
    static const char want[] =
        "{\"worker_id\":9223372036854775807,\"dp_rank\":3,"
        "\"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"block_size\":16,\"lookahead\":1,"
        "\"shapes\":[{\"tier\":\"device\",\"block_size\":16,\"lookahead\":1},"
        "{\"tier\":\"host\",\"block_size\":256,\"lookahead\":0}],\"window_tokens\":64,"
        "\"period_ms\":250,\"paired\":true,\"store\":false,"
        "\"hashes\":\"engine\",\"formats\":[\"protobuf\"],\"state\":\"PARTIAL\","
        "\"reason\":\"gone\","
        "\"bye\":true,\"publisher\":\"fffffffffffffffe\",\"draining\":true,"
        "\"labels\":{\"team\":\"a\",\"zone\":\"b\"},\"address\":\"http://10.0.0.7:8000\","
        "\"role\":\"prefill\",\"pod\":\"vllm-0\",\"namespace_k8s\":\"inference\","
        "\"node\":\"gpu-17\",\"ready\":false,\"tokenize\":\"http://t:1/v\","
        "\"served_names\":{\"names\":[\"chat\"],\"adapters\":[\"sql\"],\"listed\":true,"
        "\"left_out\":2},\"blocks\":{\"device\":5,"
        "\"host\":0,\"disk\":0,"
        "\"external\":18446744073709551615,\"window\":11},\"doubtful\":4,\"missing_at_most\":0,"
        "\"last_event_id\":18446744073709551615,\"epoch_first_id\":1700000000000000,"
        "\"epoch\":\"01000200000000000000000000000009\",\"digest_seed\":77,"
        "\"digests\":{\"device\":\"ffffffffffffffff0000000000000006\","
        "\"host\":\"00000000000000000000000000000000\","
        "\"disk\":\"00000000000000010000000000000000\","
        "\"external\":\"00000000000000000000000000000000\","
        "\"window\":\"00000000000000000000000000000000\"}}";
    struct kvb_heartbeat heartbeat = full();

    heartbeat.tiers[KVB_LIST_WINDOW].blocks = 11;
    heartbeat.shape_count = 2;
    heartbeat.shapes[0] = (struct kvb_tier_shape){ KVB_TIER_DEVICE, { 16, 1 } };
    heartbeat.shapes[1] = (struct kvb_tier_shape){ KVB_TIER_HOST, { 256, 0 } };
    heartbeat.window_tokens = 64;
    assert_string_equal(json_of(&heartbeat), want);
}

/* Unknown facts are not written: the bytes are the same as before these fields existed. */
static void json_names_only_what_is_known([[maybe_unused]] void **state)
{
    struct kvb_heartbeat heartbeat = full();

    heartbeat.has_missing_at_most = false;
    heartbeat.facts = (struct kvb_worker_facts){ .ready = KVB_READY_YES };
    heartbeat.names = (struct kvb_served_names){ 0 };
    heartbeat.tier_reasons[KVB_TIER_HOST] = KVB_REASON_NO_REMOVALS;
    heartbeat.tier_reasons[KVB_TIER_EXTERNAL] = KVB_REASON_NO_REMOVALS;
    assert_non_null(strstr(json_of(&heartbeat), "\"missing_at_most\":null,"));
    assert_non_null(strstr(
        json_of(&heartbeat), "\"draining\":false,\"labels\":{},\"ready\":true,\"blocks\":{"));
    assert_non_null(strstr(
        json_of(&heartbeat),
        "\"unverified_tiers\":{\"host\":\"no_removals\",\"external\":\"no_removals\"}"));
    heartbeat.facts.ready = KVB_READY_UNKNOWN;
    assert_non_null(strstr(json_of(&heartbeat), "\"draining\":false,\"labels\":{},\"blocks\":{"));
}

/* A newer bridge may send values that this reader does not know. */
static void values_of_newer_versions_do_no_harm([[maybe_unused]] void **state)
{
    static const uint8_t role_and_ready[] = { 0x88, 0x02, 9, 0xa8, 0x02, 7 };
    static const uint8_t tokenize[] = { 0xca, 0x02, 1, '?' }; /* no URL */
    static const uint8_t formats[] = { 0x82, 0x03, 2, 1, 9 };
    static const uint8_t tiers[][8] = { { 0xba, 0x02, 1, 1, 0xc2, 0x02, 1, 28 },
                                        { 0xba, 0x02, 1, 1, 0xc2, 0x02, 1, 99 },
                                        { 0xba, 0x02, 1, 1, 0xc2, 0x02, 1, 0 },
                                        { 0xba, 0x02, 1, 9, 0xc2, 0x02, 1, 28 } };
    struct kvb_heartbeat heartbeat = { 0 };

    assert_ok(decode_with(role_and_ready, sizeof role_and_ready, &heartbeat));
    assert_int_equal(heartbeat.facts.role, KVB_ROLE_NONE);
    assert_int_equal(heartbeat.facts.ready, KVB_READY_UNKNOWN);
    assert_ok(decode_with(tokenize, sizeof tokenize, &heartbeat));
    assert_string_equal(heartbeat.facts.tokenize, "");
    assert_ok(decode_with(formats, sizeof formats, &heartbeat));
    assert_int_equal(heartbeat.formats, 1U << KVB_FORMAT_JSON);
    for (size_t i = 0; i < KVB_COUNT_OF(tiers); i++) {
        assert_ok(decode_with(tiers[i], sizeof tiers[i], &heartbeat));
        assert_int_equal(
            heartbeat.tier_reasons[KVB_TIER_HOST],
            i < 3 ? KVB_REASON_NO_REMOVALS : KVB_REASON_NONE);
    }
}

static void a_state_of_a_later_version_leaves_the_older_one([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    struct kvb_heartbeat heartbeat = full();
    struct kvb_heartbeat got = { 0 };
    const uint8_t newer[] = { 0xd8, 0x02, 2 };

    heartbeat.speculative_drop = 1;
    heartbeat.state = KVB_STREAM_EXACT;
    encode_into(&heartbeat, &out);
    uint8_t *at = memmem(out.data, out.len, newer, sizeof newer);
    assert_non_null(at);
    at[2] = 99;
    assert_ok(kvb_heartbeat_decode(kvb_buf_span(&out), &got));
    assert_int_equal((int)got.state, KVB_STREAM_UNVERIFIED);
    assert_int_equal((int)got.reason, KVB_REASON_GROUPS);
}

/* Bytes behind the golden message. */
static void refuses_fields_that_cannot_be([[maybe_unused]] void **state)
{
    static const struct {
        uint8_t bytes[30];
        size_t len;
        const char *why;
    } rows[] = {
        { { 0xe2, 0x01, 2, '=', 'v' }, 5, "a label without a name" },
        { { 0xe2, 0x01, 1, 'n' }, 4, "a label without a value" },
        { { 0xe2, 0x01, 3, 'n', '=', 0xff }, 6, "a label that is no UTF-8" },
        { { 0xe2, 0x01, 4, ' ', 'n', '=', 'v' }, 7, "a label with no valid name" },
        { { 0xe2, 0x01, 3, 'n', '=', 'v', 0xe2, 0x01, 3, 'n', '=', 'v' }, 12, "a label twice" },
        { { 0x92, 0x03, 2, 0x0a, 0 }, 5, "an empty served name" },
        { { 0x92, 0x03, 3, 0x0a, 1, '\n' }, 6, "a control character" },
        { { 0x92, 0x03, 3, 0x12, 1, 0xff }, 6, "a served name that is no UTF-8" },
        { { 0x92, 0x03, 3, 0x12, 9, 'a' }, 6, "longer than its message" },
        { { 0x92, 0x03, 1, 0x0b }, 4, "a group" },
        { { 0x90, 0x03, 1 }, 3, "a number in place of served names" },
        { { 0x82, 0x03, 2, 8, 9 }, 5, "formats of newer versions alone" },
        { { 0xba, 0x02, 1, 9 }, 4, "a tier without a reason" },
        { { 0x82, 0x01, 1, 1, 0x8a, 0x01, 1, 9, 0x92, 0x01, 16, 4, [26] = 0 }, 27, "a tier twice" },
        { { 0x82, 0x01, 1, 1 }, 4, "a tier without its blocks" },
        { { 0xaa, 0x01, 1, 1 }, 4, "a shape without its size" },
        { { 0xaa, 0x01, 1, 1, 0xb2, 0x01, 1, 16 }, 8, "a shape without its lookahead" },
        { { 0x82, 0x01, 1, 1, 0x8a, 0x01, 1, 9 }, 8, "a tier without its digest" },
    };
    struct kvb_heartbeat heartbeat = { 0 };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        if (decode_with(rows[i].bytes, rows[i].len, &heartbeat) != KVB_BAD_INPUT) {
            fail_msg("%s", rows[i].why);
        }
    }
    assert_ok(decode_with(rows[4].bytes, 6, &heartbeat));
    assert_string_equal(kvb_labels_find(&heartbeat.facts.labels, "n"), "v");
}

static void served_names_have_limits([[maybe_unused]] void **state)
{
    struct kvb_heartbeat heartbeat = { 0 };
    uint8_t many[4 + 3 * (kvb_max_served_names + 1)] = { 0x92, 0x03, 0xc3, 1 }; /* 195 bytes */
    uint8_t longest[7 + kvb_served_name_bytes + 1] = { 0x92, 0x03, 0x84, 1, 0x0a, 0x81, 1 };

    for (size_t i = 0; i <= kvb_max_served_names; i++) {
        many[4 + 3 * i] = 0x0a;
        many[5 + 3 * i] = 1;
        many[6 + 3 * i] = (uint8_t)('0' + i);
    }
    assert_int_equal(decode_with(many, sizeof many, &heartbeat), KVB_BAD_INPUT);
    many[2] = 0xc0;
    assert_ok(decode_with(many, sizeof many - 3, &heartbeat)); /* as many as there may be */
    memset(longest + 7, 'n', kvb_served_name_bytes + 1);
    assert_int_equal(decode_with(longest, sizeof longest, &heartbeat), KVB_BAD_INPUT);
    longest[2]--;
    longest[5]--;
    assert_ok(decode_with(longest, sizeof longest - 1, &heartbeat));
}

static void refuses_a_place_that_is_none([[maybe_unused]] void **state)
{
    static const struct {
        uint8_t tag; /* the first of two bytes */
        uint8_t max;
    } texts[] = { { 0x82, 255 }, { 0x92, 253 }, { 0x9a, 63 }, { 0xa2, 253 } };
    struct kvb_heartbeat heartbeat = { 0 };
    uint8_t bytes[4 + 256];

    memset(bytes, 'a', sizeof bytes);
    for (size_t i = 0; i < KVB_COUNT_OF(texts); i++) {
        const size_t max = texts[i].max;
        bytes[0] = texts[i].tag;
        bytes[1] = 0x02;
        bytes[2] = (uint8_t)((max & 0x7fU) | 0x80U);
        bytes[3] = (uint8_t)(max >> 7U);
        assert_ok(decode_with(bytes, 4 + max, &heartbeat));
        bytes[2] = (uint8_t)(((max + 1) & 0x7fU) | 0x80U);
        bytes[3] = (uint8_t)((max + 1) >> 7U);
        assert_int_equal(decode_with(bytes, 5 + max, &heartbeat), KVB_BAD_INPUT);
        const uint8_t control[] = { texts[i].tag, 0x02, 1, '\n' };
        assert_int_equal(decode_with(control, sizeof control, &heartbeat), KVB_BAD_INPUT);
    }
}

static struct kvb_worker_facts long_facts(void)
{
    struct kvb_worker_facts facts = { 0 };
    char name[8];

    facts.is_draining = true;
    facts.role = KVB_ROLE_BOTH;
    facts.ready = KVB_READY_YES;
    memset(facts.address, 'a', kvb_worker_address_bytes);
    memcpy(facts.tokenize, "http://", 7);
    memset(facts.tokenize + 7, 't', kvb_worker_address_bytes - 7);
    memset(facts.pod, 'p', kvb_pod_name_bytes);
    memset(facts.pod_namespace, 's', kvb_pod_namespace_bytes);
    memset(facts.node, 'n', kvb_pod_name_bytes);
    for (int i = 0; i < kvb_max_labels; i++) {
        (void)snprintf(name, sizeof name, "name%d", i);
        assert_ok(kvb_labels_add(&facts.labels, name, "a value of 23 bytes, so", NULL));
    }
    return facts;
}

/* Field 38 contains the reason. Field 7, which old readers know, contains a value that they accept.
 */
static void a_newer_reason_stands_beside_one_that_old_readers_know([[maybe_unused]] void **state)
{
    static const struct {
        enum kvb_stream_reason reason;
        uint8_t older, newer; /* numbers in the proto file */
        enum kvb_stream_reason shown;
    } rows[] = { { KVB_REASON_ASLEEP, 16, 26, KVB_REASON_ENGINE_AWAY },
                 { KVB_REASON_OCCUPANCY, 22, 27, KVB_REASON_NO_BASE },
                 { KVB_REASON_SALTS, 22, 29, KVB_REASON_NO_BASE },
                 { KVB_REASON_AMBIGUOUS, 22, 30, KVB_REASON_NO_BASE },
                 { KVB_REASON_RESET, 22, 31, KVB_REASON_NO_BASE },
                 { KVB_REASON_NO_NUMBER, 22, 40, KVB_REASON_NO_BASE },
                 { KVB_REASON_OTHER_TOPIC, 22, 41, KVB_REASON_NO_BASE },
                 { KVB_REASON_CACHING_OFF, 22, 42, KVB_REASON_NO_BASE },
                 { KVB_REASON_NOT_FED, 22, 43, KVB_REASON_NO_BASE },
                 { KVB_REASON_SPECULATION, 22, 44, KVB_REASON_NO_BASE } };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_heartbeat heartbeat = full();
        struct kvb_heartbeat got = { 0 };
        heartbeat.reason = rows[i].reason;
        encode_into(&heartbeat, &out);
        assert_int_equal(out.data[reason_at], rows[i].older);
        const uint8_t newer[] = { 0xb0, 0x02, rows[i].newer };
        uint8_t *at = memmem(out.data, out.len, newer, sizeof newer);
        assert_non_null(at);
        at[2] = 99; /* reasons of a later version: the value for old readers is used */
        assert_ok(kvb_heartbeat_decode(kvb_buf_span(&out), &got));
        assert_int_equal((int)got.reason, (int)rows[i].shown);
    }
}

/* Old readers would promise the blocks that the engine drops: to them the list is not proven. */
static void only_readers_that_know_the_drop_may_claim_the_list([[maybe_unused]] void **state)
{
    for (int i = 0; i < KVB_STREAM_STATE_COUNT; i++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_heartbeat heartbeat = full();
        const bool claims = i == KVB_STREAM_EXACT || i == KVB_STREAM_PARTIAL;
        heartbeat.speculative_drop = 1;
        heartbeat.chunk_blocks = 4;
        heartbeat.state = (enum kvb_stream_state)i;
        heartbeat.reason = claims ? KVB_REASON_NONE : KVB_REASON_SILENT;
        assert_round_trip(&heartbeat);
        encode_into(&heartbeat, &out);
        assert_int_equal(out.data[state_at], claims ? 4 : i + 1);
        assert_int_equal(out.data[reason_at], claims ? 21 : 15);
    }
}

static struct kvb_heartbeat with_windows(void)
{
    struct kvb_heartbeat heartbeat = full();

    heartbeat.state = KVB_STREAM_EXACT;
    heartbeat.reason = KVB_REASON_NONE;
    heartbeat.window_tokens = 8192;
    heartbeat.is_without_full = true;
    heartbeat.window_count = 2;
    heartbeat.windows[0] = (struct kvb_window_rule){ .tokens = 64, .size = 2, .drop = 1 };
    heartbeat.windows[1] =
        (struct kvb_window_rule){ .tokens = 8192, .size = 1, .is_chunked = true };
    return heartbeat;
}

static void carries_the_rules_of_several_windows([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
    const struct kvb_heartbeat heartbeat = with_windows();
    static const uint8_t rules[] = {
        0xe2, 0x02, 9, 64, 0, 2, 1, 0x80, 0x40, 1, 1, 0, 0xe8, 0x02, 1
    };
    static const char want[] =
        "\"windows\":[{\"tokens\":64,\"chunked\":false,\"size\":2,\"drop\":1},"
        "{\"tokens\":8192,\"chunked\":true,\"size\":1,\"drop\":0}],\"without_full\":true,";

    assert_round_trip(&heartbeat);
    encode_into(&heartbeat, &out);
    assert_int_equal(out.data[state_at], 4); /* old readers know one window */
    assert_int_equal(out.data[reason_at], 21);
    assert_non_null(memmem(out.data, out.len, rules, sizeof rules));
    assert_non_null(strstr(json_of(&heartbeat), want));
}

static void refuses_windows_that_no_lookup_can_follow([[maybe_unused]] void **state)
{
    static const struct {
        size_t at; /* in the column, which begins with 64 0 2 1 */
        uint8_t byte;
    } rows[] = { { 0, 0 }, { 1, 2 }, { 2, 0 }, { 3, 65 }, { 3, 64 } };

    for (size_t i = 0; i < KVB_COUNT_OF(rows); i++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        const struct kvb_heartbeat heartbeat = with_windows();
        struct kvb_heartbeat got = { 0 };
        static const uint8_t head[] = { 0xe2, 0x02, 9 };
        encode_into(&heartbeat, &out);
        uint8_t *column = memmem(out.data, out.len, head, sizeof head);
        assert_non_null(column);
        column[sizeof head + rows[i].at] = rows[i].byte;
        assert_int_equal(
            kvb_heartbeat_decode(kvb_buf_span(&out), &got),
            rows[i].byte == 64 ? KVB_OK : KVB_BAD_INPUT);
    }
}

static void refuses_values_that_cannot_be([[maybe_unused]] void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *why;
    } breaks[] = {
        { state_at, 0, "a state that was not given" },
        { state_at, 7, "an unknown state" },
        { reason_at, 99, "an unknown reason" },
        { format_at, 0, "a format that was not given" },
        { format_at, 3, "an unknown format" },
        { hashes_at, 0, "hashes that were not given" },
        { hashes_at, 3, "unknown hashes" },
        { worker_top_at, 0x80, "worker_id above 2^63-1" },
        { model_at, 0xff, "a model that is no UTF-8" },
        { model_at, '\n', "a model with a line end" },
        { tier_at, 5, "an unknown tier" },
        { lookahead_at, 65, "more lookahead than any engine has" },
        { shape_tiers_at, 4, "a shape of the window list" },
        { shape_sizes_at, 0, "a block of no tokens" },
        { shape_lookaheads_at, 65, "a shape of more lookahead than any engine has" },
        { 1, 15, "an epoch of 15 bytes" },
    };
    struct kvb_heartbeat heartbeat = { 0 };
    uint8_t bytes[sizeof golden];

    for (size_t i = 0; i < KVB_COUNT_OF(breaks); i++) {
        memcpy(bytes, golden, sizeof golden);
        bytes[breaks[i].at] = breaks[i].value;
        if (kvb_heartbeat_decode((kvb_span){ bytes, sizeof bytes }, &heartbeat) != KVB_BAD_INPUT) {
            fail_msg("%s", breaks[i].why);
        }
        assert_int_equal(heartbeat.worker_id, 0); /* stays as it was */
    }
}

/* Of two model names the second counts. */
static void refuses_a_model_name_that_is_too_long([[maybe_unused]] void **state)
{
    uint8_t bytes[3 + kvb_model_bytes + 1] = { 0x52, 0x80, 1 }; /* 128 bytes */
    struct kvb_heartbeat heartbeat = { 0 };

    static_assert(kvb_model_bytes == 128, "the bytes above");
    memset(bytes + 3, 'm', kvb_model_bytes + 1);
    assert_ok(decode_with(bytes, sizeof bytes - 1, &heartbeat));
    assert_int_equal(strlen(heartbeat.model), kvb_model_bytes);
    bytes[1]++;
    assert_int_equal(decode_with(bytes, sizeof bytes, &heartbeat), KVB_BAD_INPUT);
}

static void survives_every_allocation_that_fails([[maybe_unused]] void **state)
{
    KVB_OWN(kvb_buf_done) struct kvb_buf bytes = { 0 };
    struct kvb_heartbeat long_one = full();
    kvb_status status = KVB_NO_MEMORY;
    long n = 0;

    long_one.facts = long_facts(); /* more than the decoder has room for without an allocation */
    encode_into(&long_one, &bytes);
    for (; status != KVB_OK; n++) {
        KVB_OWN(kvb_buf_done) struct kvb_buf out = { 0 };
        struct kvb_heartbeat heartbeat = { 0 };
        kvb_buf_init(&out, 4096);
        fail_alloc_after(n);
        status = kvb_heartbeat_decode(kvb_buf_span(&bytes), &heartbeat);
        if (status == KVB_OK) {
            status = kvb_heartbeat_encode(&heartbeat, &out);
        }
        fail_alloc_after(-1);
        assert_true(status == KVB_OK || (status == KVB_NO_MEMORY && out.len == 0));
        assert_true(n < 100);
    }
    assert_true(n > 2); /* the decoder's and the encoder's were made to fail */
}

SUITE(heartbeat)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_what_it_encoded),
        cmocka_unit_test(carries_every_state_reason_format_and_kind_of_hashes),
        cmocka_unit_test(writes_and_reads_the_numbers_of_the_contract),
        cmocka_unit_test(writes_every_field_as_json),
        cmocka_unit_test(json_names_only_what_is_known),
        cmocka_unit_test(values_of_newer_versions_do_no_harm),
        cmocka_unit_test(a_state_of_a_later_version_leaves_the_older_one),
        cmocka_unit_test(refuses_fields_that_cannot_be),
        cmocka_unit_test(served_names_have_limits),
        cmocka_unit_test(refuses_a_place_that_is_none),
        cmocka_unit_test(a_newer_reason_stands_beside_one_that_old_readers_know),
        cmocka_unit_test(only_readers_that_know_the_drop_may_claim_the_list),
        cmocka_unit_test(carries_the_rules_of_several_windows),
        cmocka_unit_test(refuses_windows_that_no_lookup_can_follow),
        cmocka_unit_test(refuses_values_that_cannot_be),
        cmocka_unit_test(refuses_a_model_name_that_is_too_long),
        cmocka_unit_test(survives_every_allocation_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
