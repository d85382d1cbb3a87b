#include "fleet/dialects/dialect.h"

#include "core/own.h"
#include "fleet/dialects/encode.h"
#include "kvb_test.h"
#include "wire/vector_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void encode_hex(const struct kvb_event_batch *batch, enum kvb_dialect dialect, char *out)
{
    struct kvb_buf bytes;

    kvb_buf_init(&bytes, 4096);
    assert_ok(kvb_engine_batch_encode(batch, dialect, &bytes));
    for (size_t i = 0; i < bytes.len; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", bytes.data[i]);
    }
    out[2 * bytes.len] = '\0';
    kvb_buf_done(&bytes);
}

/* Finds one event in the vectors, which were made by the engines' own encoders. */
struct wanted {
    enum kvb_dialect dialect;
    enum kvb_event_kind kind;
    enum kvb_tier tier;
    uint64_t hash;
    const char *vector;
};

/* clang-format off */
static const struct wanted wanted[] = {
    { KVB_DIALECT_VLLM_0_9, KVB_EVENT_REMOVED, KVB_TIER_DEVICE, 0x1122334455667788, "v090_removed" },
    { KVB_DIALECT_VLLM_0_9, KVB_EVENT_CLEARED, KVB_TIER_DEVICE, 0, "v090_cleared" },
    { KVB_DIALECT_VLLM_0_22, KVB_EVENT_CLEARED, KVB_TIER_DEVICE, 0, "v022_cleared_array" },
    { KVB_DIALECT_VLLM_0_22, KVB_EVENT_REMOVED, KVB_TIER_DEVICE, 11, "v022_removed_array" },
    { KVB_DIALECT_VLLM_0_31, KVB_EVENT_CLEARED, KVB_TIER_DEVICE, 0, "v031_cleared_map" },
    { KVB_DIALECT_VLLM_0_31, KVB_EVENT_REMOVED, KVB_TIER_DEVICE, 0x8000000000000001, "v031_removed_map" },
    { KVB_DIALECT_SGLANG_2025, KVB_EVENT_STORED, KVB_TIER_DEVICE, 0xeeddef0b82167eeb, "sgl_old_stored" },
    { KVB_DIALECT_SGLANG_MID, KVB_EVENT_STORED, KVB_TIER_DEVICE, 0xeeddef0b82167eeb, "sgl_mid_stored" },
    { KVB_DIALECT_SGLANG_MID, KVB_EVENT_REMOVED, KVB_TIER_HOST, UINT64_MAX, "sgl_mid_removed" },
    { KVB_DIALECT_SGLANG_MAP, KVB_EVENT_STORED, KVB_TIER_DEVICE, 0xeeddef0b82167eeb, "sgl_map_stored" },
    { KVB_DIALECT_TRTLLM, KVB_EVENT_SKIPPED, KVB_TIER_DEVICE, 0, "empty_batch_heartbeat" },
};
/* clang-format on */

static void the_bytes_equal_those_of_the_engines_own_encoders(void **state)
{
    (void)state;
    uint32_t tokens[] = { 1, 2, 3, 4 };
    char *vectors = read_text_file("vectors/engine-events.txt");

    for (size_t i = 0; i < KVB_COUNT_OF(wanted); i++) {
        char hex[512];
        char line[640];
        kvb_engine_hash hash = { wanted[i].hash };
        const bool is_stored = wanted[i].kind == KVB_EVENT_STORED;
        struct kvb_engine_event event = { .kind = wanted[i].kind,
                                          .tier = wanted[i].tier,
                                          .all_tiers = true,
                                          .has_group = true,
                                          .block_size = 4,
                                          .hash_count = 1,
                                          .token_count = is_stored ? 4 : 0 };
        const struct kvb_event_batch batch = { .timestamp_s = 1700000000.5,
                                               .has_rank = true,
                                               .events = &event,
                                               .hashes = &hash,
                                               .tokens = tokens,
                                               .event_count = 1 };
        encode_hex(&batch, wanted[i].dialect, hex);
        (void)snprintf(line, sizeof line, "%s|%zu|%s\n", wanted[i].vector, strlen(hex) / 2, hex);
        if (!strstr(vectors, line)) {
            fail_msg("not in the vectors: %s", line);
        }
    }
    free(vectors);
}

/* The object that a Mooncake store (form C) publishes for two blocks. */
static void objects_are_maps_with_both_kinds_of_hashes(void **state)
{
    (void)state;
    kvb_engine_hash hashes[] = { { UINT64_MAX - 1 }, { 42 } };
    struct kvb_engine_event event = { .kind = KVB_EVENT_STORED,
                                      .tier = KVB_TIER_HOST,
                                      .hash_count = 2 };
    const struct kvb_event_batch batch = {
        .timestamp_s = 1700000000.123, .events = &event, .hashes = hashes, .event_count = 1
    };
    char hex[2048];

    encode_hex(&batch, KVB_DIALECT_MOONCAKE_C, hex);
    assert_memory_equal(
        hex, "93cf0000018bcfe5687b92de0014",
        28); /* a time in ms; two maps of 20 keys, as in Mooncake */
    assert_non_null(strstr(
        hex, "a6"
             "6d656469756d"
             "a3"
             "637075")); /* medium: cpu */
    assert_non_null(strstr(
        hex, "aa"
             "7365715f686173686573"
             "91cffffffffffffffffe"));
    assert_non_null(strstr(
        hex, "ac"
             "626c6f636b5f686173686573"
             "91fe"));
    assert_non_null(strstr(
        hex, "aa"
             "7365715f686173686573"
             "912a"));
}

SUITE(dialect)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_equal_those_of_the_engines_own_encoders),
        cmocka_unit_test(objects_are_maps_with_both_kinds_of_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
