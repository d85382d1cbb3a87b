#include "fleet/dialects/dialect.h"

#include "model/tier.h"

#include <assert.h>
#include <string.h>

static const char *const vllm_media[KVB_TIER_COUNT] = {
    [KVB_TIER_DEVICE] = "GPU",
    [KVB_TIER_HOST] = "CPU",
    [KVB_TIER_DISK] = "DISK",
    [KVB_TIER_EXTERNAL] = "EXTERNAL",
};

static const char *const sglang_media[KVB_TIER_COUNT] = {
    [KVB_TIER_DEVICE] = "GPU",
    [KVB_TIER_HOST] = "CPU_PINNED",
    [KVB_TIER_DISK] = "DISK",
    [KVB_TIER_EXTERNAL] = "EXTERNAL",
};

/* A store has no device tier: its nearest tier is memory. */
static const char *const replica_media[KVB_TIER_COUNT] = {
    [KVB_TIER_DEVICE] = "memory",
    [KVB_TIER_HOST] = "memory",
    [KVB_TIER_DISK] = "disk",
    [KVB_TIER_EXTERNAL] = "local_disk",
};

static const char *const object_media[KVB_TIER_COUNT] = {
    [KVB_TIER_DEVICE] = "cpu",
    [KVB_TIER_HOST] = "cpu",
    [KVB_TIER_DISK] = "disk",
    [KVB_TIER_EXTERNAL] = "disk",
};

enum {
    to_medium = KVB_FIELD_TOKENS | KVB_FIELD_MEDIUM,
    to_group = to_medium | KVB_FIELD_LORA_NAME | KVB_FIELD_EXTRA_KEYS | KVB_FIELD_GROUP,
    trtllm_heartbeat_ms = 5000,
};

#define TOPIC(text)                                                                                \
    {                                                                                              \
        (const uint8_t *)(text), sizeof(text) - 1                                                  \
    }

/* SGLang's topic contains a NUL, which is an ordinary byte there. */
#define VLLM_TOPIC TOPIC("kv-events")
#define SGLANG_TOPIC TOPIC("kv-events\0sglang")

/* clang-format off */
static const struct kvb_dialect_row rows[KVB_DIALECT_COUNT] = {
    [KVB_DIALECT_VLLM_0_9] = {
        "vllm-0.9", KVB_EVENTS_ARRAYS, KVB_HASH_I64, KVB_FIELD_TOKENS, false, false,
        vllm_media, VLLM_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_VLLM_0_11] = {
        "vllm-0.11", KVB_EVENTS_ARRAYS, KVB_HASH_BYTES, to_medium, true, false,
        vllm_media, VLLM_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_VLLM_0_22] = {
        "vllm-0.22", KVB_EVENTS_ARRAYS, KVB_HASH_U64, to_group, true, false,
        vllm_media, VLLM_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_VLLM_0_31] = {
        "vllm-0.31", KVB_EVENTS_MAPS, KVB_HASH_U64, to_group | KVB_FIELD_CLEARED_MEDIUM | KVB_FIELD_LOOKAHEAD, true, false,
        vllm_media, VLLM_TOPIC, KVB_REPLAY_WITH_TOPIC, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_SGLANG_2025] = {
        "sglang-2025", KVB_EVENTS_ARRAYS, KVB_HASH_I64, KVB_FIELD_TOKENS, true, false,
        sglang_media, SGLANG_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, true, 0 },
    [KVB_DIALECT_SGLANG_MID] = {
        "sglang-mid", KVB_EVENTS_ARRAYS, KVB_HASH_I64, to_medium | KVB_FIELD_SALT_MAP, true, false,
        sglang_media, SGLANG_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, true, 0 },
    [KVB_DIALECT_SGLANG_MAP] = {
        "sglang-map", KVB_EVENTS_MAPS, KVB_HASH_I64, to_medium | KVB_FIELD_NAMESPACE, true, false,
        sglang_media, SGLANG_TOPIC, KVB_REPLAY_WITHOUT_TOPIC, KVB_SEQ_FROM_0, true, 0 },
    [KVB_DIALECT_TRTLLM] = {
        "trtllm", KVB_EVENTS_MAPS, KVB_HASH_U64, to_medium | KVB_FIELD_LORA_NAME | KVB_FIELD_MM_KEYS, true, false,
        vllm_media, VLLM_TOPIC, KVB_REPLAY_WITH_TOPIC, KVB_SEQ_FROM_CLOCK, true, trtllm_heartbeat_ms },
    [KVB_DIALECT_MOONCAKE_A] = {
        "mooncake-a", KVB_EVENTS_REPLICAS, KVB_HASH_TEXT, to_medium, false, false,
        replica_media, TOPIC("mooncake"), KVB_REPLAY_MOONCAKE, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_MOONCAKE_B] = {
        "mooncake-b", KVB_EVENTS_REPLICAS, KVB_HASH_TEXT, KVB_FIELD_MEDIUM, false, false,
        replica_media, TOPIC("mooncake"), KVB_REPLAY_MOONCAKE, KVB_SEQ_FROM_0, false, 0 },
    [KVB_DIALECT_MOONCAKE_C] = {
        "mooncake-c", KVB_EVENTS_OBJECTS, KVB_HASH_I64, KVB_FIELD_MEDIUM, true, true,
        object_media, TOPIC(""), KVB_REPLAY_NEVER, KVB_SEQ_FROM_1, false, 0 },
};
/* clang-format on */

const struct kvb_dialect_row *kvb_dialect_row_of(enum kvb_dialect dialect)
{
    assert((unsigned)dialect < KVB_DIALECT_COUNT);
    return &rows[dialect];
}

kvb_status kvb_dialect_find(const char *name, enum kvb_dialect *out_dialect)
{
    static const char family[] = "vllm-";

    for (int dialect = 0; dialect < KVB_DIALECT_COUNT; dialect++) {
        const char *own = rows[dialect].name;
        const bool is_vllm = strncmp(own, family, strlen(family)) == 0;
        if (strcmp(name, own) == 0 || (is_vllm && strcmp(name, own + strlen(family)) == 0)) {
            *out_dialect = (enum kvb_dialect)dialect;
            return KVB_OK;
        }
    }
    return KVB_NOT_FOUND;
}
